"""Networks: a featuriser and a linear head on top of it."""

from .backbones import backbone_at_hand
from .classifier import Classifier, Featuriser, Normalise, OnFrozen, freeze_batch_norm, on_frozen
from .networks import MLP, Linear, SmallCNN, WideResNet
from .registry import available, build_model, is_registered, register

__all__ = [
    "MLP",
    "Classifier",
    "Featuriser",
    "Linear",
    "Normalise",
    "OnFrozen",
    "SmallCNN",
    "WideResNet",
    "available",
    "backbone_at_hand",
    "build_model",
    "freeze_batch_norm",
    "is_registered",
    "on_frozen",
    "register",
]
