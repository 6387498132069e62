"""One file for each data set; importing this registers them all."""

from . import celeba, cmnist, digits, folder, gaussian, office_home, pacs, scenecoco, wilds

__all__ = ["celeba", "cmnist", "digits", "folder", "gaussian", "office_home", "pacs", "scenecoco", "wilds"]
