"""Presentation of an audit: the verdict and the findings in words, the table of accuracies, and the page."""

from __future__ import annotations

from itertools import islice

import numpy as np

from ..errors import counted, listed
from ..reports import Bar, Bars, Group, Heatmap, Page, Section, Table, Text, percent
from ..reports.elements import NOTHING, Entry, in_unit, interval
from .columns import column_sections
from .report import LEFT_OUT, MOST_FREQUENT, NOT_JUDGED, POOLED, Audit, Estimate, WorstPair, answer, expectation
from .shift import shift_sections

_PAIRS = 10  # worst pairs in the table
_ENDS = 10  # environments at either end, the worst and the best, that are shown of many
_MOST_COLUMNS = 8  # environments side by side on a terminal
_NARROW = 48  # letters of their names up to which they head the columns; longer names are numbered
_LONG = 20  # letters of a name that a heat map may cut off; with longer names, they are numbered
_REMARKS = 5  # remarks in the sentences
_CORNER = "trained on ↓ tested in →"
_CONSTANT = "Most frequent class: the accuracy of always predicting the one of the environment tested in."


def page_of(audit: Audit, command: str = "", data: str = "") -> Page:
    """Return the page; data and command are names that it shows."""
    sections: list[Section] = [Text("Findings", findings_of(audit)), *_charts(audit)]
    sections += shift_sections(audit.shifts) if audit.shifts else []
    sections += column_sections(audit.columns) if audit.columns else []
    sections += _tables(audit)
    settings = {}
    for name, value in audit.settings.items():
        if value is not None:
            settings[name.capitalize()] = str(value)
    settings["Samples"] = str(int(audit.counts.sum()))
    settings["Classes"] = ", ".join(map(str, audit.classes))
    settings["Seconds"] = f"{audit.seconds['all']:.1f}, of which the matrix {audit.seconds['matrix']:.1f}"
    return Page(f"Do these features transfer? {data}".strip(), verdict_of(audit), sections, settings, command)


def accuracy_table(audit: Audit) -> Table:
    """Return accuracies by where a predictor was fitted and where it was tested.

    Many environments have a row each, with the worst single environment to train on.
    """
    names, values, frequent = audit.marked_names, audit.accuracy.value, audit.most_frequent
    title, unjudged = "Accuracy in each environment, %", "" if audit.judged.all() else f" {NOT_JUDGED}."
    rows: list[list[Entry]] = []
    if len(names) <= _MOST_COLUMNS:
        heads = names if len("".join(names)) <= _NARROW else [str(e + 1) for e in range(len(names))]
        labels = names if heads is names else list(map("{} {}".format, heads, names))
        pairs = [*zip(labels, values, strict=True), (POOLED, audit.pooled_accuracy.value)]
        pairs += [(LEFT_OUT, audit.left_out_accuracy.value), (MOST_FREQUENT, frequent)]
        for name, row in pairs:
            rows.append([name, *map(percent, row)])
        note = (
            "Each row is a model, by the environment it was trained on. Each column is the environment it was tested "
            "in, on samples that it was not trained on. All others: all environments but the one tested in. "
            f"{_CONSTANT}{unjudged}"
        )
        return Table(title, ["Trained on", *heads], rows, note=note)
    for p in by_need(audit):
        name = names[p]
        others = np.where(audit.judged, values[:, p], np.inf)
        others[p] = np.inf
        q = int(others.argmin()) if np.isfinite(others).any() else p
        worst = values[q, p] if q != p else np.nan
        there = (values[p, p], audit.pooled_accuracy.value[p], audit.left_out_accuracy.value[p])
        rows.append([name, *map(percent, there), percent(worst), names[q] if q != p else None, percent(frequent[p])])
    columns = ["Tested in", "Trained there", "On all", "On all others", "Worst single", "Worst trained on"]
    columns.append("Most frequent class")
    note = (
        "Each column is a model, by the environments it was trained on. Worst single: the model of one other "
        f"environment with the lowest accuracy. {_CONSTANT} Environments where training on all others gains "
        f"least over the most frequent class come first.{unjudged}"
    )
    return Table(title, columns, rows, note=note, fold=_ENDS)


def by_need(audit: Audit) -> list[int]:
    """Return the environments, sorted by the left-out predictor's gain over the most frequent class, least first.

    Environments that cannot be judged come last.
    """
    above = audit.left_out_accuracy.value - audit.most_frequent
    order: list[int] = np.argsort(np.where(audit.judged, above, np.inf), kind="stable").tolist()
    return order


def _charts(audit: Audit) -> list[Section]:
    """Return the heat maps of the transfer matrices, and bars of the accuracies, both of the worst and best of many."""
    count = len(audit.environments)
    shown = list(range(count)) if count <= 2 * _ENDS else list(filter(audit.judged.__getitem__, by_need(audit)))
    shown = shown if len(shown) <= 2 * _ENDS else shown[:_ENDS] + shown[-_ENDS:]
    which = f" Shown are {len(shown)} of {count} environments, worst first; --json and to_frame() have all."
    remark = which if len(shown) < count else ""
    remark += "" if audit.judged.all() else f" {NOT_JUDGED}."
    names, block = np.array(audit.marked_names)[shown].tolist(), np.ix_(shown, shown)
    if max(map(len, names)) > _LONG:
        names = list(map("{} {}".format, range(1, len(names) + 1), names))
    loss, right = audit.loss[block], audit.accuracy[block]
    maps = [
        Heatmap("Log loss", names, names, loss.value, low=loss.low, high=loss.high, corner=_CORNER),
        Heatmap(
            "Accuracy, %", names, names, right.value, unit="percent", low=right.low, high=right.high,
            high_is_bad=False, corner=_CORNER,
        ),
    ]  # fmt: skip
    note = (
        "Each row is a model, named by the environment it was trained on; each column is the environment it was tested "
        f"in. All tests, including the diagonal, use samples that the model was not trained on.{remark}"
    )
    groups: dict[str, list[Bar]] = {}
    for place, p in zip(names, shown, strict=True):
        fits = (
            ("trained there", audit.accuracy[p, p]),
            ("trained on all", audit.pooled_accuracy[p]),
            ("trained on all others", audit.left_out_accuracy[p]),
        )
        groups[place] = []
        for name, found in fits:
            if np.isfinite(found.value):
                groups[place].append(Bar(name, float(found.value), float(found.low), float(found.high)))
    share = f"{100 * audit.settings['confidence']:g} %"
    intervals = f"Lines are {share} intervals for other samples of the same environment.{remark}"
    bars = Bars("Accuracy in each environment", groups, note=intervals)
    return [Group("Transfer matrices", maps, note), bars]


def _tables(audit: Audit) -> list[Section]:
    """Return the tables of the worst pairs and of the environments."""
    M, A = audit.loss.value, audit.accuracy.value
    judged = np.outer(audit.judged, audit.judged) & ~np.eye(len(M), dtype=bool)
    fitted, tested = np.nonzero(judged)
    order = np.argsort(-(M - np.diag(M))[judged], kind="stable")
    pairs: list[list[Entry]] = []
    for q, p in zip(fitted[order[:_PAIRS]], tested[order[:_PAIRS]], strict=True):
        losses, rights = (float(M[q, p]), float(M[p, p])), (percent(A[q, p]), percent(A[p, p]))
        pairs.append([str(audit.environments[q]), str(audit.environments[p]), *losses, *rights])
    columns = ["Trained on", "Tested in", "Loss", "Loss, trained there", "Accuracy, %", "Accuracy, trained there, %"]
    which = f"The {_PAIRS} worst of {len(order)}" if len(order) > _PAIRS else "In order"
    note = f"{which}, by how much the loss is above that of a model trained there."
    worst = Table("Worst pairs", columns, pairs, digits=3, note=note)

    count, rows = len(audit.environments), []
    for e in by_need(audit) if count > 2 * _ENDS else range(count):
        name, counts, ridge = audit.environments[e], audit.counts[e], audit.ridges[e]
        share, shown = percent(audit.most_frequent[e]), f"{ridge:g}" if np.isfinite(ridge) else NOTHING
        penalty, remark = float(audit.irm.value[e]), audit.remarks.get(name, "")
        row: list[Entry] = [str(name), int(counts.sum()), int((counts > 0).sum()), share, penalty, shown, remark]
        rows.append(row)
    note = (
        "Most frequent class: its share of the samples, which is the accuracy of always predicting it. The IRMv1 "
        "penalty is that of the model trained on all environments, on samples that it was not trained on. The ridge of "
        f"models trained on several environments is {audit.pooled_ridge:.2g}."
    )
    columns = ["Environment", "Samples", "Classes", "Most frequent class, %", "IRMv1 penalty", "Ridge", "Remark"]
    return [worst, Table("Environments", columns, rows, digits=5, note=note, fold=_ENDS)]


# ---- words


def verdict_of(audit: Audit) -> tuple[str, ...]:
    """Return the lines of `Audit.verdict`."""
    judged, expected = np.flatnonzero(audit.judged), audit.expected
    question = "Will a model work in a new environment?"
    if len(judged) < 2:
        return (f"{question} Unclear: fewer than two environments can be judged.",)
    left, most = audit.left_out_accuracy.value[judged], audit.most_frequent[judged]
    losses = audit.left_out_loss.value[judged]
    useless, behind = left <= most, audit.unseen.low[judged] > 0
    columns, accuracy = audit.columns, expected["accuracy"]
    warning, following = (columns.warning, columns.advice) if columns else ("", "")
    found = answer(accuracy, float(most.mean()), float(useless.mean()), bool(warning) or bool(behind.any()))
    k, names = len(judged), np.array(audit.environments, dtype=object)[judged]
    not_in = f" (not in {listed(names[useless], 5)})" if useless.any() else ""
    where = f"In {behind.sum()} of {k}, it is" if behind.any() else "In none is it"
    those = f" ({listed(names[behind], 5)})" if behind.any() else ""
    highest = int(np.nanargmax(losses))
    if useless.any():
        worst, reason = int((left - most).argmin()), "where the most frequent class is at least as accurate"
    elif behind.any():
        worst = int(np.where(behind, audit.unseen.value[judged], -np.inf).argmax())
        reason = "which loses most by being left out"
    else:
        worst, reason = highest, "where the log loss is highest"
    own = audit.accuracy.value[judged[worst], judged[worst]]
    if not following and found == "Yes":
        following = "Next: train a model on all environments with trm fit, which tests it in the same way."
    elif not following and not accuracy.tells:
        following = "Next: add labelled samples from more environments, and audit again."
    lines = (
        f"{question} {found}. Each of {k} environments was left out of training once. In {(~useless).sum()} of {k}, a "
        f"model trained on all others is more accurate than always predicting the most frequent class{not_in}. "
        f"{where} clearly less accurate than a model trained there{those}.",
        f"{expectation(accuracy, expected['loss'], left, losses, audit.settings['confidence'])} The most frequent "
        f"class has an accuracy of {100 * most.mean():.1f} % on average."
        + (f" The log loss is highest in {names[highest]}: {losses[highest]:.3f}." if highest != worst else ""),
        f"Look first at {names[worst]} ({counted(int(audit.counts[judged[worst]].sum()), 'sample')}), {reason}: a "
        f"model trained on all others has an accuracy of {100 * left[worst]:.1f} % and a log loss of "
        f"{losses[worst]:.3f} there. One trained there has an accuracy of {100 * own:.1f} %, and the most frequent "
        f"class {100 * most[worst]:.1f} %.",
        warning,
        following
        or "Next: before a model is used in a new environment, label samples there and test it. This audit's models "
        "are linear: trm fit tells whether another kind does better.",
    )
    return tuple(filter(None, lines))


def findings_of(audit: Audit) -> tuple[str, ...]:
    """Return the lines of `Audit.sentences`.

    The worst pair by accuracy comes first, then the worst pair by loss if it is another one.
    """
    if audit.worst is None or audit.worst_by_accuracy is None:
        lines = ["Fewer than two environments can be judged, so nothing is known about transfer."]
    else:
        at_home = float(np.mean(np.diag(audit.loss.value)[audit.judged]))
        lines = [
            *_worst_pairs(audit, audit.worst_by_accuracy, audit.worst),
            f"Transfer risk: {audit.transfer_risk}. This is the log loss of a model of one environment in the "
            "other environment where it does worst, averaged over the models. In its own environment a model has "
            f"{at_home:.3f} on average, and in all others {audit.mean_transfer_risk}.",
        ]
    if np.isfinite(audit.unseen.value).any():
        e = int(np.nanargmax(audit.unseen.value))
        name, lost = audit.environments[e], audit.unseen[e]
        left, own = _percent(audit.left_out_accuracy[e], True), _percent(audit.accuracy[e, e], True)
        if lost.low <= 0 <= lost.high:
            unseen = f"No environment clearly loses by being left out of training. {name} comes closest"
        elif lost.value < 0:
            unseen = f"Every environment does better with a model trained on all others. {name} gains least"
        else:
            points = _percent(lost)
            unseen = f"The environment that loses most by being left out of training is {name}, {points} points"
        lines.append(f"{unseen}: a model trained on all others gets {left} right, one trained there {own}.")
    lines.append(_useless(audit))
    for name, remark in islice(audit.remarks.items(), _REMARKS):
        lines.append(f"Environment {name} {remark}.")
    if len(audit.remarks) > _REMARKS:
        lines.append(f"{len(audit.remarks) - _REMARKS} more environments have a remark: see the page's Environments.")
    return tuple(filter(None, lines))


def _worst_pairs(audit: Audit, by_accuracy: WorstPair, by_loss: WorstPair) -> list[str]:
    """Describe the worst pair by accuracy and, if it is another one, by loss, where accuracy may even be higher."""
    right, told = audit.accuracy.value, []
    for worst in (by_accuracy, by_loss):
        q, p = worst.fitted_on, worst.tested_on
        pair = f"trained on {audit.environments[q]} and tested in {audit.environments[p]}, a model"
        told.append((pair, f"{100 * right[q, p]:.1f} % right, one trained there {100 * right[p, p]:.1f} %"))
    (pair, scene), (other_pair, other_scene) = told

    points, closed = by_accuracy.points, by_accuracy.closed
    if points.value < 0:
        first = "No model of one environment gets fewer right in another than a model trained there. The closest: "
        first += f"{pair} gets {scene}."
    elif points.low <= 0:
        first = f"The worst pair: {pair} gets {scene}. The difference of {_percent(points)} points could be chance."
    else:
        first = f"The worst pair: {pair} gets {scene}. That is a loss of {_percent(points)} points."
        if by_accuracy.helper is not None and closed is not None:
            name, gain = audit.environments[by_accuracy.helper], _percent(closed)
            if closed.low <= 0 <= closed.high:
                first += f" Adding {name} to the training data helps most, but its {gain} points could be chance."
            elif closed.value < 0:
                first += f" No other environment helps when it is added to the training data ({name}: {gain})."
            else:
                first += f" Adding {name} to the training data wins back {gain} points."
    if by_loss is by_accuracy:
        return [first]

    excess, points = by_loss.excess, by_loss.points
    chance = ", which could be chance" if excess.low <= 0 <= excess.high else ""
    if points.low > 0:
        accuracy = f"Its accuracy is {_percent(points)} points lower"
    elif points.high < 0:
        accuracy = "Its accuracy is higher all the same"
    else:
        accuracy = "Their accuracies do not clearly differ"
    second = (
        f"By log loss, another pair is the worst: {other_pair} has a log loss {excess} higher than one trained there"
        f"{chance}. {accuracy}: {other_scene}."
    )
    return [first, second]


def _useless(audit: Audit) -> str:
    """List the judged environments where the accuracy of a model is not above that of the most frequent class."""
    kinds = (
        ("trained there", np.diag(audit.accuracy.value)),
        ("trained on all", audit.pooled_accuracy.value),
        ("trained on all others", audit.left_out_accuracy.value),
    )
    places = []
    for e in np.flatnonzero(audit.judged):
        most, low = audit.most_frequent[e], []
        for kind, right in kinds:
            if right[e] <= most:
                low.append(f"{100 * right[e]:.1f} % {kind}")
        if low:
            places.append(f"{audit.environments[e]} ({', '.join(low)}; most frequent class {100 * most:.1f} %)")
    if not places:
        return ""
    return f"Some models are no better than always predicting the most frequent class there: {listed(places, 5)}."


def _percent(share: Estimate, sign: bool = False) -> str:
    low, high = max(-1.0, share.low), min(1.0, share.high)
    return f"{in_unit(share.value, 'percent', sign)} ({interval(low, high, 'percent', sign=False)})"
