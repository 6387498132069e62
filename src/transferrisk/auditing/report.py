"""The findings of an audit, in numbers and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import listed
from ..settings import as_json
from .pooling import Pooled, pool

if TYPE_CHECKING:
    import pandas as pd

    from .columns import ColumnReport
    from .shift import Shift

Floats = NDArray[np.float64]

POOLED = "all environments"
LEFT_OUT = "all other environments"
MAJORITY = "most frequent"  # what guessing the most frequent class gives
_SOME = 0.05  # share of environments that a model may guess in: of many small ones a few will come out so by chance
_REMARKS = 5  # told in sentences
NOT_JUDGED = "* cannot be judged, so its numbers mean nothing"


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number, or an array of them, and where it lies with the confidence asked for; nan where it is not known."""

    value: Any
    low: Any
    high: Any

    def __getitem__(self, place: Any) -> Estimate:
        return Estimate(self.value[place], self.low[place], self.high[place])

    def __str__(self) -> str:
        if np.ndim(self.value):
            return f"{self.value} ({self.low} to {self.high})"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class WorstPair:
    """The pair (Q, P) where a predictor fitted on Q does worst at P, next to one fitted there; indices of environments.

    It has the largest M[Q, P] - M[P, P], both taken on the same held-out samples of P, or by accuracy the one
    with the largest difference there. The intervals of all pairs hold at once, so that of the pair named holds too.
    """

    fitted_on: int
    tested_on: int
    excess: Estimate  # cross-entropy above that of P's own predictor
    points: Estimate  # accuracy below that of P's own predictor, a share
    helper: int | None  # the environment R that, added to Q's training samples, helps most; None: there is none
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
    shifts              by environment, why the left-out predictor loses more there than in the others
    counts              (E, C) samples
    ridges              (E,) with which each environment's predictor was fitted, nan where none could be chosen;
                        `pooled_ridge` with which the others
    judged              (E,) bool; transfer risks and the worst pair leave out environments too small to judge
    remarks             environment -> why it is too small to judge, or a caution
    columns             of a table, what is known of its columns, where `column_effects` was asked
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
    shifts: tuple[Shift, ...]
    counts: NDArray[np.int64]
    ridges: Floats
    pooled_ridge: float
    judged: NDArray[np.bool_]
    remarks: Mapping[Any, str]
    settings: Mapping[str, Any]
    seconds: Mapping[str, float]
    columns: ColumnReport | None = None

    @property
    def expected(self) -> dict[str, Pooled]:
        """What a predictor fitted on all environments will have in a new one: its "accuracy" and its "loss".

        Pooled over judged environments, each left out once: `low` to `high` is where a new environment's value lies.
        """
        found = {}
        width = 2 * NormalDist().inv_cdf(0.5 + self.settings["confidence"] / 2)
        for name, left in (("accuracy", self.left_out_accuracy), ("loss", self.left_out_loss)):
            variances = ((left.high - left.low) / width) ** 2
            found[name] = pool(left.value[self.judged], variances[self.judged], self.settings["confidence"])
        return found

    @property
    def verdict(self) -> tuple[str, ...]:
        """Whether a model will transfer, what to expect of it, where to worry, and what to do next."""
        return tuple(filter(None, verdict_of(self)))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The findings in words, the most telling first.

        The worst pair by accuracy, which is what people ask for, comes before that by loss where it is another one.
        """
        lines = []
        if self.worst is None or self.worst_by_accuracy is None:
            lines.append("fewer than two environments are large enough to judge, so nothing is known of transfer.")
        else:
            lines.append(_by_accuracy(self, self.worst_by_accuracy))
            if self.worst is not self.worst_by_accuracy:
                lines.append(_by_loss(self, self.worst))
            at_home = float(np.mean(np.diag(self.loss.value)[self.judged]))
            lines.append(
                f"the transfer risk is {self.transfer_risk}: the mean cross-entropy of a predictor fitted in one "
                f"environment in the other one where it does worst. At home its cross-entropy is {at_home:.3f}, in the "
                f"average other environment {self.mean_transfer_risk}."
            )
        lines += [_left_out(self), _guessed(self)]
        for name, remark in islice(self.remarks.items(), _REMARKS):
            lines.append(f"environment {name} {remark}.")
        if len(self.remarks) > _REMARKS:
            lines.append(
                f"{len(self.remarks) - _REMARKS} more environments have a remark: see the page's Environments."
            )
        return tuple([line[0].upper() + line[1:] for line in lines if line])

    @property
    def majority(self) -> Floats:
        """(E,) share of each environment's most frequent class: the accuracy of guessing it always."""
        found: Floats = self.counts.max(1) / self.counts.sum(1)
        return found

    @property
    def marked_names(self) -> list[str]:
        """The environments as texts, with a star where they cannot be judged, which `NOT_JUDGED` explains."""
        stars = np.where(self.judged, "", " *")
        return list(map("{}{}".format, self.environments, stars))

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
        from .shift import shifts_json

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
                "expected": {name: asdict(found) for name, found in self.expected.items()},
                "verdict": self.verdict,
                "sentences": self.sentences,
                "shifts": shifts_json(self.shifts),
                **({"columns": self.columns.to_dict()} if self.columns else {}),
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
        """Write one page, which asks nothing of any network."""
        from ..reports import write_page
        from .page import page_of

        write_page(Path(path), page_of(self, command, data))

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


def verdict_of(audit: Audit) -> list[str]:
    """See `Audit.verdict`; each line stands for itself."""
    judged = np.flatnonzero(audit.judged)
    if len(judged) < 2:
        return ["Will a model transfer? That cannot be told: fewer than two environments are large enough to judge."]
    left, most, lost = audit.left_out_accuracy.value[judged], audit.majority[judged], audit.unseen[judged]
    guessed, behind, needy = left <= most, lost.low > 0, np.argsort(left - most, kind="stable")
    if guessed.mean() > 0.5:
        answer = "No"
    elif guessed.mean() > _SOME or behind.any():
        answer = "In part"
    elif audit.columns is not None and audit.columns.warning:
        answer = "Among these environments, yes"
    else:
        answer = "Yes"
    return [
        f"Will a model transfer? {answer}: fitted on all other environments, it beats always guessing the most "
        f"frequent class in {(~guessed).sum()} of {len(judged)}, and falls behind a model fitted there, by more "
        f"than chance, in {behind.sum()}.",
        _expectation(audit, float(most.mean())),
        _worry(audit, judged),
        audit.columns.warning if audit.columns else "",
        _advice(audit, answer, judged[needy[(behind | guessed)[needy]]]),
    ]


def _expectation(audit: Audit, most: float) -> str:
    right, loss = audit.expected["accuracy"], audit.expected["loss"]
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


def _worry(audit: Audit, judged: NDArray[np.int64]) -> str:
    """The environment where the left-out predictor is least above guessing."""
    above = audit.left_out_accuracy.value - audit.majority
    e = int(judged[above[judged].argmin()])
    left, most = 100 * audit.left_out_accuracy.value[e], 100 * audit.majority[e]
    than = "no better than" if left <= most else "against"
    own = 100 * audit.accuracy.value[e, e]
    return (
        f"Worry most about {audit.environments[e]}: {left:.1f} % right, {than} {most:.1f} % by guessing; "
        f"a model fitted there gets {own:.1f} %."
    )


def _advice(audit: Audit, answer: str, needy: NDArray[np.int64]) -> str:
    if answer == "Yes":
        return "Next: fit a model on all environments with trm fit, which tests it in the same way."
    if answer.endswith("yes"):
        return "Next: run trm fit with --drop-unstable, which compares models with and without such columns."
    names = listed([str(audit.environments[e]) for e in needy], 5)
    return (
        f"Next: label samples of every new environment before a model is relied on there; look at {names} first. "
        "trm fit tells whether another model, linear or not, does better there."
    )


def _json_name(name: Any) -> Any:
    return name if isinstance(name, str | int | bool) else str(name)


def _json_estimate(found: Estimate) -> dict[str, Any]:
    return {name: np.asarray(getattr(found, name)).tolist() for name in ("value", "low", "high")}


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
