"""The algorithms as a scikit-learn classifier for tables, and cross-validation over environments."""

from .classifier import TransferRiskClassifier
from .splitter import LeaveOneEnvironmentOut

__all__ = ["LeaveOneEnvironmentOut", "TransferRiskClassifier"]
