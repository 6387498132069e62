"""Samples with a label and an environment, and where they come from.

    catalogue     data sets by name, and the options they take; `facts` are what a set declares about itself
    environments  a set of samples, and the samples of each batch
    splits        the samples to train on, to validate with and to test on
    sets          one file for each data set

A table of the user's own passes these modules, in this order:

    table_files   reads a CSV, TSV or Parquet file
    sets.tables   finds the columns of label, environment and features, and the rows that can be used
    infer         decides what each column is, from its values or as its owner declares
    schema        encodes rows as features
"""

from .catalogue import DataSet, Options, available, load_data, load_splits, register
from .environments import BalancedSampler, EnvironmentSet, WholeSampler, filled
from .facts import Facts, RemoteFile
from .shifts import Shift
from .splits import SPLITS, Splits, TestDomainValidation, TrainingDomainValidation, leave_out

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
