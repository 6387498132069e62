"""The algorithms as a scikit-learn classifier, for tables."""

from .classifier import TransferRiskClassifier

__all__ = ["TransferRiskClassifier"]
