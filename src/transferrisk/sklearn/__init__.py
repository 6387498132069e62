"""The algorithms as a scikit-learn classifier for tables, and cross-validation over environments."""

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
