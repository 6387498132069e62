"""A training as a user asks for it: by names, with everything that is not said taken from the data set's protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..algorithms import get_algorithm, parse_settings
from ..data import EnvironmentSet, Options, Splits, leave_out, load_data, load_splits
from ..errors import InputError, did_you_mean
from ..models import Classifier, build_model, is_registered
from .checkpoint import Checkpoint, load, load_model
from .config import Precision, Run, TrainingConfig
from .digests import PREFIX, of_file
from .finetune import few_samples, finetuning
from .protocols import default_backbone, protocol, side

_ORIGIN = ("size", "skip_bad", "shift", "oracle", "label", "environment", "features", "path")


@dataclass(frozen=True)
class Network:
    """Builds a model: a backbone by name, with the weights of a checkpoint where one is given."""

    backbone: str
    num_classes: int
    shape: tuple[int, ...]
    weights: str | None = None
    init: Path | str | None = None

    def __call__(self) -> Classifier:
        if self.init is None:
            return build_model(self.backbone, self.num_classes, self.shape, self.weights)
        model = build_model(self.backbone, self.num_classes, self.shape, "none")
        load_model(model, load(self.init), self.init)
        return model


@dataclass(frozen=True)
class Request:
    """
    data              a set's name, as in `trm data list`
    hold_out          a training environment to leave out and test on in place of `test_env`, of which nothing is used:
                      such runs select settings by `leave_one_environment_out`
    algorithm         None: trm, or erm to fine-tune with
    settings          of the algorithm, as "key=value"
    backbone          None: that of the checkpoint in `init`, else the paper's for inputs like these
    training          fields of TrainingConfig that differ from the set's protocol; batch_size is lowered by itself
                      where a set without a protocol of its own has a smaller environment
    augment           None: where the backbone is pretrained and the inputs are images
    init              a checkpoint whose weights to begin with, in place of `weights`
    finetune_samples  train on this many samples of the test environment, and test on the rest of it
    device            as what follows, of the `Run`; here a GPU is taken where there is one
    """

    data: str
    options: Options
    test_env: str | None = None
    hold_out: str | None = None
    algorithm: str | None = None
    settings: tuple[str, ...] = ()
    backbone: str | None = None
    weights: str | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    augment: bool | None = None
    init: Path | str | None = None
    finetune_samples: int | None = None
    device: str = "auto"
    devices: int = 1
    precision: Precision | None = None
    workers: int = 0

    def __post_init__(self) -> None:
        known = [field.name for field in fields(TrainingConfig) if field.name != "augment"]
        for name in self.training:
            if name == "augment":
                raise InputError("training takes no 'augment': give augment=True or False beside it")
            if name not in known:
                hint = did_you_mean(name, known)
                raise InputError(f"training takes no {name!r}: {hint}choose from {', '.join(known)}")
        if self.init is not None and self.weights is not None:
            raise InputError(
                f"--init {self.init} and --weights {self.weights} both say what to begin with: leave one of them out"
            )

    def run(self) -> Run:
        """Everything settled, the data read."""
        algorithm = self.algorithm or ("trm" if self.finetune_samples is None else "erm")
        settings = parse_settings(algorithm, self.settings)
        if self.finetune_samples is not None and algorithm != "erm":
            raise InputError(
                f"algorithm {get_algorithm(algorithm).name!r} needs several environments, and fine-tuning has one: "
                "use erm"
            )
        begun = None if self.init is None else load(self.init)
        splits = self._splits()
        config = protocol(self.data, splits, self.hold_out is not None)
        if self.finetune_samples is not None:
            splits = few_samples(splits, self.finetune_samples, self.options.seed)
            config = finetuning(config, self.finetune_samples, self.training)
        network = self._network(splits.train, begun)
        config = replace(config, augment=self._augment(splits.train, network), **self.training)
        _check_record(config, splits)
        return Run(
            algorithm=algorithm,
            build_model=network,
            splits=splits,
            config=config,
            seed=self.options.seed,
            settings=settings,
            held_out=self.hold_out,
            origin=self._origin(network),
            device=self.device,
            devices=self.devices,
            precision=self.precision,
            workers=self.workers,
        )

    def _splits(self) -> Splits:
        if self.hold_out is None:
            return load_splits(self.data, self.options, self.test_env)
        data = load_data(self.data, self.options)
        if isinstance(data, Splits) or self.test_env is None:
            why = (
                "needs --test-env beside it"
                if isinstance(data, EnvironmentSet)
                else "is for sets without a test of their own"
            )
            raise InputError(f"--hold-out {self.hold_out} {why}: leave it out, or say which environment to test on")
        others = [name for name in data.environment_names if name != self.test_env]
        if self.hold_out not in others or len(others) == len(data.environment_names):
            raise InputError(
                f"--test-env {self.test_env} with --hold-out {self.hold_out} are not two of the environments: choose "
                f"from {', '.join(data.environment_names)}"
            )
        return leave_out(data.only(others), self.hold_out, self.options.seed)

    def _network(self, data: EnvironmentSet, begun: Checkpoint | None) -> Network:
        before: Mapping[str, Any] = {} if begun is None else begun.configuration
        backbone = self.backbone or before.get("backbone") or default_backbone(data.inputs[:1].shape[1:])
        weights = self.weights or before.get("weights")
        return Network(backbone, len(data.class_names), tuple(data.inputs[:1].shape[1:]), weights, self.init)

    def _augment(self, data: EnvironmentSet, network: Network) -> bool:
        if self.augment and not side(data):
            raise InputError("there is nothing to augment: the inputs are vectors, not images; leave --augment out")
        pretrained = network.weights != "none" and not is_registered(network.backbone)
        return pretrained and bool(side(data)) if self.augment is None else self.augment

    def _origin(self, network: Network) -> dict[str, Any]:
        """What the data and the model were made from, as JSON has it."""
        asked = asdict(self.options)
        return {
            "data": self.data,
            "test_env": self.test_env,
            **{f"data.{name}": asked[name] for name in _ORIGIN if asked[name]},
            "backbone": network.backbone,
            "weights": network.weights,
            "init": None if self.init is None else Path(self.init).name,  # wherever it lies, its digest tells it apart
            "finetune_samples": self.finetune_samples,
            **_files(init=self.init, weights=None if self.init else network.weights),
        }


def _files(**named: Path | str | None) -> dict[str, str]:
    """Digests of those that are files, and not words such as "imagenet"."""
    return {f"{PREFIX}{name}": of_file(path) for name, path in named.items() if path and Path(path).is_file()}


def _check_record(config: TrainingConfig, splits: Splits) -> None:
    if "transfer" in config.record and len(splits.training_domain.environment_names) < 2:
        raise InputError("the transfer risk needs two training environments, and fine-tuning has one: do not record it")
