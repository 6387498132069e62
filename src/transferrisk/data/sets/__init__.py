"""One file for each data set; importing this registers them all."""

from . import cmnist, digits, gaussian

__all__ = ["cmnist", "digits", "gaussian"]
