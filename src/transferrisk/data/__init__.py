"""Samples with a label and an environment, and where they come from."""

from .catalogue import DataSet, Facts, Options, RemoteFile, available, load_data, load_splits, register
from .environments import SPLITS, EnvironmentSet, Splits, TestDomainValidation, TrainingDomainValidation
from .shifts import Shift
from .splits import BalancedSampler, WholeSampler, filled, leave_out

__all__ = [
    "SPLITS",
    "BalancedSampler",
    "DataSet",
    "EnvironmentSet",
    "Facts",
    "Options",
    "RemoteFile",
    "Shift",
    "Splits",
    "TestDomainValidation",
    "TrainingDomainValidation",
    "WholeSampler",
    "available",
    "filled",
    "leave_out",
    "load_data",
    "load_splits",
    "register",
]
