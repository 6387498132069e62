"""The page about a fit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator

from ..data import EnvironmentSet
from ..reports import Bar, Bars, Curves, Heatmap, Page, Section, Table, write_page
from ..training import held_out_transfer_matrix
from .facts import columns_of, how_compared, ranked, settings_of, wilson
from .fit import Fitted

MOST_ROWS = 1000  # of an environment, for the transfer matrix
MOST_ENVIRONMENTS = 20
RIDGE = 1e-3


def write_report(path: Path, fitted: Fitted, command: str = "") -> None:
    write_page(path, page_of(fitted, command))


def page_of(fitted: Fitted, command: str = "") -> Page:
    lead = [f"{fitted.choice.algorithm} was trained on all {len(fitted.source.samples)} rows: {fitted.choice.why}."]
    sections: list[Section] = []
    if fitted.comparison is not None:
        lead.append(how_compared(fitted.comparison))
        sections += [_table(fitted), _bars(fitted)]
    sections += [_curves(fitted), *_matrix(fitted), _columns(fitted)]
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


def _matrix(fitted: Fitted) -> list[Section]:
    """How well a predictor fitted on one environment's features does on another's, with the final features."""
    source = fitted.source
    names = source.samples.environment_names
    if len(names) > MOST_ENVIRONMENTS:
        return []
    data = _some(fitted)
    values: NDArray[np.float64] = held_out_transfer_matrix(fitted.model.network, data, RIDGE).double().numpy()
    note = (
        "Loss of the best linear predictor for one environment's features in another, on rows it was not fitted on; up "
        f"to {MOST_ROWS} rows of each."
    )
    return [
        Heatmap("Transfer of the final features", names, names, values, note=note, corner="fitted on ↓ tested on →")
    ]


def _some(fitted: Fitted) -> EnvironmentSet:
    samples = fitted.source.samples
    generator = Generator().manual_seed(70_000 + fitted.plan.seed)
    rows = []
    for e in range(len(samples.environment_names)):
        members = (samples.environments == e).nonzero().flatten()
        rows.append(members[torch.randperm(len(members), generator=generator)[:MOST_ROWS]])
    return fitted.source.take(fitted.model.encoder, torch.cat(rows))


def _columns(fitted: Fitted) -> Table:
    return Table(
        "What the model is given", ["Column", "Taken as", "Features", "Remark"], columns_of(fitted.model.encoder)
    )
