"""Selection of the evaluation of a run that counts, and of settings: functions of the records, applied afterwards.

A rule selects within a run the evaluation with the highest accuracy on validation data, averaged over environments (the
later one if they tie), or the last one. Among the points of a grid it selects the one whose runs do best on that data.
The values of a training, such as its accuracy, are those of the evaluation that is selected.

    rule                           evaluation                    point of a grid
    training_domain, test_domain   best on this validation data  best on this validation data
    last                           last                          best on training_domain at the last evaluation
    test_domain_last               last                          best on test_domain at the last evaluation, which is
                                                                 DomainBed's oracle
    leave_one_environment_out      best on training_domain       best on average in training environments that runs
                                                                 with the same settings were trained without
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from operator import eq, methodcaller
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import InputError
from .records import RUN_COLUMN, Record

if TYPE_CHECKING:
    import pandas as pd

Rule = Literal["training_domain", "test_domain", "last", "test_domain_last", "leave_one_environment_out"]
RULES: tuple[str, ...] = get_args(Rule)
HELD_OUT = "leave_one_environment_out"
_EVALUATION = {"test_domain_last": "last", HELD_OUT: "training_domain"}
"""Rule -> the rule by which it selects the evaluation, if that is another."""
_POINT = {"last": "training_domain", "test_domain_last": "test_domain", HELD_OUT: "test"}
"""Rule -> the part of the data by which it compares the points of a grid, if that is not its own name."""


@dataclass(frozen=True)
class Value:
    """A value of a training, computed from the records of an evaluation.

    label           name on axes and in tables
    part            part of the data whose records are used
    over            how environments are combined; "samples" is the mean weighted by their numbers of samples, "sum" the
                    sum
    factor          factor from the records to what is printed, such as 100 for percent
    digits          number of decimals
    span            smallest range that an axis covers
    most            largest possible value
    columns         columns of the records that are added up; () stands for the value's own name
    less_is_better  whether a smaller value is better
    """

    label: str
    part: str
    over: Literal["mean", "min", "samples", "sum"] = "mean"
    factor: float = 1.0
    digits: int = 3
    span: float = 0.0
    most: float = math.inf
    columns: tuple[str, ...] = ()
    less_is_better: bool = False


_PERCENT: dict[str, Any] = {"factor": 100.0, "digits": 1, "span": 10.0, "most": 100.0}
VALUES = {
    "accuracy": Value("accuracy, %", "test", **_PERCENT),
    "sample_accuracy": Value("accuracy over all samples, %", "test", "samples", columns=("accuracy",), **_PERCENT),
    "adjusted_accuracy": Value("adjusted average accuracy, %", "test", "sum", columns=("adjusted",), **_PERCENT),
    "worst_group": Value("worst-group accuracy, %", "test", "min", **_PERCENT),
    "loss": Value("loss", "test", less_is_better=True),
    "irm": Value("IRMv1 penalty", "training_domain", digits=4, less_is_better=True),
    "irm_loss": Value("IRMv1 loss", "training_domain", columns=("loss", "irm"), less_is_better=True),
    "transfer_risk": Value("transfer risk", "training_domain", less_is_better=True),
}


def mean_score(records: Iterable[Record], part: str, column: str = "accuracy") -> float:
    """Return the mean over the environments of a part, each counting the same; nan where one of them has no value.

    Parameters
    ----------
    records
        Records of one evaluation.
    part
        "train", "training_domain", "test_domain" or "test".
    column
        Column to average.

    Returns
    -------
    float
        The mean.

    Examples
    --------
    >>> from transferrisk.results import mean_score
    >>> mean_score([{"part": "test", "environment": "a", "accuracy": 0.5}], "test")
    0.5
    """
    total, count = 0.0, 0
    for record in records:
        if record.get("part") == part:
            value = record.get(column)
            total += math.nan if value is None else value
            count += 1
    return total / count if count else math.nan


def selected_steps(table: Mapping[str, Any], rule: str) -> dict[Any, int]:
    """Return the step of each run's evaluation that counts.

    Runs without an accuracy on the rule's validation data are left out.

    Parameters
    ----------
    table
        Table with the columns run, step, part and accuracy: a data frame, or lists by name.
    rule
        Selection rule, such as "training_domain", "test_domain" or "last".

    Returns
    -------
    dict[Any, int]
        Run -> step.

    Examples
    --------
    >>> from transferrisk.results import selected_steps
    >>> selected_steps({"run": ["a", "a"], "step": [1, 2], "part": ["test", "test"], "accuracy": [0.1, 0.2]}, "last")
    {'a': 2}
    """
    if rule not in RULES:
        raise InputError(f"a selection rule must be one of {', '.join(RULES)}, got {rule!r}")
    rule = _EVALUATION.get(rule, rule)
    if rule == "last":
        last: dict[Any, int] = {}
        for run, step in zip(table["run"], table["step"], strict=True):
            last[run] = max(int(step), last.get(run, -1))
        return last
    scores: dict[tuple[Any, int], list[float]] = {}
    for run, step, part, accuracy in zip(table["run"], table["step"], table["part"], table["accuracy"], strict=True):
        if part == rule:
            scores.setdefault((run, int(step)), []).append(math.nan if accuracy is None else float(accuracy))
    best: dict[Any, float] = {}
    steps: dict[Any, int] = {}
    for (run, step), values in scores.items():
        score = sum(values) / len(values)
        if not math.isnan(score) and (score, step) >= (best.get(run, -math.inf), steps.get(run, -1)):
            best[run], steps[run] = score, step
    return steps


def select(records: Sequence[Record], rule: str) -> list[Record]:
    """Select the records of the evaluation of a run that counts.

    Parameters
    ----------
    records
        Records of a run.
    rule
        Selection rule, such as "training_domain", "test_domain" or "last".

    Returns
    -------
    list[Record]
        Records of one evaluation; empty if the run has no records on the rule's validation data.

    Examples
    --------
    >>> from transferrisk.results import select
    >>> records = [{"step": step, "part": "training_domain", "accuracy": a} for step, a in ((1, 0.9), (2, 0.7))]
    >>> select(records, "training_domain")[0]["step"]
    1
    """
    table: dict[str, list[Any]] = {"run": [""] * len(records)}
    for column in ("step", "part", "accuracy"):
        table[column] = list(map(methodcaller("get", column), records))
    step = selected_steps(table, rule).get("")
    return list(compress(records, map(partial(eq, step), table["step"])))


def values_at_selected(table: pd.DataFrame, rule: str, values: Sequence[str]) -> pd.DataFrame:
    """Return the values of each run in a table of records, at the evaluation that counts.

    Parameters
    ----------
    table
        Table of records.
    rule
        Selection rule, such as "training_domain", "test_domain" or "last".
    values
        Names of values, keys of `VALUES`.

    Returns
    -------
    pd.DataFrame
        One line for each run, with the columns `run`, `done` (True), `validation` (the accuracy by which points of a
        grid are compared) and the values in the units that are printed; nan if a run has none.

    Examples
    --------
    >>> import pandas as pd
    >>> from transferrisk.results import values_at_selected
    >>> row = {"run": "a", "step": 1, "part": "test", "environment": "x", "samples": 9, "accuracy": 0.5}
    >>> values_at_selected(pd.DataFrame([row]), "last", ["accuracy"])["accuracy"].tolist()
    [50.0]
    """
    import pandas as pd

    found = pd.DataFrame({RUN_COLUMN: table[RUN_COLUMN].unique(), "done": True})
    if not {"step", "part", "accuracy"} <= set(table):
        return found.reindex(columns=[RUN_COLUMN, "done", "validation", *values])
    steps = selected_steps(table[table["step"].notna()], rule)
    at = pd.MultiIndex.from_arrays([list(steps), list(steps.values())], names=[RUN_COLUMN, "step"])
    columns = {"validation": _by_evaluation(table, ("accuracy",), validation_part(rule), "mean")}
    for name in values:
        columns[name] = value_by_evaluation(table, name)
    return found.merge(pd.DataFrame(columns).reindex(at).droplevel("step"), "left", on=RUN_COLUMN)


def value_by_evaluation(table: pd.DataFrame, name: str) -> pd.Series:
    """Return a value at every evaluation, in the units that are printed.

    Parameters
    ----------
    table
        Table of records.
    name
        Name of the value, a key of `VALUES`.

    Returns
    -------
    pd.Series
        Values, indexed by run and step.

    Examples
    --------
    >>> import pandas as pd
    >>> from transferrisk.results import value_by_evaluation
    >>> row = {"run": "a", "step": 1, "part": "test", "environment": "x", "samples": 9, "accuracy": 0.5}
    >>> value_by_evaluation(pd.DataFrame([row]), "accuracy").tolist()
    [50.0]
    """
    value = VALUES[name]
    return value.factor * _by_evaluation(table, value.columns or (name,), value.part, value.over)


def _by_evaluation(table: pd.DataFrame, columns: Sequence[str], part: str, over: str) -> pd.Series:
    """Return the sum of the columns by run and step, combined over the environments of a part; nan if one is nan."""
    import pandas as pd

    there = table[table["part"] == part]
    numbers = there.reindex(columns=[*columns, "samples"]).apply(pd.to_numeric, errors="coerce").astype(float)
    total = numbers[list(columns)].sum(axis=1, skipna=False)
    weights = numbers["samples"] if over == "samples" else pd.Series(1.0, there.index)
    keys = [there[RUN_COLUMN], there["step"]]
    found = total.groupby(keys).agg(over) if over in ("min", "sum") else (
        (total * weights).groupby(keys).sum() / weights.where(total.notna()).groupby(keys).sum()
    )  # fmt: skip
    return found.where((total * weights).isna().groupby(keys).sum() == 0)


def validation_part(rule: str) -> str:
    """Return the part of the data by which a rule compares the points of a grid."""
    return _POINT.get(rule, rule)


def best_point(scores: Mapping[str, Sequence[float]]) -> str:
    """Choose the point of a grid that counts, by the validation accuracies of its finished runs.

    Only points with the largest number of accuracies compete, so that a lucky seed does not win against a mean over
    several. The highest mean wins, then the largest number of finished runs, then the first point.

    Parameters
    ----------
    scores
        Point -> accuracies, nan for a run that has none.

    Returns
    -------
    str
        Point that is chosen.

    Examples
    --------
    >>> from transferrisk.results import best_point
    >>> best_point({"ridge=0.1": [0.7, 0.8], "ridge=0.01": [0.8, 0.9]})
    'ridge=0.01'
    """

    def rank(point: str) -> tuple[int, float, int]:
        known = list(filter(math.isfinite, scores[point]))
        return len(known), sum(known) / len(known) if known else 0.0, len(scores[point])

    return max(scores, key=rank)


RULE_WORDS = {
    "training_domain": "by training-domain validation",
    "test_domain": "by test-domain validation",
    "last": "at the last evaluation",
    "test_domain_last": "at the last evaluation, with the point of a grid by test-domain validation",
    "leave_one_environment_out": "by leaving out one training environment after the other",
}


def selection_words(rule: str, choices: bool = False) -> str:
    """Return sentences on how models were selected; `choices` is true if points of grids were chosen too."""
    which = "test environment" if rule.startswith("test_domain") else "training environments"
    best = f"the highest accuracy on held-out data of the {which}"
    if rule in ("last", "test_domain_last"):
        words, point = "Selected: the last evaluation of each run.", best.replace("accuracy", "mean accuracy")
    elif rule == HELD_OUT:
        words = f"Selected: the evaluation of each run with {best}."
        point = "the highest mean accuracy in training environments that its runs were trained without"
    else:
        words = f"Selected {RULE_WORDS[rule]}: the evaluation of each run with {best}."
        point = "the highest mean of that accuracy"
    return (
        f"{words} From each grid: the point with {point}, among the points with the most seeds." if choices else words
    )
