"""One file for each data set; importing this registers them all."""

from . import (
    celeba,
    cmnist,
    digits,
    embeddings,
    folder,
    gaussian,
    manifest,
    office_home,
    pacs,
    scenecoco,
    tables,
    wilds,
)

__all__ = [
    "celeba",
    "cmnist",
    "digits",
    "embeddings",
    "folder",
    "gaussian",
    "manifest",
    "office_home",
    "pacs",
    "scenecoco",
    "tables",
    "wilds",
]
