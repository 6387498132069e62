"""Findings of an audit: estimates with intervals, and numbers pooled over environments.

`pool` is a random-effects meta-analysis. Environment e has the true value theta_e, drawn around the mean mu with the
variance tau^2 between environments; y_e is its measured value, with the error variance v_e:

    y_e ~ N(theta_e, v_e),    theta_e ~ N(mu, tau^2)

    Q     = sum w_e (y_e - m)^2,  w_e = 1 / v_e,  m = sum w_e y_e / sum w_e    (Cochran's; about k - 1 where tau = 0)
    tau^2 = max(0, (Q - (k - 1)) / (sum w_e - sum w_e^2 / sum w_e))           (DerSimonian and Laird, 1986)
    I^2   = max(0, (Q - (k - 1)) / Q)                                         (share of the spread that is not error)
    mu    = sum u_e y_e / sum u_e,  u_e = 1 / (v_e + tau^2)
    error = sqrt(max(1, q) / sum u_e),  q = sum u_e (y_e - mu)^2 / (k - 1)    (Knapp and Hartung, 2003)
    low, high = mu -+ t_{k-2} sqrt(tau^2 + error^2)                           (prediction; Higgins et al., 2009)

Knapp and Hartung's factor q is at least 1, so that environments that agree by luck do not make the mean more certain
than their errors allow (Roever et al., 2015).

Differences of losses have a small v_e where y_e is small, so that weights 1 / v_e would pull their mean to zero or
beyond. They are pooled evenly: u_e = 1, and error = sqrt(max(s^2, mean of v) / k), with s^2 the variance of the y_e.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..reports.elements import in_unit, interval
from ..settings import Bound, as_json, convert

if TYPE_CHECKING:
    import pandas as pd

    from .columns import ColumnReport
    from .shift import Shift

Floats = NDArray[np.float64]

POOLED = "all environments"
LEFT_OUT = "all others"
MOST_FREQUENT = "most frequent class"  # of the environment tested in, always predicted
_LEAST = 1e-9  # smallest error variance, as a share of the largest one or of the spread of the values
NOT_JUDGED = "* cannot be judged, so its numbers mean nothing"
WIDEST = 0.5  # width of an accuracy's prediction interval from which it says nothing
SOME = (
    0.05  # tolerated share of environments no better than the most frequent class: of many small ones, some by chance
)
NEAR = 0.001  # of a loss: a smaller difference does not count, however certain it is


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number or an array with its confidence interval; nan if it is unknown.

    Attributes
    ----------
    value
        The number or the array.
    low, high
        The bounds of the interval, of the same shape as the value.

    Examples
    --------
    >>> from transferrisk.auditing import Estimate
    >>> print(Estimate(0.8, 0.75, 0.85))
    0.800 (0.750 to 0.850)
    """

    value: Any
    low: Any
    high: Any

    def __getitem__(self, place: Any) -> Estimate:
        return Estimate(self.value[place], self.low[place], self.high[place])

    def __str__(self) -> str:
        if np.ndim(self.value):
            return f"{self.value} ({self.low} to {self.high})"
        return f"{in_unit(self.value, 'loss')} ({interval(self.low, self.high, 'loss')})"


@dataclass(frozen=True)
class Pooled:
    """The mean over k environments and the heterogeneity between them; nan if k is too small.

    mean       mu of the random-effects model
    error      its standard error; k = 1: that of the one environment
    tau2       variance between environments; needs k >= 2, like q and i2
    q          Cochran's Q
    i2         share of the spread that is not error, 0 to 1
    low, high  prediction interval of a new environment's true value; needs k >= 3
    k          number of environments whose value and variance are finite
    """

    mean: float
    error: float
    tau2: float
    q: float
    i2: float
    low: float
    high: float
    k: int

    @property
    def tau(self) -> float:
        """Standard deviation between environments."""
        return float(np.sqrt(self.tau2))

    @property
    def tells(self) -> bool:
        """Whether this is an accuracy with a prediction interval that is narrow enough to be of use."""
        return bool(min(self.high, 1.0) - max(self.low, 0.0) < WIDEST)  # False: there is no interval


def pool(values: Any, variances: Any, confidence: float = 0.95, *, evenly: bool = False) -> Pooled:
    """Pool the values of environments (E,) with their error variances (E,), see the module.

    Environments whose value or variance is not finite are left out. A variance of zero counts as a very small one.
    """
    confidence = convert("confidence", confidence, Annotated[float, Bound(above=0, below=1)])
    y, v = np.asarray(values, float), np.asarray(variances, float)
    if y.ndim != 1 or y.shape != v.shape:
        raise InputError(f"values and variances must be one for each environment, got shapes {y.shape} and {v.shape}")
    if (v < 0).any():
        raise InputError(f"variances must be >= 0, got {v.min():g}")
    there = np.isfinite(y) & np.isfinite(v)
    y, v = y[there], v[there]
    k, nan = len(y), float("nan")
    if k == 0:
        return Pooled(nan, nan, nan, nan, nan, nan, nan, 0)
    if k == 1:
        return Pooled(float(y[0]), float(np.sqrt(v[0])), nan, nan, nan, nan, nan, 1)
    v = np.maximum(v, _LEAST * max(v.max(), y.var(), 1e-30))
    w = 1 / v
    q = float((w * (y - np.average(y, weights=w)) ** 2).sum())
    tau2 = max(0.0, float((q - (k - 1)) / (w.sum() - (w**2).sum() / w.sum())))
    if evenly:
        mean, error = float(y.mean()), float(np.sqrt(max(y.var(ddof=1), v.mean()) / k))
    else:
        u = 1 / (v + tau2)
        mean = float(np.average(y, weights=u))
        error = float(np.sqrt(max(1.0, (u * (y - mean) ** 2).sum() / (k - 1)) / u.sum()))
    half = float(t_quantile(confidence, k - 2) * np.sqrt(tau2 + error**2)) if k > 2 else nan
    return Pooled(mean, error, tau2, q, max(0.0, 1 - (k - 1) / q) if q else 0.0, mean - half, mean + half, k)


def shared_variances(variances: Any, rows: Any) -> Any:
    """Return error variances (E,) that differ by the numbers of rows alone: s^2 / n_e, with one s^2 for all.

    Where a loss is high it varies much, so that its own variance would give an environment of high loss less weight.
    """
    v, n = np.asarray(variances, float), np.asarray(rows, float)
    known = np.isfinite(v) & (n > 0)
    square = np.average((n * v)[known], weights=n[known]) if known.any() else np.nan
    return np.where(known, square / np.maximum(n, 1), np.nan)


def answer(accuracy: Pooled, frequent: float, below: float, caution: bool) -> str:
    """Answer whether a model will work in a new environment, in an audit and a fit alike.

    accuracy  pooled over environments, each left out of training once
    frequent  mean accuracy of always predicting the most frequent class there
    below     share of the environments where the model is not above that
    caution   whether anything else speaks against the model, such as a column that does not transfer
    """
    if accuracy.mean <= frequent or below > 0.5:
        return "No"
    if not accuracy.tells:
        return "Unclear"
    return "With care" if below > SOME or caution or accuracy.low <= frequent else "Yes"


def expectation(accuracy: Pooled, loss: Pooled, accuracies: Any, losses: Any, confidence: float = 0.95) -> str:
    """Say what accuracy and log loss to expect in a new environment.

    Without an interval that is of use, say what they were in the environments left out of training, (E,) each.
    """
    right, lost = f"{100 * accuracy.mean:.1f} %", f"{loss.mean:.3f}"
    least, most = 100 * np.nanmin(accuracies), 100 * np.nanmax(accuracies)
    if accuracy.tells:
        low, high = 100 * max(0.0, accuracy.low), 100 * min(1.0, accuracy.high)
        return (
            f"In a new environment, expect an accuracy of {right} ({100 * confidence:g} % interval: {low:.1f} to "
            f"{high:.1f} %) and a log loss of {lost} ({max(0.0, loss.low):.3f} to {loss.high:.3f})."
        )
    return (
        f"The accuracy there is {right} on average ({least:.1f} to {most:.1f} %) and the log loss {lost} "
        f"({np.nanmin(losses):.3f} to {np.nanmax(losses):.3f}). These environments are too few, or differ too much, to "
        "say what to expect in a new one."
    )


def t_quantile(confidence: float, degrees: Any) -> Any:
    """Return how many standard errors on either side make an interval: the quantile of Student's t, two-sided."""
    from scipy.special import stdtrit

    return stdtrit(degrees, (1 + confidence) / 2)


@dataclass(frozen=True)
class WorstPair:
    """The pair (Q, P) where a predictor fitted on Q does worst at P, compared with one fitted on P.

    It has the largest M[Q, P] - M[P, P] on the same held-out samples of P, or the largest difference of accuracies. The
    intervals of all pairs hold at once, and so does that of the worst pair.

    Attributes
    ----------
    fitted_on, tested_on
        Q and P, indices into `Audit.environments`.
    excess
        Log loss less that of P's own predictor.
    points
        Accuracy of P's own predictor less that of Q's, as a share.
    helper
        Index of the environment R that helps most when added to Q's training samples; None: no other is judged.
    closed
        Gain of accuracy by adding R, as a share.

    Examples
    --------
    >>> import numpy as np
    >>> from transferrisk import audit
    >>> rng = np.random.default_rng(0)
    >>> y, site = rng.integers(2, size=300), np.repeat(["A", "B", "C"], 100)
    >>> x = rng.normal(size=(300, 4)) + np.where(site == "C", -1, 1)[:, None] * y[:, None]
    >>> report = audit(x, y, site, bootstrap=20)
    >>> report.worst.fitted_on != report.worst.tested_on
    True
    """

    fitted_on: int
    tested_on: int
    excess: Estimate
    points: Estimate
    helper: int | None
    closed: Estimate | None


@dataclass(frozen=True, eq=False)
class Audit:
    """Held-out transfer between E environments. Arrays are in the order of `environments`; nan is unknown.

    Attributes
    ----------
    environments, classes
        Names, sorted.
    loss, accuracy
        (E, E) results of the predictor fitted on the row's environment, tested on the column's.
    pooled_loss, pooled_accuracy
        (E,) results of the predictor fitted on all environments, tested on each.
    left_out_loss, left_out_accuracy
        (E,) results of the predictor fitted on all other environments, tested on each.
    unseen
        (E,) accuracy of the predictor fitted there less that of the predictor fitted on all others, as a share, on the
        same samples; the intervals of all judged environments hold at once, and the others have none.
    transfer_risk
        Mean over Q of the largest M[Q, P], P != Q (the paper's eq. 1).
    mean_transfer_risk
        Mean over Q of the mean M[Q, P], P != Q (sum-sum).
    irm
        (E,) IRMv1's penalty of the pooled predictor on held-out samples.
    worst, worst_by_accuracy
        The pair where transfer fails most, by loss and by accuracy; None: fewer than two environments are judged.
    shifts
        For each environment, the shifts that explain its loss when it is left out of training.
    counts
        (E, C) number of samples.
    ridges
        (E,) ridge of each environment's predictor; nan if none could be chosen.
    pooled_ridge
        Ridge of predictors of several environments.
    judged
        (E,) bool; transfer risks and worst pairs leave out environments that cannot be judged.
    remarks
        Environment -> why it cannot be judged, or a caution about it.
    settings, seconds
        Arguments of the audit, and the duration of its stages.
    columns
        The result of `column_effects`, if it was run for the columns of a table.

    Examples
    --------
    >>> import numpy as np
    >>> from transferrisk import audit
    >>> rng = np.random.default_rng(0)
    >>> y, site = rng.integers(2, size=300), np.repeat(["A", "B", "C"], 100)
    >>> report = audit(rng.normal(size=(300, 4)) + y[:, None], y, site, bootstrap=20)
    >>> report.accuracy.value.shape
    (3, 3)
    >>> list(report.to_frame())[:3]
    ['fitted_on', 'tested_on', 'loss']
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
        """Expected "accuracy" and "loss" of a predictor fitted on all environments in a new one.

        They are pooled over judged environments, each left out once; `low` to `high` is the prediction interval. An
        environment counts by its number of samples, see `shared_variances`.
        """
        found = {}
        width = 2 * NormalDist().inv_cdf(0.5 + self.settings["confidence"] / 2)
        for name, left in (("accuracy", self.left_out_accuracy), ("loss", self.left_out_loss)):
            variances = shared_variances(((left.high - left.low) / width) ** 2, self.counts.sum(1))
            found[name] = pool(left.value[self.judged], variances[self.judged], self.settings["confidence"])
        return found

    @property
    def verdict(self) -> tuple[str, ...]:
        """Sentences: whether a model will transfer, its expected accuracy, the worst environment, and the next step."""
        from .page import verdict_of

        return verdict_of(self)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The findings in words, the most telling first."""
        from .page import findings_of

        return findings_of(self)

    @property
    def most_frequent(self) -> Floats:
        """(E,) share of each environment's most frequent class, which is the accuracy of always predicting it."""
        found: Floats = self.counts.max(1) / self.counts.sum(1)
        return found

    @property
    def marked_names(self) -> list[str]:
        """The environments as texts, with a star if they cannot be judged, see `NOT_JUDGED`."""
        stars = np.where(self.judged, "", " *")
        return list(map("{}{}".format, self.environments, stars))

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each predictor and environment it was tested on."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        samples, frequent = self.counts.sum(1), self.most_frequent
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
                    "samples": int(samples[p]), "most_frequent": float(frequent[p]), "ridge": float(ridge),
                    "judged": judged, "remark": self.remarks.get(place, ""),
                }
                for name, loss, right, ridge, judged in tests
            ]  # fmt: skip
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as JSON types, with None for nan."""
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
                "most_frequent": self.most_frequent.tolist(),
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
        """Write the audit as one self-contained HTML page.

        Parameters
        ----------
        path
            File to write.
        command, data
            Command and name of the data, which the page shows.
        """
        from ..reports import write_page
        from .page import page_of

        write_page(Path(path), page_of(self, command, data))

    def __str__(self) -> str:
        pairs = zip(map(str, self.environments), self.judged, strict=True)
        names = [name[:14] if judged else f"{name[:12]} *" for name, judged in pairs]
        head = "accuracy, %"
        width = max(len(head), *(len(name) for name in names), len(MOST_FREQUENT))
        lines = [f"{head:<{width}}  " + " ".join(f"{name:>14}" for name in names)]
        rows = [*zip(names, self.accuracy.value, strict=True), ("all", self.pooled_accuracy.value)]
        rows += [(LEFT_OUT, self.left_out_accuracy.value), (MOST_FREQUENT, self.most_frequent)]
        for name, values in rows:
            lines.append(f"{name:<{width}}  " + " ".join(f"{100 * v:>14.1f}" for v in values))
        lines += [] if self.judged.all() else [NOT_JUDGED]
        return "\n".join([*lines, f"transfer risk {self.transfer_risk}"])

    __repr__ = __str__


def _json_name(name: Any) -> Any:
    return name if isinstance(name, str | int | bool) else str(name)


def _json_estimate(found: Estimate) -> dict[str, Any]:
    return {name: np.asarray(getattr(found, name)).tolist() for name in ("value", "low", "high")}
