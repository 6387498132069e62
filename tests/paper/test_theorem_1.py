"""The theorem's classifier against Monte Carlo, closed forms and its own inequalities."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from scipy.stats import chi2

from transferrisk.data.sets.gaussian import Gaussian
from transferrisk.functional import irm_predictor_penalty
from transferrisk.paper.quadrature import expected_loss
from transferrisk.paper.theorem_1 import Theorem1Settings, broken_assumptions, construct, theorem_1_records
from transferrisk.paper.theorem_1_classifier import tail_bound

SETTINGS = Theorem1Settings(sigma_c=1.1)
SAMPLES = 200_000


def predictor(built, k):
    """w_k, (d + 1,)."""
    causal = torch.tensor([2 * built.causal / built.sigma_c**2], dtype=torch.float64)
    return torch.cat([causal, 2 * F.pad(built.means[k], (0, built.dimension - 2))])


def sample(built, means=None, seed=0):
    means = built.means if means is None else means
    family = Gaussian(
        torch.tensor([built.causal], dtype=torch.float64),
        F.pad(means, (0, built.dimension - 2)),
        causal_scale=built.sigma_c,
    )
    return family.draw(SAMPLES, seed)


@pytest.mark.parametrize(("name", "sigma_c"), [("separated", 1.1), ("opposite", 1.1), ("separated", 1000.0)])
def test_matrix_and_gradients_agree_with_a_sample(name, sigma_c):
    built = construct(Theorem1Settings(sigma_c=sigma_c), name, 5)
    data = sample(built)
    features, sign = built.features(data.inputs[:]), (2 * data.labels - 1).double()
    for k in range(len(built.means)):
        losses = F.softplus(-sign * (features @ predictor(built, k)))
        for l in range(len(built.means)):
            own = losses[data.environments == l]
            error = float(own.std()) / math.sqrt(SAMPLES)
            assert float(own.mean()) == pytest.approx(float(built.matrix[k, l]), abs=5 * error + 1e-6)
    score = features @ predictor(built, 0)
    for l in range(len(built.means)):
        each = (-torch.sigmoid(-sign * score) * sign).unsqueeze(1) * features
        own = each[data.environments == l]
        error = 5 * own.std(0) / math.sqrt(SAMPLES) + 1e-6
        expected = F.pad(built.gradients[l], (0, built.dimension - 2))
        assert bool(((own.mean(0) - expected).abs() < error).all())


def test_the_penalty_is_the_librarys():
    """Two rows of opposite sign in place of one make it twice as large."""
    built = construct(SETTINGS, "separated", 5)
    data = sample(built)
    features = built.features(data.inputs[:])
    score = features @ predictor(built, 0)
    logits = torch.stack([-score / 2, score / 2], 1)
    found = irm_predictor_penalty(features, logits, data.labels, data.environments, 3) / 2
    torch.testing.assert_close(found, built.penalties, rtol=0.05, atol=1e-4)


def test_the_classifier_is_optimal_in_its_environment():
    for d in (5, 32):
        gradients = construct(SETTINGS, "separated", d).gradients
        assert float(gradients[0].norm()) < 1e-9 < 1e-5 < float(gradients[1].norm())


@pytest.mark.parametrize("d", [16, 64, 256])
def test_losses_in_environment_i_are_those_without_balls(d):
    """But for what lies in the balls, X ~ N(2 n + 2 mu_k . mu_i, 4 n + 4 |mu_k|^2)."""
    built = construct(SETTINGS, "separated", d)
    n = built.information
    for k, own in enumerate(built.means):
        mean, scale = 2 * n + 2 * own @ built.means[0], (4 * n + 4 * own @ own).sqrt()
        whole = float(expected_loss(mean, scale))
        assert float(built.matrix[k, 0]) == pytest.approx(whole, abs=tail_bound(built, k, 0), rel=1e-9)
        if d >= 64:
            assert float(built.matrix[k, 0]) == pytest.approx(whole, rel=1e-6, abs=1e-12)


def test_the_tails_that_the_bounds_use():
    for d in (2, 3, 8, 64, 512):
        tail = chi2.sf(2 * d, d)
        assert tail <= math.exp(-d / 8)
        assert d * chi2.sf(2 * d, d + 2) / tail <= 2 * d + 4  # the conditional mean
    built = construct(SETTINGS, "separated", 9)
    points = torch.tensor([[0.0, 0.0], [-1.0, 7.0]], dtype=torch.float64)
    squares = torch.cdist(points, built.centres).square().amin(1)
    assert built.beyond(points).tolist() == pytest.approx(chi2.sf((18 - squares).clamp(min=0).numpy(), 7).tolist())
    torch.testing.assert_close(built.inside(points), 1 - built.beyond(points))


@pytest.fixture(scope="module")
def found():
    return theorem_1_records(Theorem1Settings(dimensions=(4, 16, 64, 128), samples=500, sampled=64))


def test_the_theorems_inequalities(found):
    for row in (r for r in found if r["what"] == "classifier"):
        assert 0 < row["risk"] <= min(row["risk_bound"], row["printed_risk_bound"])
        assert 0 < row["penalty"] <= row["penalty_bound"] <= row["printed_penalty_bound"]
        assert row["transfer_risk_sum"] >= row["loss_of_j_on_i"]
        if row["construction"] == "separated":
            assert row["separated_both_signs"]
            assert row["loss_of_j_on_i"] >= max(row["transfer_bound"], math.log(2))
            # E X^- of a score of mean 0, plus at most ln 2
            mean_zero = math.sqrt((1 + 0.4**2 + 2.5**2) * 4 * row["dimension"] / (2 * math.pi))
            assert mean_zero <= row["loss_of_j_on_i"] + 0.2
            assert row["loss_of_j_on_i"] <= mean_zero + math.log(2)
    last = next(r for r in found if r["what"] == "classifier" and r["dimension"] == 128)
    assert last["irm_loss"] < 1e-8
    assert last["transfer_bound"] == pytest.approx(math.log(2), abs=1e-4)


def test_without_separation_on_both_sides_the_transfer_risk_goes_to_zero(found):
    means = Theorem1Settings().constructions["opposite"]
    assert broken_assumptions(means, 1.0, 1.0) == []
    last = next(r for r in found if r.get("construction") == "opposite" and r["dimension"] == 128)
    assert not last["separated_both_signs"]
    assert last["transfer_risk_sum"] < 1e-6


def test_far_test_environments(found):
    far = [r for r in found if r["what"] == "far"]
    for row in far:
        assert row["differs"] <= row["differs_bound"] <= row["printed_differs_bound"]
        assert abs(row["accuracy"] - row["erm_accuracy"]) <= 1.05 * row["differs"] + 1e-12
        assert row["accuracy"] < 0.1 < 0.97 < row["invariant_accuracy"]
        if row["place"] == "beyond -mu_i":
            assert row["assumption_holds"]


def test_far_fractions_agree_with_a_sample():
    built = construct(SETTINGS, "separated", 4)
    mean = built.far(0.5)["beside mu_j"]
    data = sample(built, mean[None])
    inputs, sign = data.inputs[:], (2 * data.labels - 1).double()
    features = built.features(inputs)
    inside = (features[:, 1:] == 0).all(1).double().mean()
    error = 5 * 0.5 / math.sqrt(SAMPLES)
    assert built.inside_fraction(mean) == pytest.approx(float(inside), abs=error)
    w = predictor(built, 0)
    scores = (features @ w, inputs @ w, inputs[:, 0])
    right = [float((sign * score > 0).double().mean()) for score in scores]
    assert built.accuracy(mean) == pytest.approx(right, abs=error)


def test_a_sample_does_not_see_it(found):
    (large,) = (r for r in found if r["what"] == "sample" and r["dimension"] == 64)
    whole = next(r for r in found if r["what"] == "classifier" and r["dimension"] == 64)
    assert large["outside"] == 0
    assert large["loss_of_j_on_i"] < 0.01 < math.log(2) < whole["loss_of_j_on_i"]
