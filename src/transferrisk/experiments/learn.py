"""Sweeps that learn: optuna chooses each point from the results of earlier ones, and gives up hopeless trainings.

A study is a method on one problem and seed. In each round every study asks for the point of its next trial; these runs
are done like those of any plan, by any executor; then all studies learn how they ended. Many studies keep a cluster
busy, and workers need not reach a central service.

Invariant: a trial depends only on the recipe and the trials before it, not on when or where they were done. An
interrupted search therefore continues as if nothing had happened. A run that was given up stays unfinished in the
store, where another experiment that needs it continues it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from ..extras import require
from ..results import Record, mean_score
from ..results.selection import validation_part
from ..settings import digest, dumps
from .executors import Executor, Job, Messages, OnJobStep
from .experiment_table import ExperimentTable, recipe_digest
from .plan import Plan
from .points import Distribution, Grid, Point, count_points, draw_point, find_points, point_text
from .store import Store
from .studies import Cell, Study
from .sweep import Event, Interrupted, OnEvent, Summary, Sweep, ignore_event

TRIALS = "trials.json"  # in the folder of an experiment
RANDOM = 10  # number of first trials of a study, whose points are drawn at random
STARTUP = 5  # number of finished trials before any trial is given up

Scores = Mapping[int, float]
"""Step of an evaluation -> accuracy on validation data."""


@dataclass(frozen=True)
class Trial:
    """A point that is tried; `run` is the name of its run."""

    point: Point
    run: str
    state: Literal["running", "done", "failed", "pruned"] = "running"
    scores: Scores = field(default_factory=dict)


@dataclass(frozen=True)
class MedianJudge:
    """Gives up a training whose best validation so far is below the median of earlier ones at the same step.

    earlier  scores of the finished trials of the study
    part     part of the data that is the validation data
    """

    earlier: Sequence[Scores]
    part: str

    def __call__(self, records: Sequence[Record]) -> bool:
        optuna = _optuna()
        pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP)
        study = optuna.create_study(direction="maximize", pruner=pruner)
        for scores in self.earlier:
            study.add_trial(optuna.trial.create_trial(value=max(scores.values()), intermediate_values=dict(scores)))
        trial = study.ask()
        for step, score in scores_of(records, self.part).items():
            trial.report(score, step)
        return bool(trial.should_prune())


class LearningSweep:
    """A sweep whose points are found on the way; it is an iterator over events, as `Sweep`."""

    def __init__(
        self, plan: Plan, store: Store, executor: Executor, data_root: Path | None = None,
        on_step: OnEvent = ignore_event,
    ) -> None:  # fmt: skip
        _optuna()
        self.plan, self.store, self.executor, self.data_root, self.on_step = plan, store, executor, data_root, on_step
        self.search, self.part = plan.recipe.search, validation_part(plan.recipe.select[0])
        self.at_last = plan.recipe.select[0] in ("last", "test_domain_last")
        self.failed: dict[str, str] = {}
        self._ran = 0
        self._path = f"{plan.recipe.name}/{TRIALS}"
        self._trials: list[list[Trial]] = self._read()  # of each study

    @property
    def summary(self) -> Summary:
        trials = [trial for own in self._trials for trial in own]
        ended = sum(trial.state in ("done", "pruned") for trial in trials)
        total = sum(self._wanted(study) for study, _ in self.plan.studies)
        return Summary(total, ended, self._ran, self.failed)

    def __iter__(self) -> Iterator[Event]:
        with closing(self.executor):
            while self._ask():
                self._write()
                self.plan = self._planned()
                sweep = Sweep(
                    self.plan, self.store, _Kept(self.executor), self.data_root, self.on_step, self._judges()
                )  # fmt: skip
                try:
                    yield from sweep
                except Interrupted as stopped:
                    raise Interrupted(stopped.signum, self.summary.done, self.summary.total) from None
                self.failed |= sweep.failed
                self._ran += sweep.ran + len(sweep.pruned)
                self._trials = [[self._ended(trial, sweep) for trial in own] for own in self._trials]
                self._write()
        self.plan = self._planned(failed=True)
        ExperimentTable(self.plan, self.store).write()

    def _judges(self) -> dict[str, MedianJudge]:
        """Return name -> judge of each run that may be given up."""
        judges = {}
        for own in self._trials if self.search.prune else ():
            earlier: list[Scores] = []
            for trial in own:
                if trial.state == "done":
                    earlier.append(trial.scores)
                elif trial.state == "running" and len(earlier) >= STARTUP:
                    judges[trial.run] = MedianJudge(tuple(earlier), self.part)
        return judges

    def _wanted(self, study: Study) -> int:
        return int(count_points(study.grid, self.search))

    def _ask(self) -> bool:
        """Add trials to each study that has too few; return False if there is nothing to do."""
        for (study, seed), own in zip(self.plan.studies, self._trials, strict=True):
            running = sum(trial.state == "running" for trial in own)
            while running < self.search.at_once and len(own) < self._wanted(study):
                point = ask_point(study.grid, own, study, seed, at_last=self.at_last)
                own.append(Trial(point, _cell(study, seed, point).run.name))
                running += 1
        return any(trial.state == "running" for own in self._trials for trial in own)

    def _planned(self, failed: bool = False) -> Plan:
        """Return the plan of all trials so far; failed ones only if asked for, since a round does not repeat them."""
        cells: list[Cell] = []
        pruned: list[Cell] = []
        for (study, seed), own in zip(self.plan.studies, self._trials, strict=True):
            for trial in own:
                if failed or trial.state != "failed":
                    (pruned if trial.state == "pruned" else cells).append(_cell(study, seed, trial.point))
        return replace(self.plan, cells=tuple(cells), pruned=tuple(pruned))

    def _ended(self, trial: Trial, sweep: Sweep) -> Trial:
        if trial.state != "running":
            return trial
        if trial.run in sweep.pruned:
            return replace(trial, state="pruned", scores=scores_of(sweep.pruned[trial.run], self.part))
        if trial.run in sweep.failed:
            return replace(trial, state="failed")
        return replace(trial, state="done", scores=scores_of(self.store.records(trial.run), self.part))

    # The trials in the experiment's folder

    def _write(self) -> None:
        found = []
        for (study, seed), own in zip(self.plan.studies, self._trials, strict=True):
            found.append({"study": _place(study, seed), "trials": own})
        self.store.write(self._path, dumps({"asked": recipe_digest(self.plan.recipe), "studies": found}) + "\n")

    def _read(self) -> list[list[Trial]]:
        """Return the trials of each study that were written for this recipe and these settings."""
        before: dict[str, list[Any]] = {}
        try:
            found = json.loads(self.store.read(self._path) or b"")
            if found["asked"] == recipe_digest(self.plan.recipe):
                before = {dumps(one["study"]): one["trials"] for one in found["studies"]}
        except (ValueError, KeyError, TypeError, RecursionError):  # there are no trials, or they are damaged
            pass
        return [
            self._checked(study, seed, before.get(dumps(_place(study, seed)), [])) for study, seed in self.plan.studies
        ]

    def _checked(self, study: Study, seed: int, found: Sequence[Mapping[str, Any]]) -> list[Trial]:
        """Return the trials before the first that cannot be read or has other settings, such as another precision."""
        trials: list[Trial] = []
        finished = self.store.finished()
        for one in found:
            try:
                scores = {int(step): float(score) for step, score in one["scores"].items()}
                trial = Trial(one["point"], one["run"], one["state"], scores)
                if _cell(study, seed, trial.point).run.name != trial.run:
                    break
            except (KeyError, TypeError, ValueError, AttributeError):
                break
            again = trial.state == "failed" or (trial.state == "done" and trial.run not in finished)
            trials.append(replace(trial, state="running", scores={}) if again else trial)
        return trials


@dataclass(frozen=True)
class _Kept:
    """An executor that is not closed at the end of a sweep."""

    executor: Executor

    def map(self, jobs: Sequence[Job[Any]], on_step: OnJobStep) -> Messages:
        return self.executor.map(jobs, on_step)

    def close(self) -> None:
        """Do nothing: `LearningSweep` closes the executor."""


def ask_point(grid: Grid, trials: Sequence[Trial], study: Study, seed: int, *, at_last: bool) -> Point:
    """Return the point of the next trial, never one that was tried: random at first, then chosen by optuna."""
    search, number = study.recipe.search, len(trials)
    tried = {point_text(trial.point) for trial in trials}
    drawn = (point for point in find_points(grid, search, seed) if point_text(point) not in tried)
    size = count_points(grid, replace(search, points=10_000))
    if number < RANDOM or size <= search.points:
        return next(drawn)
    optuna = _optuna()
    sampler = optuna.samplers.TPESampler(seed=int(digest([search.seed, _place(study, seed), number])[:8], 16))
    asked = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in trials:
        if trial.state in ("done", "pruned") and trial.scores:
            asked.add_trial(_frozen(grid, trial, at_last))
    values = asked.ask({name: _distribution(own) for name, own in grid.items()}).params
    point = {
        name: own.rounded(values[name]) if isinstance(own, Distribution) else own[values[name]]
        for name, own in grid.items()
    }
    while point_text(point) in tried:
        number += search.points
        point = draw_point(grid, search, seed, number)
    return point


def _frozen(grid: Grid, trial: Trial, at_last: bool) -> Any:
    """Return a trial in optuna's form, with values of lists as their positions."""
    optuna = _optuna()
    params, distributions = {}, {}
    for name, value in trial.point.items():
        own = grid[name]
        params[name] = value if isinstance(own, Distribution) else list(own).index(value)
        distributions[name] = _distribution(own)
    done = trial.state == "done"
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState.COMPLETE if done else optuna.trial.TrialState.PRUNED,
        value=trial.scores[max(trial.scores)] if at_last else max(trial.scores.values()),
        params=params,
        distributions=distributions,
        intermediate_values=dict(trial.scores),
    )


def _distribution(values: Sequence[Any] | Distribution) -> Any:
    kinds = _optuna().distributions
    if not isinstance(values, Distribution):
        return kinds.CategoricalDistribution(range(len(values)))
    if values.whole:
        return kinds.IntDistribution(round(values.low), round(values.high), log=values.log)
    return kinds.FloatDistribution(values.low, values.high, log=values.log)


def scores_of(records: Sequence[Record], part: str) -> dict[int, float]:
    """Return step -> accuracy on a part of the data, in the order of steps."""
    by_step: dict[int, list[Record]] = {}
    for record in records:
        if record.get("part") == part:
            by_step.setdefault(record["step"], []).append(record)
    scores = {step: mean_score(own, part) for step, own in sorted(by_step.items())}
    return {step: score for step, score in scores.items() if math.isfinite(score)}


def _cell(study: Study, seed: int, point: Point) -> Cell:
    return study.at(point, [seed])[0]


def _place(study: Study, seed: int) -> dict[str, Any]:
    return {**study.columns, "seed": seed}


def _optuna() -> Any:
    optuna = require("optuna", "search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
