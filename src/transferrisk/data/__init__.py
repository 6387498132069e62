"""Samples with a label and an environment, and where they come from."""

from .environments import EnvironmentSet, Splits, TestDomainValidation, TrainingDomainValidation
from .loaders import BalancedSampler

__all__ = ["BalancedSampler", "EnvironmentSet", "Splits", "TestDomainValidation", "TrainingDomainValidation"]
