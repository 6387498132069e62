"""The bias engine of section 5.1, once for all synthetic sets; painting the samples is left to each set.

A sample has a causal feature (its class), a non-causal one (a colour, a scene) and a dummy one. The non-causal
feature is one-to-one with the label for a share of the samples, the bias degree of the environment; the others
get a uniformly random value, which may be the label's own. The dummy feature says nothing about the label, but
each environment draws it from values of its own.

    label-correlated     training environments differ in bias degree; the dummy feature is constant
    label-uncorrelated   environments differ in the values of the dummy feature; the non-causal one is constant
    combined             both

Environments   two or more for training, one for test, without bias
Validation     training-domain: an equal part painted like each training environment; test-domain: all like the test
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor

from ..errors import InputError
from ..settings import Count, Length, Settings, Share
from .environments import EnvironmentSet
from .splits import Splits, TestDomainValidation, TrainingDomainValidation

Kind = Literal["label-correlated", "label-uncorrelated", "combined"]

Paint = Callable[[Tensor, Tensor | None, Tensor | None, Generator], Tensor]
"""paint(index, values, dummies, generator) -> images (n v, ...), those of one sample side by side.

index    (n,) samples
values   (n v,) non-causal value of each image, None where the non-causal feature takes no part
dummies  (n v, 3) dummy value of each image, a point of the unit cube; None where the dummy feature takes no part
"""

E = TypeVar("E", bound=EnvironmentSet)


@dataclass(frozen=True)
class Shift(Settings):
    """The difference between environments of a synthetic set.

    Parameters
    ----------
    kind
        "label-correlated", "label-uncorrelated" or "combined".
    biases
        Bias degree of each training environment, 0 to 1; the test environment has none.
    dummies
        How many values the dummy feature takes in an environment.

    Examples
    --------
    >>> from transferrisk.data import Shift
    >>> Shift("combined").biases
    (1.0, 0.9)
    """

    kind: Kind = "label-correlated"
    biases: Annotated[tuple[Share, ...], Length(2)] = (1.0, 0.9)
    dummies: Count = 5

    @property
    def environment_names(self) -> tuple[str, ...]:
        """Names of the training environments, with as many digits as tell them apart."""
        for digits in (6, 9, 12, 15) if self.kind != "label-uncorrelated" else ():
            names = tuple(map(f"bias {{:.{digits}g}}%".format, 100 * np.asarray(self.biases)))
            if len(set(names)) == len(names):
                return names
        return tuple(map("training {}".format, range(1, 1 + len(self.biases))))


def biased_values(labels: Tensor, bias: float, bijection: Tensor, generator: Generator) -> Tensor:
    """Return the non-causal value of each sample, (n,): the label's own with probability `bias`, else uniform.

    The realised share of samples with their label's value is bias + (1 - bias) / len(bijection).
    """
    obeys = torch.rand(len(labels), generator=generator) < bias
    uniform = torch.randint(len(bijection), labels.shape, generator=generator)
    return torch.where(obeys, bijection[labels], uniform)


def build_splits(
    paint: Paint,
    labels: Tensor,
    class_names: tuple[str, ...],
    shift: Shift,
    seed: int,
    oracle: bool = False,
    sizes: Sequence[int] | None = None,
    views: int = 1,
) -> Splits:
    """Return a synthetic set of samples with labels (n,), painted in `views` images each.

    `sizes` are numbers of samples in the order of `split_sizes`, which decides them where they are not given.
    Samples are split, so that views of one sample never end up on two sides; every view has its own features. With
    `oracle` the training samples are painted like the test environment: the accuracy of ERM on them is the upper bound.
    Everything random is drawn on the CPU, so a seed means the same on any device; the set is where `paint` leaves it.
    """
    generator = Generator().manual_seed(seed)
    bijection = torch.randperm(len(class_names), generator=generator)  # label -> non-causal value
    order = torch.randperm(len(labels), generator=generator)
    trainings = len(shift.biases)
    sizes = split_sizes(len(labels), trainings) if sizes is None else sizes
    if not sizes[0] or sizes[-1] < trainings:
        raise InputError(f"{trainings} bias degrees are too many for {len(labels)} samples: give fewer")
    *train, test, validation = torch.split(order, list(sizes))
    # One palette of dummy values for each training environment, and one for the test.
    palettes = torch.rand(trainings + 1, shift.dummies, 3, generator=generator)
    labels = labels.cpu()

    def painted(pieces: Sequence[Tensor], places: Sequence[int], names: tuple[str, ...], kind: type[E]) -> E:
        """Paint each piece as in the training environment of its place, or as in the test where that is the last."""
        parts = []
        for environment, (index, place) in enumerate(zip(pieces, places, strict=True)):
            targets = labels[index].repeat_interleave(views)
            values = dummies = None
            if shift.kind != "label-uncorrelated":
                bias = shift.biases[place] if place < trainings else 0.0
                values = biased_values(targets, bias, bijection, generator)
            if shift.kind != "label-correlated":
                dummies = palettes[place][torch.randint(shift.dummies, targets.shape, generator=generator)]
            environments = torch.full_like(targets, environment)
            sources = index.repeat_interleave(views)
            parts.append((paint(index, values, dummies, generator), targets, environments, sources))
        whole = parts[0] if len(parts) == 1 else map(torch.cat, zip(*parts, strict=True))  # one piece is not copied
        images, targets, environments, sources = whole
        device = images.device
        return kind(images, targets.to(device), environments.to(device), names, class_names, sources.to(device))

    like_test = [trainings]
    places = like_test * trainings if oracle else range(trainings)
    held_out = torch.tensor_split(validation, trainings)
    return Splits(
        train=painted(train, places, shift.environment_names, EnvironmentSet),
        training_domain=painted(held_out, places, shift.environment_names, TrainingDomainValidation),
        test_domain=painted([validation], like_test, ("unbiased",), TestDomainValidation),
        test=painted([test], like_test, ("unbiased",), EnvironmentSet),
    )


def split_sizes(total: int, trainings: int, ratio: tuple[int, int] = (4, 3)) -> list[int]:
    """Return the numbers of samples of each training environment, the test and the validation.

    `ratio` is the ratio of an environment to the validation: (4, 3) with two training environments is
    4 : 4 : 4 : 3. The remainder goes to the validation.
    """
    environment, validation = ratio
    share = environment * total // (environment * (trainings + 1) + validation)
    return [share] * (trainings + 1) + [total - share * (trainings + 1)]
