"""A weight of k is k rows, and environments count the same, in the classifier and in everything below it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from shifted import sites
from torch import nn

from transferrisk import TransferRisk
from transferrisk.algorithms import Batch, Setting, available, create
from transferrisk.data import EnvironmentSet
from transferrisk.errors import InputError
from transferrisk.functional import transfer_risk
from transferrisk.models import Classifier
from transferrisk.sklearn import TransferRiskClassifier
from transferrisk.training.defaults import balanced

X, y, SITE = sites(40, (0.9, 0.3))
COUNTS = np.random.default_rng(0).integers(0, 4, len(X))


def repeated(*arrays):
    return [np.repeat(array, COUNTS, axis=0) for array in arrays]


DRAWS = {"mixup", "dfr"}  # partners, or what is held out: see tests/algorithms/test_truth.py
EXACT = [name for name in available() if name not in DRAWS]


@pytest.mark.parametrize("algorithm", EXACT)
def test_a_weight_is_so_many_rows(algorithm):
    def fitted():
        return TransferRiskClassifier(algorithm, max_epochs=15, representation="linear:4", random_state=0)

    weighted = fitted().fit(X, y, environments=SITE, sample_weight=COUNTS)
    rows, labels, site = repeated(X, y, SITE)
    plain = fitted().fit(X, y, environments=SITE).predict_proba(X)
    expected = fitted().fit(rows, labels, environments=site).predict_proba(X)
    np.testing.assert_allclose(weighted.predict_proba(X), expected, rtol=1e-6)
    assert np.abs(expected - plain).max() > 1e-3


@pytest.mark.parametrize("algorithm", ["erm", "reweight", "groupdro", "trm", "irm"])
def test_rows_twice_in_one_environment_change_nothing(algorithm):
    twice = np.concatenate([np.arange(len(X)), np.flatnonzero(SITE == "site 1")])
    one, other = (
        TransferRiskClassifier(algorithm, max_epochs=15, representation="linear:4", random_state=0, standardise=False)
        .fit(X[i], y[i], environments=SITE[i])
        .predict_proba(X)
        for i in (np.arange(len(X)), twice)
    )
    np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("name", EXACT)
def test_a_step_of_weighted_samples_is_that_of_repeated_ones(name):
    counts = torch.from_numpy(COUNTS)
    batch = Batch(torch.from_numpy(X), torch.from_numpy(y), torch.from_numpy((SITE == "site 1").astype(int)))
    several = Batch(*(part.repeat_interleave(counts, 0) for part in batch[:3]))
    weighted = batch._replace(weights=counts / counts.double().mean())
    torch.manual_seed(0)
    start = Classifier(nn.Sequential(nn.Linear(6, 5), nn.Tanh()), 5, 2).double()
    after = []
    for given in (several, weighted, batch):
        model = copy.deepcopy(start)
        torch.manual_seed(1)
        algorithm = create(name, Setting(2, 2)).double()
        algorithm.step(model, given, torch.optim.SGD(model.parameters(), lr=0.5), epoch=9.0)
        after.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(after[0], after[1], rtol=1e-6, atol=1e-8)
    assert not torch.allclose(after[1], after[2], atol=1e-4)


def test_the_transfer_risk_and_its_gradient():
    counts = torch.from_numpy(COUNTS)
    labels, index = torch.from_numpy(y), torch.from_numpy((SITE == "site 1").astype(int))
    features = torch.from_numpy(X).requires_grad_()
    one = transfer_risk(features, labels, index, 2, 2, 1e-2, sample_weights=counts.double())
    (gradient,) = torch.autograd.grad(one.risk, features)
    copies = (part.repeat_interleave(counts, 0) for part in (features, labels, index))
    two = transfer_risk(*copies, 2, 2, 1e-2)
    (expected,) = torch.autograd.grad(two.risk, features)
    torch.testing.assert_close(one.matrix, two.matrix)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-10)


def test_an_environment_without_weight_is_absent():
    features, labels, index = torch.randn(30, 3).double(), torch.arange(30) % 2, torch.arange(30) % 3
    weights = (index != 2).double()
    out = TransferRisk(environments=3)(features, labels, index, sample_weights=weights)
    assert out.matrix[2].isnan().all()
    assert out.matrix[:2, :2].isfinite().all()


@pytest.mark.parametrize("bad", [torch.ones(29), torch.ones(30, dtype=torch.int64), -torch.ones(30), [1.0] * 30])
def test_weights_that_are_none(bad):
    features, labels, index = torch.randn(30, 3), torch.arange(30) % 2, torch.arange(30) % 3
    with pytest.raises(InputError, match="sample_weights"):
        TransferRisk()(features, labels, index, sample_weights=bad)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (-np.ones(len(X)), "[Nn]egative"),
        (np.zeros(len(X)), "zero"),
        (np.ones(3), "sample_weight"),
        (["a"] * 80, "convert string to float"),
    ],
)
def test_sample_weights_that_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        TransferRiskClassifier(max_epochs=2).fit(X, y, environments=SITE, sample_weight=weights)


def unequal(weights=None):
    sizes = torch.tensor((3, 50, 200))
    rows = torch.arange(253.0, dtype=torch.float64)[:, None]
    environments = torch.arange(3).repeat_interleave(sizes)
    return EnvironmentSet(rows, torch.arange(253) % 2, environments, ("a", "b", "c"), ("no", "yes"), weights=weights)


@pytest.mark.parametrize("weights", [None, torch.linspace(0.1, 3, 253, dtype=torch.float64)])
def test_environments_weigh_the_same_in_a_step_of_all_rows(weights):
    data = unequal(weights)
    given = balanced(data, None).weights
    torch.testing.assert_close(data.environments.bincount(given), torch.full((3,), 253 / 3, dtype=torch.float64))
    if weights is not None:
        torch.testing.assert_close((given / weights)[:3], (given / weights)[:1].expand(3))


def test_small_environments_are_repeated_for_batches():
    data = unequal()
    drawn = balanced(data, 16)
    counts = drawn.environments.bincount()
    assert (counts >= -(-253 // 3)).all()
    times = drawn.inputs[:].flatten().long().bincount(minlength=253)
    for e in range(3):
        assert len(times[data.environments == e].unique()) == 1  # each row of an environment as often
    assert counts[2] == 200
    assert drawn.weights is None
