"""One file for each data set; importing this registers them all."""

from . import cmnist, digits, gaussian, scenecoco

__all__ = ["cmnist", "digits", "gaussian", "scenecoco"]
