"""The 2-d example against the closed forms of the appendix."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from transferrisk.paper.quadrature import normal_nodes
from transferrisk.paper.toy_2d import Toy, Toy2DSettings, invariant_slopes, toy_2d_records

DEVIATIONS = torch.tensor([-2.0, 0.5, 1.5], dtype=torch.float64)
TOY = Toy(causal=1.2, ridge=1e-8)


def closed_form(objective, degrees, means):
    """With g(m_i, m_j) of w(P_i) = 2 m_i."""
    angle = math.radians(degrees)
    m = math.cos(angle) * TOY.causal + math.sin(angle) * means
    nodes, weights = normal_nodes(0.05)
    g = (weights * F.softplus(-2 * m[:, None, None] * (m[:, None] + nodes))).sum(-1)
    off = ~torch.eye(len(g), dtype=torch.bool)
    if objective == "sum-sum":
        return float(g[off].mean())
    return float(torch.where(off, g, -torch.inf).amax(1).mean())


def evaluate(objective, degrees, means):
    return TOY.objectives[objective](torch.tensor(degrees, dtype=torch.float64).deg2rad(), means)


@pytest.mark.parametrize("objective", ["sum-sum", "sum-sup"])
def test_risk_and_slope_are_those_of_the_closed_form_predictors(objective):
    """Several angles and means at once, none of which changes the others."""
    degrees, step = [-80.0, -41.0, 5.0, 33.0, 70.0], 1e-3
    means = torch.stack([offset + DEVIATIONS for offset in (0.0, 0.3, 0.3, 1.0, -0.5)])
    risks, slopes = evaluate(objective, degrees, means)
    for k, own in enumerate(means):
        assert float(risks[k]) == pytest.approx(closed_form(objective, degrees[k], own), rel=1e-5)
        above, below = (closed_form(objective, degrees[k] + move, own) for move in (step, -step))
        assert float(slopes[k]) == pytest.approx((above - below) / (2 * math.radians(step)), rel=1e-4)


def test_pooled_is_the_risk_of_the_best_common_slope():
    degrees, means, (nodes, weights) = [-30.0, 20.0], torch.stack([DEVIATIONS, 0.5 + DEVIATIONS]), normal_nodes(0.05)
    slopes = torch.linspace(0, 4, 2001, dtype=torch.float64)

    def best(angle, own):
        m = math.cos(math.radians(angle)) * TOY.causal + math.sin(math.radians(angle)) * own
        return float((weights * F.softplus(-slopes[:, None, None] * (m[:, None] + nodes))).sum(-1).mean(-1).min())

    risks, rises = evaluate("pooled", degrees, means)
    for k, own in enumerate(means):
        assert float(risks[k]) == pytest.approx(best(degrees[k], own), abs=1e-6)
        difference = (best(degrees[k] + 0.5, own) - best(degrees[k] - 0.5, own)) / math.radians(1.0)
        assert float(rises[k]) == pytest.approx(difference, rel=1e-2)


@pytest.mark.parametrize("degrees", [5.0, 40.0, 85.0])
def test_jensens_bound_and_what_is_above_it(degrees):
    """R >= E f(2 a^2 mu_c z_c) >= E f(2 mu_c z_c) = R(+-1, 0), where the mean is 0."""
    a, (nodes, weights) = math.cos(math.radians(degrees)), normal_nodes(0.05)
    bound = float((weights * F.softplus(-2 * a**2 * TOY.causal * (TOY.causal + nodes))).sum())
    (sum_sum,), (sum_sup,) = (
        evaluate(name, [degrees], DEVIATIONS[None])[0].tolist() for name in ("sum-sum", "sum-sup")
    )
    assert sum_sup >= sum_sum >= bound > closed_form("sum-sum", 0.0, DEVIATIONS)


@pytest.mark.parametrize("objective", ["sum-sum", "sum-sup", "pooled"])
def test_slopes_beside_the_invariant_feature(objective):
    for offset in (0.0, 0.25, 2.0):
        means = offset + DEVIATIONS
        left, right = invariant_slopes(TOY, objective, means)
        found = evaluate(objective, [-1e-4, 1e-4], means.expand(2, -1))[1]
        assert found.tolist() == pytest.approx([left, right], abs=1e-5)
        # (-2, 0.5, 1.5) + offset: the mean over i of the least of the others is offset - 3.5 / 3
        assert (left < 0 < right) == (objective == "sum-sup" and offset < 3.5 / 3)


def test_where_the_minimisers_are():
    found = toy_2d_records(Toy2DSettings(offsets=(0.0, 1.0, 2.0), spreads=(0.0,), angles=19, steps=1, node_step=0.4))
    best = {(r["objective"], r["offset"]): r["angle"] for r in found if r["what"] == "minimiser"}
    for objective in ("sum-sum", "sum-sup", "pooled"):
        assert best[objective, 0.0] == pytest.approx(0, abs=1e-4)
    assert best["sum-sup", 1.0] == 0  # the kink holds it
    for offset in (1.0, 2.0):
        assert 0 < best["sum-sum", offset] < best["pooled", offset] < math.degrees(math.atan(offset))
    assert 1 < best["sum-sup", 2.0] < best["sum-sum", 2.0]
    for row in found:
        if row["what"] == "spread":
            assert row["angle"] == pytest.approx(row["no_spread"], abs=1e-3)
            assert row["no_spread"] == pytest.approx(math.degrees(math.atan2(row["offset"], 1.0)))


def test_trm_drives_phi_1_to_phi_2():
    found = toy_2d_records(Toy2DSettings(offsets=(0.0,), spreads=(0.0,), angles=5, steps=30, node_step=0.4))
    paths = {r["objective"]: r for r in found if r["what"] == "path" and r["step"] == 30}  # where each ends
    starts = [r for r in found if r["what"] == "path" and r["step"] == 0]
    assert {r["angle"] for r in starts} == {75.0}
    assert abs(paths["sum-sum"]["angle"]) < 0.5
    assert abs(paths["sum-sup"]["angle"]) < 2
    assert abs(paths["sum-sum, direct"]["angle"]) < 5
    assert paths["sum-sum"]["risk"] < 0.2 * max(r["risk"] for r in starts)
