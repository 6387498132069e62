"""The table and the page of an audit."""

from __future__ import annotations

import numpy as np

from ..reports import Bar, Bars, Group, Heatmap, Page, Section, Table, Text, percent
from ..reports.values import Entry
from .columns import column_sections
from .report import MAJORITY, NOT_JUDGED, Audit
from .shift import shift_sections

_PAIRS = 10  # listed, of the worst
_ENDS = 10  # environments that are shown at either end, the worst and the best, where there are many
_MOST_COLUMNS = 8  # environments beside each other on a terminal
_CORNER = "fitted on ↓ tested on →"


def page_of(audit: Audit, command: str = "", data: str = "") -> Page:
    """Return the page of an audit of this data by this command."""
    verdict, sentences = audit.verdict, audit.sentences
    shown, count = _shown(audit), len(audit.environments)
    which = f" {len(shown)} of {count} environments, those that need most first; --json and to_frame() have all."
    remark = which if len(shown) < count else ""
    remark += "" if audit.judged.all() else f" {NOT_JUDGED}."
    names, loss, right = [audit.marked_names[e] for e in shown], audit.loss, audit.accuracy
    block = np.ix_(shown, shown)
    loss, right = loss[block], right[block]
    maps = [
        Heatmap("Cross-entropy", names, names, loss.value, low=loss.low, high=loss.high, corner=_CORNER),
        Heatmap(
            "Accuracy, %", names, names, right.value, unit="percent", low=right.low, high=right.high,
            high_is_bad=False, corner=_CORNER,
        ),
    ]  # fmt: skip
    note = (
        "On samples held out from fitting, the diagonal included: a predictor is fitted on the environment in the row, "
        f"outside of one fold, and tested in the environment in the column, on that fold.{remark}"
    )
    matrices = Group("Transfer matrices", maps, note)
    sections: list[Section] = [Text("Findings", sentences), matrices, _bars(audit, shown, remark)]
    sections += shift_sections(audit.shifts) if audit.shifts else []
    sections += column_sections(audit.columns) if audit.columns else []
    sections += [_pairs(audit), _environments(audit)]
    settings = {}
    for name, value in audit.settings.items():
        if value is not None:
            settings[name.capitalize()] = str(value)
    settings["Samples"] = str(int(audit.counts.sum()))
    settings["Classes"] = ", ".join(map(str, audit.classes))
    settings["Seconds"] = f"{audit.seconds['all']:.1f}, of which the matrix {audit.seconds['matrix']:.1f}"
    title = f"Do these features transfer? {data}".strip()
    return Page(title, verdict, sections, settings, command)


def accuracy_table(audit: Audit) -> Table:
    """Return accuracies by where a predictor was fitted and tested; for many environments, the worst of each.

    The share of the most frequent class is what guessing it would give.
    """
    names, values, majority = audit.marked_names, audit.accuracy.value, audit.majority
    title, note = "Accuracy on held-out samples, %", "" if audit.judged.all() else NOT_JUDGED
    rows: list[list[Entry]] = []
    if len(names) <= _MOST_COLUMNS:
        pairs = [*zip(names, values, strict=True), ("all of them", audit.pooled_accuracy.value)]
        pairs += [("all others", audit.left_out_accuracy.value), (MAJORITY, majority)]
        for name, row in pairs:
            rows.append([name, *map(percent, row)])
        return Table(f"{title}; rows: fitted on, columns: tested on", ["Fitted on", *names], rows, note=note)
    for p in by_need(audit):
        name = names[p]
        others = np.where(audit.judged, values[:, p], np.inf)
        others[p] = np.inf
        q = int(others.argmin()) if np.isfinite(others).any() else p
        worst = values[q, p] if q != p else np.nan
        there = (values[p, p], audit.pooled_accuracy.value[p], audit.left_out_accuracy.value[p])
        rows.append([name, *map(percent, there), f"{percent(worst).text} ({names[q]})", percent(majority[p])])
    columns = ["Environment", "Fitted there", "On all", "On all others", "Worst other", "Most frequent"]
    title += "; the environments that need most first"
    return Table(title, columns, rows, note=note, fold=_ENDS)


def by_need(audit: Audit) -> list[int]:
    """Return the environments from where the left-out predictor is least above guessing to where it is most.

    Those that cannot be judged come last.
    """
    above = audit.left_out_accuracy.value - audit.majority
    order: list[int] = np.argsort(np.where(audit.judged, above, np.inf), kind="stable").tolist()
    return order


def _shown(audit: Audit) -> list[int]:
    """The environments of maps and bars: all, or those at both ends of the order by need."""
    if len(audit.environments) <= 2 * _ENDS:
        return list(range(len(audit.environments)))
    order = [e for e in by_need(audit) if audit.judged[e]]
    return order if len(order) <= 2 * _ENDS else order[:_ENDS] + order[-_ENDS:]


def _bars(audit: Audit, shown: list[int], remark: str) -> Bars:
    groups: dict[str, list[Bar]] = {}
    for p in shown:
        place = audit.marked_names[p]
        fits = (
            ("fitted there", audit.accuracy[p, p]),
            ("fitted on all", audit.pooled_accuracy[p]),
            ("fitted on all others", audit.left_out_accuracy[p]),
        )
        groups[place] = []
        for name, right in fits:
            if np.isfinite(right.value):
                groups[place].append(Bar(name, float(right.value), float(right.low), float(right.high)))
    share = f"{100 * audit.settings['confidence']:g} %"
    note = f"The line is the {share} interval: held-out samples drawn again, predictors as they are.{remark}"
    return Bars("Accuracy in each environment", groups, note=note)


def _pairs(audit: Audit) -> Table:
    M, A = audit.loss.value, audit.accuracy.value
    counted = np.outer(audit.judged, audit.judged) & ~np.eye(len(M), dtype=bool)
    fitted, tested = np.nonzero(counted)
    order = np.argsort(-(M - np.diag(M))[counted], kind="stable")
    rows: list[list[Entry]] = []
    for q, p in zip(fitted[order[:_PAIRS]], tested[order[:_PAIRS]], strict=True):
        losses, rights = (float(M[q, p]), float(M[p, p])), (percent(A[q, p]), percent(A[p, p]))
        rows.append([str(audit.environments[q]), str(audit.environments[p]), *losses, *rights])
    columns = ["Fitted on", "Tested on", "Loss", "Loss, fitted there", "Accuracy, %", "Accuracy, fitted there, %"]
    note = f"The {_PAIRS} worst of {len(order)}." if len(order) > _PAIRS else ""
    return Table("Worst pairs", columns, rows, digits=3, note=note)


def _environments(audit: Audit) -> Table:
    rows: list[list[Entry]] = []
    for e in by_need(audit) if len(_shown(audit)) < len(audit.environments) else range(len(audit.environments)):
        name = audit.environments[e]
        counts, ridge = audit.counts[e], audit.ridges[e]
        share, shown = percent(audit.majority[e]), f"{ridge:g}" if np.isfinite(ridge) else "-"
        penalty, remark = float(audit.irm.value[e]), audit.remarks.get(name, "")
        rows.append([str(name), int(counts.sum()), int((counts > 0).sum()), share, penalty, shown, remark])
    note = (
        "IRMv1's penalty is that of the predictor fitted on all environments, on held-out samples. Predictors of "
        f"several environments have the ridge {audit.pooled_ridge:.2g}."
    )
    columns = ["Environment", "Samples", "Classes", "Most frequent class, %", "IRMv1 penalty", "Ridge", "To mind"]
    return Table("Environments", columns, rows, digits=5, note=note, fold=_ENDS)
