"""Training one model: a `training.Request` whose every setting is plain."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, get_args

from ...algorithms import configure
from ...data import SPLITS, EnvironmentSet, Options, Shift, Splits
from ...data.catalogue import find
from ...errors import DamagedRunError, InputError, OtherRunError
from ...models import is_registered
from ...training import Output, Record, Request, TrainingConfig, train
from ...training.config import Precision
from ...training.output import BEST, LAST
from ...training.protocols import PROTOCOLS, default_backbone, side_of
from ..bench import Workload
from .base import Cost, Place, Row, Task, register
from .declared import frozen
from .known import content_of, facts_of, file_digest, shape_of, smallest_environment

FOLDER = "training"


@dataclass(frozen=True)
class TrainSettings:
    """
    shift             what differs between the environments of a synthetic set
    bias, first_bias  its bias degrees in the second and in the first training environment
    settings          of the algorithm, where they are not its defaults
    training          of the training, where they are not the data set's protocol
    label ... path    columns of the user's own files
    content           a digest of the user's own files, by which a run on others is another run
    weights_content   the same of a file of weights
    others            as `training.Request` has them
    """

    data: str
    algorithm: str
    seed: int = 0
    backbone: str | None = None
    weights: str | None = None
    test_env: str | None = None
    hold_out: str | None = None
    shift: str | None = None
    bias: float | None = None
    first_bias: float | None = None
    oracle: bool = False
    size: int | None = None
    augment: bool | None = None
    precision: Precision | None = None
    label: str | None = None
    environment: str | None = None
    features: str | None = None
    path: str | None = None
    content: str | None = None
    weights_content: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise InputError(f"seed={self.seed!r} is no whole number")
        if self.precision is not None and self.precision not in get_args(Precision):
            raise InputError(f"precision {self.precision!r} is not known: choose from {', '.join(get_args(Precision))}")
        self.request()

    def request(self, place: Place | None = None) -> Request:
        """All but the data is checked here."""
        find(self.data)
        configure(self.algorithm, **self.settings)
        training = training_of(self.training)
        TrainingConfig(**{k: v for k, v in training.items() if k in TrainingConfig.__dataclass_fields__})
        options = Options(
            root=None if place is None else place.data_root,
            seed=self.seed,
            size=self.size,
            shift=shift_of(self.shift, self.bias, self.first_bias),
            oracle=self.oracle,
            label=self.label,
            environment=self.environment,
            features=self.features,
            path=self.path,
        )
        return Request(
            data=self.data,
            options=options,
            test_env=self.test_env,
            hold_out=self.hold_out,
            algorithm=self.algorithm,
            settings=tuple(f"{key}={value}" for key, value in self.settings.items()),
            backbone=self.backbone,
            weights=self.weights,
            training=training,
            augment=self.augment,
            device="auto" if place is None else place.device,
            precision=self.precision,
        )


def training_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """As TrainingConfig has it."""
    return frozen(given, TrainingConfig)


def shift_of(kind: str | None, bias: float | None, first_bias: float | None) -> Shift | None:
    """With the paper's bias degrees where none are given."""
    if kind is None:
        if (bias, first_bias) != (None, None):
            raise InputError("bias and first_bias belong to a shift: name it, such as shift = 'label-correlated'")
        return None
    first, second = Shift().biases
    biases = (first if first_bias is None else first_bias, second if bias is None else bias)
    return Shift(kind, biases)  # type: ignore[arg-type]  # it says what the choices are


@register("train")
class TrainTask(Task[TrainSettings]):
    """Rows: one for each evaluation, part of the data and environment."""

    settings_type: ClassVar[type[Any]] = TrainSettings

    def complete(self, settings: TrainSettings) -> TrainSettings:
        """With what stands for a default written out: of the algorithm, of the data set's protocol, of the network."""
        facts = facts_of(settings.data)
        # An oracle's data has no bias, so whatever is asked for, it is the same run.
        asked = (None, None) if settings.oracle else (settings.bias, settings.first_bias)
        shift = shift_of(settings.shift, *asked)
        first, second = (None, None) if shift is None else shift.biases
        config = configure(settings.algorithm, **settings.settings)
        complete = replace(
            settings,
            settings=frozen(asdict(config), type(config)),
            first_bias=first,
            bias=second,
            precision=settings.precision or "fp32",
            content=settings.content or content_of(settings.data),
            weights_content=settings.weights_content or file_digest(settings.weights),
        )
        protocol = PROTOCOLS.get(settings.data.partition(":")[0])
        training = {} if protocol is None else {k: v for k, v in asdict(protocol).items() if k != "augment"}
        complete = replace(complete, training={**training, **training_of(settings.training)})
        if facts is None:
            return complete
        shape = shape_of(facts, settings.size)
        backbone = settings.backbone or default_backbone(shape)
        weights = settings.weights or ("none" if is_registered(backbone) else "imagenet")
        augment = settings.augment
        if augment is None:
            augment = weights != "none" and not is_registered(backbone) and side_of(shape) > 0
        return replace(complete, backbone=backbone, weights=weights, augment=augment)

    def cost(self, settings: TrainSettings) -> Cost | None:
        facts, training = facts_of(settings.data), settings.training
        if facts is None or settings.backbone is None or not training.get("batch_size") or "epochs" not in training:
            return None
        environments, samples = smallest_environment(facts, {settings.test_env, settings.hold_out})
        shape, batch = shape_of(facts, settings.size), training["batch_size"]
        workload = Workload(environments, batch, shape, settings.backbone, len(facts.classes))
        steps = training["epochs"] * (samples // batch)
        evaluated = training.get("evaluations", TrainingConfig.evaluations) * (facts.samples + facts.validation)
        return Cost(workload, settings.algorithm, settings.settings, settings.precision, steps, evaluated)

    def run(self, settings: TrainSettings, place: Place) -> list[Row]:
        return trained(settings.request(place), place)

    def tidy(self, place: Place) -> None:
        for name in (LAST,) if place.keep else (LAST, BEST):
            (place.folder / FOLDER / name).unlink(missing_ok=True)


def trained(request: Request, place: Place) -> list[Row]:
    """Go on with the training in the run's folder.

    It begins again where the model is needed and was not kept, where the checkpoint cannot be used, or where what it
    began with is no longer the same: data that was replaced, a version with other defaults.
    """
    folder, run = place.folder / FOLDER, request.run()
    if folder.exists() and not (folder / LAST).exists():
        shutil.rmtree(folder)
    try:
        records = train(run, place.on_step, output=_output(folder))
    except (DamagedRunError, OtherRunError):
        shutil.rmtree(folder)
        records = train(run, place.on_step, output=_output(folder))
    return rows(records, run.splits)


def _output(folder: Path) -> Output:
    return Output(folder, resume=True, say=lambda text: None, again="run the same again")


def rows(records: Sequence[Record], splits: Splits) -> list[Row]:
    """One for each evaluation, part of the data and environment.

    Those of training-domain validation carry the IRMv1 penalty and loss (eq. 2, lambda = 1), and the transfer risk of
    all its environments, where they were recorded.
    """
    found: list[Row] = []
    samples = {part: dict(_counts(getattr(splits, part))) for part in SPLITS}
    for record in records:
        for part in SPLITS:
            for environment, scores in getattr(record, part).items():
                row: Row = {
                    "step": record.step,
                    "epoch": record.epoch,
                    "seconds": record.seconds,
                    "part": part,
                    "environment": environment,
                    "samples": samples[part].get(environment),
                    **asdict(scores),
                }
                if part == "training_domain" and record.irm:
                    penalty = record.irm[environment]
                    row |= {"irm": penalty, "irm_loss": scores.loss + penalty}
                if part == "training_domain" and record.transfer_matrix:
                    row["transfer_risk"] = record.transfer_risk
                found.append(row)
    return found


def _counts(data: EnvironmentSet) -> Iterator[tuple[str, int]]:
    counts = data.environments.bincount(minlength=len(data.environment_names)).tolist()
    return zip(data.environment_names, counts, strict=True)
