"""Which evaluation and which point count, against rows whose answer is plain."""

from __future__ import annotations

import itertools
import math

import pytest
from results_folder import cells_of, evaluation, write

from transferrisk.reports.comparison_views import TableView
from transferrisk.reports.experiment import load_experiment


def chosen(folder, rule, value="accuracy"):
    """The numbers of the table of one value."""
    (grid,) = TableView(value=(value,)).part(load_experiment(folder), rule).grids
    return grid.numbers()


def selected(tmp_path, evaluations, rule, value="accuracy"):
    """The value of a single run with these evaluations, nan where it has none."""
    folder = write(tmp_path, "e", {}, cells_of({}, ["ERM"], 1), lambda c: [*itertools.chain(*evaluations)])
    (found,) = chosen(folder, rule, value)
    return found["mean"]


RISING = (
    evaluation(1, 0.1, training=0.9, test_domain=0.2),
    evaluation(2, 0.2, training=0.5, test_domain=0.8),
    evaluation(3, 0.3, training=0.6, test_domain=0.3),
)


@pytest.mark.parametrize(
    ("rule", "percent"),
    [
        ("training_domain", 10),
        ("test_domain", 20),
        ("last", 30),
        ("test_domain_last", 30),
        ("leave_one_environment_out", 10),
    ],
)
def test_the_rule_chooses_the_evaluation(tmp_path, rule, percent):
    assert selected(tmp_path, RISING, rule) == pytest.approx(percent)


def test_of_evaluations_that_tie_the_later_counts(tmp_path):
    evaluations = [evaluation(step, step / 10, training=0.7) for step in (3, 1, 2)]
    assert selected(tmp_path, evaluations, "training_domain") == pytest.approx(30)


def test_an_evaluation_without_a_number_is_not_chosen(tmp_path):
    nan, none = evaluation(2, 0.2, training=math.nan), evaluation(3, 0.3, training=None)
    assert selected(tmp_path, [evaluation(1, 0.1, training=0.5), nan, none], "training_domain") == pytest.approx(10)
    assert math.isnan(selected(tmp_path, [nan, none], "training_domain"))
    assert math.isnan(selected(tmp_path, [evaluation(1, None)], "training_domain"))


def test_accuracy_is_the_mean_over_test_environments_and_worst_group_the_lowest(tmp_path):
    rows = [evaluation(1, (0.2, 0.6), environments=("x", "y"))]
    assert selected(tmp_path, rows, "training_domain") == pytest.approx(40)
    assert selected(tmp_path, rows, "training_domain", "worst_group") == pytest.approx(20)


def test_sample_accuracy_weighs_environments_by_their_samples(tmp_path):
    """Three in four samples are of the second environment: 0.25 * 20 + 0.75 * 60."""
    rows = evaluation(1, (0.2, 0.6), environments=("x", "y"))
    samples = {"x": 100, "y": 300}
    counted = [{**row, "samples": samples.get(row["environment"], 7)} for row in rows]
    assert selected(tmp_path, [counted], "training_domain", "sample_accuracy") == pytest.approx(50)
    assert selected(tmp_path, [counted], "training_domain") == pytest.approx(40)
    assert math.isnan(selected(tmp_path, [rows], "training_domain", "sample_accuracy"))
    del counted[-1]["samples"]
    assert math.isnan(selected(tmp_path, [counted], "training_domain", "sample_accuracy"))
    empty = [{**row, "samples": 0} for row in rows]
    assert math.isnan(selected(tmp_path, [empty], "training_domain", "sample_accuracy"))


def test_the_adjusted_average_is_a_sum_over_environments(tmp_path):
    rows = evaluation(1, (0.2, 0.6), environments=("x", "y"))
    shares = {"x": 0.25, "y": 0.75}
    counted = [{**row, "adjusted": shares.get(row["environment"], 0) * row["accuracy"]} for row in rows]
    assert selected(tmp_path, [counted], "training_domain", "adjusted_accuracy") == pytest.approx(50)
    counted[-1]["adjusted"] = None
    assert math.isnan(selected(tmp_path, [counted], "training_domain", "adjusted_accuracy"))
    assert math.isnan(selected(tmp_path, [rows], "training_domain", "adjusted_accuracy"))


def test_validation_is_the_mean_over_environments(tmp_path):
    """The first evaluation is better in one environment, the second on average."""
    first, second = evaluation(1, 0.1, training=0.9), evaluation(2, 0.2, training=0.6)
    first[1]["accuracy"] = 0.2
    assert selected(tmp_path, [first, second], "training_domain") == pytest.approx(20)


GRID = {"TRM": ["w=1", "w=2", "w=3"]}
VALIDATION = {"w=1": (0.9, 0.1), "w=2": (0.6, 0.6), "w=3": (0.6, 0.6)}
TEST = {"w=1": 0.1, "w=2": 0.2, "w=3": 0.3}


def points(folder):
    (grid,) = TableView().part(load_experiment(folder), "training_domain").grids
    return grid.notes


def of_point(columns):
    return evaluation(1, TEST[columns["point"]], training=VALIDATION[columns["point"]][columns["seed"]])


def test_one_point_for_all_seeds_that_of_the_highest_mean_the_first_of_those_that_tie(tmp_path):
    folder = write(tmp_path, "e", {}, cells_of({}, ["TRM"], 2, GRID), of_point)
    (found,) = chosen(folder, "training_domain")
    assert (found["point"], found["mean"], found["seeds"]) == ("w=2", pytest.approx(20), 2)
    assert points(folder) == ["TRM, best of 3 points: w=2."]


def test_a_point_is_chosen_among_those_with_the_most_seeds(tmp_path):
    """w=1 has the best single seed; the seeds of w=2 are missing, and w=3 has both."""

    def some(columns):
        missing = ("w=1", 1), ("w=2", 0), ("w=2", 1)
        return None if (columns["point"], columns["seed"]) in missing else of_point(columns)

    folder = write(tmp_path, "e", {}, cells_of({}, ["TRM"], 2, GRID), some)
    (found,) = chosen(folder, "training_domain")
    assert (found["point"], found["planned_seeds"], found["seeds"]) == ("w=3", 2, 2)
    assert points(folder) == ["TRM, best of 3 points, up to 2 of which lack seeds: w=3. At the edge of its grid: w=3."]


def test_a_seed_that_diverged_counts_as_one_that_a_point_lacks(tmp_path):
    def rows(columns):
        failed = (columns["point"], columns["seed"]) == ("w=1", 1)
        return evaluation(1, 0.5, training=math.nan) if failed else of_point(columns)

    folder = write(tmp_path, "e", {}, cells_of({}, ["TRM"], 2, GRID), rows)
    (found,) = chosen(folder, "training_domain")
    assert found["point"] == "w=2"


def test_where_all_points_lack_seeds_the_best_of_those_with_the_most_counts(tmp_path):
    folder = write(tmp_path, "e", {}, cells_of({}, ["TRM"], 2, GRID), lambda c: None if c["seed"] else of_point(c))
    (found,) = chosen(folder, "training_domain")
    assert (found["point"], found["seeds"]) == ("w=1", 1)
    assert points(folder) == ["TRM, best of 3 points, up to 3 of which lack seeds: w=1. At the edge of its grid: w=1."]


def test_points_are_chosen_for_each_combination_and_rule(tmp_path):
    def rows(columns):
        good = columns["bias"] == 0.9, columns["point"] == "w=1"
        return evaluation(1, 0.5, training=0.9 if good[0] == good[1] else 0.1, test_domain=0.1 if good[1] else 0.9)

    cells = cells_of({"bias": [0.9, 0.8]}, ["TRM"], 1, {"TRM": ["w=1", "w=2"]})
    experiment = load_experiment(write(tmp_path, "e", {}, cells, rows))
    for rule, expected in (("training_domain", "12"), ("test_domain", "22"), ("last", "12")):
        (grid,) = TableView(columns="bias").part(experiment, rule).grids
        assert [line["point"] for line in grid.numbers()] == [f"w={number}" for number in expected]


def test_the_oracle_of_the_last_step_compares_points_there_by_data_of_the_test_environment(tmp_path):
    """w=1 is better at its best step, w=2 at the last, by which both rules of the last step choose differently."""

    def rows(columns):
        one = columns["point"] == "w=1"
        first = evaluation(1, 0.9 if one else 0.1, training=0.9 if one else 0.1, test_domain=0.9 if one else 0.1)
        return first + evaluation(2, 0.3 if one else 0.4, training=0.8 if one else 0.1, test_domain=0.2 if one else 0.5)

    experiment = load_experiment(write(tmp_path, "e", {}, cells_of({}, ["TRM"], 1, {"TRM": ["w=1", "w=2"]}), rows))
    for rule, point, mean in (("test_domain", "w=1", 90), ("last", "w=1", 30), ("test_domain_last", "w=2", 40)):
        (grid,) = TableView().part(experiment, rule).grids
        assert [(n["point"], n["mean"]) for n in grid.numbers()] == [(point, pytest.approx(mean))]


def test_leaving_one_out_chooses_the_point_that_does_best_where_it_was_not_trained(tmp_path):
    """w=2 has the highest mean over what was left out, w=1 the highest single one, w=3 lacks one of its runs."""
    elsewhere = {"w=1": {"a": 0.9, "b": 0.1}, "w=2": {"a": 0.6, "b": 0.5}, "w=3": {"a": 0.9, "b": None}}
    cells = [
        {"method": "TRM", "point": point, "seed": 0, "hold_out": out} for point in elsewhere for out in ("", "a", "b")
    ]

    def rows(columns):
        accuracy = elsewhere[columns["point"]].get(columns["hold_out"], 0.01 * int(columns["point"][2:]))
        return None if accuracy is None else evaluation(1, accuracy)

    folder = write(tmp_path, "e", {}, cells, rows)
    (found,) = chosen(folder, "leave_one_environment_out")
    assert (found["point"], found["mean"], found["planned_seeds"]) == ("w=2", pytest.approx(2), 1)
    (found,) = chosen(folder, "training_domain")
    assert (found["point"], found["mean"]) == ("w=1", pytest.approx(1)), "what holds data out is no run of its own"


def test_points_that_each_seed_has_on_its_own_are_chosen_seed_by_seed(tmp_path):
    """Seed 0 has w=1 and w=2, seed 1 has w=3 and w=4: the better of each by validation are 2 and 3."""
    cells = [{"method": "TRM", "point": f"w={w}", "seed": (w - 1) // 2} for w in (1, 2, 3, 4)]

    def rows(columns):
        w = int(columns["point"][2:])
        return evaluation(1, w / 10, training=0.9 if w in (2, 3) else 0.1)

    folder = write(tmp_path, "e", {}, cells, rows, {"search": {"kind": "random", "by_seed": True}})
    (found,) = chosen(folder, "training_domain")
    assert (found["seeds"], found["mean"]) == (2, pytest.approx(25))
    assert "best of 2 points" in points(folder)[0]


def test_a_run_that_two_cells_share_counts_for_both_and_once(tmp_path):
    cells = cells_of({"bias": [0.9, 0.8]}, ["ERM"], 2)
    folder = write(
        tmp_path, "e", {}, cells, lambda c: evaluation(1, 0.1 * (1 + c["seed"])), run_of=lambda c: f"run {c['seed']}"
    )
    experiment = load_experiment(folder)
    assert len(experiment.records) == 2 * len(evaluation(1, 0.1))
    (grid,) = TableView(columns="bias").part(experiment, "last").grids
    assert [(line["mean"], line["seeds"]) for line in grid.numbers()] == [(pytest.approx(15), 2)] * 2
