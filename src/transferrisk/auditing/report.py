"""What an audit found: numbers, a table, words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import counted, listed
from ..settings import as_json
from .intervals import Estimate, Floats

if TYPE_CHECKING:
    import pandas as pd

POOLED = "all environments"
LEFT_OUT = "all other environments"
MAJORITY = "most frequent"  # what guessing the most frequent class gives
NOT_JUDGED = "* cannot be judged, so its numbers mean nothing"


@dataclass(frozen=True)
class WorstPair:
    """Where a predictor fitted elsewhere does worst, next to one fitted there; indices into the environments.

    The pair with the largest M[Q, P] - M[P, P], both taken on the same held-out samples of P, or by accuracy the one
    with the largest difference there. The intervals of all pairs hold at once, so that of the pair named holds too.
    """

    fitted_on: int
    tested_on: int
    excess: Estimate  # cross-entropy above that of P's own predictor
    points: Estimate  # accuracy below that of P's own predictor, a share
    helper: int | None  # the environment R that, added to Q's training samples, helps most; None: there is no other
    closed: Estimate | None  # accuracy that R brings, a share


@dataclass(frozen=True, eq=False)
class Audit:
    """Held-out transfer between E environments. Arrays are in the order of `environments`, nan where not known.

    loss, accuracy      (E, E): the predictor fitted on the row's environment, tested on the column's
    pooled_*            (E,): one predictor for all environments, tested on each
    left_out_*          (E,): the predictor fitted on all other environments, tested on each
    unseen              (E,): accuracy of the one fitted there less that of the left-out one, on the same samples, a
                        share; the intervals of all judged environments hold at once, and the others have none
    transfer_risk       mean over Q of the largest M[Q, P], P != Q (the paper's eq. 1)
    mean_transfer_risk  mean over Q of the mean M[Q, P], P != Q (sum-sum)
    irm                 (E,) IRMv1's penalty of the pooled predictor on held-out samples
    counts              (E, C) samples
    ridges              (E,) with which each environment's predictor was fitted, nan where none could be chosen;
                        `pooled_ridge` with which the others
    judged              (E,) bool; transfer risks and the worst pair leave out environments too small to judge
    remarks             environment -> why it is too small to judge, or what to mind
    """

    environments: tuple[Any, ...]
    classes: tuple[Any, ...]
    loss: Estimate
    accuracy: Estimate
    pooled_loss: Estimate
    pooled_accuracy: Estimate
    left_out_loss: Estimate
    left_out_accuracy: Estimate
    unseen: Estimate
    transfer_risk: Estimate
    mean_transfer_risk: Estimate
    irm: Estimate
    worst: WorstPair | None
    worst_by_accuracy: WorstPair | None
    counts: NDArray[np.int64]
    ridges: Floats
    pooled_ridge: float
    judged: NDArray[np.bool_]
    remarks: Mapping[Any, str]
    settings: Mapping[str, Any]
    seconds: Mapping[str, float]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The findings in words, the most telling first."""
        lines = [*_worst(self), *_risk(self), *_left_out(self), *_guessed(self)]
        lines += [f"environment {name} {why}." for name, why in self.remarks.items()]
        return tuple(line[:1].upper() + line[1:] for line in lines)

    @property
    def majority(self) -> Floats:
        """(E,) share of each environment's most frequent class: the accuracy of guessing it always."""
        found: Floats = self.counts.max(1) / self.counts.sum(1)
        return found

    @property
    def marked_names(self) -> list[str]:
        """The environments as texts, with a star where they cannot be judged, which `NOT_JUDGED` explains."""
        return [f"{name}{'' if judged else ' *'}" for name, judged in zip(self.environments, self.judged, strict=True)]

    def to_frame(self) -> pd.DataFrame:
        """One row a predictor and environment it was tested on."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        samples, majority = self.counts.sum(1), self.majority
        for p, place in enumerate(self.environments):
            own = bool(self.judged[p])
            tests = [
                (name, self.loss[q, p], self.accuracy[q, p], self.ridges[q], own and bool(self.judged[q]))
                for q, name in enumerate(self.environments)
            ]
            tests.append((POOLED, self.pooled_loss[p], self.pooled_accuracy[p], self.pooled_ridge, own))
            tests.append((LEFT_OUT, self.left_out_loss[p], self.left_out_accuracy[p], self.pooled_ridge, own))
            rows += [
                {
                    "fitted_on": name, "tested_on": place,
                    "loss": loss.value, "loss_low": loss.low, "loss_high": loss.high,
                    "accuracy": right.value, "accuracy_low": right.low, "accuracy_high": right.high,
                    "samples": int(samples[p]), "majority": float(majority[p]), "ridge": float(ridge), "judged": judged,
                    "remark": self.remarks.get(place, ""),
                }
                for name, loss, right, ridge, judged in tests
            ]  # fmt: skip
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """The findings in the types of JSON; None where a number is not known."""
        estimates = ("loss", "accuracy", "pooled_loss", "pooled_accuracy", "left_out_loss", "left_out_accuracy",
                     "unseen", "transfer_risk", "mean_transfer_risk", "irm")  # fmt: skip
        found: dict[str, Any] = as_json(
            {
                "environments": [_json_name(name) for name in self.environments],
                "classes": [_json_name(name) for name in self.classes],
                **{name: _json_estimate(getattr(self, name)) for name in estimates},
                "worst_pair": self._json_pair(self.worst),
                "worst_pair_by_accuracy": self._json_pair(self.worst_by_accuracy),
                "counts": self.counts.tolist(),
                "majority": self.majority.tolist(),
                "ridges": self.ridges.tolist(),
                "pooled_ridge": self.pooled_ridge,
                "judged": self.judged.tolist(),
                "remarks": self.remarks,
                "settings": self.settings,
                "seconds": self.seconds,
                "sentences": self.sentences,
            }
        )
        return found

    def _json_pair(self, pair: WorstPair | None) -> dict[str, Any] | None:
        if pair is None:
            return None
        return {
            "fitted_on": _json_name(self.environments[pair.fitted_on]),
            "tested_on": _json_name(self.environments[pair.tested_on]),
            "excess_loss": _json_estimate(pair.excess),
            "points": _json_estimate(pair.points),
            "adding": None if pair.helper is None else _json_name(self.environments[pair.helper]),
            "closed": None if pair.closed is None else _json_estimate(pair.closed),
        }

    def to_html(self, path: str | Path, command: str = "", data: str = "") -> None:
        """One page, which asks nothing of any network."""
        from .page import write

        write(self, Path(path), command, data)

    def __str__(self) -> str:
        pairs = zip(map(str, self.environments), self.judged, strict=True)
        names = [name[:14] if judged else f"{name[:12]} *" for name, judged in pairs]
        head = "accuracy, %"
        width = max(len(head), *(len(name) for name in names), len(MAJORITY))
        lines = [f"{head:<{width}}  " + " ".join(f"{name:>14}" for name in names)]
        rows = [*zip(names, self.accuracy.value, strict=True), ("all", self.pooled_accuracy.value)]
        rows += [("all others", self.left_out_accuracy.value), (MAJORITY, self.majority)]
        for name, values in rows:
            lines.append(f"{name:<{width}}  " + " ".join(f"{100 * v:>14.1f}" for v in values))
        lines += [] if self.judged.all() else [NOT_JUDGED]
        return "\n".join([*lines, f"transfer risk {self.transfer_risk}"])

    __repr__ = __str__


def _json_name(name: Any) -> Any:
    return name if isinstance(name, str | int | bool) else str(name)


def _json_estimate(found: Estimate) -> dict[str, Any]:
    return {name: np.asarray(getattr(found, name)).tolist() for name in ("value", "low", "high")}


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
            remarks[name] = f"is too small to judge: {counted(size, 'sample')} in {counts.shape[1]} folds"
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
