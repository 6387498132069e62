"""Ten classes in ten colours: the colouring of 10C-CMNIST, on any grey images of ten classes.

Causal         the shape
Non-causal     its colour, one of ten, tied to the label by a random bijection a run; white where it takes no part
Dummy          the colour of the background, one of five that each environment draws for itself, at most 0.75 bright;
               black where it takes no part
Environments   two or more for training, one for test, without bias
Splits         16000 for each of two training environments and the test, 12000 for validation, or in proportion
Validation     training-domain: an equal part coloured like each training environment; test-domain: all like the test
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Generator, Tensor

from ..environments import EnvironmentSet, Splits, TestDomainValidation, TrainingDomainValidation, concatenate
from ..shifts import Shift, biased_values, random_bijection

COLOURS = torch.tensor(
    [
        (0, 100, 0), (188, 143, 143), (255, 0, 0), (255, 215, 0), (0, 255, 0),
        (65, 105, 225), (0, 225, 225), (0, 0, 255), (255, 20, 147), (180, 180, 180),
    ],
    dtype=torch.uint8,
)  # fmt: skip
"""The ten digit colours of appendix B.1.1, RGB."""

WHITE = torch.tensor([[255, 255, 255]], dtype=torch.uint8)
BLACK = torch.zeros(1, 3, dtype=torch.uint8)
BRIGHTEST = 0.75  # of a background, as a share of white

E = TypeVar("E", bound=EnvironmentSet)


def build(
    shapes: Tensor, labels: Tensor, class_names: tuple[str, ...], shift: Shift, seed: int, oracle: bool = False
) -> Splits:
    """shapes (n, v, h, w) in 0..1: how much of each pixel is ink, in v views of each sample; labels (n,).

    Samples are split, so that views of one sample never end up on two sides; every view has its own colours. With
    `oracle` the training samples are coloured like the test environment: what ERM on them reaches is the upper bound.
    What is random is drawn on the CPU, so a seed means the same wherever the shapes are; pictures are painted there.
    """
    generator = Generator().manual_seed(seed)
    device = shapes.device
    bijection = random_bijection(len(COLOURS), generator)
    order = torch.randperm(len(labels), generator=generator)
    trainings = len(shift.biases)
    *train, test, validation = torch.split(order, split_sizes(len(labels), trainings))
    # One palette of backgrounds for each training environment, and one for the test.
    palettes = (256 * BRIGHTEST * torch.rand(trainings + 1, shift.dummies, 3, generator=generator)).to(torch.uint8)
    labels = labels.cpu()

    def coloured(index: Tensor, place: int, environment: int, names: tuple[str, ...], kind: type[E]) -> E:
        """Samples as in training environment `place`, or as in the test where that is the last place."""
        targets = labels[index].repeat_interleave(shapes.shape[1])
        bias = shift.biases[place] if place < trainings else 0.0
        ink, paper = WHITE.expand(len(targets), -1), BLACK.expand(len(targets), -1)
        if shift.correlated:
            ink = COLOURS[biased_values(targets, bias, bijection, generator)]
        if shift.dummy:
            paper = palettes[place][torch.randint(shift.dummies, targets.shape, generator=generator)]
        images = paint(shapes[index.to(device)].flatten(0, 1), ink.to(device), paper.to(device))
        sources = index.repeat_interleave(shapes.shape[1])
        environments = torch.full_like(targets, environment)
        return kind(images, targets.to(device), environments.to(device), names, class_names, sources.to(device))

    def training(parts: Sequence[Tensor], kind: type[E]) -> E:
        names = shift.environment_names
        places = [trainings if oracle else i for i in range(trainings)]
        return concatenate([coloured(part, places[i], i, names, kind) for i, part in enumerate(parts)])

    return Splits(
        train=training(train, EnvironmentSet),
        training_domain=training(torch.tensor_split(validation, trainings), TrainingDomainValidation),
        test_domain=coloured(validation, trainings, 0, ("unbiased",), TestDomainValidation),
        test=coloured(test, trainings, 0, ("unbiased",), EnvironmentSet),
    )


def split_sizes(total: int, trainings: int) -> list[int]:
    """Samples of each training environment, the test and the validation: 4 : 4 : 4 : 3 of two, as in the paper.

    What does not divide goes to the validation.
    """
    share = 4 * total // (4 * trainings + 7)
    return [share] * (trainings + 1) + [total - share * (trainings + 1)]


def paint(shapes: Tensor, ink: Tensor, paper: Tensor) -> Tensor:
    """Shapes (n, h, w) in 0..1 in one colour each (n, 3) on a background each (n, 3): images (n, 3, h, w) uint8."""
    images = torch.empty(len(shapes), 3, *shapes.shape[1:], dtype=torch.uint8, device=shapes.device)
    for channel in range(3):  # one at a time: the largest temporary is a third of the images as floats
        low, high = (colours[:, channel, None, None].float() for colours in (paper, ink))
        images[:, channel] = torch.lerp(low, high, shapes).round_().to(torch.uint8)
    return images
