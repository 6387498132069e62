"""Training one model: a `training.Request` whose every setting is plain."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

from ...algorithms import configure
from ...data import SPLITS, Options, Shift
from ...errors import InputError
from ...training import Output, Record, Request, TrainingConfig, train
from ...training.config import Precision
from ...training.output import BEST, LAST
from ...training.protocols import PROTOCOLS
from .base import Place, Row, Task, register

FOLDER = "training"


@dataclass(frozen=True)
class TrainSettings:
    """
    shift             what differs between the environments of a synthetic set
    bias, first_bias  its bias degrees in the second and in the first training environment
    settings          of the algorithm, where they are not its defaults
    training          of the training, where they are not the data set's protocol
    label ... path    columns of the user's own files
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
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise InputError(f"seed={self.seed!r} is no whole number")
        self.request()

    def request(self, place: Place | None = None) -> Request:
        """All but the data is checked here."""
        configure(self.algorithm, **self.settings)
        training = dict(self.training)
        if "record" in training:
            training["record"] = tuple(training["record"])
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
        """With all settings of the algorithm and, where the data set has a protocol, of the training."""
        own = asdict(configure(settings.algorithm, **settings.settings))
        protocol = PROTOCOLS.get(settings.data)
        if protocol is None:
            return replace(settings, settings=own)
        training = {key: value for key, value in asdict(protocol).items() if key != "augment"}
        return replace(settings, settings=own, training={**training, **settings.training})

    def run(self, settings: TrainSettings, place: Place) -> list[Row]:
        return trained(settings.request(place), place)

    def tidy(self, place: Place) -> None:
        for name in (LAST,) if place.keep else (LAST, BEST):
            (place.folder / FOLDER / name).unlink(missing_ok=True)


def trained(request: Request, place: Place) -> list[Row]:
    """Go on with the training in the run's folder; one whose model is needed and was not kept is done again."""
    folder = place.folder / FOLDER
    if folder.exists() and not (folder / LAST).exists():
        shutil.rmtree(folder)
    output = Output(folder, resume=True, say=lambda text: None)
    return rows(train(request.run(), place.on_step, output=output))


def rows(records: Sequence[Record]) -> list[Row]:
    """One for each evaluation, part of the data and environment.

    Those of training-domain validation carry the IRMv1 penalty, and the transfer risk of all its environments, where
    they were recorded.
    """
    found: list[Row] = []
    for record in records:
        for part in SPLITS:
            for environment, scores in getattr(record, part).items():
                row: Row = {
                    "step": record.step,
                    "epoch": record.epoch,
                    "seconds": record.seconds,
                    "part": part,
                    "environment": environment,
                    **asdict(scores),
                }
                if part == "training_domain" and record.irm:
                    row["irm"] = record.irm[environment]
                if part == "training_domain" and record.transfer_matrix:
                    row["transfer_risk"] = record.transfer_risk
                found.append(row)
    return found
