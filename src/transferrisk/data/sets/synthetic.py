"""What synthetic sets have in common: who goes where, and which features each sample gets; painting is theirs.

Environments   two or more for training, one for test, without bias
Validation     training-domain: an equal part painted like each training environment; test-domain: all like the test
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Generator, Tensor

from ...errors import InputError
from ..environments import EnvironmentSet, Splits, TestDomainValidation, TrainingDomainValidation, concatenate
from ..shifts import Shift, biased_values, random_bijection

Paint = Callable[[Tensor, Tensor | None, Tensor | None, Generator], Tensor]
"""paint(index, values, dummies, generator) -> images (n v, ...), those of one sample side by side.

index    (n,) samples
values   (n v,) non-causal value of each image, None where it takes no part
dummies  (n v, 3) dummy value of each image, a point of the unit cube; None where it takes no part
"""

E = TypeVar("E", bound=EnvironmentSet)


def build(
    paint: Paint,
    labels: Tensor,
    class_names: tuple[str, ...],
    shift: Shift,
    seed: int,
    oracle: bool = False,
    parts: tuple[int, int] = (4, 3),
    views: int = 1,
) -> Splits:
    """labels (n,) of samples that are painted in `views` images each; `parts` as in `split_sizes`.

    Samples are split, so that views of one sample never end up on two sides; every view has its own features. With
    `oracle` the training samples are painted like the test environment: what ERM on them reaches is the upper bound.
    What is random is drawn on the CPU, so a seed means the same on any device; the set is where `paint` leaves it.
    """
    generator = Generator().manual_seed(seed)
    bijection = random_bijection(len(class_names), generator)
    order = torch.randperm(len(labels), generator=generator)
    trainings = len(shift.biases)
    sizes = split_sizes(len(labels), trainings, parts)
    if not sizes[0] or sizes[-1] < trainings:
        raise InputError(f"{trainings} bias degrees are too many for {len(labels)} samples: give fewer")
    *train, test, validation = torch.split(order, sizes)
    # One palette of dummy values for each training environment, and one for the test.
    palettes = torch.rand(trainings + 1, shift.dummies, 3, generator=generator)
    labels = labels.cpu()

    def painted(index: Tensor, place: int, environment: int, names: tuple[str, ...], kind: type[E]) -> E:
        """Samples as in training environment `place`, or as in the test where that is the last place."""
        targets = labels[index].repeat_interleave(views)
        bias = shift.biases[place] if place < trainings else 0.0
        values = dummies = None
        if shift.correlated:
            values = biased_values(targets, bias, bijection, generator)
        if shift.dummy:
            dummies = palettes[place][torch.randint(shift.dummies, targets.shape, generator=generator)]
        images = paint(index, values, dummies, generator)
        device, sources = images.device, index.repeat_interleave(views)
        environments = torch.full_like(targets, environment)
        return kind(images, targets.to(device), environments.to(device), names, class_names, sources.to(device))

    def training(pieces: Sequence[Tensor], kind: type[E]) -> E:
        names = shift.environment_names
        places = [trainings if oracle else i for i in range(trainings)]
        return concatenate([painted(piece, places[i], i, names, kind) for i, piece in enumerate(pieces)])

    return Splits(
        train=training(train, EnvironmentSet),
        training_domain=training(torch.tensor_split(validation, trainings), TrainingDomainValidation),
        test_domain=painted(validation, trainings, 0, ("unbiased",), TestDomainValidation),
        test=painted(test, trainings, 0, ("unbiased",), EnvironmentSet),
    )


def split_sizes(total: int, trainings: int, parts: tuple[int, int] = (4, 3)) -> list[int]:
    """Samples of each training environment, the test and the validation.

    `parts` of an environment and of the validation: with (4, 3) and two training environments 4 : 4 : 4 : 3. What does
    not divide goes to the validation.
    """
    environment, validation = parts
    share = environment * total // (environment * (trainings + 1) + validation)
    return [share] * (trainings + 1) + [total - share * (trainings + 1)]
