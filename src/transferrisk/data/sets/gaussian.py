"""gaussian: Rosenfeld et al.'s label-conditioned Gaussians (section 3.2).

    y uniform on {-1, +1};   z_c ~ N(y mu_c, sigma_c^2 I),   z_e ~ N(y mu_i, sigma_e^2 I);   x = f(z_c, z_e)

mu_c is the same in all environments, mu_i is environment i's own. f is injective: the identity, a random rotation
("linear"), or a rotation followed by sinh in each coordinate and another rotation ("nonlinear").

By name, `gaussian[:MIXING]` has three training environments of 2000 samples with d_c = 5 and d_e = 10, means drawn by
the seed, and a test environment whose mean is minus the mean of theirs: what helped in training misleads there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Generator, Tensor

from ...errors import InputError
from ..catalogue import DataSet, register
from ..environments import EnvironmentSet, Splits, TestDomainValidation, TrainingDomainValidation, retyped
from ..facts import Facts
from ..options import Options
from ..splits import VALIDATION, hold_out

Mixing = Literal["identity", "linear", "nonlinear"]

SAMPLES = 2000

FACTS = Facts(
    name="gaussian",
    title="Label-conditioned Gaussians: needs no download",
    licence="none needed: drawn at random",
    citation="Rosenfeld, Ravikumar & Risteski (2021), The Risks of Invariant Risk Minimization",
    environments={"environment 1": SAMPLES, "environment 2": SAMPLES, "environment 3": SAMPLES, "far": SAMPLES},
    test="far",
    classes=("-1", "+1"),
    shape=(15,),
)


@dataclass(frozen=True)
class Gaussian:
    """mu_c (d_c,) and one mu_i (d_e,) for each environment, as the rows of `environment_means` (E, d_e)."""

    causal_mean: Tensor
    environment_means: Tensor
    causal_scale: float = 1.0
    environment_scale: float = 1.0
    mixing: Mixing = "identity"

    def __post_init__(self) -> None:
        if self.mixing not in get_args(Mixing):
            raise InputError(f"mixing {self.mixing!r} is not known: use {', '.join(map(repr, get_args(Mixing)))}")
        if self.causal_mean.dim() != 1 or self.environment_means.dim() != 2:
            raise InputError(
                f"causal_mean of shape {tuple(self.causal_mean.shape)} and environment_means of shape "
                f"{tuple(self.environment_means.shape)} do not fit: give (d_c,) and (E, d_e)"
            )

    def load(self, samples: int, seed: int, means: Tensor | None = None) -> EnvironmentSet:
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
        return EnvironmentSet(self.mix(torch.cat([z_c, z_e], 1)), labels, index, names, FACTS.classes)

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
    """An orthogonal matrix that depends on nothing but its size and seed."""
    draws = torch.randn(size, size, generator=Generator().manual_seed(seed), dtype=torch.float64)
    rotation: Tensor = torch.linalg.qr(draws).Q
    return rotation.to(dtype)


def load(mixing: Mixing, seed: int) -> Splits:
    """The set as it is known by name."""
    means = torch.randn(3, 10, generator=Generator().manual_seed(40_000 + seed))
    family = Gaussian(torch.full((5,), 0.3), means, mixing=mixing)
    near = family.load(SAMPLES, seed)
    far = replace(family.load(SAMPLES, seed + 1, -means.mean(0, keepdim=True)), environment_names=("far",))
    (train, validation), (test, test_validation) = (
        (data.select(kept), data.select(held))
        for data in (near, far)
        for kept, held in [hold_out(data, VALIDATION, seed)]
    )
    return Splits(
        train, retyped(validation, TrainingDomainValidation), retyped(test_validation, TestDomainValidation), test
    )


def _load(mixing: str, asked: Options) -> Splits:
    return load(mixing or "identity", asked.seed)  # type: ignore[arg-type]  # Gaussian checks it


register(DataSet(FACTS, _load, argument="[MIXING]"))
