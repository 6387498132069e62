"""Drawings of experiments: lines where their numbers are, one look for a method, files that can be read."""

from __future__ import annotations

import io
import math
import re
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_rgb
from pacs_table import part_of, texts
from PIL import Image
from results_folder import cells_of, evaluation, pictures, write

from transferrisk.errors import InputError
from transferrisk.reports import Mark
from transferrisk.reports.charts import looks
from transferrisk.reports.elements import METHODS, method_name
from transferrisk.reports.report import write_report

LINES = {"kind": "lines", "x": "bias", "panels": "shift"}
AXES = {"shift": ["correlated", "combined"], "bias": [0.8, 0.9]}


def accuracy(columns):
    return (0.5 if columns["method"] == "ERM" else 0.7) + 0.1 * columns["seed"] - (columns["bias"] - 0.8)


def test_lines_are_means_with_bands_of_a_deviation_and_a_table_for_each_panel(tmp_path):
    cells = cells_of(AXES, ["ERM", "TRM"], 3)
    part = part_of(write(tmp_path, "cmnist", LINES, cells, lambda c: evaluation(1, accuracy(c))))
    assert [curves.title for curves in part.curves] == [grid.title for grid in part.grids] == AXES["shift"]
    first = part.curves[0]
    x, y = first.series["ERM"]
    assert list(x) == AXES["bias"]
    assert y == pytest.approx([60, 50])
    low, high = first.bands["ERM"]
    assert low == pytest.approx([50, 40])
    assert high == pytest.approx([70, 60])
    assert first.bands["TRM"][1] == pytest.approx([90, 80])
    assert list(first.x_ticks.values()) == part.grids[0].columns == ["80 %", "90 %"]
    assert part.grids[0].keys == ["0.8", "0.9"]


def test_a_band_ends_where_accuracy_ends_and_one_seed_has_none(tmp_path):
    cells = list(cells_of({"bias": [0.8, 0.9]}, ["ERM"], 2))
    show = {"kind": "lines", "x": "bias"}
    part = part_of(write(tmp_path, "a", show, cells, lambda c: evaluation(1, 0.9 + 0.1 * c["seed"])))
    assert part.curves[0].bands["ERM"][1] == [100.0, 100.0]
    part = part_of(write(tmp_path, "b", show, cells, lambda c: None if c["seed"] else evaluation(1, 0.9)))
    assert (part.curves[0].bands, part.curves[0].note) == ({}, "")


@pytest.mark.parametrize("kind", ["lines", "curves"])
def test_a_panel_without_a_number_is_left_out_and_named(tmp_path, kind):
    show = {"lines": LINES, "curves": {"kind": "curves", "panels": ["shift", "bias"]}}[kind]
    cells = list(cells_of(AXES, ["ERM", "TRM"], 2))
    folder = write(
        tmp_path, "a", show, cells, lambda c: None if c["shift"] == "combined" else evaluation(1, accuracy(c))
    )
    part = part_of(folder)
    assert part.drawn
    for titles in ([curves.title for curves in part.drawn], [grid.title for grid in part.tables]):
        assert all(title.startswith("correlated") for title in titles)
    (said,) = (note for note in part.words if note.startswith("Nothing to show yet: combined"))
    write_report(tmp_path)
    for file in ("report.html", "a/training_domain.md", "a/training_domain.tex"):
        content = (tmp_path / file).read_text()
        assert said.partition(",")[0] in content
        assert "No values to draw" not in content
    assert "### combined" not in (folder / "training_domain.md").read_text()
    assert "combined" in (folder / "training_domain.csv").read_text()  # planned, and missing


def test_a_missing_point_is_a_gap(tmp_path):
    cells = cells_of({"bias": [0.8, 0.85, 0.9]}, ["ERM"], 1)
    show = {"kind": "lines", "x": "bias", "scale": "log"}
    part = part_of(write(tmp_path, "a", show, cells, lambda c: None if c["bias"] == 0.85 else evaluation(1, 0.9)))
    (line,) = part.curves[0].series.values()
    assert [math.isnan(y) for y in line[1]] == [False, True, False]
    assert part.curves[0].x_log


def test_a_chart_ranges_over_what_exists(tmp_path):
    cells = list(cells_of({"bias": [0.8, 0.85, 0.9, 0.95]}, ["ERM", "TRM", "IRM"], 1))
    show = {"kind": "lines", "x": "bias"}

    def drawn(name, biases):
        there = lambda c: evaluation(1, 0.9) if c["bias"] in biases and c["method"] != "IRM" else None  # noqa: E731
        return part_of(write(tmp_path, name, show, cells, there)).drawn

    (curves,) = drawn("middle", (0.85, 0.9))
    assert list(curves.series) == ["ERM", "TRM"]
    assert list(curves.series["TRM"][0]) == list(curves.x_ticks) == [0.85, 0.9]
    (curves,) = drawn("gap", (0.8, 0.9))
    assert list(curves.x_ticks) == [0.8, 0.85, 0.9]
    assert drawn("one", (0.9,)) == [], "the table says what a single point would"


def test_a_logarithmic_axis_of_a_small_range_has_several_ticks(tmp_path):
    def rows(columns):
        return [row for step in (10, 20, 30) for row in evaluation(step, 0.5, irm=0.1 + 0.001 * step)]

    show = {"kind": "curves", "values": ["irm"], "y_scale": "log"}
    write(tmp_path, "e", show, cells_of({}, ["TRM"], 1), rows)
    write_report(tmp_path)
    ticks = re.findall(r">(0\.1\d*)<", (tmp_path / "e" / "training_domain.svg").read_text())
    assert len(set(ticks)) >= 2


def test_curves_are_means_over_seeds_of_the_chosen_point_at_every_step(tmp_path):
    def rows(columns):
        penalty = 1.0 if columns["point"] == "w=1" else 100.0
        return [
            row
            for step in (10, 20)
            for row in evaluation(step, 0.5, training=0.9 if columns["point"] == "w=1" else 0.1,
                                  irm=penalty * step + columns["seed"])
        ]  # fmt: skip

    cells = cells_of({}, ["TRM"], 2, {"TRM": ["w=1", "w=2"]})
    show = {"kind": "curves", "values": ["irm"], "y_scale": "log"}
    part = part_of(write(tmp_path, "e", show, cells, rows, {"select": ["last"]}))
    (curves,) = part.curves
    assert curves.series["TRM"] == ([10.0, 20.0], pytest.approx([10.5, 20.5]))
    assert curves.y_log
    assert texts(part.grids[0].table()) == {"TRM": ["20.5000 ± 0.7071"]}


XY = {"kind": "xy", "x": "n", "y": "error", "series": "method", "panels": "ridge", "where": {"what": "run"}}


def xy_rows(columns):
    rows = [
        {"what": "run", "n": n, "error": e * n + columns["seed"], "bound": 2.0 * n, "method": m, "ridge": r}
        for m, e in (("cg", 1.0), ("exact", 0.5))
        for r in (0.1, 1.0)
        for n in (20, 10)
    ]
    return [*rows, {"what": "other", "n": 5, "error": 1e9, "method": "cg", "ridge": 0.1}]


def test_xy_joins_columns_of_the_rows_that_count(tmp_path):
    show = XY | {"reference": "bound", "scale": "log", "y_scale": "log", "marks": {"y": 1, "text": "one"}}
    part = part_of(write(tmp_path, "e", show, [{"seed": 0}, {"seed": 2}], xy_rows))
    assert [curves.title for curves in part.curves] == ["ridge 0.1", "ridge 1"]
    curves = part.curves[0]
    assert curves.series["cg"] == ([10.0, 20.0], pytest.approx([11.0, 21.0]))
    assert curves.series["bound"] == ([10.0, 20.0], pytest.approx([20.0, 40.0]))
    assert curves.bands["cg"][0] == pytest.approx([11 - math.sqrt(2), 21 - math.sqrt(2)])
    assert "bound" not in curves.bands
    assert curves.marks == (Mark("one", y=1.0),)
    assert curves.x_log
    assert curves.y_log
    assert not part.grids


def test_xy_of_several_columns_and_of_none_that_is_there(tmp_path):
    show = {"kind": "xy", "x": "n", "y": ["error", "bound"], "where": {"method": ["cg", "none"]}, "draw": "points"}
    (curves,) = part_of(write(tmp_path, "e", show, [{"seed": 0}], xy_rows)).curves
    assert list(curves.series) == ["error", "bound"]
    assert not curves.joined
    assert curves.bands == {}
    write(tmp_path, "empty", XY, [{"seed": 0}], lambda c: None)
    write_report(tmp_path, ["empty"])
    assert not (tmp_path / "empty" / "results.svg").exists()
    assert "Nothing to show yet." in (tmp_path / "report-empty.html").read_text()
    assert not (tmp_path / "report.html").exists()


def test_a_column_that_is_not_there_is_told_with_the_nearest(tmp_path):
    folder = write(tmp_path, "e", XY | {"y": "eror"}, [{"seed": 0}], xy_rows)
    with pytest.raises(InputError, match=r"no column 'eror'.*'error'"):
        part_of(folder)


def test_pictures_of_every_cell_and_what_is_missing(tmp_path):
    cells = [{"shift": shift, "seed": 0} for shift in ("a", "b")]

    def rows(columns):
        return pictures(tmp_path, columns, ["train", "test"]) if columns["shift"] == "a" else None

    folder = write(tmp_path, "environments", {"kind": "pictures"}, cells, rows)
    part = part_of(folder)
    assert {name: list(own) for name, own in part.pictures.items()} == {"a": ["train", "test"]}
    assert part.notes == ["Without pictures: b."]
    write_report(tmp_path)
    assert (tmp_path / "report.html").read_text().count("<img") == 2
    assert (folder / "results.png").is_file()
    (archive,) = tmp_path.glob("runs/*/pictures.npz")
    archive.write_bytes(b"PK\x03\x04 no more")
    with pytest.raises(InputError, match=r"pictures\.npz cannot be read"):
        part_of(folder)


def test_files_of_a_figure_can_be_read_and_hold_the_rule(tmp_path):
    cells = cells_of(AXES, ["ERM", "TRM"], 2)
    folder = write(tmp_path, "cmnist", LINES, cells, lambda c: evaluation(1, accuracy(c)))
    write_report(tmp_path)
    svg = (folder / "training_domain.svg").read_text()
    ElementTree.fromstring(svg)
    assert "Selected by training-domain validation" in svg
    assert 'href="http' not in svg.replace('xlink:href="#', "")
    before = svg, (folder / "training_domain.png").read_bytes()
    assert Image.open(io.BytesIO(before[1])).width > 1000
    write_report(tmp_path)
    assert ((folder / "training_domain.svg").read_text(), (folder / "training_domain.png").read_bytes()) == before


@pytest.mark.parametrize(
    "show",
    [{"kind": "rows", "row": "x", "values": "y"}, {"kind": "xy", "x": "x", "y": "y"}, {"kind": "pictures"}],
)
def test_where_nothing_is_selected_nothing_is_said_of_it(tmp_path, show):
    def rows(columns):
        return [{"x": 1, "y": 2.5, **row} for row in pictures(tmp_path, columns, ["train"])]

    folder = write(tmp_path, "theory", show, [{"seed": 0}], rows)
    assert part_of(folder).words == []
    texts = [
        path.read_text() for path in write_report(tmp_path).files if path.suffix in (".html", ".md", ".tex", ".svg")
    ]
    assert not any("Selected" in text for text in texts)


def test_a_method_looks_the_same_whoever_is_beside_it():
    among = looks(["mine", "IRM", "ERM", "TRM without GM", "TRM", "Oracle", "other"])
    assert looks(["TRM"])["TRM"] == looks(["trm"])["trm"] == among["TRM"]
    assert among["TRM"].colour == METHODS["trm"][1]
    assert among["TRM without GM"].colour == METHODS["trm-direct"][1]
    assert len({look.colour for look in among.values()}) == 7
    assert len({(str(look.dash), look.marker) for look in among.values()}) == 7


def test_how_a_figure_looks_does_not_depend_on_what_else_is_reported(tmp_path):
    write(tmp_path, "late", XY, [{"seed": 0}], xy_rows)
    write_report(tmp_path)
    alone = (tmp_path / "late" / "results.svg").read_bytes()
    other = {**XY, "series": "name"}
    write(tmp_path, "early", other, [{"seed": 0}], lambda c: [row | {"name": f"{row['n']}"} for row in xy_rows(c)])
    write_report(tmp_path)
    assert (tmp_path / "late" / "results.svg").read_bytes() == alone


def test_names_that_are_drawn_together_look_different():
    found = looks([f"n{i}" for i in range(20)] + [method_name(key) for key in METHODS])
    assert len({(str(look.dash), look.marker) for look in found.values()}) == 30
    assert len({look.colour for look in looks(["x", "a", "b", *METHODS]).values()}) == 3 + len(METHODS)


def test_a_drawing_is_legible_in_grey():
    """No colour of a method is pale."""
    for name, look in looks(METHODS).items():
        red, green, blue = to_rgb(look.colour)
        assert 0.299 * red + 0.587 * green + 0.114 * blue < 0.65, f"{name} is hard to see on white"
