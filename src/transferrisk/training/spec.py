"""A training as plain values: `TrainSpec` is everything that decides its numbers, and `run_spec` runs it.

The command line builds a `TrainSpec` from options, a recipe from TOML. It is written into checkpoints and saved models,
and its digest names the run.

    TrainSpec(...)      checks all values but the data
    .resolve()          writes out all defaults that do not depend on reading the data
    run_spec(...)       reads the data, writes out the rest, and trains
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from ..algorithms import configure, create
from ..data import EnvironmentSet, Facts, Options, Shift, Splits, leave_out, load_data, load_splits
from ..data.catalogue import DATA_SETS, Progress, find_set
from ..data.shifts import Kind
from ..errors import InputError
from ..files import existing_file, expand_home
from ..models import Classifier, build_model, is_registered, load_model_folder
from ..models.backbones import WORDS
from ..models.saved import WEIGHTS, describe_folder
from ..settings import Bound, Seed, Settings, Share, as_json, checked_fields, digest
from .defaults import (
    PROTOCOLS,
    Precision,
    TrainConfig,
    balanced,
    default_backbone,
    is_own_vectors,
    protocol,
    settings_for,
)
from .engine import Engine, device_of
from .finetune import few_samples, finetuning
from .loop import Trained, train
from .processes import started_by_torchrun
from .watches import Watch

LENGTH = 12  # hexadecimal digits in a digest of files


@dataclass(frozen=True)
class TrainSpec(Settings):
    """Everything that decides the numbers of a training, as plain values.

    Parameters
    ----------
    data
        Name of the data set, as in `trm data list`.
    algorithm
        Name of the algorithm in the registry.
    seed
        Random seed.
    test_env
        Environment to test on, for sets without one of their own.
    hold_out
        Training environment to leave out and test on in place of `test_env`, which is not used at all. Such runs select
        settings by `results.leave_one_environment_out`.
    backbone
        Network. None: that of the model in `init`, else the paper's for inputs of this kind.
    weights
        Weights of the backbone, as in `models.build_model`.
    init
        Folder of a saved model whose weights to begin with, in place of `weights`.
    finetune_samples
        Number of samples of the test environment to train on; the rest of it is for testing.
    augment
        Whether images are varied at random. None: if the backbone is pretrained.
    precision
        "fp32", "tf32" or "bf16". None: bf16 on a GPU, else fp32.
    shift
        Kind of shift between the environments of a synthetic set.
    bias, first_bias
        Bias degrees of the second and of the first training environment of a synthetic set.
    biases
        Bias degrees of all training environments of a synthetic set, if these are more than two.
    oracle
        Whether to train on data like the test environment's.
    size, skip_bad
        Size of images, and whether bad files are left out, as in `data.Options`.
    label, environment, features, path
        Columns or arrays of the user's files, as in `data.Options`.
    categorical, numeric, drop, missing, dates, schema, missing_indicators
        Statements about the columns of a table, as in `data.Options`. None: inferred.
    content
        Digest of the user's files, so that a run on other files is another run; set by `resolve`.
    weights_content
        Digest of a file of weights or of the model in `init`; set by `resolve`.
    settings
        Settings of the algorithm that differ from its defaults.
    training
        Fields of `TrainConfig` that differ from the data set's protocol, except `augment`.

    Examples
    --------
    >>> from transferrisk.training import TrainSpec
    >>> first = TrainSpec(data="pacs", test_env="sketch", algorithm="trm", settings={"ridge": 1e-2}, seed=1)
    >>> first.digest == TrainSpec(data="pacs", test_env="sketch", algorithm="trm", seed=1).digest
    False
    """

    data: str
    algorithm: str
    seed: Seed = 0
    test_env: str | None = None
    hold_out: str | None = None
    backbone: str | None = None
    weights: str | None = None
    init: str | None = None
    finetune_samples: Annotated[int, Bound(least=2)] | None = None
    augment: bool | None = None
    precision: Precision | None = None
    shift: Kind | None = None
    bias: Share | None = None
    first_bias: Share | None = None
    biases: tuple[Share, ...] | None = None
    oracle: bool = False
    size: Annotated[int, Bound(least=1, most=4096)] | None = None
    skip_bad: bool = False
    label: str | None = None
    environment: str | None = None
    features: str | None = None
    path: str | None = None
    categorical: str | tuple[str, ...] | None = None
    numeric: str | tuple[str, ...] | None = None
    drop: str | tuple[str, ...] | None = None
    missing: str | tuple[str, ...] | None = None
    dates: Literal["day-first", "month-first"] | None = None
    schema: str | None = None
    missing_indicators: Literal["auto", "always", "never"] | None = None
    content: str | None = None
    weights_content: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check all values, and convert settings to the types that the algorithm and `TrainConfig` declare."""
        super().__post_init__()
        find_set(self.data)
        shift_of(self.data, self.shift, self.bias, self.first_bias, self.biases)
        if "augment" in self.training:
            raise InputError("training must not hold 'augment', got one: give TrainSpec(augment=...)")
        config = configure(self.algorithm, **self.settings)
        with checked_fields(TrainConfig, self.training, "training"):
            training = TrainConfig(**self.training)
        for name, checked in (("settings", config), ("training", training)):
            given = tuple(getattr(self, name))
            object.__setattr__(self, name, dict(zip(given, map(partial(getattr, checked), given), strict=True)))
        if self.init is not None and self.weights is not None:
            raise InputError(f"init and weights must not both be given, got {self.init!r} and {self.weights!r}")
        if self.finetune_samples is not None and self.algorithm != "erm":
            raise InputError(f"algorithm must be 'erm' to fine-tune in one environment, got {self.algorithm!r}")

    @property
    def digest(self) -> str:
        """Short name of the run, which differs if any value differs; values that are None do not count."""
        return digest(self)

    def resolve(self) -> TrainSpec:
        """Return the spec with defaults written out, as far as they are known before the data is read.

        These are the settings of the algorithm, of the data set's protocol and of the network, and digests of files.
        """
        # The data of an oracle has no bias, so that all values are the same run.
        asked = (None, None, None) if self.oracle else (self.bias, self.first_bias, self.biases)
        found = shift_of(self.data, self.shift, *asked)
        biases = () if found is None else found.biases
        two = len(biases) == 2
        own, facts = PROTOCOLS.get(self.data.partition(":")[0]), facts_of(self.data, self.size)
        resolved = replace(
            self,
            settings=self.settings if is_own_vectors(self.data) else asdict(configure(self.algorithm, **self.settings)),
            shift=None if found is None else found.kind,
            first_bias=biases[0] if two else None,
            bias=biases[1] if two else None,
            biases=None if two else biases or None,
            content=self.content or files_digest(self.data, self.schema),
            weights_content=self.weights_content or weights_digest(self.weights, self.init),
        )
        return resolved._with_protocol(own, None if facts is None else facts.shape)

    def _with_protocol(
        self, own: TrainConfig | None, shape: Sequence[int] | None, rows: int | None = None
    ) -> TrainSpec:
        """Return the spec with the settings of the training and of the network written out.

        own    protocol of the data set; None: not known yet
        shape  shape of one input; None: not known yet
        rows   number of training samples; None: many
        """
        training = dict(self.training)
        if own is not None:
            if training.get("optimiser", own.optimiser) != own.optimiser:
                own = own.with_optimiser(training["optimiser"])
            if self.finetune_samples is not None:
                own = finetuning(own, self.finetune_samples, self.training)
            training = asdict(own) | training
            del training["augment"]
        if shape is None:
            return replace(self, training=training)
        before = None if self.init is None else describe_folder(self.init)
        backbone = self.backbone or (before and before.backbone) or default_backbone(shape, rows)
        ours, images = is_registered(backbone), len(shape) == 3
        weights = None if before else self.weights or ("none" if ours else "imagenet")
        trained = before.about.get("spec") if before else {"weights": weights}
        first = trained.get("weights") if isinstance(trained, Mapping) else None
        pretrained = first != "none" and not ours
        augment = pretrained and images if self.augment is None else self.augment
        if augment and not images:
            raise InputError("augment must be False for inputs that are vectors, not images, got True")
        return replace(self, training=training, backbone=backbone, weights=weights, augment=augment)

    def _read(
        self, root: Path | str | None, lazy: bool | None, progress: Progress | None, device: torch.device
    ) -> Splits:
        """Read the data, with the test environment or the one that is held out."""
        options = Options(
            root=root,
            seed=self.seed,
            size=self.size,
            lazy=lazy,
            skip_bad=self.skip_bad,
            shift=shift_of(self.data, self.shift, self.bias, self.first_bias, self.biases),
            oracle=self.oracle,
            label=self.label,
            environment=self.environment,
            features=self.features,
            path=self.path,
            categorical=self.categorical,
            numeric=self.numeric,
            drop=self.drop,
            missing=self.missing,
            dates=self.dates,
            schema=self.schema,
            missing_indicators=self.missing_indicators or "auto",
            device=device if "device" in find_set(self.data)[0].takes else "cpu",
            progress=progress,
        )
        if self.hold_out is None:
            return load_splits(self.data, options, self.test_env)
        data = load_data(self.data, options)
        if isinstance(data, Splits) or self.test_env is None:
            own = isinstance(data, Splits)
            why = "must be left out for a set with a test environment of its own" if own else "needs --test-env as well"
            raise InputError(f"--hold-out {why}, got {self.hold_out}")
        others = [name for name in data.environment_names if name != self.test_env]
        if self.hold_out not in others or len(others) == len(data.environment_names):
            raise InputError(
                f"--test-env and --hold-out must be two of {', '.join(data.environment_names)}, got "
                f"{self.test_env} and {self.hold_out}"
            )
        return leave_out(data.only(others), self.hold_out, self.seed)


def run_spec(
    spec: TrainSpec,
    *,
    device: str = "auto",
    devices: int = 1,
    loaders: int = 0,
    data_root: Path | str | None = None,
    lazy: bool | None = None,
    watch: Sequence[Watch] = (),
    progress: Progress | None = None,
    compiled: bool | None = None,
) -> Trained:
    """Read the data of a `TrainSpec` and train.

    Parameters
    ----------
    spec
        The training.
    device, devices, loaders
        Device, number of devices that share a batch, and number of processes that read ahead, as in `Engine.of`.
    data_root, lazy
        Folder of the data sets, and whether images are decoded only when needed, as in `data.Options`.
    watch
        Watches that follow the training, such as `EarlyStopping` or `RunFolder`.
    progress
        Function to call with a description, the part done and the total while data is read.
    compiled
        Whether the network is compiled on a GPU, as in `Engine.of`.

    Returns
    -------
    Trained
        The model, the records of its evaluations, and its state.

    Examples
    --------
    >>> from transferrisk.training import TrainSpec, run_spec
    >>> spec = TrainSpec(data="gaussian", algorithm="erm", training={"steps": 2, "evaluations": 1})
    >>> trained = run_spec(spec, device="cpu")
    >>> {"train", "test"} <= {record["part"] for record in trained.history}
    True
    """
    spec = spec.resolve()
    where = device_of(device) if devices == 1 and not started_by_torchrun() else torch.device("cpu")
    splits = spec._read(data_root, lazy, progress, where)
    own = protocol(spec.data, splits, spec.hold_out is not None)
    sets: dict[str, EnvironmentSet] = dict(vars(splits))
    if spec.finetune_samples is not None:
        sets["train"], sets["test"] = few_samples(splits.test, spec.finetune_samples, spec.seed)
        del sets["training_domain"]  # it is of environments that a fine-tuning does not see
    data = sets["train"]
    shape = tuple(data.inputs[:1].shape[1:])
    spec = spec._with_protocol(own, shape, len(data))
    config = TrainConfig(**spec.training, augment=bool(spec.augment))
    if is_own_vectors(spec.data):
        settings = settings_for(spec.algorithm, spec.settings, config, len(data.environment_names), vectors=True)
        spec = replace(spec, settings=asdict(configure(spec.algorithm, **settings)))
        data = balanced(data, config.batch_size)
    if "transfer" in config.record and len(data.environment_names) < 2:
        raise InputError("record must not hold 'transfer' for one training environment, got 'transfer': leave it out")
    engine = Engine.of(device, devices, spec.precision, loaders, batch_size=config.batch_size, compiled=compiled)
    assert spec.backbone is not None
    weights = spec.weights if spec.init is None else "none"
    build = partial(build_model, spec.backbone, len(data.class_names), shape, weights)
    return train(
        build if spec.init is None else partial(_load, spec.init, build),
        data,
        partial(create, spec.algorithm, **spec.settings),
        config,
        evaluate=sets,
        watch=watch,
        seed=spec.seed,
        engine=engine,
        about=as_json(replace(spec, init=None)) | {"init": None if spec.init is None else Path(spec.init).name},
    )


def _load(folder: str, build: Callable[[], Classifier]) -> Classifier:
    """Return a network with the weights of a saved model."""
    return load_model_folder(folder, build()).network


def shift_of(
    data: str,
    kind: str | None = None,
    bias: float | None = None,
    first_bias: float | None = None,
    biases: tuple[float, ...] | None = None,
) -> Shift | None:
    """Return the shift between the environments of a synthetic set; values that are None are the set's own."""
    if (kind, bias, first_bias, biases) == (None, None, None, None):
        return None
    known = find_set(data)[0]
    if "shift" not in known.takes:
        raise InputError(f"shift and bias must be left out for data set {data!r}, which has no shift to choose")
    if biases is not None and (bias, first_bias) != (None, None):
        raise InputError("biases must be given without bias and first_bias, got both: leave out one")
    own = known.shift or Shift()
    first, second, *more = own.biases
    both = (first if first_bias is None else first_bias, second if bias is None else bias)
    return replace(own, kind=kind or own.kind, biases=biases or (*both, *more))  # type: ignore[arg-type]  # Shift checks


def facts_of(data: str, size: int | None = None) -> Facts | None:
    """Return the facts of a data set, with images of this size if given; None: they depend on the user's files."""
    found = DATA_SETS.find(data.partition(":")[0])
    if found is None or not found.facts.environments:
        return None
    facts = found.facts
    return replace(facts, shape=(facts.shape[0], size, size)) if size and len(facts.shape) == 3 else facts


def files_digest(data: str, schema: str | None = None) -> str | None:
    """Return a digest of the files behind a name such as table:visits.csv, and of the schema; None: there are none.

    Of a folder, the names and sizes of its files count. A missing file raises InputError.
    """
    if schema is not None:
        return f"{files_digest(data)}-{_file_digest(existing_file(schema))}"
    base, colon, argument = data.partition(":")
    if not colon or not argument:
        return None
    path, found = expand_home(argument), DATA_SETS.find(base)
    if found is not None and found.argument == "FILE":
        return _file_digest(existing_file(path))
    if not path.exists():
        if found is not None and found.argument == "PATH":
            raise InputError(f"{path} does not exist: check the path")
        return None
    return _content_digest(path)


def _content_digest(path: Path) -> str:
    """Return a digest of a file, or of the names and sizes of the files in a folder."""
    if path.is_file():
        return _file_digest(path)
    listed = sorted(f"{file.relative_to(path)} {file.stat().st_size}" for file in path.rglob("*") if file.is_file())
    return hashlib.sha256("\n".join(listed).encode(errors="surrogateescape")).hexdigest()[:LENGTH]


def weights_digest(weights: str | None, init: str | None = None) -> str | None:
    """Return a digest of a file of weights, or of a saved model; None: the weights are a word such as "imagenet"."""
    if init is not None:
        describe_folder(init)  # raises an error that tells what is wrong with the folder
        return _file_digest(Path(init) / WEIGHTS)
    if weights is None or weights in WORDS:
        return None
    if not Path(weights).exists():
        raise InputError(f"weights must be a file or one of {', '.join(WORDS)}, got {weights!r}")
    return _content_digest(Path(weights))


def _file_digest(path: Path | str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:LENGTH]
