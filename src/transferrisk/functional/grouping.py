"""Rows of a batch, gathered by environment into one padded tensor.

All environments are then handled by the same few matrix products, whatever their sizes. Padding has
weight zero and all-zero features, the constant column included, so it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .linear_loss import one_hot, with_bias


@dataclass(frozen=True)
class Grouped:
    """E environments of up to N samples each; `linear_loss` explains rows, targets and weights."""

    rows: Tensor  # (E, N, D)
    labels: Tensor  # (E, N), -1 for padding
    weights: Tensor  # (E, N) each sample's share of its environment, 1/n_e unless weighted; 0 for padding
    counts: Tensor | None  # (E,) samples of each environment; None: see `samples`
    num_classes: int
    slots: Tensor | None  # (n,) where each sample went in the flattened (E N); None: see `samples`
    samples: int = 0  # of each environment, where these are in blocks, one environment after the other

    @cached_property
    def targets(self) -> Tensor:
        """(E, N, C)"""
        return one_hot(self.labels, self.num_classes, self.rows.dtype)

    @property
    def present(self) -> Tensor:
        """(E,) bool: the environment has samples in this batch."""
        if self.counts is None:
            return torch.ones(len(self.rows), dtype=torch.bool, device=self.rows.device)
        return self.counts > 0

    def ungroup(self, values: Tensor) -> Tensor:
        """(E, N, ...) back to the order of the batch, (n, ...)."""
        if self.slots is None:
            return values[:, : self.samples].flatten(0, 1)
        return values.flatten(0, 1).index_select(0, self.slots)


def group(
    features: Tensor,
    labels: Tensor,
    index: Tensor,
    num_environments: int,
    num_classes: int,
    capacity: int | None = None,
    sample_weights: Tensor | None = None,
) -> Grouped:
    """features (n, d), labels (n,), index (n,) in 0..E-1.

    `capacity` is N. Without it N is the largest count, which must be read from the device; with it nothing
    is read. What cannot be placed rightly must not go unnoticed: the samples of an environment that does not
    fit, and samples whose label or index is out of range, get the weight nan. `sample_weights` (n,) decide a sample's
    share of its environment; one whose weights are all zero counts as absent.
    """
    n = len(features)
    wrong = (labels < 0) | (labels >= num_classes) | (index < 0) | (index >= num_environments)
    index = index.clamp(0, num_environments - 1)
    environments = torch.arange(num_environments, device=index.device)
    counts = (index.unsqueeze(-1) == environments).sum(0)  # (E,)
    size = capacity if capacity is not None else max(int(counts.max()), 1)
    order = torch.argsort(index, stable=True)
    first = counts.cumsum(0) - counts  # (E,) where each environment starts in the sorted order
    ranks = torch.empty_like(order).scatter_(0, order, torch.arange(n, device=index.device)) - first[index]
    slots = index * size + ranks.clamp(max=size - 1)

    def place(values: Tensor, padding: int = 0) -> Tensor:
        padded = values.new_full((num_environments * size, *values.shape[1:]), padding)
        return padded.index_copy(0, slots, values).reshape(num_environments, size, *values.shape[1:])

    share = torch.where(counts > size, torch.nan, 1 / counts.clamp(min=1).to(features.dtype))[index]
    if sample_weights is not None:
        given = sample_weights.to(features.dtype)
        total = torch.where(index.unsqueeze(-1) == environments, given.unsqueeze(-1), 0).sum(0)  # (E,)
        share = torch.where(share.isnan(), share, given / torch.where(total > 0, total, 1)[index])
        counts = torch.where(total > 0, counts, 0)
    share = torch.where(wrong, torch.nan, share)
    return Grouped(place(with_bias(features)), place(labels, -1), place(share), counts, num_classes, slots)
