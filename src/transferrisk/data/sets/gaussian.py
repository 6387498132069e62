"""gaussian: Rosenfeld et al.'s label-conditioned Gaussians (section 3.2).

    y uniform on {-1, +1};   z_c ~ N(y mu_c, sigma_c^2 I),   z_e ~ N(y mu_i, sigma_e^2 I);   x = f(z_c, z_e)

mu_c is the same in all environments, mu_i is environment i's own. f is injective: the identity, a random rotation
("linear"), or a rotation followed by sinh in each coordinate and another rotation ("nonlinear").

By name, `gaussian[:MIXING]` has three training environments of 2000 samples with d_c = 5 and d_e = 10, means drawn by
the seed, and a test environment whose mean is minus the mean of theirs: features that helped in training mislead there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator, Tensor

from ...errors import InputError
from ...settings import NonNegative, Settings
from ..catalogue import DataSet, Options, register
from ..environments import EnvironmentSet
from ..facts import Facts
from ..splits import VALIDATION, Splits, TestDomainValidation, TrainingDomainValidation, hold_out, retyped

SAMPLES = 2000
CLASSES = ("-1", "+1")


@dataclass(frozen=True)
class Gaussian(Settings):
    """mu_c (d_c,) and one mu_i (d_e,) for each environment, as the rows of `environment_means` (E, d_e)."""

    causal_mean: Tensor
    environment_means: Tensor
    causal_scale: NonNegative = 1.0
    environment_scale: NonNegative = 1.0
    mixing: Literal["identity", "linear", "nonlinear"] = "identity"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.causal_mean.dim() != 1 or self.environment_means.dim() != 2:
            raise InputError(
                "causal_mean and environment_means must have the shapes (d_c,) and (E, d_e), got "
                f"{tuple(self.causal_mean.shape)} and {tuple(self.environment_means.shape)}"
            )

    def draw(self, samples: int, seed: int, means: Tensor | None = None) -> EnvironmentSet:
        """`samples` of each environment; other `means` (E', d_e), such as a test environment's, keep the same f."""
        means = self.environment_means if means is None else means
        generator = Generator().manual_seed(seed)
        E, d_e = means.shape
        index = torch.arange(E).repeat_interleave(samples)
        labels = torch.randint(2, index.shape, generator=generator)
        sign = (2 * labels - 1).unsqueeze(-1).to(means.dtype)
        noise = torch.randn(len(index), len(self.causal_mean) + d_e, generator=generator, dtype=means.dtype)
        z_c = sign * self.causal_mean + self.causal_scale * noise[:, : len(self.causal_mean)]
        z_e = sign * means[index] + self.environment_scale * noise[:, len(self.causal_mean) :]
        names = tuple(f"environment {i + 1}" for i in range(E))
        return EnvironmentSet(self.mix(torch.cat([z_c, z_e], 1)), labels, index, names, CLASSES)

    def mix(self, latents: Tensor) -> Tensor:
        """x = f(z)."""
        if self.mixing == "identity":
            return latents
        rotated = latents @ _rotation(latents.shape[1], 0, latents.dtype)
        return (
            rotated if self.mixing == "linear" else torch.sinh(rotated) @ _rotation(latents.shape[1], 1, latents.dtype)
        )

    def unmix(self, inputs: Tensor) -> Tensor:
        """z = f^-1(x)."""
        if self.mixing == "identity":
            return inputs
        if self.mixing == "nonlinear":
            inputs = torch.asinh(inputs @ _rotation(inputs.shape[1], 1, inputs.dtype).mT)
        return inputs @ _rotation(inputs.shape[1], 0, inputs.dtype).mT


def _rotation(size: int, seed: int, dtype: torch.dtype) -> Tensor:
    """Return an orthogonal matrix that depends on its size and seed alone."""
    draws = torch.randn(size, size, generator=Generator().manual_seed(seed), dtype=torch.float64)
    rotation: Tensor = torch.linalg.qr(draws).Q
    return rotation.to(dtype)


def load_gaussian(mixing: str, options: Options) -> Splits:
    seed = options.seed
    means = torch.randn(3, 10, generator=Generator().manual_seed(40_000 + seed))
    family = Gaussian(torch.full((5,), 0.3), means, mixing=mixing or "identity")  # type: ignore[arg-type]  # checked
    near = family.draw(SAMPLES, seed)
    far = replace(family.draw(SAMPLES, seed + 1, -means.mean(0, keepdim=True)), environment_names=("far",))
    (train, validation), (test, test_validation) = (
        (data.select(kept), data.select(held))
        for data in (near, far)
        for kept, held in [hold_out(data, VALIDATION, seed)]
    )
    return Splits(
        train, retyped(validation, TrainingDomainValidation), retyped(test_validation, TestDomainValidation), test
    )


register(
    DataSet(
        Facts(
            name="gaussian",
            title="Label-conditioned Gaussians: needs no download",
            licence="none needed: drawn at random",
            citation="Rosenfeld, Ravikumar & Risteski (2021), The Risks of Invariant Risk Minimization",
            environments={"environment 1": SAMPLES, "environment 2": SAMPLES, "environment 3": SAMPLES, "far": SAMPLES},
            test="far",
            classes=CLASSES,
            shape=(15,),
        ),
        load_gaussian,
        argument="[MIXING]",
    )
)
