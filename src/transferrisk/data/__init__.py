"""Samples with a label and an environment, and where they come from."""

from .catalogue import DataSet, available, load, load_splits, register
from .environments import SPLITS, EnvironmentSet, Splits, TestDomainValidation, TrainingDomainValidation
from .facts import Facts
from .loaders import BalancedSampler, WholeSampler, filled
from .options import Options
from .shifts import Shift
from .splits import leave_out

__all__ = [
    "SPLITS",
    "BalancedSampler",
    "DataSet",
    "EnvironmentSet",
    "Facts",
    "Options",
    "Shift",
    "Splits",
    "TestDomainValidation",
    "TrainingDomainValidation",
    "WholeSampler",
    "available",
    "filled",
    "leave_out",
    "load",
    "load_splits",
    "register",
]
