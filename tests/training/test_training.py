"""Loop, evaluation, records and selection."""

from __future__ import annotations

import pytest
import small
import torch
import torch.nn.functional as F
from torch import nn

from transferrisk.algorithms import Batch, available
from transferrisk.data import EnvironmentSet
from transferrisk.errors import InputError
from transferrisk.functional import optimal_predictor
from transferrisk.models import Classifier
from transferrisk.training import (
    Record,
    Run,
    TrainingConfig,
    evaluate,
    held_out_transfer_matrix,
    read_records,
    select,
    train,
    write_records,
)
from transferrisk.training.evaluate import alternate
from transferrisk.training.records import Scores
from transferrisk.training.state import group_priors, start


@pytest.fixture
def splits():
    return small.splits()


def model():
    return Classifier(nn.Sequential(nn.Linear(4, 6), nn.ReLU()), 6, 3)


CONFIG = TrainingConfig(epochs=3, batch_size=10, evaluations=2)


def test_records_of_a_run(splits):
    steps = []
    records = train(
        Run("trm", model, splits, CONFIG, settings={"ridge": 1e-2}), lambda done, total: steps.append((done, total))
    )
    assert [r.step for r in records] == [4, 9]  # nine steps, evaluated half way and at the end
    assert steps == [(i + 1, 9) for i in range(9)]
    assert records[-1].epoch == 3.0
    assert set(records[-1].train) == {"north", "south"}
    assert set(records[-1].test) == {"east"}
    assert records[-1].logs["loss"] > 0
    assert records[-1].logs["transfer_risk"] > 0


def test_a_seed_fixes_a_run(splits):
    first, again, other = (train(Run("erm", model, splits, CONFIG, seed))[-1] for seed in (0, 0, 1))
    assert first.test == again.test
    assert first.test != other.test


@pytest.mark.parametrize("name", available())
def test_state_is_all_there_is_to_resume(splits, name):
    def advance(state, steps):
        for _ in range(steps):
            index = state.sampler.next()
            data = splits.train
            batch = Batch(data.batch(index), data.labels[index], data.environments[index])
            state.algorithm.step(state.model, batch, state.optimiser, state.epoch)
            state.step += 1

    whole = start(Run(name, model, splits, CONFIG))
    advance(whole, 4)
    saved = whole.snapshot()
    advance(whole, 5)
    resumed = start(Run(name, model, splits, CONFIG, seed=7))
    resumed.restore(saved)
    advance(resumed, 5)
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert resumed.step == 9


def test_evaluation_is_by_environment_and_leaves_the_model_training(splits):
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.BatchNorm1d(6))
    classifier = Classifier(net, 6, 3).train()
    scores = evaluate(classifier, splits.train)
    assert classifier.training
    assert evaluate(classifier, splits.train) == scores  # no dropout
    classifier.eval()
    for e, name in enumerate(splits.train.environment_names):
        part = splits.train.select(splits.train.environments == e)
        with torch.no_grad():
            logits = classifier(part.inputs[:])
        assert scores[name].accuracy == pytest.approx(float((logits.argmax(1) == part.labels).float().mean()))
        assert scores[name].loss == pytest.approx(float(F.cross_entropy(logits, part.labels)), rel=1e-5)


def test_held_out_transfer_matrix_fits_on_one_half_and_tests_on_the_other(splits):
    classifier = model().eval()
    data = splits.training_domain
    matrix = held_out_transfer_matrix(classifier, data, 1e-2)
    with torch.no_grad():
        features = classifier.featurise(data.inputs[:])
    half = torch.arange(len(data)) // 2 % 2  # environments alternate, so this alternates within each
    for q in range(2):
        fit = (data.environments == q) & (half == 0)
        W = optimal_predictor(features[fit], data.labels[fit], 3, 1e-2)
        for p in range(2):
            there = (data.environments == p) & (half == 1)
            logits = features[there] @ W[:, :-1].T + W[:, -1]
            assert float(matrix[q, p]) == pytest.approx(float(F.cross_entropy(logits, data.labels[there])), rel=1e-4)


def test_held_out_transfer_matrix_has_nan_where_there_is_nothing_to_fit_or_test():
    data = EnvironmentSet(
        torch.randn(21, 4),
        torch.arange(21) % 3,
        torch.tensor([0] * 10 + [1] + [2] * 10),
        ("a", "b", "c"),
        ("x", "y", "z"),
    )
    matrix = held_out_transfer_matrix(model().eval(), data, 1e-2)
    assert matrix.shape == (3, 3)
    assert matrix[:, 1].isnan().all()  # b's only sample is one to fit on
    assert matrix[:, [0, 2]].isfinite().all()


def test_samples_of_one_source_stay_in_one_half():
    data = EnvironmentSet(
        torch.zeros(8, 1), torch.zeros(8, dtype=torch.long), torch.zeros(8, dtype=torch.long), ("a",), ("x",),
        sources=torch.tensor([5, 5, 9, 9, 2, 2, 7, 7]),
    )  # fmt: skip
    halves = alternate(data)
    assert halves.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]  # in the order of the sources: 2, 5, 7, 9
    assert data.select(torch.tensor([0, 2])).sources.tolist() == [5, 9]


def test_group_priors_are_those_of_balanced_draws():
    data = EnvironmentSet(
        torch.zeros(6, 1), torch.tensor([0, 0, 0, 1, 0, 1]), torch.tensor([0, 0, 0, 0, 1, 1]), ("a", "b"), ("x", "y")
    )
    torch.testing.assert_close(group_priors(data), torch.tensor([[0.375, 0.125], [0.25, 0.25]]))


def record(algorithm="erm", seed=0, step=1, validation=0.5, test_validation=0.5, test=0.5):
    def scores(accuracy):
        return {"only": Scores(accuracy, 1.0)}

    return Record(
        algorithm, seed, step, 1.0, 1.0, scores(1.0), scores(validation), scores(test_validation), scores(test),
        [[0.1, 0.4], [0.7, 0.2]],
    )  # fmt: skip


def test_selection_uses_the_validation_it_is_told_to():
    runs = [
        record(step=1, validation=0.9, test_validation=0.1, test=0.11),
        record(step=2, validation=0.9, test_validation=0.3, test=0.12),
        record(step=3, validation=0.8, test_validation=0.9, test=0.13),
        record(seed=1, step=1, test=0.2),
    ]
    assert [r.step for r in select(runs, "training_domain")] == [2, 1]
    assert [r.step for r in select(runs, "test_domain")] == [3, 1]
    assert [r.step for r in select(runs, "last")] == [3, 1]


def test_transfer_risk_of_a_record():
    assert record().transfer_risk == pytest.approx((0.4 + 0.7) / 2)


def test_records_round_trip(tmp_path):
    path = tmp_path / "deep" / "records.jsonl"
    runs = [record(step=i) for i in range(3)]
    write_records(path, runs)
    assert read_records(path) == runs
    assert [p.name for p in path.parent.iterdir()] == ["records.jsonl"]


@pytest.mark.parametrize("damage", ["{", '{"algorithm": "erm"}', "[]", '"text"'])
def test_damaged_records_are_named(tmp_path, damage):
    path = tmp_path / "records.jsonl"
    write_records(path, [record()])
    path.write_text(path.read_text() + damage + "\n")
    with pytest.raises(InputError, match="line 2, is not a record"):
        read_records(path)


def test_missing_records():
    with pytest.raises(InputError, match="does not exist"):
        read_records(__import__("pathlib").Path("/nowhere/records.jsonl"))
