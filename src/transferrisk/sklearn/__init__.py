"""The algorithms as a scikit-learn classifier for tables, and cross-validation over environments."""

from .baselines import BoostingClassifier, LinearClassifier, MajorityClassifier
from .classifier import TransferRiskClassifier
from .splitter import LeaveOneEnvironmentOut

__all__ = [
    "BoostingClassifier",
    "LeaveOneEnvironmentOut",
    "LinearClassifier",
    "MajorityClassifier",
    "TransferRiskClassifier",
]
