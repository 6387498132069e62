"""Runs and tasks: a run is a task with settings, named by a digest of both.

This module has the tasks `train`, whose settings are a `TrainSpec`, and `finetune`; packages add others.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import torch

from ..data.splits import VALIDATION
from ..errors import DamagedRunError, InputError, OtherRunError, TransferRiskError
from ..models.saved import DESCRIPTION, WEIGHTS
from ..registry import Registry
from ..results import PARTS, Record
from ..results.selection import RULES
from ..settings import Bound, Settings, as_json, checked_fields, digest
from ..training import OnStep, RunFolder, Steps, TrainConfig, TrainSpec, Watch, run_spec
from ..training.compiled import PAYS_FROM
from ..training.loop import Run
from ..training.run_folder import LAST
from ..training.spec import facts_of
from .bench import Cost, Workload

FOLDER = "training"  # in the folder of a run that trains
S = TypeVar("S", bound=Settings)
T = TypeVar("T", bound=type)


def ignore_steps(done: int, total: int) -> None:
    """Do nothing with steps."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan.

    settings  resolved settings, which decide the result
    keep      whether to keep the model, such as for a run that needs it; it does not change the name of the run
    """

    task: str
    settings: Mapping[str, Any]
    keep: bool = False

    @cached_property
    def name(self) -> str:
        """Digest of the task and its settings, without settings that are None, so that new settings rename no run.

        The name of a training is its `TrainSpec.digest`.
        """
        return digest(self.settings if self.task == "train" else [self.task, self.settings])


@dataclass(frozen=True)
class Place:
    """Where a run works. Nothing here changes a number on a CPU, as long as the number of threads is the same.

    folder     folder of the run; files that it leaves there let it continue after an interruption
    data_root  folder of the data sets. Default: the usual folder
    keep       whether to leave the model in the folder
    other      function from the name of a finished run to its folder
    compiled   whether networks are compiled on a GPU. Default: in long trainings
    judge      called with the records of a training after each evaluation; True ends it with `GivenUp`
    """

    folder: Path
    device: str = "auto"
    data_root: Path | None = None
    keep: bool = False
    on_step: OnStep = ignore_steps
    other: Callable[[str], Path] = Path
    compiled: bool | None = None
    judge: Callable[[Sequence[Record]], bool] | None = None


class GivenUp(TransferRiskError):
    """Raised when a search ends a training; its checkpoint stays in its folder."""

    def __init__(self, records: Sequence[Record]) -> None:
        super().__init__("validation is worse than that of other points at the same step")
        self.records = list(records)


class _Judged(Watch):
    """Ends a training that a search gives up, at once if it was given up before."""

    def __init__(self, judge: Callable[[Sequence[Record]], bool]) -> None:
        self.judge = judge

    def begin(self, run: Run) -> None:
        self._run = run
        self.after_evaluation(())

    def after_evaluation(self, records: Sequence[Record]) -> None:
        run = self._run
        if run.history and run.state.step < run.total and self.judge(run.history):
            raise GivenUp(run.history)


class Task(ABC, Generic[S]):
    """Base of tasks: what a run does with its settings.

    Attributes
    ----------
    name
        Name of the task, set by `register`.
    settings_type
        Frozen dataclass derived from `transferrisk.settings.Settings` with a field `seed`.
    rules
        Rules by which its records can be selected.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from transferrisk.experiments import Task
    >>> from transferrisk.settings import Settings
    >>> @dataclass(frozen=True)
    ... class SumSettings(Settings):
    ...     terms: int = 3
    ...     seed: int = 0
    >>> class Sum(Task[SumSettings]):
    ...     name, settings_type = "sum", SumSettings
    ...     def run(self, settings, place):
    ...         return [{"sum": sum(range(settings.terms))}]
    >>> Sum().resolve({"terms": 4})
    {'terms': 4, 'seed': 0}
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[Any]]
    rules: ClassVar[tuple[str, ...]] = RULES

    def resolve(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with defaults filled in; an unknown setting is an error.

        Parameters
        ----------
        settings
            Settings that differ from the defaults.

        Returns
        -------
        dict
            All settings, in the types of JSON.
        """
        resolved: dict[str, Any] = as_json(self.complete(self.read(settings)))
        return resolved

    def read(self, settings: Mapping[str, Any]) -> S:
        """Return settings as an object of `settings_type`; an unknown setting is an error.

        Parameters
        ----------
        settings
            Settings that differ from the defaults.

        Returns
        -------
        Settings
            The settings.
        """
        with checked_fields(self.settings_type, settings, f"task {self.name!r}"):
            found: S = self.settings_type(**settings)
        return found

    def complete(self, settings: S) -> S:
        """Return the settings with defaults that depend on others filled in, such as a data set's protocol.

        Parameters
        ----------
        settings
            Settings as given.

        Returns
        -------
        Settings
            Complete settings, which must not depend on the seed.
        """
        return settings

    def needs(self, settings: S) -> list[PlannedRun]:
        """Return the runs that have to be done before this one.

        Parameters
        ----------
        settings
            Complete settings of this run.

        Returns
        -------
        list of PlannedRun
            The runs that it needs.
        """
        return []

    @abstractmethod
    def run(self, settings: S, place: Place) -> list[Record]:
        """Do the run, or continue it from the files in its folder.

        Parameters
        ----------
        settings
            Complete settings of the run.
        place
            Where the run works: `folder`, `device`, `data_root`, and functions such as `on_step` to report progress
            with.

        Returns
        -------
        list of dict
            Records of the run.
        """

    def cost(self, settings: S) -> Cost | None:
        """Return the steps that the run trains, from which its duration is estimated.

        Parameters
        ----------
        settings
            Complete settings of the run.

        Returns
        -------
        Cost or None
            The steps, None if they are not known before the data is read.
        """
        return None

    def tidy(self, place: Place) -> None:
        """Remove files that were needed to continue the run; called when its records are written.

        Parameters
        ----------
        place
            Where the run worked.
        """


def _check_task(name: str, task: Any) -> type[Task[Any]]:
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise InputError(f"task {name!r} must be a class derived from Task, got {getattr(task, '__name__', task)!r}")
    if not issubclass(getattr(task, "settings_type", object), Settings):
        raise InputError(
            f"settings_type of task {name!r} must be a dataclass derived from transferrisk.settings.Settings"
        )
    task.name = name
    return task


TASKS: Registry[type[Task[Any]]] = Registry("task", "transferrisk.tasks", _check_task)
available = TASKS.names


def register(name: str) -> Callable[[T], T]:
    """Register a task under a name, as a class decorator.

    Parameters
    ----------
    name
        Name for the key `task` of recipes.

    Returns
    -------
    Callable[[T], T]
        The decorator.

    Examples
    --------
    >>> from transferrisk.experiments import Task, register
    >>> from transferrisk.experiments.tasks import TASKS, get_task
    >>> from transferrisk.training import TrainSpec
    >>> with TASKS.temporary():
    ...     @register("count")
    ...     class Count(Task[TrainSpec]):
    ...         settings_type = TrainSpec
    ...         def run(self, settings, place):
    ...             return [{"letters": len(settings.data)}]
    ...     type(get_task("count")).__name__
    'Count'
    """
    return TASKS.register(name)


def get_task(name: str) -> Task[Any]:
    return TASKS.get(name)()


def plan_run(task: str, settings: Mapping[str, Any], keep: bool = False) -> PlannedRun:
    return PlannedRun(task, get_task(task).resolve(settings), keep)


def needs_of(run: PlannedRun) -> list[PlannedRun]:
    """Return the runs that have to be done before a run."""
    task = get_task(run.task)
    return task.needs(task.read(run.settings)) if has_needs(task) else []


def has_needs(task: Task[Any]) -> bool:
    return type(task).needs is not Task.needs


def worth_compiling(runs: Sequence[PlannedRun], processes: int) -> frozenset[str]:
    """Return the names of runs whose networks are compiled on a GPU, as each of the processes takes many steps."""
    if not torch.cuda.is_available():
        return frozenset()
    networks: dict[str, tuple[Any, ...]] = {}
    steps = Counter[tuple[Any, ...]]()
    for run in runs:
        task = get_task(run.task)
        if (cost := task.cost(task.read(run.settings))) is not None:
            networks[run.name] = cost.workload.backbone, cost.workload.shape
            steps[networks[run.name]] += cost.steps
    return frozenset(name for name, network in networks.items() if steps[network] >= PAYS_FROM * processes)


@register("train")
class TrainTask(Task[TrainSpec]):
    """Records: one for each evaluation, part of the data and environment."""

    settings_type: ClassVar[type[Any]] = TrainSpec

    def complete(self, settings: TrainSpec) -> TrainSpec:
        return replace(settings, precision=settings.precision or "fp32").resolve()

    def run(self, settings: TrainSpec, place: Place) -> list[Record]:
        return train_in_folder(settings, place)

    def cost(self, settings: TrainSpec) -> Cost | None:
        facts, training = facts_of(settings.data, settings.size), settings.training
        if facts is None or settings.backbone is None or not training.get("batch_size") or "epochs" not in training:
            return None
        left_out = {settings.test_env, settings.hold_out, facts.test}
        sizes = [count for name, count in facts.environments.items() if name not in left_out]
        samples = int((1.0 if facts.test else 1 - VALIDATION) * min(sizes, default=0))
        batch = training["batch_size"]
        workload = Workload(len(sizes), batch, facts.shape, settings.backbone, len(facts.classes))
        steps = TrainConfig(**training).total(samples // batch)
        evaluated = training.get("evaluations", TrainConfig.evaluations) * (facts.samples + facts.validation)
        return Cost(workload, settings.algorithm, settings.settings, settings.precision, steps, evaluated)

    def tidy(self, place: Place) -> None:
        for name in (LAST,) if place.keep else (LAST, WEIGHTS, DESCRIPTION):
            (place.folder / FOLDER / name).unlink(missing_ok=True)


@dataclass(frozen=True)
class FinetuneSettings(TrainSpec):
    """Settings of a model's training and of its fine-tuning.

    samples  number of samples of the test environment to train on
    tuning   settings of the fine-tuning that differ from the data set's protocol; other fields are the model's
    """

    samples: Annotated[int, Bound(least=2)] = 100
    tuning: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tuned(None)  # checks the tuning

    @cached_property
    def model(self) -> TrainSpec:
        """Training of the model."""
        return TrainSpec(**{own.name: getattr(self, own.name) for own in fields(TrainSpec)})

    def tuned(self, init: Path | None) -> TrainSpec:
        """Return the fine-tuning of the model in the folder `init`."""
        return replace(
            self.model,
            algorithm="erm",
            settings={},
            training=self.tuning,
            weights=None,
            weights_content=None,
            init=None if init is None else str(init),
            finetune_samples=self.samples,
        )


@register("finetune")
class FinetuneTask(Task[FinetuneSettings]):
    """Fine-tuning of a trained model on a few labelled samples of the test environment (appendix C.1.2).

    Records are those of a training; its test environment consists of the remaining samples.
    """

    settings_type: ClassVar[type[Any]] = FinetuneSettings
    rules: ClassVar[tuple[str, ...]] = ("test_domain", "last")

    def complete(self, settings: FinetuneSettings) -> FinetuneSettings:
        model = TrainTask().complete(settings.model)
        own = {name.name: getattr(model, name.name) for name in fields(TrainSpec)}
        return replace(settings, **own, tuning=settings.tuned(None).resolve().training)

    def needs(self, settings: FinetuneSettings) -> list[PlannedRun]:
        return [PlannedRun("train", as_json(settings.model), keep=True)]  # resolved as these settings are

    def run(self, settings: FinetuneSettings, place: Place) -> list[Record]:
        (before,) = self.needs(settings)
        return train_in_folder(settings.tuned(place.other(before.name) / FOLDER), place)

    def cost(self, settings: FinetuneSettings) -> Cost | None:
        facts, model, tuning = facts_of(settings.data), TrainTask().cost(settings.model), settings.tuning
        if facts is None or model is None or not tuning.get("batch_size") or "epochs" not in tuning:
            return None
        batch = tuning["batch_size"]
        steps = TrainConfig(**tuning).total(max(1, settings.samples // batch))
        seen = facts.environments.get(settings.test_env or facts.test, 0) + 2 * facts.validation
        evaluated = tuning.get("evaluations", TrainConfig.evaluations) * seen
        workload = replace(model.workload, environments=1, batch_size=batch)
        return Cost(workload, "erm", {}, settings.precision, steps, evaluated)

    tidy = TrainTask.tidy


def train_in_folder(spec: TrainSpec, place: Place) -> list[Record]:
    """Train, or continue the training in the run's folder, and return the records.

    The training starts again if its model was not kept, if the checkpoint cannot be used, or if what it started from
    has changed: other data, or a version with other defaults.
    """
    folder = place.folder / FOLDER
    if folder.exists() and not (folder / LAST).exists():
        shutil.rmtree(folder)
    try:
        return _trained(spec, place, folder)
    except (DamagedRunError, OtherRunError):
        shutil.rmtree(folder)
        return _trained(spec, place, folder)


def _trained(spec: TrainSpec, place: Place, folder: Path) -> list[Record]:
    """Return the records of evaluations; those of IRMv1's penalty also have the IRMv1 loss (eq. 2, lambda = 1)."""
    kept = RunFolder(folder, resume=True, say=lambda text: None, again="run the same again")
    watch = [kept, Steps(place.on_step), *([] if place.judge is None else [_Judged(place.judge)])]
    trained = run_spec(spec, device=place.device, data_root=place.data_root, watch=watch, compiled=place.compiled)
    records = [record for record in trained.history if record["part"] in PARTS]
    return [{**r, "irm_loss": r["loss"] + r["irm"]} if "irm" in r else r for r in records]
