"""Networks: a featuriser and a linear head on top of it."""

from .backbones import backbone_at_hand
from .classifier import (
    Classifier,
    Featuriser,
    Normalise,
    OnFrozen,
    evaluation_mode,
    features_of,
    freeze_batch_norm,
)
from .hub import from_hub, push_to_hub
from .networks import SmallCNN, WideResNet, available, build_model, is_registered, register
from .saved import SavedModel, load_model_folder, save_model

__all__ = [
    "Classifier",
    "Featuriser",
    "Normalise",
    "OnFrozen",
    "SavedModel",
    "SmallCNN",
    "WideResNet",
    "available",
    "backbone_at_hand",
    "build_model",
    "evaluation_mode",
    "features_of",
    "freeze_batch_norm",
    "from_hub",
    "is_registered",
    "load_model_folder",
    "push_to_hub",
    "register",
    "save_model",
]
