"""Rosenfeld's Gaussians: moments, and mixings that can be undone."""

from __future__ import annotations

import pytest
import torch

from transferrisk.data.sets.gaussian import Gaussian
from transferrisk.errors import InputError

CAUSAL, MEANS = torch.tensor([1.0, -2.0]), torch.tensor([[3.0, 0.0, 1.0], [-1.0, 2.0, 0.0], [0.0, 0.0, 0.5]])


def test_moments():
    data = Gaussian(CAUSAL, MEANS, causal_scale=0.5, environment_scale=2.0).draw(40_000, seed=0)
    assert data.environment_names == ("environment 1", "environment 2", "environment 3")
    for e in range(3):
        part = data.select(data.environments == e)
        signed = part.inputs[:] * (2 * part.labels - 1).unsqueeze(1)
        torch.testing.assert_close(signed.mean(0), torch.cat([CAUSAL, MEANS[e]]), atol=0.05, rtol=0)
        torch.testing.assert_close(signed.std(0), torch.tensor([0.5, 0.5, 2.0, 2.0, 2.0]), atol=0.05, rtol=0)
        assert float(part.labels.float().mean()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("mixing", ["identity", "linear", "nonlinear"])
def test_mixing_is_injective(mixing):
    family = Gaussian(CAUSAL.double(), MEANS.double(), mixing=mixing)
    plain = Gaussian(CAUSAL.double(), MEANS.double()).draw(100, seed=1)
    mixed = family.draw(100, seed=1)
    torch.testing.assert_close(family.unmix(mixed.inputs[:]), plain.inputs[:])
    assert torch.equal(mixed.inputs[:], plain.inputs[:]) == (mixing == "identity")
    if mixing == "linear":
        torch.testing.assert_close(mixed.inputs[:].norm(dim=1), plain.inputs[:].norm(dim=1))


def test_a_test_environment_shares_the_mixing():
    family = Gaussian(CAUSAL, MEANS, mixing="nonlinear")
    far = family.draw(10_000, seed=2, means=torch.tensor([[-3.0, -3.0, -3.0]]))
    latents = family.unmix(far.inputs[:]) * (2 * far.labels - 1).unsqueeze(1)
    torch.testing.assert_close(latents.mean(0)[2:], torch.full((3,), -3.0), atol=0.06, rtol=0)


def test_bad_settings():
    with pytest.raises(InputError, match=r"mixing must be one of .*, got 'affine'"):
        Gaussian(CAUSAL, MEANS, mixing="affine")
    with pytest.raises(InputError, match=r"\(d_c,\) and \(E, d_e\)"):
        Gaussian(CAUSAL, CAUSAL)
