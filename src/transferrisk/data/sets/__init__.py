"""One file for each data set; importing this registers them all."""

from . import cmnist, digits, embeddings, gaussian, tables

__all__ = ["cmnist", "digits", "embeddings", "gaussian", "tables"]
