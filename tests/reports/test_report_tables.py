"""The numbers of the tables, worked out by hand."""

from __future__ import annotations

import math
import statistics

import pytest
from pacs_table import AXES, TABLE, bold, part_of, rows, table, texts
from results_folder import cells_of, evaluation, write

from transferrisk.errors import InputError
from transferrisk.reports.elements import MINUS, NOTHING
from transferrisk.reports.experiment import load_experiment
from transferrisk.reports.tables import Paired


def numbers(grid):
    return {(line["line"], line["column"]): line for line in grid.numbers()}


def test_mean_and_sample_deviation_over_seeds_in_percent(tmp_path):
    grid = table(tmp_path)
    assert grid.table().columns == ["Method", "art", "photo", "average"]
    assert texts(grid.table()) == {
        "ERM": ["60.0 ± 10.0", "90.0 ± 0.0", "75.0 ± 5.0"],
        "TRM": ["70.0 ± 10.0", "90.0 ± 10.0", "80.0 ± 8.7"],
    }
    assert numbers(grid)["TRM", "average"]["std"] == pytest.approx(statistics.stdev([70, 85, 85]))


def test_the_papers_numbers_and_the_difference(tmp_path):
    found = table(tmp_path).table()
    assert texts(found, "paper") == {"ERM": ["58.0 ± 1.5", "", "74.0"], "TRM": ["", "", ""]}
    assert texts(found, "difference")["ERM"] == ["+2.0", "", "+1.0"]


def test_differences_to_erm_are_paired_by_seed_with_a_t_interval(tmp_path):
    grid = table(tmp_path)
    # Differences 10, 20, 0: mean 10, standard error 10 / sqrt(3); t of 2 degrees of freedom at 97.5 % is 4.3027.
    half = 4.302652729911275 * 10 / math.sqrt(3)
    art = numbers(grid)["TRM", "art"]
    assert [art[f"against_erm{end}"] for end in ("", "_low", "_high")] == pytest.approx([10, 10 - half, 10 + half])
    against = grid.against_table()
    assert list(texts(against)) == ["TRM"]
    assert (texts(against)["TRM"][0], texts(against, "")["TRM"][0]) == ("+10.0 ?", f"{MINUS}14.8 to 34.8")
    assert numbers(grid)["TRM", "average"]["against_erm"] == pytest.approx(statistics.mean([0, 10, 5]))


THREE = {  # accuracy of seeds 0, 1, 2
    "ERM": (0.50, 0.50, 0.50), "GroupDRO": (0.60, 0.70, 0.80), "TRM": (0.71, 0.80, 0.89), "Oracle": (0.9, 0.9, 0.9),
}  # fmt: skip


def three_methods(tmp_path, values=THREE, show=None):
    methods = {name: {"algorithm": "erm", "oracle": name == "Oracle"} for name in values}

    def rows_of(columns):
        accuracy = values[columns["method"]][columns["seed"]]
        return evaluation(1, accuracy, transfer_risk=accuracy)

    folder = write(tmp_path, "e", show or {}, cells_of({}, list(values), 3), rows_of, {"methods": methods})
    return part_of(folder).grids[0]


def test_the_best_is_compared_with_the_runner_up_and_an_oracle_with_nobody(tmp_path):
    grid = three_methods(tmp_path)
    found = grid.runner_up_table()
    # Differences 11, 10, 9: mean 10, standard error 1 / sqrt(3).
    half = 4.302652729911275 / math.sqrt(3)
    assert texts(found) == {"accuracy, %": ["TRM", "GroupDRO", "+10.0"]}
    assert texts(found, "")["accuracy, %"][-1] == f"{10 - half:.1f} to {10 + half:.1f}"
    assert "?" not in found.note
    line = numbers(grid)["TRM", "accuracy"]
    assert line["rival"] == "GroupDRO"
    assert [line[f"against_rival{end}"] for end in ("", "_low", "_high")] == pytest.approx([10, 10 - half, 10 + half])
    assert numbers(grid)["ERM", "accuracy"]["rival"] == "TRM"
    assert numbers(grid)["Oracle", "accuracy"]["rival"] == ""


def test_where_less_is_better_the_best_is_the_least(tmp_path):
    show = {"kind": "table", "value": ["transfer_risk"]}
    found = three_methods(tmp_path, {name: THREE[name] for name in ("ERM", "GroupDRO", "TRM")}, show)
    assert texts(found.runner_up_table())["transfer risk"][:2] == ["ERM", "GroupDRO"]


def test_what_is_not_separated_is_marked(tmp_path):
    close = {**THREE, "TRM": (0.61, 0.70, 0.82)}  # differences 1, 0, 2
    grid = three_methods(tmp_path, close)
    found = grid.runner_up_table()
    assert texts(found)["accuracy, %"] == ["TRM", "GroupDRO", "+1.0 ?"]
    assert "not separated" in found.note
    marks = {name: cells[0].endswith("?") for name, cells in texts(grid.against_table()).items()}
    assert marks == {"GroupDRO": True, "TRM": True, "Oracle": False}  # 10, 20, 30: 20 +- 24.8; 40 without spread


def test_methods_with_the_same_runs_are_not_compared(tmp_path):
    """TRM and its second name have the same runs; so has ERM under two names."""
    values = {
        "ERM": (0.5, 0.6),
        "ERM again": (0.5, 0.6),
        "GroupDRO": (0.6, 0.8),
        "TRM": (0.7, 0.9),
        "TRM 2": (0.7, 0.9),
    }
    one = {"ERM again": "ERM", "TRM 2": "TRM"}

    def run_of(columns):
        return f"{one.get(columns['method'], columns['method'])}{columns['seed']}"

    def rows_of(columns):
        return evaluation(1, values[columns["method"]][columns["seed"]])

    folder = write(tmp_path, "e", {}, cells_of({}, list(values), 2), rows_of, run_of=run_of)
    (grid,) = part_of(folder).grids
    against = texts(grid.against_table())
    assert against["ERM again"] == ["same runs"]
    assert against["TRM"] == against["TRM 2"] != against["ERM again"]
    assert "same runs" in grid.against_table().note.lower()
    assert texts(grid.runner_up_table())["accuracy, %"][:2] == ["TRM", "GroupDRO"]
    assert {name for name, _ in bold(grid.table())} >= {"TRM", "TRM 2"}
    lines = numbers(grid)
    assert math.isnan(lines["ERM again", "accuracy"]["against_erm_low"])
    assert lines["TRM 2", "accuracy"]["rival"] == lines["TRM", "accuracy"]["rival"] == "GroupDRO"
    two = write(tmp_path, "two", {}, [c for c in cells_of({}, list(values), 2) if c["method"] != "GroupDRO"], rows_of,
                run_of=run_of)  # fmt: skip
    assert part_of(two).grids[0].runner_up_table() is None


def test_an_average_over_the_same_runs_is_the_same(tmp_path):
    def run_of(columns):
        return f"{columns['test_env'] if columns['method'] == 'TRM' else 'art'}{columns['seed']}"

    cells = cells_of(AXES, ["ERM", "TRM"], 2)
    folder = write(tmp_path, "e", TABLE, cells, lambda c: evaluation(1, 0.5 + 0.1 * c["seed"]), run_of=run_of)
    assert texts(part_of(folder).grids[0].against_table())["TRM"] == ["same runs", "0.0 ?", "0.0 ?"]


def test_columns_without_a_finished_run_are_named_and_not_shown(tmp_path):
    grid = table(tmp_path, lambda c: rows(c) if c["test_env"] == "art" else None)
    assert texts(grid.table()) == {"ERM": ["60.0 ± 10.0"], "TRM": ["70.0 ± 10.0"]}
    assert grid.table().columns == ["Method", "art"]
    assert list(texts(grid.against_table())["TRM"]) == ["+10.0 ?"]
    assert "photo" in grid.caption()
    assert ("TRM", "photo") in numbers(grid), "a file counts what is missing"


def test_names_with_commas_are_told_apart_in_lists(tmp_path):
    cells = cells_of({}, ["ERM", "TRM, a", "TRM"], 1)
    folder = write(tmp_path, "e", {}, cells, lambda c: evaluation(1, 0.5) if c["method"] == "ERM" else None)
    assert "Missing: TRM, a; TRM." in part_of(folder).grids[0].caption()


def test_bold_ends_where_a_method_is_separated_from_the_best(tmp_path):
    """IRM is not separated from TRM, as it varies much; but GroupDRO, which is better than IRM, is."""
    values = {
        "TRM": (0.80, 0.81, 0.82),
        "V-REx": (0.79, 0.82, 0.81),
        "GroupDRO": (0.70, 0.71, 0.72),
        "IRM": (0.9, 0.2, 0.9),
    }
    folder = write(tmp_path, "e", {}, cells_of({}, list(values), 3),
                   lambda c: evaluation(1, values[c["method"]][c["seed"]]))  # fmt: skip
    assert {name for name, _ in bold(part_of(folder).grids[0].table())} == {"TRM", "V-REx"}


def test_two_methods_have_no_runner_up(tmp_path):
    assert table(tmp_path).runner_up_table() is None


def test_a_point_at_the_edge_of_its_grid_is_remarked_on(tmp_path):
    grid = [f"lr={lr} w={w} kind=a" for lr in (0.1, 0.2, 0.4) for w in (1, 3)]
    best = {"lr=0.2 w=3 kind=a": "w=3", "lr=0.4 w=1 kind=a": "lr=0.4, w=1"}
    for point, edge in best.items():
        cells = cells_of({}, ["TRM"], 1, {"TRM": grid})
        part = part_of(
            write(
                tmp_path, "e", {}, cells, lambda c, p=point: evaluation(1, 0.5, training=0.5 + 0.4 * (c["point"] == p))
            )
        )
        assert part.grids[0].notes == [f"TRM, best of 6 points: {point}. At the edge of its grid: {edge}."]
    inside = cells_of({}, ["TRM"], 1, {"TRM": ["lr=0.1", "lr=0.2", "lr=0.4"]})
    part = part_of(
        write(tmp_path, "e", {}, inside, lambda c: evaluation(1, 0.5, training=0.5 + 0.4 * (c["point"] == "lr=0.2")))
    )
    assert part.grids[0].notes == ["TRM, best of 3 points: lr=0.2."]


def test_only_seeds_that_both_have_are_compared():
    assert Paired.of({0: 3.0, 1: 5.0}, {1: 4.0, 2: 0.0}) == pytest.approx(
        Paired(1.0, math.nan, math.nan, 1), nan_ok=True
    )
    assert Paired.of({0: 3.0}, {1: 4.0}) is None


def test_missing_seeds_and_methods_are_told(tmp_path):
    def some(columns):
        if columns["method"] == "TRM" and columns["test_env"] == "photo":
            return None
        return None if (columns["method"], columns["seed"]) == ("ERM", 1) else rows(columns)

    grid = table(tmp_path, some)
    assert texts(grid.table()) == {
        "ERM": ["60.0 ± 14.1", "90.0 ± 0.0", "75.0 ± 7.1"],
        "TRM": ["70.0 ± 10.0", "missing", "missing"],
    }
    assert texts(grid.table(), "") == {"ERM": ["2 of 3 seeds"] * 3, "TRM": ["", "", ""]}
    assert texts(grid.against_table()) == {"TRM": ["+5.0 ?", NOTHING, NOTHING]}
    assert texts(grid.against_table(), "")["TRM"][0] == f"{MINUS}58.5 to 68.5"


def test_seeds_that_nothing_has_are_told_once(tmp_path):
    grid = table(tmp_path, lambda columns: None if columns["seed"] == 2 else rows(columns))
    assert {line for lines in texts(grid.table(), "").values() for line in lines} == {""}
    assert grid.caption().startswith("Mean ± standard deviation over 2 of 3 seeds.")
    assert table(tmp_path / "whole").caption().startswith("Mean ± standard deviation over 3 seeds.")


def test_a_seed_without_a_number_is_missing_and_one_seed_has_no_deviation(tmp_path):
    def rows_of(columns):
        if columns["method"] == "TRM":
            return evaluation(1, math.nan)
        return evaluation(1, 0.5 if columns["seed"] == 0 else None)

    grid = table(tmp_path, rows_of)
    assert texts(grid.table()) == {"ERM": ["50.0"] * 3, "TRM": ["no value"] * 3}
    assert grid.caption().startswith("One of 3 seeds so far")


def test_what_is_best_depends_on_the_value_and_on_who_is_compared(tmp_path):
    def rows_of(columns):
        return [{**row, "loss": 0.1 if columns["method"] == "ERM" else 0.2} for row in rows(columns)]

    show = {"kind": "table", "value": ["accuracy", "loss"]}
    found = bold(table(tmp_path, rows_of, show=show, axes={"test_env": ["art"]}).table())
    assert {("TRM", 0), ("ERM", 1)} <= found
    assert ("TRM", 1) not in found
    alone = table(tmp_path, lambda c: rows(c) if c["method"] == "TRM" else None)
    assert bold(alone.table()) == set()
    assert "Bold" not in alone.caption()
    oracle = {"methods": {"ERM": {"algorithm": "erm"}, "TRM": {"algorithm": "erm", "oracle": True}, "IRM": {}}}
    cells = cells_of(AXES, ["ERM", "TRM", "IRM"], 3)
    folder = write(
        tmp_path, "pacs", TABLE, cells, lambda c: rows(c | {"method": c["method"].replace("I", "E")}), oracle
    )
    (grid,) = part_of(folder).grids
    assert bold(grid.table()) == {(name, column) for name in ("ERM", "IRM") for column in range(3)}
    assert "TRM apart" in grid.caption()


def test_an_average_is_compared_with_one_over_the_same_columns(tmp_path):
    published = {"training_domain": {"ERM": {"photo": [90.0], "sketch": [60.0], "average": [75.0]}}}
    show = {"kind": "table", "columns": "test_env", "average": True}
    for places, paper in ((["photo", "sketch"], "75.0"), (["photo"], "")):
        cells = cells_of({"test_env": places}, ["ERM"], 1)
        folder = write(tmp_path, "pacs", show, cells, lambda c: evaluation(1, 0.5), {"published": published})
        assert texts(part_of(folder).grids[0].table(), "paper")["ERM"][-1] == paper


def test_an_average_of_a_panel_is_compared_too(tmp_path):
    published = {
        "training_domain": {"ERM": {"small, photo": [90.0], "small, sketch": [60.0], "small, average": [75.0]}}
    }
    show = {"kind": "table", "columns": "test_env", "panels": "size", "average": True}
    cells = cells_of({"size": ["small", "large"], "test_env": ["photo", "sketch"]}, ["ERM"], 1)
    folder = write(tmp_path, "pacs", show, cells, lambda c: evaluation(1, 0.5), {"published": published})
    part = part_of(folder)
    assert [texts(grid.table(), "paper")["ERM"][-1] for grid in part.grids] == ["75.0", ""]


def test_a_column_of_the_rows_comes_before_what_they_were_made_on(tmp_path):
    show = {"kind": "rows", "row": "algorithm", "values": "threads"}
    rows = [{"algorithm": "erm", "threads": 4, "result.threads": 8}]
    part = part_of(write(tmp_path, "e", show, [{"seed": 0}], lambda c: rows))
    assert texts(part.grids[0].table()) == {"ERM": ["8"]}


def test_records_that_are_gone_are_told(tmp_path):
    folder = write(tmp_path, "gone", {"kind": "table"}, cells_of({}, ["ERM"], 1), lambda c: evaluation(1, 0.5))
    (folder / "records.parquet").unlink()
    (run,) = load_experiment(folder).missing
    (tmp_path / "runs" / run).mkdir(parents=True)
    (tmp_path / "runs" / run / "done.json").write_text("{}")
    with pytest.raises(InputError, match=r"records.parquet does not exist, though runs are done"):
        load_experiment(folder)


def test_nothing_has_run_and_the_papers_numbers_are_there(tmp_path):
    grid = table(tmp_path, lambda columns: None)
    assert texts(grid.table()) == {"ERM": ["missing"] * 3}
    assert texts(grid.table(), "paper")["ERM"][0] == "58.0 ± 1.5"


def test_values_as_columns_with_one_value_of_every_axis(tmp_path):
    published = {"training_domain": {"TRM": {"worst_group": [50.0], "accuracy": [60.0, 1.0]}}}
    show = {"kind": "table", "value": ["worst_group", "accuracy"]}
    grid = table(tmp_path, recipe={"published": published}, show=show, axes={"test_env": ["art"]})
    assert grid.table().columns == ["Method", "worst-group accuracy, %", "accuracy, %"]
    assert texts(grid.table(), "paper")["TRM"] == ["50.0", "60.0 ± 1.0"]


def test_an_axis_that_the_show_does_not_name_has_tables_of_its_own(tmp_path):
    cells = cells_of({"bias": [0.8, 0.9], **AXES}, ["ERM", "TRM"], 3)
    published = {"training_domain": {"ERM": {"0.9, art": [1.0]}}}
    folder = write(tmp_path, "pacs", TABLE, cells, rows, {"published": published})
    part = part_of(folder)
    assert [grid.title for grid in part.grids] == ["bias degree 80 %", "bias degree 90 %"]
    assert [texts(grid.table(), "paper")["ERM"][0] for grid in part.grids] == ["", "1.0"]


def test_the_chosen_points_are_told(tmp_path):
    cells = cells_of({"bias": [0.8, 0.9]}, ["ERM", "TRM"], 1, {"TRM": ["w=1", "w=2"]})

    def rows_of(columns):
        return evaluation(1, 0.5, training=0.9 if (columns["bias"] == 0.9) == (columns["point"] == "w=1") else 0.1)

    folder = write(tmp_path, "e", {"kind": "table", "columns": "bias"}, cells, rows_of)
    part = part_of(folder)
    assert part.grids[0].notes == [
        "TRM, best of 2 points: w=2 at 80 %; w=1 at 90 %. At the edge of its grid: w=2, w=1."
    ]


def test_rows_have_the_papers_numbers_under_any_rule(tmp_path):
    show = {"kind": "rows", "row": "algorithm", "values": ["seconds_per_epoch", "ratio"]}
    published = {"last": {"erm": {"seconds_per_epoch": [5.81]}, "trm": {"seconds_per_epoch": [8.69]}}}
    times = [{"algorithm": a, "seconds_per_epoch": s, "ratio": s / 5} for a, s in (("erm", 5.0), ("trm", 8.0))]
    folder = write(tmp_path, "time", show, [{"seed": 0}], lambda c: times, {"published": published, "select": ["last"]})
    (grid,) = part_of(folder).grids
    assert texts(grid.table()) == {"ERM": ["5.00", "1.00"], "TRM": ["8.00", "1.60"]}
    assert texts(grid.table(), "paper") == {"ERM": ["5.81", ""], "TRM": ["8.69", ""]}
    folder = write(tmp_path, "missing", show, [{"seed": 0}], lambda c: None, {"published": published})
    (grid,) = part_of(folder).grids
    assert texts(grid.table())["TRM"] == ["missing", "missing"]


def test_rows_are_filtered_named_by_several_columns_and_averaged_over_seeds(tmp_path):
    show = {"kind": "rows", "row": ["offset", "objective"], "values": "angle", "where": {"what": "best"}, "digits": 1}

    def rows_of(columns):
        return [{"what": what, "offset": 0.5, "objective": "sup", "angle": angle + columns["seed"]}
                for what, angle in (("best", 10.0), ("curve", 99.0))]  # fmt: skip

    folder = write(tmp_path, "toy", show, [{"seed": 0}, {"seed": 1}], rows_of)
    (grid,) = part_of(folder).grids
    assert texts(grid.table()) == {"offset 0.5, sup": ["10.5 ± 0.7"]}


def test_columns_of_whole_numbers_have_no_decimals(tmp_path):
    show = {"kind": "rows", "row": "dimension", "values": ["samples", "outside", "loss"], "digits": 4}

    def rows_of(columns):
        return [{"dimension": d, "samples": 1000 * d, "outside": d + columns["seed"], "loss": d / 2} for d in (2, 3)]

    folder = write(tmp_path, "theory", show, [{"seed": 0}, {"seed": 1}], rows_of)
    (grid,) = part_of(folder).grids
    assert texts(grid.table())["2"] == ["2000 ± 0", "2.5000 ± 0.7071", "1.0000 ± 0.0000"]


@pytest.mark.parametrize("given", [[1, 2, 3], "x", [], [True]])
def test_a_published_number_that_is_none_is_told(tmp_path, given):
    with pytest.raises(InputError, match=r"published.training_domain.ERM.art must be \[mean\]"):
        table(tmp_path, recipe={"published": {"training_domain": {"ERM": {"art": given}}}})
