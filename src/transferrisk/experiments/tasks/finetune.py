"""Fine-tuning a trained model on a few labelled samples of the test environment (appendix C.1.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

from ...errors import InputError
from ...training import TrainingConfig
from ...training.finetune import finetuning
from ...training.output import BEST
from ...training.protocols import PROTOCOLS
from ...training.selection import Selection
from .base import Cost, Place, PlannedRun, Row, Task, get, register
from .known import facts_of
from .train import FOLDER, TrainSettings, TrainTask, trained, training_of

_MODEL = tuple(field.name for field in fields(TrainSettings))


@dataclass(frozen=True)
class FinetuneSettings(TrainSettings):
    """
    samples   of the test environment that are trained on
    tuning    where the fine-tuning is not `training.finetuning` of the data set's protocol; the rest is the model's
    """

    samples: int = 100
    tuning: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.samples, int) or self.samples < 1:
            raise InputError(f"samples={self.samples!r} is no number to fine-tune on: use a whole one, 1 or more")
        replace(self.model(), training=self.tuning)  # checks it

    def model(self) -> TrainSettings:
        return TrainSettings(**{name: getattr(self, name) for name in _MODEL})


@register("finetune")
class FinetuneTask(Task[FinetuneSettings]):
    """Rows as those of a training; the test environment is what is left of it.

    What a fine-tuning takes as its training environment is the test environment, so none of its rows are of
    training-domain validation.
    """

    settings_type: ClassVar[type[Any]] = FinetuneSettings
    rules: ClassVar[tuple[Selection, ...]] = ("test_domain", "last")

    def complete(self, settings: FinetuneSettings) -> FinetuneSettings:
        model = get("train").complete(settings.model())
        tuning, protocol = training_of(settings.tuning), PROTOCOLS.get(settings.data.partition(":")[0])
        if protocol is not None:
            own = asdict(finetuning(protocol, settings.samples, tuning))
            tuning = {key: value for key, value in own.items() if key != "augment"}
        return replace(settings, **{name: getattr(model, name) for name in _MODEL}, tuning=tuning)

    def needs(self, settings: FinetuneSettings) -> list[PlannedRun]:
        return [PlannedRun("train", get("train").resolve(asdict(settings.model())), keep=True)]

    def run(self, settings: FinetuneSettings, place: Place) -> list[Row]:
        (before,) = self.needs(settings)
        request = replace(
            settings.request(place),
            algorithm="erm",
            settings=(),
            training=training_of(settings.tuning),
            weights=None,
            init=place.other(before.name) / FOLDER / BEST,
            finetune_samples=settings.samples,
        )
        return [row for row in trained(request, place) if row["part"] != "training_domain"]

    def cost(self, settings: FinetuneSettings) -> Cost | None:
        facts, model, tuning = facts_of(settings.data), get("train").cost(settings.model()), settings.tuning
        if facts is None or model is None or not tuning.get("batch_size") or "epochs" not in tuning:
            return None
        batch = tuning["batch_size"]
        steps = tuning["epochs"] * max(1, settings.samples // batch)
        seen = facts.environments.get(settings.test_env or facts.test, 0) + 2 * facts.validation
        evaluated = tuning.get("evaluations", TrainingConfig.evaluations) * seen
        workload = replace(model.workload, environments=1, batch_size=batch)
        return Cost(workload, "erm", {}, settings.precision, steps, evaluated)

    tidy = TrainTask.tidy
