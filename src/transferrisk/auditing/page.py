"""The page of an audit, from what it found."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..reports import Bar, Bars, Group, Heatmap, Page, Section, Table, Text, percent, write_page
from ..reports.values import Entry
from .intervals import Estimate
from .report import MAJORITY, NOT_JUDGED, Audit

_PAIRS = 10  # listed, of the worst
_MOST_COLUMNS = 8  # environments beside each other on a terminal
_CORNER = "fitted on ↓ tested on →"


def write(audit: Audit, path: Path, command: str, data: str) -> None:
    write_page(path, page_of(audit, command, data))


def page_of(audit: Audit, command: str = "", data: str = "") -> Page:
    lead, rest = audit.sentences[:2], audit.sentences[2:]
    sections: list[Section] = [_maps(audit), _bars(audit), _pairs(audit), _environments(audit)]
    if rest:
        sections.insert(0, Text("Findings", rest))
    settings = {key.capitalize(): str(value) for key, value in audit.settings.items() if value is not None}
    settings |= {"Samples": str(int(audit.counts.sum())), "Classes": ", ".join(map(str, audit.classes))}
    settings |= {"Seconds": f"{audit.seconds['all']:.1f}, of which the matrix {audit.seconds['matrix']:.1f}"}
    title = f"Do these features transfer? {data}".strip()
    return Page(title, tuple(lead), tuple(sections), settings, command)


def accuracy_table(audit: Audit) -> Table:
    """Accuracy by where a predictor was fitted and tested; for many environments, the worst of each.

    The share of the most frequent class is what guessing it would give.
    """
    names, values, majority = audit.marked_names, audit.accuracy.value, audit.majority
    title, note = "Accuracy on held-out samples, %", "" if audit.judged.all() else NOT_JUDGED
    rows: list[list[Entry]]
    if len(names) <= _MOST_COLUMNS:
        pairs = [*zip(names, values, strict=True), ("all of them", audit.pooled_accuracy.value)]
        pairs += [("all others", audit.left_out_accuracy.value), (MAJORITY, majority)]
        rows = [[name, *map(percent, row)] for name, row in pairs]
        return Table(f"{title}; rows: fitted on, columns: tested on", ["Fitted on", *names], rows, note=note)
    rows = []
    for p, name in enumerate(names):
        others = [(values[q, p], q) for q in range(len(names)) if q != p and audit.judged[q]]
        worst, q = min(others, default=(float("nan"), p))
        there = (values[p, p], audit.pooled_accuracy.value[p], audit.left_out_accuracy.value[p])
        rows.append([name, *map(percent, there), f"{percent(worst).text} ({names[q]})", percent(majority[p])])
    columns = ["Environment", "Fitted there", "On all", "On all others", "Worst other", "Most frequent"]
    return Table(title, columns, rows, note=note)


def _maps(audit: Audit) -> Group:
    names, loss, right = audit.marked_names, audit.loss, audit.accuracy
    note = (
        "On samples held out from fitting, the diagonal included: a predictor is fitted on the environment in the row, "
        "outside of one fold, and tested in the environment in the column, on that fold."
    ) + _star(audit)
    maps = [
        Heatmap("Cross-entropy", names, names, loss.value, low=loss.low, high=loss.high, corner=_CORNER),
        Heatmap(
            "Accuracy, %", names, names, right.value, unit="percent", low=right.low, high=right.high,
            high_is_bad=False, corner=_CORNER,
        ),
    ]  # fmt: skip
    return Group("Transfer matrices", maps, note)


def _star(audit: Audit) -> str:
    return "" if audit.judged.all() else f" {NOT_JUDGED}."


def _bars(audit: Audit) -> Bars:
    groups = {
        name: [
            bar
            for bar in (
                _bar("fitted there", audit.accuracy[p, p]),
                _bar("fitted on all", audit.pooled_accuracy[p]),
                _bar("fitted on all others", audit.left_out_accuracy[p]),
            )
            if np.isfinite(bar.value)
        ]
        for p, name in enumerate(audit.marked_names)
    }
    share = f"{100 * audit.settings['confidence']:g} %"
    note = f"The line is the {share} interval: held-out samples drawn again, predictors as they are.{_star(audit)}"
    return Bars("Accuracy in each environment", groups, note=note)


def _bar(name: str, found: Estimate) -> Bar:
    return Bar(name, float(found.value), float(found.low), float(found.high))


def _pairs(audit: Audit) -> Table:
    M, A, judged = audit.loss.value, audit.accuracy.value, np.flatnonzero(audit.judged)
    pairs = sorted(((M[q, p] - M[p, p], q, p) for q in judged for p in judged if q != p), reverse=True)
    rows: list[list[Entry]] = [
        [str(audit.environments[q]), str(audit.environments[p]), float(M[q, p]), float(M[p, p]),
         percent(A[q, p]), percent(A[p, p])]
        for _, q, p in pairs[:_PAIRS]
    ]  # fmt: skip
    columns = ["Fitted on", "Tested on", "Loss", "Loss, fitted there", "Accuracy, %", "Accuracy, fitted there, %"]
    note = f"The {_PAIRS} worst of {len(pairs)}." if len(pairs) > _PAIRS else ""
    return Table("Worst pairs", columns, rows, digits=3, note=note)


def _environments(audit: Audit) -> Table:
    rows: list[list[Entry]] = [
        [str(name), int(audit.counts[e].sum()), int((audit.counts[e] > 0).sum()), percent(audit.majority[e]),
         float(audit.irm.value[e]), f"{audit.ridges[e]:g}" if np.isfinite(audit.ridges[e]) else "-",
         audit.remarks.get(name, "")]
        for e, name in enumerate(audit.environments)
    ]  # fmt: skip
    note = (
        "IRMv1's penalty is that of the predictor fitted on all environments, on held-out samples. Predictors of "
        f"several environments have the ridge {audit.pooled_ridge:.2g}."
    )
    columns = ["Environment", "Samples", "Classes", "Most frequent class, %", "IRMv1 penalty", "Ridge", "To mind"]
    return Table("Environments", columns, rows, digits=5, note=note)
