"""A table of two methods in two environments, whose numbers are worked out by hand."""

from __future__ import annotations

import html

from results_folder import cells_of, evaluation, write

from transferrisk.reports.experiments import report
from transferrisk.reports.experiments.load import load
from transferrisk.reports.experiments.report import parts_of

TABLE = {"kind": "table", "columns": "test_env", "average": True, "value": "accuracy"}
AXES = {"test_env": ["art", "photo"]}
ACCURACY = {
    ("ERM", "art"): (0.50, 0.60, 0.70), ("ERM", "photo"): (0.90, 0.90, 0.90),
    ("TRM", "art"): (0.60, 0.80, 0.70), ("TRM", "photo"): (0.80, 0.90, 1.00),
}  # fmt: skip
PUBLISHED = {"training_domain": {"ERM": {"art": [58.0, 1.5], "average": [74.0]}}}


def rows(columns):
    return evaluation(1, ACCURACY[columns["method"], columns["test_env"]][columns["seed"]])


def table(tmp_path, rows_of=rows, recipe=None, show=TABLE, axes=AXES):
    cells = cells_of(axes, ["ERM", "TRM"], 3)
    folder = write(tmp_path, "pacs", show, cells, rows_of, {"published": PUBLISHED} | (recipe or {}))
    (part,) = parts_of(load(folder))
    return part.grids[0]


def written(tmp_path, rows_of, show=TABLE):
    """Page, Markdown and LaTeX of an experiment."""
    write(tmp_path, "pacs", show, cells_of(AXES, ["ERM", "TRM"], 3), rows_of)
    paths = report(tmp_path).files
    return {path.suffix: html.unescape(path.read_text()) for path in paths if path.suffix in (".html", ".md", ".tex")}
