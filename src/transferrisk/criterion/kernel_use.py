"""Where the fused kernels take the place of the plain computation."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

from ..errors import InputError
from ..functional import fused


def uses_kernels(asked: bool | None, features: Tensor, capacity: int, num_classes: int, default_solvers: bool) -> bool:
    """Whether the kernels take a captured batch: `asked` is None where they can, True or an error, False never.

    They stand for the default solvers; others that were asked for are used.
    """
    can = (
        default_solvers
        and features.is_cuda
        and features.dtype != torch.float64
        and find_spec("triton") is not None
        and fused.fits(capacity, num_classes)
    )
    if asked and not can:
        raise InputError(
            f"fused=True does not go with {capacity} samples an environment, {num_classes} classes and "
            f"features of type {features.dtype} on {features.device}: it needs CUDA, Triton, float32 or less, at "
            f"most {fused.LARGEST_SIDE} samples, the default solvers and no sample_weights"
        )
    return can and asked is not False
