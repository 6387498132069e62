"""Samples with a label and an environment, and where they come from."""

from .catalogue import DataSet, Facts, Options, RemoteFile, available, load_data, load_splits, register
from .environments import (
    SPLITS,
    BalancedSampler,
    EnvironmentSet,
    Splits,
    TestDomainValidation,
    TrainingDomainValidation,
    WholeSampler,
    filled,
    leave_out,
)
from .shifts import Shift

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
