"""The report of every packaged recipe, from records that are made up, in every format."""

from __future__ import annotations

import html

import pytest
from results_folder import evaluation, name_of, pictures, write

from transferrisk.experiments import load_recipe, make_plan
from transferrisk.experiments.recipe import recipe_names
from transferrisk.reports.comparison_views import CurvesView, LinesView, View
from transferrisk.reports.record_views import PicturesView, RowsView, RowView, XyView
from transferrisk.reports.report import read_views, write_report
from transferrisk.reports.terminal import print_values
from transferrisk.settings import as_json

POINTS = 3  # of each grid


def rows_of_views(views: list[RowView], seed: int) -> list[dict]:
    """A record for each view, with every column that it names."""
    numbers: set[str] = set()
    for view in views:
        numbers |= {*view.values} if isinstance(view, RowsView) else {view.x, *view.y, *view.reference}
        numbers |= {name for name, value in view.where.items() if isinstance(value, float)}
    rows = []
    for view in views:
        names = {*view.panels, *(view.row if isinstance(view, RowsView) else view.series)} | numbers
        row = {name: 1.0 + seed + place if name in numbers else "one" for place, name in enumerate(sorted(names))}
        rows.append({**row, **view.where})
    return rows


def records_of(views: list[View], columns: dict, place: int, folder) -> list[dict]:
    """Records of a run: three evaluations, or a record for each view of records."""
    if any(isinstance(view, PicturesView) for view in views):
        return pictures(folder, columns, ["train", "test"])
    if any(isinstance(view, RowView) for view in views):
        return rows_of_views(views, columns["seed"])
    rows = []
    for step in (1, 2, 3):
        scores = {"irm": 0.01 * step, "transfer_risk": 0.1 * step}
        of_point = evaluation(step, 0.5 + 0.001 * (place % 97), 0.5 + 0.1 * step, environments=("x", "y"), **scores)
        rows += [{**row, "samples": 10, "adjusted": 0.4} for row in of_point]
    return rows


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_has_a_report_in_every_format(tmp_path, name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    recipe = load_recipe(name)
    points: dict = {}
    cells = []
    for cell in make_plan(recipe, seeds=2).cells:
        of_method = points.setdefault((cell.columns.get("method"), cell.columns["seed"]), [])
        if (point := cell.columns.get("point")) not in of_method:
            of_method.append(point)
        if point in of_method[:POINTS]:
            cells.append(cell)
    runs = {frozenset(cell.columns.items()): cell.run.name for cell in cells}
    places = {run: place for place, run in enumerate(dict.fromkeys(runs.values()))}
    views = list(read_views(recipe.show, name).values())

    def run_of(columns):
        return runs[frozenset(columns.items())]

    def rows_of(columns):
        return records_of(views, columns, places[run_of(columns)], tmp_path)

    written = write(
        tmp_path, name, recipe.show, [dict(cell.columns) for cell in cells], rows_of, as_json(recipe), run_of
    )
    for run in tmp_path.glob("runs/*"):  # of pictures, which are named by their columns
        run.rename(run.with_name(run_of(next(c.columns for c in cells if name_of(c.columns) == run.name))))
    report = write_report(tmp_path)
    page = html.unescape((tmp_path / "report.html").read_text())
    print_values(*report.chapters())
    printed = capsys.readouterr().out
    ((experiment, parts),) = report.found
    assert recipe.title in page
    assert not experiment.missing
    assert "No values to draw" not in page
    for stem, part in parts.items():
        assert part.tables or part.drawn or part.pictures
        assert not part.nothing_yet
        texts = [(written / f"{stem}.{suffix}").read_text() for suffix in (["md", "tex"] if part.grids else [])]
        for grid in part.grids:
            assert not grid.absent, "every method has numbers"
            assert len(grid.shown) == len(grid.columns)
            for line in grid.lines:
                assert all(line.replace("_", r"\_") in text or line in text for text in [*texts, page, printed]), line
            if grid.has_edges:
                assert "grids, some at the edge" in page, "said where the points themselves are folded"
            edges = sum("edge of its grid" in note for note in grid.notes)
            assert all(" ".join(text.split()).count("edge of its grid") >= edges for text in [*texts, page, printed])
        if any(isinstance(view, LinesView | CurvesView | XyView) for view in views):
            assert any((written / f"{stem}.svg").exists() for stem in parts)
            assert "<svg" in page
    if "ERM" in recipe.methods:
        for text in (page, printed, *(path.read_text() for path in written.glob("*.md"))):
            assert "gainst ERM" in text
