"""Ten classes in ten colours: the colouring of 10C-CMNIST, on any grey images of ten classes.

Environments   two for training, with bias degrees 100% and r; one for test, without bias
Non-causal     the colour of the shape, one of ten, tied to the label by a random bijection a run
Splits         as the paper's 16000 / 16000 / 16000 / 12000 of 60000, in proportion
Validation     training-domain: half coloured like each training environment; test-domain: all like the test one
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from ..environments import EnvironmentSet, Splits, TestDomainValidation, TrainingDomainValidation, concatenate
from ..shifts import biased_values, random_bijection

COLOURS = torch.tensor(
    [
        (0, 100, 0), (188, 143, 143), (255, 0, 0), (255, 215, 0), (0, 255, 0),
        (65, 105, 225), (0, 225, 225), (0, 0, 255), (255, 20, 147), (180, 180, 180),
    ],
    dtype=torch.uint8,
)  # fmt: skip
"""The ten digit colours of appendix B.1.1, RGB."""

SHARES = (16_000 / 60_000, 16_000 / 60_000, 16_000 / 60_000, 12_000 / 60_000)
"""Of train 1, train 2, test and validation."""


@dataclass(frozen=True)
class TenColours:
    """How to colour: the bias degrees of the two training environments."""

    first_bias: float = 1.0
    second_bias: float = 0.9

    def build(self, shapes: Tensor, labels: Tensor, class_names: tuple[str, ...], seed: int) -> Splits:
        """shapes (n, v, h, w) in 0..1: how much of each pixel is ink, in v views of each sample; labels (n,).

        Samples are split, so that views of one sample never end up on two sides; every view has its own colour.
        """
        generator = Generator().manual_seed(seed)
        bijection = random_bijection(len(COLOURS), generator)
        order = torch.randperm(len(labels), generator=generator)
        sizes = [int(share * len(labels)) for share in SHARES]
        first, second, test, validation = torch.split(order[: sum(sizes)], sizes)
        train_names = (f"bias {self.first_bias:.0%}", f"bias {self.second_bias:.0%}")

        def coloured(index: Tensor, bias: float, environment: int, names: tuple[str, ...]) -> EnvironmentSet:
            targets = labels[index].repeat_interleave(shapes.shape[1])
            values = biased_values(targets, bias, bijection, generator)
            images = paint(shapes[index].flatten(0, 1), COLOURS[values])
            sources = index.repeat_interleave(shapes.shape[1])
            environments = torch.full_like(targets, environment)
            return EnvironmentSet(images, targets, environments, names, class_names, sources)

        def training(one: Tensor, two: Tensor, kind: type[EnvironmentSet]) -> EnvironmentSet:
            parts = [coloured(one, self.first_bias, 0, train_names), coloured(two, self.second_bias, 1, train_names)]
            return concatenate(parts, kind)

        def unbiased(index: Tensor, kind: type[EnvironmentSet]) -> EnvironmentSet:
            return concatenate([coloured(index, 0.0, 0, ("unbiased",))], kind)

        half = len(validation) // 2
        return Splits(
            train=training(first, second, EnvironmentSet),
            training_domain=training(validation[:half], validation[half:], TrainingDomainValidation),  # type: ignore[arg-type]
            test_domain=unbiased(validation, TestDomainValidation),  # type: ignore[arg-type]
            test=unbiased(test, EnvironmentSet),
        )


def paint(shapes: Tensor, colours: Tensor) -> Tensor:
    """Ink (n, h, w) in 0..1 and a colour each (n, 3) on black: images (n, 3, h, w) uint8."""
    return (shapes.unsqueeze(1) * colours.float()[:, :, None, None]).round().to(torch.uint8)
