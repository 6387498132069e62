"""Sentences about a fit: whether its model can be used in a new environment, what to do next, how it was compared.

Intervals are prediction intervals for the true value of a new environment, so they count environments and not rows.
"""

from __future__ import annotations

import shlex

import numpy as np
import pandas as pd

from ..auditing.report import answer, expectation, pool, shared_variances
from ..errors import counted, listed
from ..models.blend import BLEND
from .candidates import UNSTABLE, named
from .compare import Comparison, choose
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
    dropped = ""
    if fitted.with_all is not None:
        dropped, following = _dropped(fitted, fitted.with_all)
    if comparison.held == "rows":
        following = following or "Next: get labelled rows from a third environment, and fit again."
        unknown = f"Unclear: none of {counted(len(fitted.source.sizes), 'environment')} could be held out"
        return list(filter(None, [f"{question} {unknown}.", dropped, warning, following]))
    # As in an audit: an environment counts by its number of rows, and the interval is for a new one.
    figures = pd.DataFrame(map(vars, seen.values()), seen)
    smoothed = (figures["accuracy"] * figures["rows"] + 1) / (figures["rows"] + 2)
    rows = figures["rows"]
    accuracy = pool(figures["accuracy"], shared_variances(smoothed * (1 - smoothed) / rows, rows))
    loss = pool(figures["log_loss"], shared_variances(fitted.loss_variances, rows))
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
    lines.append(dropped)
    worst = figures["log_loss"].idxmax()
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


def _dropped(fitted: Fitted, with_all: Comparison) -> tuple[str, str]:
    """Return sentences on the unstable columns that the model does without, and what to do next, or "".

    Each training drops the columns that are unstable in its own rows, so that a comparison without them knows nothing
    of what was held out. A training may thus use a column that the model, trained on all rows, does without.
    """
    comparison, schema, seen = fitted.comparison, fitted.source.schema, fitted.decision.seen
    assert comparison is not None
    assert schema is not None
    gone = [column for column, why in schema.dropped.items() if why == UNSTABLE]
    dropped, them = listed(map(repr, gone)), "them" if gone[1:] else "it"
    lines, following = [f"The model does without {dropped}, left out by --drop-unstable."], ""
    if not gone:
        lines = ["No column's relation to the label differs between environments: --drop-unstable left out none."]
    others = {place: [name for name in names if name not in gone] for place, names in comparison.dropped.items()}
    stayed = {place: [name for name in gone if name not in names] for place, names in comparison.dropped.items()}
    if places := [place for place in stayed if stayed[place]]:
        used = listed([repr(name) for name in gone if any(name in names for names in stayed.values())])
        lines.append(
            f"When {listed(places, 5)} {'were' if places[1:] else 'was'} held out, the other environments did not show "
            f"that the relation of {used} differs, so every candidate tested there used {used}: its figures for "
            f"{listed(places, 5)}, and its averages, are not those of a model without {used}."
        )
        rest = [one for place, one in seen.items() if place not in places]
        if rest:
            lines.append(
                f"In the other {counted(len(rest), 'environment')}, the accuracy is "
                f"{100 * np.mean([one.accuracy for one in rest]):.1f} % and the log loss "
                f"{np.mean([one.log_loss for one in rest]):.3f} on average."
            )
        following = (
            f"Next: run trm fit with --drop {shlex.quote(','.join(gone))} in place of --drop-unstable, which compares "
            f"without {dropped} everywhere."
        )
    elif comparison.held == "environments" and gone:
        lines.append(f"Every training of the comparison left {them} out too.")
    for place in filter(others.__getitem__, others):
        lines.append(
            f"When {place} was held out, {listed(map(repr, others[place]))} was left out, which the model uses."
        )
    if gone and comparison.held == "environments":
        best, what = choose(with_all).algorithm, METRICS[with_all.metric]
        now, before = comparison.summary.loc[fitted.choice.algorithm], with_all.summary.loc[best]
        lines.append(
            f"With all columns, {named(best)} would be chosen, with a mean accuracy of {100 * before['mean']:.1f} % "
            f"and a mean {what} of {before['mean_loss']:.3f}; here they are {100 * now['mean']:.1f} % and "
            f"{now['mean_loss']:.3f}."
        )
        if before["mean_loss"] < now["mean_loss"]:
            lines.append(
                f"That {dropped} helped in these environments says nothing about one that breaks the relation."
            )
    return " ".join(lines), following


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
        blended = f" The {named(BLEND).lower()} was tested in each held-out environment with weights {weights}."
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
    return (
        f"{which}: trained on the others, tested on all its rows, which neither the model nor the encoding had seen"
        f"{seeds}.{pooled}{blended}"
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
