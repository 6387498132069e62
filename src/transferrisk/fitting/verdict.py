"""Sentences about a fit: whether its model can be used in a new environment, what to do next, how it was compared.

Intervals are prediction intervals for the true value of a new environment, so they count environments and not rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from ..auditing.columns import ColumnReport, unstable
from ..auditing.report import pool
from ..errors import counted, listed
from ..models.blend import BLEND
from .blending import told_members
from .candidates import named
from .compare import NEAR, Comparison
from .fitted import Fitted
from .metrics import METRICS

WIDEST = 0.5  # interval of an accuracy beyond which it says nothing about a new environment


def verdict(fitted: Fitted) -> list[str]:
    """Return sentences on whether the model can be used in a new environment, and what to expect there."""
    comparison, seen = fitted.comparison, fitted.decision.seen
    columns = None if fitted.plan.drop_unstable else fitted.columns
    warning, advice = ("", "") if columns is None else (columns.warning, _advice_to_drop(columns))
    if comparison is None or comparison.held == "rows":
        unknown = f"{named(fitted.choice.algorithm)} was fitted. How it works in a new environment is not known, since "
        unknown += (
            "nothing was compared."
            if comparison is None
            else f"no environment could be held out of {len(fitted.source.sizes)}. Get labelled rows from a third one."
        )
        return list(filter(None, [unknown, warning, advice]))
    # Means over held-out environments, each counted the same, with intervals for the true value of a new one.
    figures = pd.DataFrame(map(vars, seen.values()))
    smoothed = (figures["accuracy"] * figures["rows"] + 1) / (figures["rows"] + 2)
    accuracy = pool(figures["accuracy"], smoothed * (1 - smoothed) / figures["rows"], evenly=True)
    accuracy = replace(accuracy, low=max(accuracy.low, 0.0), high=min(accuracy.high, 1.0))
    loss = pool(figures["log_loss"], fitted.loss_variances, evenly=True)
    loss = replace(loss, low=max(loss.low, 0.0))
    guess = float(np.mean(list(comparison.frequent.values())))
    below = [name for name, one in seen.items() if one.accuracy <= one.majority and one.entropy > 0]
    useless = accuracy.mean <= guess or len(below) > len(seen) / 2
    unclear = not accuracy.high - accuracy.low <= WIDEST  # nan: there is no interval
    held_out = counted(len(seen), "environment")
    usable = "Yes"
    if useless:
        usable = "No"
    elif unclear:
        usable = f"The data cannot tell: {counted(len(seen), 'held-out environment')} are too few"
    elif below or warning or not accuracy.low > guess:
        usable = "With care"
    accuracies, losses = f"{100 * accuracy.mean:.1f} %", f"{loss.mean:.3f}"
    if np.isfinite([accuracy.low, loss.low]).all():
        accuracies += f" (95 % interval for a new environment: {100 * accuracy.low:.1f} to {100 * accuracy.high:.1f} %)"
        losses += f" ({loss.low:.3f} to {loss.high:.3f})"
    lines = [
        f"Can the model be used in a new environment? {usable}. In {held_out}, each held out once, the model has a "
        f"mean accuracy of {accuracies} and a mean log loss of {losses}; always predicting the most frequent class "
        f"of the training environments gives {100 * guess:.1f} %."
    ]
    if comparison.metric != "log_loss":
        found = comparison.summary.loc[fitted.choice.algorithm]
        lines.append(
            f"The metric of the choice is {comparison.metric}: the mean {METRICS[comparison.metric]} in held-out "
            f"environments is {found['mean_loss']:.3f}, and the worst is {found['worst_loss']:.3f}."
        )
    if below:
        lines.append(
            f"In {listed(map(repr, below), 5)} it is no more accurate than always predicting the most frequent "
            "class there."
        )
    if fitted.with_all is not None:
        lines.append(_effect_of_dropping(fitted, fitted.with_all))
    worst = max(seen, key=lambda place: seen[place].log_loss)
    lines.append(
        f"The log loss is highest in {worst!r}: {seen[worst].log_loss:.3f}, with an accuracy of "
        f"{100 * seen[worst].accuracy:.1f} %."
    )
    lines.append(warning)
    if useless:
        advice = advice or "Next: run trm audit, which tells whether any environment's model works in another."
    elif unclear:
        advice = advice or "Next: get labelled rows from more environments, and fit again."
    lines.append(advice or "Next: label some rows of the new environment, and compare them with what trm predict says.")
    return list(filter(None, lines))


def _advice_to_drop(columns: ColumnReport) -> str:
    """Advice to fit again without the unstable columns; "" where held-out losses speak against it."""
    names = unstable(columns)
    changes = [loss.mean for name in names if (loss := columns[name].loss) is not None and np.isfinite(loss.mean)]
    quoted = listed(map(repr, names), 5)
    if len(changes) < len(names):
        return f"Next: fit again with --drop-unstable and compare. What a model loses without {quoted} is not known."
    if names and max(changes) <= -NEAR:
        return (
            "Next: fit again with --drop-unstable. In held-out environments a linear model has a lower log loss "
            f"without {quoted}."
        )
    return ""


def _effect_of_dropping(fitted: Fitted, with_all: Comparison) -> str:
    """Sentence on the figures in held-out environments with and without unstable columns."""
    assert fitted.comparison is not None
    assert fitted.source.schema is not None
    name, what = fitted.choice.algorithm, METRICS[with_all.metric]
    gone = [column for column, why in fitted.source.schema.dropped.items() if "differs between environments" in why]
    if not gone:
        return "No column has an effect that differs between environments, so none was dropped."
    whole = with_all.summary
    other = name if name in whole.index else whole["loss"].idxmin()  # where its training with all columns was stopped
    now, before = fitted.comparison.summary.loc[name], whole.loc[other]
    return (
        f"Dropped, since their effect differs between environments: {listed(map(repr, gone))}. Each held-out "
        "environment was tested without the columns that are unstable in the others alone, which may be fewer: the "
        f"mean {what} is {now['mean_loss']:.3f} and the accuracy {100 * now['mean']:.1f} %; with all columns, "
        f"{named(other)} has {before['mean_loss']:.3f} and {100 * before['mean']:.1f} %. Held-out environments that "
        "agree with the others cannot show what such a column costs where its effect is reversed."
    )


def how_compared(comparison: Comparison) -> str:
    """Return sentences on what was held out of which trainings, and on what the choice goes by."""
    seeds = f", {len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else ""
    if comparison.held == "rows":
        return (
            "No environment could be held out: the accuracies are on a fifth of each environment's rows, of "
            f"environments that were trained on, and say nothing about new ones{seeds}."
        )
    held_out, blended = len(comparison.accuracy), ""
    if BLEND in comparison.summary.index:
        weights = "learned from earlier ones, equal in the first" if comparison.order else "learned without it"
        blended = (
            f" {named(BLEND)}: {told_members(comparison.members)}; in each held-out environment it was tested with "
            f"weights {weights}."
        )
    pooled = (
        f" Means count each environment the same; the choice goes by the pooled {METRICS[comparison.metric]}, in which "
        "environments with few rows count less."
    )
    if comparison.order:
        return (
            f"Environments follow each other ({listed(comparison.order)}), and only the future was held out: each of "
            f"{held_out} later ones was tested on with all its rows, after training on the earlier ones alone{seeds}."
            f"{pooled}{blended}"
        )
    which = "Each environment was held out once"
    if comparison.left_out:
        which = f"{held_out} of {held_out + comparison.left_out} environments were held out, each once"
    if comparison.together > 1:
        which += f", up to {comparison.together} of them together, drawn by seed"
    stopped = [
        f"{named(name)} after {len(one.accuracy)} of {held_out} environments, behind the best there by "
        f"{one.behind:.3f} with a standard error of {one.error:.3f}"
        for name, one in comparison.stopped.items()
    ]
    given_up = f" Stopped, since far behind in log loss: {'; '.join(stopped)}." if stopped else ""
    return (
        f"{which}: trained on the others, tested on all its rows, which neither the model nor the encoding had seen"
        f"{seeds}.{pooled}{given_up}{blended}"
    )


def decision_notes(fitted: Fitted) -> str:
    """Sentences on the threshold between two classes and on the calibration, if they were learned."""
    decision, notes = fitted.decision, []
    if decision.threshold is not None:
        notes.append(
            f"{fitted.model.classes[1]!r} is predicted where its probability is above {decision.threshold:.3f}, which "
            f"has the least {METRICS[decision.metric]} in held-out environments; accuracies there are with the "
            f"threshold that the {others_of(fitted)} give."
        )
    if decision.temperature != 1:
        notes.append(
            f"Probabilities are calibrated: logits are divided by {decision.temperature:.2f}, which has the least log "
            "loss in held-out environments."
        )
    return " ".join(notes)


def others_of(fitted: Fitted) -> str:
    """Name the environments that the figures of a held-out one are learned from."""
    ordered = fitted.comparison is not None and fitted.comparison.order
    return "earlier environments" if ordered else "other environments"
