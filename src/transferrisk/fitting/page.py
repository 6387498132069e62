"""Tables and the page about a fit.

It shows no transfer matrix of the final features: they are trained on all rows, on which any labels can be fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..reports import Bar, Bars, Curves, Page, Section, Table, percent, write_page
from ..reports.values import Entry
from .defaults import ON_VECTORS
from .facts import columns_of, how_compared, network_of, ranked, settings_of, wilson
from .fitted import Fitted, Plan
from .folder import CARD, COMPARISON, REPORT
from .source import Source

MOST_COLUMNS = 20  # of a table that are printed


def write_report(path: Path, fitted: Fitted, command: str = "") -> None:
    write_page(path, page_of(fitted, command))


def page_of(fitted: Fitted, command: str = "") -> Page:
    lead = [f"{fitted.choice.algorithm} was trained on all {len(fitted.source.samples)} rows: {fitted.choice.why}."]
    if fitted.plan.frozen:
        lead.append(f"The network is {network_of(fitted)}.")
    sections: list[Section] = []
    if fitted.comparison is not None:
        lead.append(how_compared(fitted.comparison))
        sections += [_table(fitted), _bars(fitted)]
    sections += [_curves(fitted), _columns(fitted)]
    title = f"{fitted.source.label}: a model for new environments"
    return Page(title, tuple(lead), tuple(sections), settings_of(fitted), command)


def _table(fitted: Fitted) -> Table:
    assert fitted.comparison is not None
    rows = ranked(fitted.comparison)
    return Table(
        "Comparison",
        ["Algorithm", *(f"{name},\u00a0%" for name in fitted.comparison.environments), "Mean,\u00a0%", "Worst,\u00a0%"],
        [[name, *(100 * value for value in (*values, mean, worst))] for name, values, mean, worst in rows],
        emphasised=[i for i, row in enumerate(rows) if row[0] == fitted.choice.algorithm],
    )


def _bars(fitted: Fitted) -> Bars:
    comparison = fitted.comparison
    assert comparison is not None
    groups: dict[str, Sequence[Bar]] = {
        f"{environment} ({comparison.rows[environment]} rows)": [
            Bar(name, accuracy[environment], *wilson(accuracy[environment], comparison.rows[environment]))
            for name, accuracy in comparison.accuracy.items()
        ]
        for environment in comparison.environments
    }
    kind = "environments not trained on" if comparison.held == "environments" else "held-out rows"
    return Bars(f"Accuracy in {kind}", groups, note="Lines are 95 % intervals over the rows of an environment.")


def _curves(fitted: Fitted) -> Curves:
    series = {f"{fitted.choice.algorithm}, all rows": fitted.outcome.curve}
    if fitted.comparison is not None:
        series = dict(fitted.comparison.curves) | series
    return Curves(
        "Training",
        series,
        "step",
        "loss",
        note="The algorithms minimise different things, so the heights of their curves do not compare. Of each "
        "compared algorithm, the first training is shown.",
    )


def _columns(fitted: Fitted) -> Table:
    return Table(
        "What the model is given", ["Column", "Taken as", "Features", "Remark"], columns_of(fitted.model.encoder)
    )


def columns_table(source: Source, elsewhere: str) -> Table:
    """How each column is taken; of many, those first that have a remark, and the rest is in the file `elsewhere`."""
    sizes = source.sizes.values()
    found = columns_of(source.learn(torch.arange(len(source.samples))))
    if len(found) > MOST_COLUMNS:
        found.sort(key=lambda column: not column[-1])
    rows: list[Sequence[Entry]] = [
        (source.label, "label", "", f"{len(source.samples.class_names)} classes"),
        (source.environment, "environment", "", f"{min(sizes)} to {max(sizes)} rows"),
        *found[:MOST_COLUMNS],
    ]
    more = f"and {len(found) - MOST_COLUMNS} more columns: see {elsewhere}" if len(found) > MOST_COLUMNS else ""
    title = f"{source.name}: {len(source.samples)} rows, {len(source.sizes)} environments"
    return Table(title, ["Column", "Taken as", "Features", "Remark"], rows, note=more)


def network_line(source: Source, plan: Plan) -> list[str]:
    """Whether a pretrained backbone is trained, and how to have it otherwise; nothing where there is none."""
    if plan.frozen:
        return [
            f"{plan.backbone} is taken as it is (frozen), and {plan.on_top} trained on its features; --tuned trains "
            "all of it, which takes far longer."
        ]
    if source.kind == "images" and plan.weights not in (None, "none"):
        return [
            f"All of {plan.backbone} is trained; --frozen takes it as it is and trains {ON_VECTORS} on its features."
        ]
    return []


def comparison_table(fitted: Fitted) -> list[Table]:
    """The table of the comparison, where there was one."""
    if fitted.comparison is None:
        return []
    held = fitted.comparison.held == "environments"
    ranks = ranked(fitted.comparison)
    return [
        Table(
            "Accuracy, %, in environments not trained on" if held else "Accuracy, %, on held-out rows",
            ["Algorithm", *fitted.comparison.environments, "Mean", "Worst"],
            [[name, *map(percent, (*values, mean, worst))] for name, values, mean, worst in ranks],
            emphasised=[place for place, row in enumerate(ranks) if row[0] == fitted.choice.algorithm],
            note=how_compared(fitted.comparison),
        )
    ]


def summary(fitted: Fitted, folder: Path) -> dict[str, Any]:
    """The same for a program, with where everything lies."""
    return {
        "algorithm": fitted.choice.algorithm,
        "why": fitted.choice.why,
        "comparison": None if fitted.comparison is None else fitted.comparison.to_dict(),
        "rows": len(fitted.source.samples),
        "environments": fitted.source.sizes,
        "network": {
            "backbone": fitted.plan.backbone,
            "weights": fitted.plan.weights,
            "frozen": bool(fitted.plan.frozen),
            "on_top": fitted.plan.on_top,
        },
        "classes": list(fitted.source.samples.class_names),
        "features": [
            {"column": name, "taken_as": kind, "features": number, "remark": remark}
            for name, kind, number, remark in columns_of(fitted.model.encoder)
        ],
        "model": str(folder),
        "card": str(folder / CARD),
        "report": str(folder / REPORT),
        "comparison_file": str(folder / COMPARISON),
    }
