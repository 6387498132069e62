"""Networks: a featuriser and a linear head on top of it."""

from .backbones import at_hand
from .featuriser import Featuriser, Normalise, freeze_batch_norm
from .frozen import OnFrozen, on_frozen
from .head import Classifier
from .registry import available, build, is_registered, register
from .small_cnn import SmallCNN
from .vectors import MLP, Linear, Standardise
from .wide_resnet import WideResNet

__all__ = [
    "MLP",
    "Classifier",
    "Featuriser",
    "Linear",
    "Normalise",
    "OnFrozen",
    "SmallCNN",
    "Standardise",
    "WideResNet",
    "at_hand",
    "available",
    "build",
    "freeze_batch_norm",
    "is_registered",
    "on_frozen",
    "register",
]
