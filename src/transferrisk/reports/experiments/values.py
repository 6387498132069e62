"""What can be shown of a training, and how it follows from the rows of an evaluation."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Over = Literal["mean", "min", "samples"]


@dataclass(frozen=True)
class Value:
    """
    part    of the data, whose rows it is taken from
    over    how its environments are joined; samples: the mean, an environment weighing as much as it has of them
    factor  to what is printed: 100 for percent
    span    an axis covers at least so much
    most    what it can be
    column  of the rows; "" is the value's own name
    less    is better
    """

    label: str
    part: str
    over: Over = "mean"
    factor: float = 1.0
    digits: int = 3
    span: float = 0.0
    most: float = math.inf
    column: str = ""
    less: bool = False


VALUES = {
    "accuracy": Value("accuracy, %", "test", factor=100.0, digits=1, span=10.0, most=100.0),
    "sample_accuracy": Value(
        "accuracy over all samples, %", "test", "samples", 100.0, digits=1, span=10.0, most=100.0, column="accuracy"
    ),
    "worst_group": Value("worst-group accuracy, %", "test", "min", 100.0, digits=1, span=10.0, most=100.0),
    "loss": Value("loss", "test", less=True),
    "irm": Value("IRMv1 penalty", "training_domain", digits=4, less=True),
    "irm_loss": Value("IRMv1 loss", "training_domain", less=True),
    "transfer_risk": Value("transfer risk", "training_domain", less=True),
}

LABELS = {
    "bias": "bias degree",
    "irm": "IRMv1 penalty",
    "ms": "ms a step",
    "ratio": "times ERM's",
    "seconds_per_epoch": "seconds an epoch",
    "peak_mib": "peak memory, MiB",
    "irm_loss": "IRMv1 loss",
    "transfer_risk_sum": "transfer risk",
    "transfer_bound": "lower bound",
    "erm_accuracy": "ERM's accuracy",
    "loss_of_j_on_i": "loss of j's in i",
}

SHARES = frozenset({"bias", "first_bias"})
"""Axes whose values are printed as percent."""


def text(value: Any) -> str:
    """A value of an axis as `published` names it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def shown(name: str, value: Any) -> str:
    """A value of this axis as it is printed."""
    return f"{100 * value:g} %" if name in SHARES and isinstance(value, int | float) else text(value)


def named(name: str, value: Any) -> str:
    """The same where nothing else says what it is: a number with the name of its axis, a word alone."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
    return f"{label(name)} {shown(name, value)}" if is_number else text(value)


def label(name: str) -> str:
    """What a column is called on an axis or over a table, where its numbers are as they are."""
    return LABELS.get(name, name.replace("_", " "))
