"""The page about a fit.

It shows no transfer matrix of the final features: they are trained on all rows, on which any labels can be fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..reports import Bar, Bars, Curves, Page, Section, Table, write_page
from .facts import columns_of, how_compared, network_of, ranked, settings_of, wilson
from .fitted import Fitted


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
