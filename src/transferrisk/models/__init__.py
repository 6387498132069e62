"""Networks: a featuriser and a linear head on top of it."""

from .head import Classifier
from .small_cnn import SmallCNN

__all__ = ["Classifier", "SmallCNN"]
