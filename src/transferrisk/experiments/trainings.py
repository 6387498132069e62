"""Tasks that train: one model from the beginning, or a trained one on a few samples of the test environment."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ..data import Facts
from ..data.splits import VALIDATION
from ..errors import DamagedRunError, OtherRunError
from ..models.saved import DESCRIPTION, WEIGHTS
from ..results import PARTS, Record
from ..settings import Bound
from ..training import RunFolder, Steps, TrainConfig, TrainSpec, run_spec
from ..training.run_folder import LAST
from ..training.spec import facts_of, shape_of
from .bench import Cost, Workload
from .tasks import Place, PlannedRun, Task, get_task, register

FOLDER = "training"


@register("train")
class TrainTask(Task[TrainSpec]):
    """Records: one for each evaluation, part of the data and environment."""

    settings_type: ClassVar[type[Any]] = TrainSpec

    def complete(self, settings: TrainSpec) -> TrainSpec:
        return replace(settings, precision=settings.precision or "fp32").resolve()

    def cost(self, settings: TrainSpec) -> Cost | None:
        facts, training = facts_of(settings.data), settings.training
        if facts is None or settings.backbone is None or not training.get("batch_size") or "epochs" not in training:
            return None
        environments, samples = smallest_environment(facts, {settings.test_env, settings.hold_out})
        shape, batch = shape_of(facts, settings.size), training["batch_size"]
        workload = Workload(environments, batch, shape, settings.backbone, len(facts.classes))
        steps = training["epochs"] * (samples // batch)
        evaluated = training.get("evaluations", TrainConfig.evaluations) * (facts.samples + facts.validation)
        return Cost(workload, settings.algorithm, settings.settings, settings.precision, steps, evaluated)

    def run(self, settings: TrainSpec, place: Place) -> list[Record]:
        return trained(settings, place)

    def tidy(self, place: Place) -> None:
        for name in (LAST,) if place.keep else (LAST, WEIGHTS, DESCRIPTION):
            (place.folder / FOLDER / name).unlink(missing_ok=True)


def trained(spec: TrainSpec, place: Place) -> list[Record]:
    """Go on with the training in the run's folder.

    It begins again where the model is needed and was not kept, where the checkpoint cannot be used, or where what it
    began with is no longer the same: data that was replaced, a version with other defaults.
    """
    folder = place.folder / FOLDER
    if folder.exists() and not (folder / LAST).exists():
        shutil.rmtree(folder)
    try:
        return with_irm_loss(_trained(spec, place, folder))
    except (DamagedRunError, OtherRunError):
        shutil.rmtree(folder)
        return with_irm_loss(_trained(spec, place, folder))


def _trained(spec: TrainSpec, place: Place, folder: Path) -> list[Record]:
    kept = RunFolder(folder, resume=True, say=lambda text: None, again="run the same again")
    watch = (kept, Steps(place.on_step))
    return run_spec(spec, device=place.device, data_root=place.data_root, watch=watch).history


def with_irm_loss(history: Sequence[Record]) -> list[Record]:
    """The evaluations; those of training-domain validation carry the IRMv1 loss too (eq. 2, lambda = 1)."""
    records = [record for record in history if record["part"] in PARTS]
    return [{**r, "irm_loss": r["loss"] + r["irm"]} if "irm" in r else r for r in records]


_MODEL = tuple(field.name for field in fields(TrainSpec))


@dataclass(frozen=True)
class FinetuneSettings(TrainSpec):
    """
    samples   of the test environment that are trained on
    tuning    where the fine-tuning is not `training.finetuning` of the data set's protocol; the rest is the model's
    """

    samples: Annotated[int, Bound(least=2)] = 100
    tuning: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.tuned(None)  # checks it

    def model(self) -> TrainSpec:
        return TrainSpec(**{name: getattr(self, name) for name in _MODEL})

    def tuned(self, init: str | None) -> TrainSpec:
        """The fine-tuning of the model in a folder."""
        return replace(
            self.model(),
            algorithm="erm",
            settings={},
            training=self.tuning,
            weights=None,
            weights_content=None,
            init=init,
            finetune_samples=self.samples,
        )


@register("finetune")
class FinetuneTask(Task[FinetuneSettings]):
    """Records as those of a training; the test environment is what is left of it."""

    settings_type: ClassVar[type[Any]] = FinetuneSettings
    rules: ClassVar[tuple[str, ...]] = ("test_domain", "last")

    def complete(self, settings: FinetuneSettings) -> FinetuneSettings:
        model = get_task("train").complete(settings.model())
        tuning = settings.tuned(None).resolve().training
        return replace(settings, **{name: getattr(model, name) for name in _MODEL}, tuning=tuning)

    def needs(self, settings: FinetuneSettings) -> list[PlannedRun]:
        return [PlannedRun("train", get_task("train").resolve(asdict(settings.model())), keep=True)]

    def run(self, settings: FinetuneSettings, place: Place) -> list[Record]:
        (before,) = self.needs(settings)
        return trained(settings.tuned(str(place.other(before.name) / FOLDER)), place)

    def cost(self, settings: FinetuneSettings) -> Cost | None:
        facts, model, tuning = facts_of(settings.data), get_task("train").cost(settings.model()), settings.tuning
        if facts is None or model is None or not tuning.get("batch_size") or "epochs" not in tuning:
            return None
        batch = tuning["batch_size"]
        steps = tuning["epochs"] * max(1, settings.samples // batch)
        seen = facts.environments.get(settings.test_env or facts.test, 0) + 2 * facts.validation
        evaluated = tuning.get("evaluations", TrainConfig.evaluations) * seen
        workload = replace(model.workload, environments=1, batch_size=batch)
        return Cost(workload, "erm", {}, settings.precision, steps, evaluated)

    tidy = TrainTask.tidy


def smallest_environment(facts: Facts, left_out: set[str | None]) -> tuple[int, int]:
    """How many environments are trained on, and about how many samples the smallest of them has."""
    sizes = [count for name, count in facts.environments.items() if name not in left_out | {facts.test}]
    share = 1.0 if facts.test else 1 - VALIDATION
    return len(sizes), int(share * min(sizes, default=0))
