"""Checks of tensors and of a batch; an error names the value, the cause and the way out in one line.

`check_labels`, `check_environments` and `check_finite` read values from the device. Captured steps skip them, and give
nan for a bad batch.
"""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, LabelWarning, warn
from ..settings import Count, convert

_MOST_COUNTED = 10_000  # classes; labels beyond this are ids of something else, and are not counted


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type to compute in: that of the features, or float32 for half precisions, as autocast gives them."""
    if dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise InputError(f"features must be floating point of 16 bits or more, got {dtype}: convert them with .float()")
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def check_count(name: str, value: Any) -> int:
    """Return an integer >= 1, given as one of Python, NumPy or torch."""
    with suppress(TypeError):
        value = value if isinstance(value, bool) else operator.index(value)
    count: int = convert(name, value, Count)
    return count


def check_tensors(**named: object) -> None:
    """Refuse a value that is not a tensor, or not on the device of the first one."""
    device = None
    for name, value in named.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            if kind == "ndarray" and getattr(value, "dtype", np.dtype(float)).kind not in "biufc":
                way_out = "number them by numpy.unique(..., return_inverse=True)[1], and convert with torch.from_numpy"
            elif kind == "ndarray":
                way_out = "convert with torch.from_numpy"
            elif isinstance(value, list | tuple) or hasattr(value, "__array__"):
                way_out = "convert with torch.tensor"
            else:
                way_out = "give a tensor"
            raise InputError(f"{name} must be a torch.Tensor, got {kind}: {way_out}")
        device = device or value.device
        if value.device != device:
            raise InputError(f"{name} must be on {device}, as {next(iter(named))} are, got {value.device}: move them")


def check_start(start: Tensor, features: Tensor, num_classes: int, batch: int = 1) -> None:
    """Refuse a start that is not of shape (C, d + 1), or (batch, C, d + 1)."""
    check_tensors(features=features, start=start)
    expected = (num_classes, features.shape[-1] + 1)
    if start.shape[-2:] != expected or start.shape[:-2] not in ((), (1,), (batch,)):
        raise InputError(f"start must have the shape {expected} of a predictor, got {tuple(start.shape)}")


def integers(name: str, values: Tensor) -> Tensor:
    """Return integers of any type as int64, by which torch indexes."""
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise InputError(f"{name} must be integers, got {values.dtype}: number them, or convert with .long()")
    return values.long()


def check_shapes(
    features: Tensor, labels: Tensor, environments: Tensor, name: str = "environments"
) -> tuple[Tensor, Tensor]:
    """Check features (n, d), labels (n,) and environments (n,) on one device; return the latter two as int64."""
    check_tensors(**{"features": features, "labels": labels, name: environments})
    if features.dim() != 2 or labels.shape != features.shape[:1] or environments.shape != features.shape[:1]:
        raise InputError(
            f"features, labels and {name} must have the shapes (n, d), (n,) and (n,), got "
            f"{tuple(features.shape)}, {tuple(labels.shape)} and {tuple(environments.shape)}"
        )
    working_dtype(features.dtype)
    if not len(features):
        raise InputError("features must hold a sample of each of two environments, got an empty batch")
    return integers("labels", labels), integers(name, environments)


def check_sample_weights(sample_weights: Tensor, features: Tensor) -> None:
    """Refuse weights that are not n floats >= 0, or all 0; their values are read on a CPU only."""
    check_tensors(features=features, sample_weights=sample_weights)
    if sample_weights.shape != features.shape[:1] or not sample_weights.is_floating_point():
        raise InputError(
            f"sample_weights must be one float for each sample, ({len(features)},), got {sample_weights.dtype} of "
            f"shape {tuple(sample_weights.shape)}"
        )
    if sample_weights.device.type == "cpu":
        if not bool((sample_weights >= 0).all() & sample_weights.isfinite().all()):
            raise InputError("sample_weights must be finite numbers >= 0, got a negative one, nan or infinity")
        if not bool(sample_weights.any()):
            raise InputError("sample_weights must be above 0 for some sample, got 0 for all")


def check_problem(features: Tensor, labels: Tensor, sample_weight: Tensor | None, values: bool) -> Tensor:
    """Check features (n, d) and labels (n,), or (B, n, d) and (B, n), and their weights; return the labels as int64.

    With `values`, features must be finite where their weight is not 0, and weights >= 0 and not all 0.
    """
    check_tensors(features=features, labels=labels)
    if features.dim() not in (2, 3) or labels.shape != features.shape[:-1] or not labels.numel():
        raise InputError(
            "features and labels must have the shapes (n, d) and (n,), or (B, n, d) and (B, n), with a sample or more, "
            f"got {tuple(features.shape)} and {tuple(labels.shape)}"
        )
    working_dtype(features.dtype)
    if sample_weight is not None:
        check_tensors(features=features, sample_weight=sample_weight)
        if sample_weight.shape != labels.shape:
            raise InputError(
                f"sample_weight must have the shape {tuple(labels.shape)} of the labels, got "
                f"{tuple(sample_weight.shape)}"
            )
        if values and not bool(((sample_weight >= 0) & sample_weight.isfinite()).all()):
            raise InputError("sample_weight must be finite numbers >= 0, got a negative one, nan or infinity")
        if values and not bool((sample_weight.sum(-1) > 0).all()):
            raise InputError("sample_weight must be above 0 somewhere in every environment, got 0 everywhere in one")
    if values:
        counted = features if sample_weight is None else torch.where(sample_weight.unsqueeze(-1) > 0, features, 0)
        check_finite(counted)
    return integers("labels", labels)


def check_labels(labels: Tensor, num_classes: int | None) -> int:
    """Return the number of classes, counted if it is not given.

    Labels 1..K would be counted as K + 1 classes, of which class 0 is empty: a LabelWarning tells.
    """
    smallest, largest = int(labels.min()), int(labels.max())
    if smallest < 0:
        raise InputError(f"labels must be 0..num_classes-1, got {smallest}: number classes from 0")
    if num_classes is None:
        if largest >= _MOST_COUNTED:
            raise InputError(
                f"labels must be 0..num_classes-1, got {largest} without num_classes: number them, or give num_classes="
            )
        if smallest == 1 and largest > 1 and len(labels.unique()) == largest:
            warn(
                f"labels are 1..{largest} without num_classes, so that class 0 has no samples: subtract 1 from the "
                "labels, or give num_classes= if this batch alone lacks class 0",
                LabelWarning,
            )
        return largest + 1
    if largest >= num_classes:
        raise InputError(
            f"labels must be below num_classes={num_classes}, as given or counted in the first batch, got {largest}: "
            "give num_classes= if the first batch lacked some"
        )
    return num_classes


def check_finite(features: Tensor, environments: Tensor | None = None) -> None:
    """Refuse features with nan or infinity, and name the environments of these samples."""
    bad = ~torch.isfinite(features).all(-1)
    if bool(bad.any()):
        where = ""
        if environments is not None:
            where = ", in environment " + ", ".join(str(int(i)) for i in environments[bad].unique()[:5])
        raise InputError(
            f"features must be finite, got nan or infinity in {int(bad.sum())} of {bad.numel()} rows{where}: the "
            "representation has diverged (lower the learning rate) or the input was not finite"
        )


def check_environments(environments: Tensor) -> Tensor:
    """Return the ids that are present, sorted; at least two."""
    present: Tensor = environments.unique()
    if len(present) < 2:
        raise InputError(
            f"environments must be two or more in a batch, got id {int(present[0])} alone: draw every batch from "
            "several environments"
        )
    return present
