"""One file for each data set; importing this registers them all."""

from . import (
    celeba,
    cmnist,
    digits,
    folder,
    gaussian,
    manifest,
    npz,
    office_home,
    pacs,
    parquet,
    scenecoco,
    tables,
    wilds,
)

__all__ = [
    "celeba",
    "cmnist",
    "digits",
    "folder",
    "gaussian",
    "manifest",
    "npz",
    "office_home",
    "pacs",
    "parquet",
    "scenecoco",
    "tables",
    "wilds",
]
