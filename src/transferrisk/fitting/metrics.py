"""Measures of predicted probabilities and of decisions.

Conventions:
    labels         (n,) whole numbers in 0..C-1
    probabilities  (n, C), rows sum to one
    confusion      (..., C, C) counts of rows, true class x predicted class

With two classes, the threshold, F1 and AUROC are of the second class, as in scikit-learn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy
from scipy.stats import rankdata

from ..settings import Measured

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
Metric = Literal["log_loss", "accuracy", "brier", "balanced_accuracy", "f1", "auroc"]

METRICS = {
    "log_loss": "log loss",
    "accuracy": "error rate",
    "brier": "Brier score",
    "balanced_accuracy": "balanced error rate",
    "f1": "1 - F1",
    "auroc": "1 - AUROC",
}
"""Metric of a choice -> name of the quantity that is minimised in held-out environments"""


@dataclass(frozen=True)
class Figures:
    """Measures of the predictions for some rows; nan where a measure is not defined.

    brier              mean squared error of the probabilities, summed over classes, halved for two, as scikit-learn's
    auroc              mean over classes of each against the others; nan if there is one class
    calibration_error  mean over rows of the distance between probability and frequency in their bin of `reliability`
    most_frequent      share of these rows' most frequent class: the accuracy of always predicting it
    entropy            log loss of always predicting the shares of the classes in these rows
    """

    rows: int
    accuracy: Measured
    log_loss: Measured
    brier: Measured
    auroc: Measured
    calibration_error: Measured
    most_frequent: Measured
    entropy: Measured


def figures(labels: Ints, probabilities: Floats, threshold: float | None = None) -> Figures:
    """Compute all figures of some rows; nan if there are none. The accuracy is that of `decide`."""
    if not len(labels):
        return Figures(0, *[float("nan")] * 7)
    shares = np.bincount(labels, minlength=probabilities.shape[1]) / len(labels)
    bins = reliability(labels, probabilities)
    return Figures(
        len(labels),
        float((decide(probabilities, threshold) == labels).mean()),
        float(row_losses(labels, probabilities).mean()),
        float(squared_errors(labels, probabilities).mean()),
        auroc(labels, probabilities),
        float(np.average(np.abs(bins.probability - bins.frequency), weights=bins.rows)),
        float(shares.max()),
        float(-xlogy(shares, shares).sum()),
    )


def row_losses(labels: Ints, probabilities: Floats) -> NDArray[np.float64]:
    """Return the log loss of each row, (n,); finite even if the probability of the true class is zero."""
    chosen = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return np.asarray(-np.log(np.maximum(chosen, np.finfo(probabilities.dtype).eps)))


def squared_errors(labels: Ints, probabilities: Floats) -> NDArray[np.float64]:
    """Return the Brier score of each row, (n,): sum_c (p_nc - [y_n = c])^2, halved for two classes."""
    classes = probabilities.shape[1]
    happened = np.eye(classes, dtype=probabilities.dtype)[labels]
    totals = ((probabilities - happened) ** 2).sum(1, dtype=np.float64)
    return np.asarray(totals / 2 if classes == 2 else totals)


def auroc(labels: Ints, probabilities: Floats) -> float:
    """Return the mean AUROC of each class against the others, with ties counted half.

    Classes of all rows or of no row are left out.
    """
    found, classes = [], probabilities.shape[1]
    for c in range(classes == 2, classes):
        positive = labels == c
        above = int(positive.sum())
        pairs = above * (len(labels) - above)
        if pairs:
            ranks = rankdata(probabilities[:, c])[positive].sum()
            found.append((ranks - above * (above + 1) / 2) / pairs)
    return float(np.mean(found)) if found else float("nan")


class Reliability(NamedTuple):
    """Mean probability, frequency and number of rows of each bin, (b,) each."""

    probability: NDArray[np.float64]
    frequency: NDArray[np.float64]
    rows: Ints


def reliability(labels: Ints, probabilities: Floats, bins: int = 10) -> Reliability:
    """Compare probabilities with frequencies in bins of about as many rows each; equal probabilities share a bin.

    With two classes, the probability is that of the second; with more, that of the most likely class.
    """
    if probabilities.shape[1] == 2:
        chance, happened = probabilities[:, 1], labels == 1
    else:
        chance, happened = probabilities.max(1), probabilities.argmax(1) == labels
    edges = np.unique(np.quantile(chance, np.linspace(0, 1, bins + 1)[1:-1])) if len(chance) else np.empty(0)
    place = np.searchsorted(edges, chance, side="left")
    rows = np.bincount(place, minlength=len(edges) + 1)
    full = rows > 0
    probability = np.bincount(place, chance, len(rows))[full] / rows[full]
    frequency = np.bincount(place, happened, len(rows))[full] / rows[full]
    return Reliability(probability, frequency, rows[full])


def confusion(labels: Ints, predicted: Ints, classes: int) -> NDArray[np.int64]:
    """Count rows by true class x predicted class, (C, C)."""
    return np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)


def per_class(matrix: NDArray[Any]) -> Floats:
    """Return precision, recall and F1 of each class of a confusion, (..., C, 3); nan where no row counts."""
    right = np.diagonal(matrix, axis1=-2, axis2=-1)
    predicted, true = matrix.sum(-2), matrix.sum(-1)
    with np.errstate(invalid="ignore"):
        return np.stack([right / predicted, right / true, 2 * right / (predicted + true)], -1)


def _accuracy(matrix: NDArray[Any]) -> Any:
    return np.diagonal(matrix, axis1=-2, axis2=-1).sum(-1) / matrix.sum((-2, -1))


def _balanced(matrix: NDArray[Any]) -> Any:
    return np.nanmean(per_class(matrix)[..., 1], -1)


def _f1(matrix: NDArray[Any]) -> Any:
    f1 = per_class(matrix)[..., 2]
    return np.nan_to_num(f1[..., 1]) if matrix.shape[-1] == 2 else np.nanmean(f1, -1)


OF_CONFUSION = {"accuracy": _accuracy, "balanced_accuracy": _balanced, "f1": _f1}
"""Metrics of decisions, which depend on the threshold, as functions of a confusion"""


def row_scores(labels: Ints, probabilities: Floats, decided: Ints, metric: str) -> NDArray[np.float64]:
    """Return a score of each row of an environment, (n,), the smaller the better; nan if the metric is not defined.

    The mean of the scores is the metric, or one minus it where more is better; their variance over n is its error
    variance. For a metric T that is not a mean over rows, the scores are 1 - T - influence of the row, and influences
    sum to zero: the delta method for F1 and balanced accuracy, the variance of DeLong et al. (1988) for AUROC.
    """
    if metric == "log_loss":
        return row_losses(labels, probabilities)
    if metric == "brier":
        return squared_errors(labels, probabilities)
    if metric == "accuracy":
        return np.asarray(decided != labels, dtype=np.float64)
    classes = range(probabilities.shape[1])
    found = []  # T + influence of each class, (n,)
    for c in classes[1:] if len(classes) == 2 and metric != "balanced_accuracy" else classes:
        mine, said = labels == c, decided == c
        if metric == "auroc":
            found.append(_placements(mine, probabilities[:, c]))
        elif metric == "f1":  # mean of 2 mine said / mean of (mine + said)
            found.append(_ratio(2.0 * (mine & said), mine.astype(float) + said))
        else:
            found.append(_ratio((mine & said).astype(float), mine.astype(float)))
    defined = [one for one in found if one is not None]
    if not defined:
        return np.full(len(labels), np.nan if metric == "auroc" else 1.0)
    return np.asarray(1 - np.mean(defined, axis=0))


def _ratio(above: Floats, below: Floats) -> Floats | None:
    """Return mean(above) / mean(below) plus the influence of each row, (n,); None if `below` is all zero."""
    if not below.any():
        return None
    value = above.mean() / below.mean()
    return np.asarray(value + (above - value * below) / below.mean())


def _placements(positive: NDArray[np.bool_], score: Floats) -> Floats | None:
    """Return the AUROC plus the influence of each row, (n,); None if all rows are positive, or none."""
    groups = [np.sort(score[positive == other]) for other in (False, True)]
    if not all(map(len, groups)):
        return None
    found = np.empty(len(score))
    for own in (True, False):
        others, rows = groups[not own], positive == own
        below = (np.searchsorted(others, score[rows]) + np.searchsorted(others, score[rows], "right")) / 2
        beaten = below / len(others) if own else 1 - below / len(others)
        found[rows] = beaten.mean() + (beaten - beaten.mean()) * len(score) / rows.sum()
    return found


def decide(probabilities: Floats, threshold: float | None = None) -> NDArray[np.intp]:
    """Return the predicted class, (n,): the most likely one or, of two, the second if it is above the threshold."""
    if threshold is None or probabilities.shape[1] != 2:
        return np.asarray(probabilities.argmax(1))
    return (probabilities[:, 1] > threshold).astype(np.intp)
