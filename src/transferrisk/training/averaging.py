"""Averages of the weights over steps, which are evaluated and saved in place of the weights.

    ema    a_t = sum_i d^(t-i) theta_i / sum_i d^(t-i) over the steps i = 1..t; their mean with d = 1
    swad   the mean from the step where the validation loss has stopped falling to the one where it rises again

Averages move in place after each step, for every algorithm, captured or not, and the training does not depend on them.
Running statistics of batch norm are averaged like weights; to compute those of the averaged weights exactly would take
another pass over the data.

SWAD is algorithm 1 of Cha et al., on the segments between two evaluations as in their code. With L_i the loss of the
weights after segment i, the mean begins with segment s = i - patience + 1 when L_s is the least of L_s..L_i, and
ratio * mean(L_s..L_i) becomes the bound. It ends before the last `tolerance` segments once all their losses are above
the bound. Each evaluation is of the result that SWAD would have if training ended there: trailing segments count as
long as a later loss is within the bound, and before the mean begins it is that of the last segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ..models import Classifier
from .defaults import TrainConfig

Tensors = dict[str, Tensor]


def averaged_tensors(model: Classifier) -> Tensors:
    """Return the weights that train and the running statistics, by name."""
    named = chain(((n, p.detach()) for n, p in model.named_parameters() if p.requires_grad), model.named_buffers())
    return {name: tensor for name, tensor in named if tensor.is_floating_point()}


class Mean:
    """Weighted mean of tensors, updated in place; `weight` is the sum of the weights so far."""

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self.weight = 0.0

    @torch.no_grad()
    def add(self, tensors: Tensors, weight: float = 1.0, decay: float = 1.0) -> None:
        """Add tensors with a weight, after the weights so far are multiplied by `decay`."""
        self.weight = decay * self.weight + weight
        if not self.tensors:
            self.tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        else:
            torch._foreach_lerp_(list(self.tensors.values()), list(tensors.values()), weight / self.weight)

    def copy(self) -> Mean:
        copied = Mean()
        copied.tensors, copied.weight = {name: tensor.clone() for name, tensor in self.tensors.items()}, self.weight
        return copied


class EMA:
    """Exponential moving average of the weights."""

    needs_losses = False

    def __init__(self, tensors: Tensors, decay: float) -> None:
        self.tensors, self.decay = tensors, decay
        self.mean = Mean()

    def after_step(self) -> None:
        self.mean.add(self.tensors, decay=self.decay)

    def after_segment(self, loss: float) -> None:
        """Do nothing: the average does not depend on evaluations."""

    def result(self) -> Tensors:
        return self.mean.tensors

    def state(self) -> tuple[dict[str, Mean], dict[str, Any]]:
        """Return the means by name, and all other values."""
        return {"mean": self.mean}, {}

    def load(self, means: Mapping[str, Mean], values: Mapping[str, Any]) -> None:
        self.mean = means["mean"]


class SWAD:
    """Mean of the weights over the valley of the validation loss."""

    needs_losses = True

    def __init__(self, tensors: Tensors, patience: int = 3, tolerance: int = 6, ratio: float = 1.3) -> None:
        self.tensors = tensors
        self.patience, self.tolerance, self.ratio = patience, tolerance, ratio
        self.segment = Mean()  # since the last evaluation
        self.waiting: list[Mean] = []  # segments that may count, depending on later losses
        self.total: Mean | None = None  # mean of the segments that count
        self.losses: list[float] = []  # after each segment
        self.bound: float | None = None  # None: the mean has not begun
        self.ended = False

    def after_step(self) -> None:
        self.segment.add(self.tensors)

    def after_segment(self, loss: float) -> None:
        """End a segment with the validation loss of the weights at an evaluation."""
        self.losses.append(loss)
        self.waiting.append(self.segment)
        self.segment = Mean()
        if self.ended:
            self.waiting = []
        elif self.bound is None:
            self.waiting, recent = self.waiting[-self.patience :], self.losses[-self.patience :]
            if len(recent) == self.patience and recent[0] == min(recent):
                self.bound = self.ratio * sum(recent) / len(recent)
                self.total = self.waiting.pop(0)
        elif len(self.losses) >= self.tolerance and min(self.losses[-self.tolerance :]) > self.bound:
            self.ended, self.waiting = True, []
        if self.total is not None:
            while len(self.waiting) > self.tolerance - 1:
                _merge(self.total, self.waiting.pop(0))

    def result(self) -> Tensors:
        if self.total is None:
            return (self.segment if self.segment.tensors or not self.waiting else self.waiting[-1]).tensors
        if not self.waiting:
            return self.total.tensors
        total = self.total.copy()
        assert self.bound is not None
        for place, segment in enumerate(self.waiting):
            if min(self.losses[place - len(self.waiting) :]) > self.bound:
                break
            _merge(total, segment)
        return total.tensors

    def state(self) -> tuple[dict[str, Mean], dict[str, Any]]:
        """Return the means by name, and all other values."""
        means = {f"waiting{place}": mean for place, mean in enumerate(self.waiting)}
        means |= {"segment": self.segment} | ({} if self.total is None else {"total": self.total})
        return means, {"losses": self.losses, "bound": self.bound, "ended": self.ended}

    def load(self, means: Mapping[str, Mean], values: Mapping[str, Any]) -> None:
        self.segment, self.total = means.get("segment", Mean()), means.get("total")
        self.waiting = [means[f"waiting{place}"] for place in range(sum(name.startswith("waiting") for name in means))]
        self.losses, self.bound, self.ended = list(values["losses"]), values["bound"], values["ended"]


def _merge(total: Mean, segment: Mean) -> None:
    total.add(segment.tensors, segment.weight)


Averaging = EMA | SWAD


def averaging_of(model: Classifier, config: TrainConfig) -> Averaging:
    """Return the average of a model's weights that `config.average` names; it follows the model in place."""
    tensors = averaged_tensors(model)
    if config.average == "ema":
        return EMA(tensors, config.ema_decay)
    return SWAD(tensors, config.swad_patience, config.swad_tolerance, config.swad_ratio)


def encode(averaging: Averaging) -> tuple[Tensors, dict[str, Any]]:
    """Return the state as tensors, named as "mean.head.weight", and values in the types of JSON."""
    means, values = averaging.state()
    tensors = {f"{mean}.{name}": tensor for mean, held in means.items() for name, tensor in held.tensors.items()}
    return tensors, {**values, "weights": {name: mean.weight for name, mean in means.items()}}


def decode(averaging: Averaging, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Restore an encoded state, on the device of the weights that the average follows."""
    means: dict[str, Mean] = {}
    for name, weight in values["weights"].items():
        means[name] = Mean()
        means[name].weight = weight
        if weight:
            means[name].tensors = {key: torch.empty_like(like) for key, like in averaging.tensors.items()}
            for key, tensor in means[name].tensors.items():
                tensor.copy_(tensors[f"{name}.{key}"])
    averaging.load(means, values)
