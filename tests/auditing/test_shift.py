"""The parts of a held-out loss, where only one of the three shifts is there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from transferrisk import audit
from transferrisk.auditing.shift import decompose_shift, shift_sections, shift_sentences, shifts_json
from transferrisk.errors import InputError
from transferrisk.reports.terminal import print_values


def drawn(rng, rows, mean=0.0, share=None, turned=False):
    """x, y and the losses of the model that is right but where the relation is turned."""
    if share is None:
        x = rng.normal(mean, 1, rows)
        chance = 1 / (1 + np.exp(-2 * x))
        y = (rng.random(rows) < (1 - chance if turned else chance)).astype(int)
    else:
        y = (rng.random(rows) < share).astype(int)
        x = rng.normal(y - 0.5, 0.7, rows)
    logit = 2 * x if share is None else (x / 0.49) + 1.5  # fitted where nine in ten are of class 1
    return x, y, np.logaddexp(0, np.where(y == 1, -logit, logit))


def table(*sites, rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    x, y, loss = map(np.concatenate, zip(*[drawn(rng, rows, **site) for site in sites], strict=True))
    features = np.c_[x, rng.normal(size=(len(x), 2))]
    return loss, features, y, np.repeat([f"site {i}" for i in range(len(sites))], rows)


@pytest.mark.parametrize(
    ("usual", "last", "part"),
    [
        ({"mean": 1.5}, {"mean": 0.0}, "inputs"),
        ({"share": 0.9}, {"share": 0.3}, "labels"),
        ({}, {"turned": True}, "relation"),
    ],
)
def test_one_shift_alone_is_found(usual, last, part):
    found = decompose_shift(*table(usual, usual, last))[2]
    assert found.excess > 0.1
    assert found.inputs + found.labels + found.relation == pytest.approx(found.excess)
    assert getattr(found, part) == pytest.approx(found.excess, abs=0.15 * found.excess + 0.02)
    assert ("TRM is made for" in found.sentence) == (part == "relation")
    assert ("TRM cannot" in found.sentence) == (part != "relation")


def test_without_a_shift_all_parts_are_small():
    for found in decompose_shift(*table({}, {}, {})):
        assert np.abs([found.excess, found.inputs, found.labels, found.relation]).max() < 0.05
        assert found.shared > 0.95


def test_many_features_are_seen_by_their_principal_components():
    """A shift of inputs in one of a hundred features, which vary less than it, is still one of inputs."""
    loss, X, y, e = table({"mean": 1.5}, {"mean": 1.5}, {"mean": 0.0})
    wide = np.c_[X[:, :1] + 0.3 * np.random.default_rng(1).normal(size=(len(X), 60)), X]
    found = decompose_shift(loss, wide, y, e)[2]
    assert found.kind == "inputs"
    assert found.inputs == pytest.approx(found.excess, abs=0.15 * found.excess + 0.02)


def test_an_excess_within_chance_is_not_explained():
    shifts = decompose_shift(*table({}, {}, {}, rows=300))
    assert {one.kind for one in shifts} == {""}
    (line,) = shift_sentences(shifts)
    assert "TRM" not in line
    turned = decompose_shift(*table({}, {}, {}, {"turned": True}, rows=1000))
    assert shift_sentences(turned) == (turned[3].sentence,)
    unclear = replace(turned[3], error=1.0)
    _, line = shift_sentences([unclear, unclear, turned[0]])
    assert line.startswith("2 of 3")
    assert "unclear in 2" in line
    found = shifts_json(turned)["environments"][3]
    assert (found["environment"], found["kind"]) == ("site 3", "relation")
    assert found["inputs"] + found["labels"] + found["relation"] == pytest.approx(found["excess"])


def test_an_audit_explains_the_losses_of_its_left_out_predictors():
    _, X, y, e = table({}, {}, {"turned": True}, rows=600)
    found = audit(X, y, e, ridge=0.01, bootstrap=5)
    for shift, loss in zip(found.shifts, found.left_out_loss.value, strict=True):
        assert shift.loss == pytest.approx(loss)
    assert found.shifts[2].kind == "relation"


def test_few_samples_and_sections(capsys):
    loss, X, y, e = table({}, {}, {"turned": True}, rows=200)
    kept = np.r_[0:400, 400:410]
    shifts = decompose_shift(loss[kept], X[kept], y[kept], e[kept])
    assert np.isnan(shifts[2].excess)
    print_values(*shift_sections(shifts))
    out = capsys.readouterr().out
    assert "site 2" in out
    assert "\N{EN DASH} ±" not in out


def test_one_environment_of_many_samples_is_compared_with_nothing():
    loss, X, y, e = table({}, {}, rows=200)
    kept = np.r_[0:205]
    (line,) = shift_sentences(decompose_shift(loss[kept], X[kept], y[kept], e[kept]))
    assert "cannot be compared" in line


def test_order_of_rows_does_not_matter():
    loss, X, y, e = table({}, {"turned": True}, rows=400)
    order = np.random.default_rng(1).permutation(len(y))
    mixed = decompose_shift(loss[order], X[order], y[order], e[order])
    for one, other in zip(decompose_shift(loss, X, y, e), mixed, strict=True):
        assert one.loss == pytest.approx(other.loss)
        assert one.relation == pytest.approx(other.relation, rel=0.2)


def test_losses_are_checked():
    loss, X, y, e = table({}, {}, rows=50)
    with pytest.raises(InputError, match="losses"):
        decompose_shift(loss[:-1], X, y, e)
