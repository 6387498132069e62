"""A table of two methods in two environments, whose numbers are worked out by hand; and how to read tables."""

from __future__ import annotations

import html

from results_folder import cells_of, evaluation, write

from transferrisk.reports.experiment import load_experiment
from transferrisk.reports.report import parts_of, write_report

TABLE = {"kind": "table", "columns": "test_env", "average": True, "value": "accuracy"}
AXES = {"test_env": ["art", "photo"]}
ACCURACY = {
    ("ERM", "art"): (0.50, 0.60, 0.70), ("ERM", "photo"): (0.90, 0.90, 0.90),
    ("TRM", "art"): (0.60, 0.80, 0.70), ("TRM", "photo"): (0.80, 0.90, 1.00),
}  # fmt: skip
PUBLISHED = {"training_domain": {"ERM": {"art": [58.0, 1.5], "average": [74.0]}}}


def rows(columns):
    return evaluation(1, ACCURACY[columns["method"], columns["test_env"]][columns["seed"]])


def part_of(folder):
    """The one part of an experiment."""
    (part,) = parts_of(load_experiment(folder)).values()
    return part


def table(tmp_path, rows_of=rows, recipe=None, show=TABLE, axes=AXES):
    cells = cells_of(axes, ["ERM", "TRM"], 3)
    folder = write(tmp_path, "pacs", show, cells, rows_of, {"published": PUBLISHED} | (recipe or {}))
    return part_of(folder).grids[0]


def texts(table, below=None):
    """Row -> what its cells say, or the lines of this name below them."""
    return {
        row[0].text: [cell.text if below is None else cell.below.get(below, "") for cell in row[1:]]
        for row in table.cells()[0]
    }


def bold(table):
    """Row and column of the bold cells."""
    return {(row[0].text, column) for row in table.cells()[0] for column, cell in enumerate(row[1:]) if cell.bold}


def written(tmp_path, rows_of, show=TABLE):
    """Page, Markdown and LaTeX of an experiment."""
    write(tmp_path, "pacs", show, cells_of(AXES, ["ERM", "TRM"], 3), rows_of)
    paths = write_report(tmp_path).files
    return {path.suffix: html.unescape(path.read_text()) for path in paths if path.suffix in (".html", ".md", ".tex")}
