"""Rows of a batch, gathered by environment into one padded tensor.

All environments are then handled by the same few matrix products, whatever their sizes. Padding has
weight zero and all-zero features, the constant column included, so it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .linear_loss import one_hot, with_bias


@dataclass(frozen=True)
class Grouped:
    """E environments of up to N samples each; `linear_loss` explains rows, targets and weights."""

    rows: Tensor  # (E, N, D)
    targets: Tensor  # (E, N, C)
    weights: Tensor  # (E, N) 1/n_e, 0 for padding
    counts: Tensor  # (E,) samples of each environment
    slots: Tensor  # (n,) where each sample went in the flattened (E N)

    @property
    def present(self) -> Tensor:
        """(E,) bool: the environment has samples in this batch."""
        return self.counts > 0

    def ungroup(self, values: Tensor) -> Tensor:
        """(E, N, ...) back to the order of the batch, (n, ...)."""
        return values.flatten(0, 1).index_select(0, self.slots)


def group(
    features: Tensor,
    labels: Tensor,
    index: Tensor,
    num_environments: int,
    num_classes: int,
    capacity: int | None = None,
) -> Grouped:
    """features (n, d), labels (n,), index (n,) in 0..E-1.

    `capacity` is N. Without it N is the largest count, which must be read from the device; with it nothing
    is read. What cannot be placed rightly must not go unnoticed: the samples of an environment that does not
    fit, and samples whose label or index is out of range, get the weight nan.
    """
    n = len(features)
    wrong = (labels < 0) | (labels >= num_classes) | (index < 0) | (index >= num_environments)
    index = index.clamp(0, num_environments - 1)
    counts = (index.unsqueeze(-1) == torch.arange(num_environments, device=index.device)).sum(0)  # (E,)
    size = capacity if capacity is not None else max(int(counts.max()), 1)
    order = torch.argsort(index, stable=True)
    first = counts.cumsum(0) - counts  # (E,) where each environment starts in the sorted order
    ranks = torch.empty_like(order).scatter_(0, order, torch.arange(n, device=index.device)) - first[index]
    slots = index * size + ranks.clamp(max=size - 1)

    def place(values: Tensor) -> Tensor:
        padded = values.new_zeros(num_environments * size, values.shape[-1])
        return padded.index_copy(0, slots, values).reshape(num_environments, size, -1)

    share = torch.where(counts > size, torch.nan, 1 / counts.clamp(min=1).to(features.dtype))[index]
    share = torch.where(wrong, torch.nan, share)
    return Grouped(
        rows=place(with_bias(features)),
        targets=place(one_hot(labels, num_classes, features.dtype)),
        weights=place(share.unsqueeze(-1)).squeeze(-1),
        counts=counts,
        slots=slots,
    )
