"""What is wrong with arguments or a batch, in one line that names the value, the cause and the way out.

`check_labels`, `check_environments` and `check_finite` read values from the device: a captured step skips them, and nan
takes their place.
"""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError, LabelWarning, warn
from .precision import working_dtype

_MOST_COUNTED = 10_000  # classes beyond this are not counted from labels: those are ids of something else


def check_tensors(**named: object) -> None:
    for name, value in named.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            if kind == "ndarray":
                way_out = "convert with torch.from_numpy"
            elif isinstance(value, list | tuple) or hasattr(value, "__array__"):
                way_out = "convert with torch.tensor"
            else:
                way_out = "give a tensor"
            raise InputError(f"{name} must be a torch.Tensor, not {kind}: {way_out}")


def check_number(name: str, value: object) -> float:
    """A real number, of Python or NumPy; nan and infinity are for the caller to judge."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise InputError(f"{name} has too many digits for a float: give a smaller number") from None
    raise InputError(f"{name}={value!r} is not a number: give a float")


def check_from_zero(name: str, value: object, above: bool = False) -> float:
    """A finite number from 0 up, or `above` it."""
    number = check_number(name, value)
    if math.isfinite(number) and (number > 0 if above else number >= 0):
        return number
    raise InputError(f"{name}={value} is not a {'positive number' if above else 'number from 0 up'}: give a finite one")


def check_count(name: str, value: object) -> int:
    """An integer, of Python, NumPy or torch, from 1 up."""
    count = as_integer(value)
    if count is None or count < 1:
        raise InputError(f"{name}={value!r} is not a count: give an integer from 1 up")
    return count


def as_integer(value: Any) -> int | None:
    """None where it is not one; a bool and a float with a whole value are not."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def check_solver(name: str, solver: object, method: str, known: str = "") -> None:
    """`known` says which names may be given instead of a solver."""
    if isinstance(solver, type) and hasattr(solver, method):
        raise InputError(f"{name}={solver.__name__} is a class: give a solver, {solver.__name__}()")
    if not hasattr(solver, method):
        raise InputError(f"{name}={solver!r} is not a solver: use {known}one of transferrisk.solvers")


def check_start(start: Tensor, features: Tensor, num_classes: int, batch: int = 1) -> None:
    """(C, d + 1), or one for each problem of a batch."""
    check_tensors(start=start)
    expected = (num_classes, features.shape[-1] + 1)
    if start.shape[-2:] != expected or start.shape[:-2] not in ((), (1,), (batch,)):
        raise InputError(f"start of shape {tuple(start.shape)} is no predictor: {expected} is")
    if start.device != features.device:
        raise InputError(f"features are on {features.device} and start on {start.device}: move them together")


def check_ridge(ridge: float) -> None:
    check_number("ridge", ridge)
    if not (math.isfinite(ridge) and ridge > 0):
        raise InputError(
            f"ridge={ridge} is not positive: without a ridge the optimal predictor need not exist (separable classes) "
            "nor be unique; use a small one such as 1e-3"
        )


def check_shapes(features: Tensor, labels: Tensor, environments: Tensor) -> None:
    check_tensors(features=features, labels=labels, environments=environments)
    if features.dim() != 2 or labels.shape != features.shape[:1] or environments.shape != features.shape[:1]:
        raise InputError(
            f"features {tuple(features.shape)}, labels {tuple(labels.shape)} and environments "
            f"{tuple(environments.shape)} do not go together: give (n, d), (n,) and (n,)"
        )
    working_dtype(features.dtype)
    for name, tensor in (("labels", labels), ("environments", environments)):
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            raise InputError(f"{name} of type {tensor.dtype} are not integers: number them, or convert with .long()")
    if not len(features):
        raise InputError("the batch is empty: give at least one sample from each of two environments")
    for name, tensor in (("labels", labels), ("environments", environments)):
        if tensor.device != features.device:
            raise InputError(f"features are on {features.device} and {name} on {tensor.device}: move them together")


def check_sample_weights(sample_weights: Tensor, features: Tensor) -> None:
    """(n,) floats beside the features; their values are read on the CPU only."""
    check_tensors(sample_weights=sample_weights)
    if sample_weights.shape != features.shape[:1] or not sample_weights.is_floating_point():
        raise InputError(
            f"sample_weights of shape {tuple(sample_weights.shape)} and type {sample_weights.dtype} are not one float "
            f"a sample: give ({len(features)},)"
        )
    if sample_weights.device != features.device:
        raise InputError(
            f"features are on {features.device} and sample_weights on {sample_weights.device}: move them together"
        )
    if sample_weights.device.type == "cpu" and not bool((sample_weights >= 0).all() & sample_weights.isfinite().all()):
        raise InputError("sample_weights hold a negative number, nan or infinity: give numbers from 0 up")


def check_labels(labels: Tensor, num_classes: int | None) -> int:
    """The number of classes, counted when it is not given.

    Counted labels that are 1..K would silently make an empty class 0, so that is warned of. A batch that only by chance
    lacks class 0 as a rule lacks others too, or has few classes and many samples.
    """
    smallest, largest = int(labels.min()), int(labels.max())
    if smallest < 0:
        raise InputError(f"label {smallest} is negative: labels must be 0..num_classes-1")
    if num_classes is None:
        if largest >= _MOST_COUNTED:
            raise InputError(
                f"label {largest} would make {largest + 1} classes: number them 0..num_classes-1, or give num_classes="
            )
        if smallest == 1 and largest > 1 and len(labels.unique()) == largest:
            warn(
                f"labels are 1..{largest} and num_classes was not given, so that there is a class 0 without samples: "
                "subtract 1 from the labels, or give num_classes= if class 0 is only missing here",
                LabelWarning,
            )
        return largest + 1
    if largest >= num_classes:
        raise InputError(
            f"label {largest} is not below num_classes={num_classes}, which was given or counted in the first batch: "
            "labels must be 0..num_classes-1; give num_classes= if the first batch lacked some"
        )
    return num_classes


def check_finite(features: Tensor, environments: Tensor | None = None) -> None:
    bad = ~torch.isfinite(features).all(-1)
    if bool(bad.any()):
        where = ""
        if environments is not None:
            where = ", in environment " + ", ".join(str(int(i)) for i in environments[bad].unique()[:5])
        raise InputError(
            f"{int(bad.sum())} of {bad.numel()} feature rows hold nan or infinity{where}: "
            "the representation has diverged (lower the learning rate) or the input was not finite"
        )


def check_environments(environments: Tensor) -> Tensor:
    """The ids present, sorted; at least two."""
    present: Tensor = environments.unique()
    if len(present) < 2:
        raise InputError(
            f"the batch holds one environment only (id {int(present[0])}): transfer needs at least two; "
            "draw every batch from several environments"
        )
    return present
