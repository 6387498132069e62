"""What the numbers of an audit say, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.checks import listed
from .bootstrap import Estimate
from .report import Audit, WorstPair


def remarks_of(
    environments: Sequence[Any], classes: Sequence[Any], counts: NDArray[np.int64]
) -> tuple[dict[Any, str], NDArray[np.bool_]]:
    """Why environments cannot be judged, or what to mind of them, by name; and which can be, (E,).

    counts is (E, folds, C). Not to be judged: fewer than two samples a fold, a single class, or a single fold.
    """
    remarks, judged = {}, np.ones(len(environments), bool)
    for e, name in enumerate(environments):
        by_class, size = counts[e].sum(0), int(counts[e].sum())
        seen = by_class > 0
        if size < 2 * counts.shape[1]:
            remarks[name] = f"is too small to judge: {_counted(size, 'sample')} in {counts.shape[1]} folds"
            judged[e] = False
        elif (counts[e].sum(1) == size).any():
            remarks[name] = "has all its samples in one fold, so that nothing is left to fit on, and cannot be judged"
            judged[e] = False
        elif seen.sum() == 1:
            remarks[name] = f"has class {classes[int(seen.argmax())]} alone and cannot be judged"
            judged[e] = False
        elif not seen.all():
            remarks[name] = f"has no sample of {_classes(classes, ~seen)}"
        elif (rare := by_class < counts.shape[1]).any():
            remarks[name] = f"has too few samples of {_classes(classes, rare)} for every fold to hold one"
    return remarks, judged


def sentences(audit: Audit) -> tuple[str, ...]:
    """The findings, the most telling first."""
    lines = [*_worst(audit), *_risk(audit), *_left_out(audit), *_guessed(audit)]
    lines += [f"environment {name} {why}." for name, why in audit.remarks.items()]
    return tuple(line[:1].upper() + line[1:] for line in lines)


def _worst(audit: Audit) -> list[str]:
    """Of the worst pair by accuracy, which is what people ask for, and of that by loss where it is another one."""
    if audit.worst is None or audit.worst_by_accuracy is None:
        return ["fewer than two environments are large enough to judge, so transfer between them cannot be told."]
    lines = [_by_accuracy(audit, audit.worst_by_accuracy)]
    if audit.worst is not audit.worst_by_accuracy:
        lines.append(_by_loss(audit, audit.worst))
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
            f"{_points(points)} points, which is within chance."
        )
    return (
        f"a predictor fitted on {home} loses {_points(points)} points at {away} ({_scene(audit, worst)})"
        f"{_helped(audit, worst)}."
    )


def _by_loss(audit: Audit, worst: WorstPair) -> str:
    """Its accuracy may rise all the same, where it is right more often and surer when it is wrong."""
    home, away, points = audit.environments[worst.fitted_on], audit.environments[worst.tested_on], worst.points
    chance = ", which is within chance" if worst.excess.low <= 0 <= worst.excess.high else ""
    if points.low > 0:
        right = f"it gets {_points(points)} points fewer right"
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


def _helped(audit: Audit, worst: WorstPair) -> str:
    if worst.helper is None or worst.closed is None:
        return ""
    name, closed = audit.environments[worst.helper], worst.closed
    if closed.low <= 0 <= closed.high:
        return f"; adding {name} to its training helps most, and changes that by {_points(closed)}, within chance"
    if closed.value < 0:
        return f"; adding any other environment to its training does not help ({name}: {_points(closed)})"
    return f"; adding {name} to its training closes {_points(closed)} of them"


def _risk(audit: Audit) -> list[str]:
    if not np.isfinite(audit.transfer_risk.value):
        return []
    at_home = float(np.mean(np.diag(audit.loss.value)[audit.judged]))
    return [
        f"the transfer risk is {audit.transfer_risk}, in cross-entropy: what a predictor fitted in one environment "
        f"loses in the worst other one; at home it loses {at_home:.3f}, in the average other one "
        f"{audit.mean_transfer_risk}."
    ]


def _left_out(audit: Audit) -> list[str]:
    """The environment that loses most by not being trained on."""
    if not np.isfinite(audit.unseen.value).any():
        return []
    e = int(np.nanargmax(audit.unseen.value))
    name, left, own, lost = audit.environments[e], audit.left_out_accuracy[e], audit.accuracy[e, e], audit.unseen[e]
    if lost.low <= 0 <= lost.high:
        return [
            f"no environment is left behind by more than chance: the nearest to it, {name}, gets {_share(left)} right "
            f"with a predictor of the others' samples, {_share(own)} with one of its own."
        ]
    if lost.value < 0:
        return [
            f"every environment does better with the others' samples than with its own; {name} gains least, "
            f"{_share(left)} against {_share(own)}."
        ]
    return [
        f"{name} loses most by being unseen, {_points(lost)} points: a predictor fitted on all others gets "
        f"{_share(left)} right there, one of its own {_share(own)}."
    ]


def _guessed(audit: Audit) -> list[str]:
    """Of judged environments where an accuracy is not above that of guessing their most frequent class."""
    kinds = (
        ("fitted there", np.diag(audit.accuracy.value)),
        ("fitted on all", audit.pooled_accuracy.value),
        ("fitted on all others", audit.left_out_accuracy.value),
    )
    places = []
    for e in np.flatnonzero(audit.judged):
        most = audit.majority[e]
        low = [f"{100 * right[e]:.1f} % {kind}" for kind, right in kinds if right[e] <= most]
        if low:
            places.append(f"{audit.environments[e]} ({', '.join(low)}; {100 * most:.1f} % are of one class)")
    if not places:
        return []
    return [f"some accuracies are not above what always guessing the most frequent class gives: {listed(places, 5)}."]


def _points(share: Estimate) -> str:
    return f"{100 * share.value:.1f} ({100 * share.low:.1f} to {100 * share.high:.1f})"


def _share(share: Estimate) -> str:
    return f"{100 * share.value:.1f} % ({100 * share.low:.1f} to {100 * share.high:.1f})"


def _classes(classes: Sequence[Any], which: NDArray[np.bool_]) -> str:
    names = [str(name) for name, chosen in zip(classes, which, strict=True) if chosen]
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"class {', '.join(names[:5])}{more}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
