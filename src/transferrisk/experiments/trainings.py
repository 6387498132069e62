"""Tasks that train: one model from the beginning, or a trained one on a few samples of the test environment."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from ..algorithms import configure
from ..data import SPLITS, EnvironmentSet, Facts, Options, Shift, Splits
from ..data.catalogue import DATA_SETS, find_set
from ..data.splits import VALIDATION
from ..errors import DamagedRunError, InputError, OtherRunError
from ..files import existing_file, expand_home
from ..models import is_registered
from ..models.backbones import WORDS
from ..results import Record
from ..settings import Count, Seed, Settings
from ..training import Output, Request, TrainingConfig, train
from ..training import Record as Evaluation
from ..training.config import Precision
from ..training.digests import LENGTH, of_file
from ..training.finetune import finetuning
from ..training.output import BEST, LAST
from ..training.protocols import PROTOCOLS, default_backbone, side_of
from .bench import Cost, Workload
from .tasks import Place, PlannedRun, Task, get_task, register

FOLDER = "training"


@dataclass(frozen=True)
class TrainSettings(Settings):
    """
    shift             what differs between the environments of a synthetic set
    bias, first_bias  its bias degrees in the second and in the first training environment
    settings          settings of the algorithm, where they are not its defaults
    training          settings of the training, where they are not the data set's protocol
    label ... path    columns of the user's own files
    content           a digest of the user's own files, by which a run on others is another run
    weights_content   the same of a file of weights
    others            as `training.Request` has them
    """

    data: str
    algorithm: str
    seed: Seed = 0
    backbone: str | None = None
    weights: str | None = None
    test_env: str | None = None
    hold_out: str | None = None
    shift: str | None = None
    bias: float | None = None
    first_bias: float | None = None
    oracle: bool = False
    size: Count | None = None
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
        super().__post_init__()
        self.request()

    def request(self, place: Place | None = None) -> Request:
        """The training as `trm train` would ask for it; all but the data is checked."""
        find_set(self.data)
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
    """The settings in the types of TrainingConfig."""
    out: dict[str, Any] = {}
    for key, value in given.items():
        kind = TrainingConfig.__dataclass_fields__[key].type if key in TrainingConfig.__dataclass_fields__ else ""
        whole = isinstance(value, int) and not isinstance(value, bool)
        out[key] = tuple(value) if isinstance(value, list) else float(value) if whole and kind == "float" else value
    return out


def shift_of(kind: str | None, bias: float | None, first_bias: float | None) -> Shift | None:
    """A shift with the paper's bias degrees where none are given."""
    if kind is None:
        if (bias, first_bias) != (None, None):
            raise InputError("bias and first_bias need a shift: name one, such as shift = 'label-correlated'")
        return None
    first, second = Shift().biases
    biases = (first if first_bias is None else first_bias, second if bias is None else bias)
    return Shift(kind, biases)  # type: ignore[arg-type]  # it names the choices


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
            settings=asdict(config),
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

    def run(self, settings: TrainSettings, place: Place) -> list[Record]:
        return trained(settings.request(place), place)

    def tidy(self, place: Place) -> None:
        for name in (LAST,) if place.keep else (LAST, BEST):
            (place.folder / FOLDER / name).unlink(missing_ok=True)


def trained(request: Request, place: Place) -> list[Record]:
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
    return flat_records(records, run.splits)


def _output(folder: Path) -> Output:
    return Output(folder, resume=True, say=lambda text: None, again="run the same again")


def flat_records(records: Sequence[Evaluation], splits: Splits) -> list[Record]:
    """One for each evaluation, part of the data and environment.

    Those of training-domain validation carry the IRMv1 penalty and loss (eq. 2, lambda = 1), and the transfer risk of
    all its environments, where they were recorded.
    """
    found: list[Record] = []
    samples = {part: dict(_counts(getattr(splits, part))) for part in SPLITS}
    for record in records:
        for part in SPLITS:
            for environment, scores in getattr(record, part).items():
                row: Record = {
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


_MODEL = tuple(field.name for field in fields(TrainSettings))


@dataclass(frozen=True)
class FinetuneSettings(TrainSettings):
    """
    samples   of the test environment that are trained on
    tuning    where the fine-tuning is not `training.finetuning` of the data set's protocol; the rest is the model's
    """

    samples: Count = 100
    tuning: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
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
    rules: ClassVar[tuple[str, ...]] = ("test_domain", "last")

    def complete(self, settings: FinetuneSettings) -> FinetuneSettings:
        model = get_task("train").complete(settings.model())
        tuning, protocol = training_of(settings.tuning), PROTOCOLS.get(settings.data.partition(":")[0])
        if protocol is not None:
            own = asdict(finetuning(protocol, settings.samples, tuning))
            tuning = {key: value for key, value in own.items() if key != "augment"}
        return replace(settings, **{name: getattr(model, name) for name in _MODEL}, tuning=tuning)

    def needs(self, settings: FinetuneSettings) -> list[PlannedRun]:
        return [PlannedRun("train", get_task("train").resolve(asdict(settings.model())), keep=True)]

    def run(self, settings: FinetuneSettings, place: Place) -> list[Record]:
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
        facts, model, tuning = facts_of(settings.data), get_task("train").cost(settings.model()), settings.tuning
        if facts is None or model is None or not tuning.get("batch_size") or "epochs" not in tuning:
            return None
        batch = tuning["batch_size"]
        steps = tuning["epochs"] * max(1, settings.samples // batch)
        seen = facts.environments.get(settings.test_env or facts.test, 0) + 2 * facts.validation
        evaluated = tuning.get("evaluations", TrainingConfig.evaluations) * seen
        workload = replace(model.workload, environments=1, batch_size=batch)
        return Cost(workload, "erm", {}, settings.precision, steps, evaluated)

    tidy = TrainTask.tidy


def facts_of(data: str) -> Facts | None:
    """None where the user's files decide."""
    found = DATA_SETS.find(data.partition(":")[0])
    return found.facts if found is not None and found.facts.environments else None


def shape_of(facts: Facts, size: int | None) -> tuple[int, ...]:
    return (facts.shape[0], size, size) if size and len(facts.shape) == 3 else facts.shape


def smallest_environment(facts: Facts, left_out: set[str | None]) -> tuple[int, int]:
    """How many environments are trained on, and about how many samples the smallest of them has."""
    sizes = [count for name, count in facts.environments.items() if name not in left_out | {facts.test}]
    share = 1.0 if facts.test else 1 - VALIDATION
    return len(sizes), int(share * min(sizes, default=0))


def content_of(data: str) -> str | None:
    """A digest of the user's files behind a name such as table:visits.csv; None where there are none.

    Of a folder, names and sizes of the files in it. A file that is not there is an error.
    """
    base, colon, argument = data.partition(":")
    if not colon or not argument:
        return None
    path, found = expand_home(argument), DATA_SETS.find(base)
    if found is not None and found.argument == "FILE":
        return of_file(existing_file(path))
    if not path.exists():
        if found is not None and found.argument == "PATH":
            raise InputError(f"{path} does not exist: check the path")
        return None
    if path.is_file():
        return of_file(path)
    listed = sorted(f"{file.relative_to(path)} {file.stat().st_size}" for file in path.rglob("*") if file.is_file())
    return hashlib.sha256("\n".join(listed).encode(errors="surrogateescape")).hexdigest()[:LENGTH]


def file_digest(weights: str | None) -> str | None:
    """Of a file of weights; None where the word is none of a file."""
    if weights is None or weights in WORDS:
        return None
    if not Path(weights).is_file():
        raise InputError(f"weights {weights!r} are no file and none of {', '.join(WORDS)}: name one of these")
    return of_file(weights)
