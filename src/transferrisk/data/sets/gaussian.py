"""gaussian: Rosenfeld et al.'s label-conditioned Gaussians (section 3.2).

    y uniform on {-1, +1};   z_c ~ N(y mu_c, sigma_c^2 I),   z_e ~ N(y mu_i, sigma_e^2 I);   x = f(z_c, z_e)

mu_c is the same in all environments, mu_i is environment i's own. f is injective: the identity, a random rotation
("linear"), or a rotation followed by sinh in each coordinate and another rotation ("nonlinear").

Classes       2
Citation      Rosenfeld, Ravikumar & Risteski (2021), The Risks of Invariant Risk Minimization
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Generator, Tensor

from ...errors import InputError
from ..environments import EnvironmentSet

Mixing = Literal["identity", "linear", "nonlinear"]


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
        return EnvironmentSet(self.mix(torch.cat([z_c, z_e], 1)), labels, index, names, ("-1", "+1"))

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
