"""An audit for its readers: the verdict and the findings in words, the table, and the page."""

from __future__ import annotations

from itertools import islice

import numpy as np

from ..errors import listed
from ..reports import Bar, Bars, Group, Heatmap, Page, Section, Table, Text, percent
from ..reports.values import Entry
from .columns import column_sections
from .report import MAJORITY, NOT_JUDGED, Audit, Estimate, WorstPair
from .shift import shift_sections

_PAIRS = 10  # listed, of the worst
_ENDS = 10  # environments that are shown at either end, the worst and the best, where there are many
_MOST_COLUMNS = 8  # environments beside each other on a terminal
_SOME = 0.05  # share of environments that a model may guess in: of many small ones a few will come out so by chance
_REMARKS = 5  # told in sentences
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


# ---- words


def verdict_of(audit: Audit) -> list[str]:
    """See `Audit.verdict`; each line stands for itself."""
    judged = np.flatnonzero(audit.judged)
    if len(judged) < 2:
        return ["Will a model transfer? That cannot be told: fewer than two environments are large enough to judge."]
    left, most, lost = audit.left_out_accuracy.value[judged], audit.majority[judged], audit.unseen[judged]
    guessed, behind, by_need = left <= most, lost.low > 0, np.argsort(left - most, kind="stable")
    warning = audit.columns.warning if audit.columns else ""
    if guessed.mean() <= _SOME and not behind.any() and not warning:
        answer = "Yes"
        advice = "fit a model on all environments with trm fit, which tests it in the same way."
    elif guessed.mean() <= _SOME and not behind.any():
        answer = "Among these environments, yes"
        advice = "run trm fit with --drop-unstable, which compares models with and without such columns."
    else:
        answer = "No" if guessed.mean() > 0.5 else "In part"
        needy = judged[by_need[(behind | guessed)[by_need]]]
        advice = (
            "label samples of every new environment before a model is relied on there; look at "
            f"{listed(map(audit.environments.__getitem__, needy), 5)} first. trm fit tells whether another model, "
            "linear or not, does better there."
        )
    worst = by_need[0]  # where the left-out predictor is least above guessing
    than = "no better than" if left[worst] <= most[worst] else "against"
    own = audit.accuracy.value[judged[worst], judged[worst]]
    return [
        f"Will a model transfer? {answer}: fitted on all other environments, it beats always guessing the most "
        f"frequent class in {(~guessed).sum()} of {len(judged)}, and falls behind a model fitted there, by more "
        f"than chance, in {behind.sum()}.",
        _expectation(audit, float(most.mean())),
        f"Worry most about {audit.environments[judged[worst]]}: {100 * left[worst]:.1f} % right, {than} "
        f"{100 * most[worst]:.1f} % by guessing; a model fitted there gets {100 * own:.1f} %.",
        warning,
        f"Next: {advice}",
    ]


def _expectation(audit: Audit, most: float) -> str:
    expected = audit.expected
    right, loss = expected["accuracy"], expected["loss"]
    if right.k < 3:
        return (
            f"What to expect in a new environment cannot be known from {right.k} environments; guessing gets "
            f"{100 * most:.1f} %. Get labelled samples from a third one."
        )
    accurate, lost = f"{100 * right.mean:.1f} % right", f"a cross-entropy of {loss.mean:.3f}"
    if np.isfinite(right.low):
        confidence = f"{100 * audit.settings['confidence']:g} %"
        accurate += f" ({confidence} interval: {100 * max(0, right.low):.1f} to {100 * min(1, right.high):.1f} %)"
        lost += f" ({max(0, loss.low):.3f} to {loss.high:.3f})"
    return (
        f"In a new environment expect {accurate} and {lost}, judged by {right.k} environments, each left out once; "
        f"guessing gets {100 * most:.1f} %."
    )


def findings_of(audit: Audit) -> list[str]:
    """See `Audit.sentences`; "" where there is nothing to say.

    The worst pair by accuracy, which is what people ask for, comes before that by loss where it is another one.
    """
    if audit.worst is None or audit.worst_by_accuracy is None:
        lines = ["fewer than two environments are large enough to judge, so nothing is known of transfer."]
    else:
        at_home = float(np.mean(np.diag(audit.loss.value)[audit.judged]))
        lines = [
            _by_accuracy(audit, audit.worst_by_accuracy),
            "" if audit.worst is audit.worst_by_accuracy else _by_loss(audit, audit.worst),
            f"the transfer risk is {audit.transfer_risk}: the mean cross-entropy of a predictor fitted in one "
            f"environment in the other one where it does worst. At home its cross-entropy is {at_home:.3f}, in the "
            f"average other environment {audit.mean_transfer_risk}.",
        ]
    lines += [_left_out(audit), _guessed(audit)]
    for name, remark in islice(audit.remarks.items(), _REMARKS):
        lines.append(f"environment {name} {remark}.")
    if len(audit.remarks) > _REMARKS:
        lines.append(f"{len(audit.remarks) - _REMARKS} more environments have a remark: see the page's Environments.")
    return lines


def _by_accuracy(audit: Audit, worst: WorstPair) -> str:
    home, away, points = audit.environments[worst.fitted_on], audit.environments[worst.tested_on], worst.points
    if points.value < 0:
        return (
            "no predictor fitted elsewhere gets fewer right than one fitted there; the nearest to it is that of "
            f"{home} at {away} ({_scene(audit, worst)})."
        )
    if points.low <= 0:
        return (
            f"the worst pair is a predictor fitted on {home} at {away} ({_scene(audit, worst)}): a loss of "
            f"{_percent(points)} points, which is within chance."
        )
    helped = ""
    if worst.helper is not None and worst.closed is not None:
        name, closed = audit.environments[worst.helper], worst.closed
        if closed.low <= 0 <= closed.high:
            helped = f"adding {name} to its training helps most, and changes that by {_percent(closed)}, within chance"
        elif closed.value < 0:
            helped = f"adding any other environment to its training does not help ({name}: {_percent(closed)})"
        else:
            helped = f"adding {name} to its training closes {_percent(closed)} of them"
    return (
        f"a predictor fitted on {home} loses {_percent(points)} points at {away} ({_scene(audit, worst)})"
        f"{'; ' if helped else ''}{helped}."
    )


def _by_loss(audit: Audit, worst: WorstPair) -> str:
    """Its accuracy may rise all the same, where it is right more often and surer when it is wrong."""
    home, away, points = audit.environments[worst.fitted_on], audit.environments[worst.tested_on], worst.points
    chance = ", which is within chance" if worst.excess.low <= 0 <= worst.excess.high else ""
    if points.low > 0:
        right = f"it gets {_percent(points)} points fewer right"
    elif points.high < 0:
        right = "it gets more right all the same"
    else:
        right = "how many it gets right differs by no more than chance"
    return (
        f"by cross-entropy the worst pair is a predictor fitted on {home} at {away}: {worst.excess.value:+.3f} "
        f"({worst.excess.low:+.3f} to {worst.excess.high:+.3f}) beside one fitted there{chance}; {right} "
        f"({_scene(audit, worst)})."
    )


def _scene(audit: Audit, worst: WorstPair) -> str:
    right = audit.accuracy.value
    own, here = right[worst.tested_on, worst.tested_on], right[worst.fitted_on, worst.tested_on]
    return f"{100 * here:.1f} % right, where one fitted there gets {100 * own:.1f} %"


def _left_out(audit: Audit) -> str:
    """The environment that loses most by not being trained on."""
    if not np.isfinite(audit.unseen.value).any():
        return ""
    e = int(np.nanargmax(audit.unseen.value))
    name, lost = audit.environments[e], audit.unseen[e]
    left, own = _percent(audit.left_out_accuracy[e], " %"), _percent(audit.accuracy[e, e], " %")
    if lost.low <= 0 <= lost.high:
        return (
            f"no environment is left behind by more than chance: the nearest to it, {name}, gets {left} right with a "
            f"predictor of the others' samples, {own} with one of its own."
        )
    if lost.value < 0:
        return (
            f"every environment does better with the others' samples than with its own; {name} gains least, {left} "
            f"against {own}."
        )
    return (
        f"the environment that loses most by being unseen is {name}, {_percent(lost)} points: a predictor fitted on "
        f"all others gets {left} right there, one fitted there {own}."
    )


def _guessed(audit: Audit) -> str:
    """Judged environments where an accuracy is not above that of guessing their most frequent class."""
    kinds = (
        ("fitted there", np.diag(audit.accuracy.value)),
        ("fitted on all", audit.pooled_accuracy.value),
        ("fitted on all others", audit.left_out_accuracy.value),
    )
    places = []
    for e in np.flatnonzero(audit.judged):
        most, low = audit.majority[e], []
        for kind, right in kinds:
            if right[e] <= most:
                low.append(f"{100 * right[e]:.1f} % {kind}")
        if low:
            places.append(f"{audit.environments[e]} ({', '.join(low)}; {100 * most:.1f} % are of one class)")
    if not places:
        return ""
    return f"some accuracies are not above what always guessing the most frequent class gives: {listed(places, 5)}."


def _percent(share: Estimate, sign: str = "") -> str:
    low, high = max(-1.0, share.low), min(1.0, share.high)
    return f"{100 * share.value:.1f}{sign} ({100 * low:.1f} to {100 * high:.1f})"
