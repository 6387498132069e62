"""Sentences about a fit: whether its model can be used in a new environment, what to do next, how it was compared.

Intervals are prediction intervals for the true value of a new environment, so they count environments and not rows.
"""

from __future__ import annotations

import pandas as pd

from ..auditing.report import answer, expectation, pool
from ..errors import counted, listed
from ..models.blend import BLEND
from .blending import told_members
from .candidates import named
from .compare import Comparison
from .fitted import Fitted
from .metrics import METRICS


def verdict(fitted: Fitted) -> list[str]:
    """Return sentences on whether the model can be used in a new environment, and what to expect there."""
    comparison, seen = fitted.comparison, fitted.decision.seen
    columns = None if fitted.plan.drop_unstable else fitted.columns
    warning, following = ("", "") if columns is None else (columns.warning, columns.advice)
    question = "Will this model work in a new environment?"
    if comparison is None:
        return list(filter(None, [f"{question} Unclear: nothing was compared.", warning, following]))
    if comparison.held == "rows":
        following = following or "Next: get labelled rows from a third environment, and fit again."
        unknown = f"Unclear: none of {counted(len(fitted.source.sizes), 'environment')} could be held out"
        return list(filter(None, [f"{question} {unknown}.", warning, following]))
    # As in an audit: an environment counts by the precision of its figure, and the interval is for a new one.
    figures = pd.DataFrame(map(vars, seen.values()), seen)
    smoothed = (figures["accuracy"] * figures["rows"] + 1) / (figures["rows"] + 2)
    accuracy = pool(figures["accuracy"], smoothed * (1 - smoothed) / figures["rows"])
    loss = pool(figures["log_loss"], fitted.loss_variances)
    frequent = figures["most_frequent"].mean()
    below = figures.index[(figures["accuracy"] <= figures["most_frequent"]) & (figures["entropy"] > 0)]
    answered = answer(accuracy, frequent, len(below) / len(seen), bool(warning))
    k, not_in = len(seen), f" (not in {listed(below, 5)})" if len(below) else ""
    lines = [
        f"{question} {answered}. Each of {counted(k, 'environment')} was held out of training once. In "
        f"{k - len(below)} of {k}, it is more accurate than always predicting the most frequent class there{not_in}.",
        f"{expectation(accuracy, loss, figures['accuracy'], figures['log_loss'])} The most frequent class has an "
        f"accuracy of {100 * frequent:.1f} % on average.",
    ]
    if comparison.metric != "log_loss":
        found = comparison.summary.loc[fitted.choice.algorithm]
        lines.append(
            f"The metric of the choice is {comparison.metric}: the mean {METRICS[comparison.metric]} in held-out "
            f"environments is {found['mean_loss']:.3f}, and the worst is {found['worst_loss']:.3f}."
        )
    if fitted.with_all is not None:
        lines.append(_effect_of_dropping(fitted, fitted.with_all))
    worst = max(seen, key=lambda place: seen[place].log_loss)
    lines.append(
        f"The log loss is highest in {worst}: {seen[worst].log_loss:.3f}, with an accuracy of "
        f"{100 * seen[worst].accuracy:.1f} %."
    )
    if not following and answered == "No":
        following = "Next: run trm audit, which tells whether any environment's model works in another."
    elif not following and not accuracy.tells:
        following = "Next: get labelled rows from more environments, and fit again."
    following = (
        following or "Next: label some rows of the new environment, and compare them with what trm predict says."
    )
    return list(filter(None, [*lines, warning, following]))


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
        f" Means count each environment the same; the choice, by the pooled {METRICS[comparison.metric]}, and the "
        "verdict count environments with few rows less."
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
