"""What an audit found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .bootstrap import Estimate, Floats

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
    sentences: tuple[str, ...] = field(default=())

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
        """As JSON has it; None where a number is not known."""
        estimates = ("loss", "accuracy", "pooled_loss", "pooled_accuracy", "left_out_loss", "left_out_accuracy",
                     "unseen", "transfer_risk", "mean_transfer_risk", "irm")  # fmt: skip
        found: dict[str, Any] = {
            "environments": [_plain(name) for name in self.environments],
            "classes": [_plain(name) for name in self.classes],
            **{name: _estimate(getattr(self, name)) for name in estimates},
            "worst_pair": self._pair(self.worst),
            "worst_pair_by_accuracy": self._pair(self.worst_by_accuracy),
            "counts": self.counts.tolist(),
            "majority": self.majority.tolist(),
            "ridges": _numbers(self.ridges),
            "pooled_ridge": self.pooled_ridge,
            "judged": self.judged.tolist(),
            "remarks": {str(name): why for name, why in self.remarks.items()},
            "settings": dict(self.settings),
            "seconds": dict(self.seconds),
            "sentences": list(self.sentences),
        }
        return found

    def _pair(self, w: WorstPair | None) -> dict[str, Any] | None:
        if w is None:
            return None
        names = self.environments
        return {
            "fitted_on": _plain(names[w.fitted_on]),
            "tested_on": _plain(names[w.tested_on]),
            "excess_loss": _estimate(w.excess),
            "points": _estimate(w.points),
            "adding": None if w.helper is None else _plain(names[w.helper]),
            "closed": None if w.closed is None else _estimate(w.closed),
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


def _plain(name: Any) -> Any:
    return name if isinstance(name, str | int | bool) else str(name)


def _numbers(values: Any) -> Any:
    """Nested lists of floats, None for what is not finite."""
    if np.ndim(values):
        return [_numbers(value) for value in values]
    return float(values) if np.isfinite(values) else None


def _estimate(found: Estimate) -> dict[str, Any]:
    return {"value": _numbers(found.value), "low": _numbers(found.low), "high": _numbers(found.high)}
