"""Leave-one-environment-out selection against records made by hand; the rest is in test_training.py."""

from __future__ import annotations

import pytest

from transferrisk.errors import InputError
from transferrisk.training import Record, leave_one_environment_out, select, worst_group
from transferrisk.training.records import Scores


def record(ridge, test, held_out=None, step=1, validation=0.5, seed=0, **more):
    def scores(accuracy):
        return {"only": Scores(accuracy, 1.0)}

    return Record(
        "trm", seed, step, 1.0, 1.0, scores(1.0), scores(validation), scores(0.5), scores(test), [],
        settings={"ridge": ridge}, held_out=held_out, **more,
    )  # fmt: skip


RUNS = [
    # ridge 1: 0.9 and 0.3, mean 0.6, at the evaluations that training-domain validation selects
    record(1.0, 0.9, "a", step=1, validation=0.8),
    record(1.0, 0.99, "a", step=2, validation=0.7),
    record(1.0, 0.3, "b"),
    # ridge 2: 0.65 and 0.65, the better mean though ridge 1 has the best single run
    record(2.0, 0.65, "a"),
    record(2.0, 0.65, "b"),
    # trained on all environments
    record(1.0, 0.95),
    record(2.0, 0.11, step=1, validation=0.9),
    record(2.0, 0.99, step=2, validation=0.2),
]


def test_settings_are_those_with_the_best_mean_over_what_was_held_out():
    (chosen,) = leave_one_environment_out(RUNS)
    assert (chosen.settings, chosen.held_out, chosen.step) == ({"ridge": 2.0}, None, 1)
    assert chosen.test["only"].accuracy == 0.11  # however it does in the test environment


def test_each_seed_is_selected_for_itself():
    other = [
        record(1.0, 0.9, "a", seed=1), record(1.0, 0.9, "b", seed=1), record(2.0, 0.1, "a", seed=1),
        record(2.0, 0.1, "b", seed=1), record(1.0, 0.5, seed=1), record(2.0, 0.5, seed=1),
    ]  # fmt: skip
    chosen = leave_one_environment_out(RUNS + other)
    assert [(r.seed, r.settings["ridge"]) for r in chosen] == [(0, 2.0), (1, 1.0)]


def test_what_is_missing_is_named():
    with pytest.raises(InputError, match="no run held a training environment out"):
        leave_one_environment_out([record(1.0, 0.5)])
    with pytest.raises(InputError, match=r'settings {"ridge": 2.0} held \'b\' out: add it'):
        leave_one_environment_out([r for r in RUNS if (r.held_out, r.settings["ridge"]) != ("b", 2.0)])
    with pytest.raises(InputError, match=r'{"ridge": 2.0} are the best, and no run with them saw all'):
        leave_one_environment_out([r for r in RUNS if (r.held_out, r.settings["ridge"]) != (None, 2.0)])


def test_runs_with_other_settings_are_other_runs():
    assert len(select(RUNS, "last")) == 6


def test_runs_that_differ_in_anything_are_other_runs():
    """Settings of the training are selected among; what the data and the model are made from is not."""

    def runs(accuracy, lr, backbone):
        more = {"training": {"lr": lr}, "origin": {"backbone": backbone}}
        held = [record(1.0, accuracy, e, identity=f"{lr}{backbone}{e}", **more) for e in ("a", "b")]
        return [*held, record(1.0, 0.5, identity=f"{lr}{backbone}", **more)]

    every = [*runs(0.2, 0.1, "cnn"), *runs(0.9, 0.5, "cnn"), *runs(0.6, 0.1, "mlp"), *runs(0.3, 0.5, "mlp")]
    assert len(select(every, "last")) == 12
    chosen = [(r.origin["backbone"], r.training["lr"]) for r in leave_one_environment_out(every)]
    assert chosen == [("cnn", 0.5), ("mlp", 0.1)]
    with pytest.raises(InputError, match=r'no run with settings {"lr": 0.5} held \'b\' out'):
        leave_one_environment_out([r for r in every if r.identity != "0.5cnnb"])


def test_worst_group_is_the_worst_of_all_environments():
    assert worst_group({"a": Scores(0.9, 1.0, 0.4), "b": Scores(0.8, 1.0, 0.7)}) == 0.4
    assert worst_group({"a": Scores(0.9, 1.0)}) != worst_group({"a": Scores(0.9, 1.0)})  # nan: not recorded
