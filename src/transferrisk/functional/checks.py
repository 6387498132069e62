"""What is wrong with a batch, in one line that names the value, the cause and the way out.

Each of these reads values from the device; a captured step skips them, and nan takes their place.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import InputError

_MOST_COUNTED = 10_000  # classes beyond this are not counted from labels: those are ids of something else


def check_ridge(ridge: float) -> None:
    if not (math.isfinite(ridge) and ridge > 0):
        raise InputError(
            f"ridge={ridge} is not positive: without a ridge the optimal predictor need not exist (separable classes) "
            "nor be unique; use a small one such as 1e-3"
        )


def check_shapes(features: Tensor, labels: Tensor, environments: Tensor) -> None:
    if features.dim() != 2 or labels.shape != features.shape[:1] or environments.shape != features.shape[:1]:
        raise InputError(
            f"features {tuple(features.shape)}, labels {tuple(labels.shape)} and environments "
            f"{tuple(environments.shape)} do not go together: give (n, d), (n,) and (n,)"
        )
    for name, tensor in (("labels", labels), ("environments", environments)):
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
            raise InputError(f"{name} of type {tensor.dtype} are not integers: number them, or convert with .long()")
    if not len(features):
        raise InputError("the batch is empty: give at least one sample from each of two environments")
    for name, tensor in (("labels", labels), ("environments", environments)):
        if tensor.device != features.device:
            raise InputError(f"features are on {features.device} and {name} on {tensor.device}: move them together")


def check_labels(labels: Tensor, num_classes: int | None) -> int:
    """The number of classes, counted when it is not given."""
    smallest, largest = int(labels.min()), int(labels.max())
    if smallest < 0:
        raise InputError(f"label {smallest} is negative: labels must be 0..num_classes-1")
    if num_classes is None:
        if largest >= _MOST_COUNTED:
            raise InputError(
                f"label {largest} would make {largest + 1} classes: number them 0..num_classes-1, or give num_classes="
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
