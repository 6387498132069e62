"""One file for each data set, or for a few of one kind; importing this registers them all."""

from . import celeba, embeddings, gaussian, own_images, published, scenecoco, tables, ten_colours, wilds

__all__ = [
    "celeba",
    "embeddings",
    "gaussian",
    "own_images",
    "published",
    "scenecoco",
    "tables",
    "ten_colours",
    "wilds",
]
