"""Scikit-learn classifiers for rows of several environments, and cross-validation over environments."""

from .baselines import LinearClassifier, MajorityClassifier
from .boosting import BoostingClassifier, LeafTransferClassifier
from .classifier import TransferRiskClassifier
from .splitter import LeaveOneEnvironmentOut

__all__ = [
    "BoostingClassifier",
    "LeafTransferClassifier",
    "LeaveOneEnvironmentOut",
    "LinearClassifier",
    "MajorityClassifier",
    "TransferRiskClassifier",
]
