"""One training as plain values: `TrainSpec` is all that decides its numbers, and `run_spec` does it.

The command line builds one from flags, a recipe from TOML; it is written into checkpoints and saved models, and its
digest names the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from ..algorithms import configure, create
from ..data import SPLITS, Facts, Options, Shift, Splits, leave_out, load_data, load_splits
from ..data.catalogue import DATA_SETS, Progress, find_set
from ..data.shifts import Kind
from ..errors import InputError
from ..models import Classifier, build_model, is_registered, load_saved_weights
from ..models.saved import describe_folder
from ..settings import Bound, Seed, Settings, Share, as_json, digest, from_mapping
from .defaults import (
    PROTOCOLS,
    Precision,
    TrainConfig,
    balanced,
    default_backbone,
    is_own_vectors,
    protocol,
    settings_for,
    side_of,
)
from .digests import files_digest, weights_digest
from .engine import Engine
from .finetune import few_samples, finetuning
from .loop import Trained, train
from .state import setting_of
from .watches import Watch


@dataclass(frozen=True)
class TrainSpec(Settings):
    """
    data              a data set's name, as in `trm data list`
    algorithm         its name in the registry
    seed              decides everything that is random
    test_env          the environment to test on, for sets that do not say
    hold_out          a training environment to leave out and test on in place of `test_env`, of which nothing is used:
                      such runs select settings by `results.leave_one_environment_out`
    backbone          None: that of the model in `init`, else the paper's for inputs like these
    weights           of the backbone, as `models.build_model` takes them
    init              the folder of a saved model whose weights to begin with, in place of `weights`
    finetune_samples  train on this many samples of the test environment, and test on the rest of it
    augment           None: where the backbone is pretrained and the inputs are images
    precision         None: bf16 on a GPU, fp32 elsewhere
    shift             what differs between the environments of a synthetic set
    bias, first_bias  its bias degrees in the second and in the first training environment
    biases            its bias degrees in all training environments, where they are more than two
    oracle            train on data like the test environment's
    size, skip_bad    of images, as `data.Options` has them; label ... path likewise of the user's own files
    content           a digest of the user's own files, by which a run on others is another run; set by `resolve`
    weights_content   the same of a file of weights, or of the model in `init`
    settings          of the algorithm, where they are not its defaults
    training          fields of `TrainConfig` that differ from the data set's protocol, all but `augment`
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
    content: str | None = None
    weights_content: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """All but the data itself is checked."""
        super().__post_init__()
        find_set(self.data)
        shift_of(self.data, self.shift, self.bias, self.first_bias, self.biases)
        config = configure(self.algorithm, **self.settings)
        object.__setattr__(self, "settings", {name: getattr(config, name) for name in self.settings})
        if "augment" in self.training:
            raise InputError("training: augment must be given beside training, not in it")
        training = from_mapping(TrainConfig, self.training, "training")
        object.__setattr__(self, "training", {name: getattr(training, name) for name in self.training})
        if self.init is not None and self.weights is not None:
            raise InputError(f"init and weights must not be given both, got {self.init!r} and {self.weights!r}")
        if self.finetune_samples is not None and self.algorithm != "erm":
            raise InputError(f"algorithm must be 'erm' to fine-tune in one environment, got {self.algorithm!r}")

    @property
    def digest(self) -> str:
        """The same for no two runs that differ in anything; a value that is None does not count."""
        return digest(self)

    def resolve(self) -> TrainSpec:
        """Write out what stands for a default, as far as it is known before the data is read.

        These are the settings of the algorithm, of the data set's protocol and of the network, and digests of files.
        """
        # An oracle's data has no bias, so whatever is asked for, it is the same run.
        asked = (None, None, None) if self.oracle else (self.bias, self.first_bias, self.biases)
        found = shift_of(self.data, self.shift, *asked)
        biases = () if found is None else found.biases
        two = len(biases) == 2
        own = PROTOCOLS.get(self.data.partition(":")[0])
        resolved = replace(
            self,
            settings=self.settings if is_own_vectors(self.data) else asdict(configure(self.algorithm, **self.settings)),
            training=self._training(own),
            shift=None if found is None else found.kind,
            first_bias=biases[0] if two else None,
            bias=biases[1] if two else None,
            biases=None if two else biases or None,
            content=self.content or files_digest(self.data),
            weights_content=self.weights_content or weights_digest(self.weights, self.init),
        )
        facts = facts_of(self.data)
        return resolved if facts is None else resolved._with_network(shape_of(facts, self.size))

    def _with_network(self, shape: Sequence[int], rows: int | None = None) -> TrainSpec:
        """The same for inputs of this shape, of which there are so many."""
        before = {} if self.init is None else describe_folder(self.init)
        backbone = self.backbone or before.get("backbone") or default_backbone(shape, rows)
        ours = is_registered(backbone)
        if self.init is not None:
            weights, first = None, before.get("about", {}).get("spec", {}).get("weights")
            pretrained = first != "none" and not ours
        else:
            weights = self.weights or ("none" if ours else "imagenet")
            pretrained = weights != "none" and not ours
        augment = pretrained and side_of(shape) > 0 if self.augment is None else self.augment
        if augment and not side_of(shape):
            raise InputError("augment must be False: the inputs are vectors, not images")
        return replace(self, backbone=backbone, weights=weights, augment=augment)

    def _training(self, own: TrainConfig | None) -> dict[str, Any]:
        """The settings of the training, where the protocol of the data is known."""
        if own is None:
            return dict(self.training)
        if self.finetune_samples is not None:
            own = finetuning(own, self.finetune_samples, self.training)
        return {name: value for name, value in asdict(own).items() if name != "augment"} | dict(self.training)

    def _read(self, root: Path | str | None, lazy: bool | None, progress: Progress | None) -> Splits:
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
            progress=progress,
        )
        if self.hold_out is None:
            return load_splits(self.data, options, self.test_env)
        data = load_data(self.data, options)
        if isinstance(data, Splits) or self.test_env is None:
            own = isinstance(data, Splits)
            why = "is for sets without a test of their own" if own else "needs --test-env beside it"
            raise InputError(f"--hold-out {self.hold_out} {why}: leave it out, or say which environment to test on")
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
) -> Trained:
    """Read the data and train.

    device, devices, loaders  as `Engine.of` has them; a GPU is taken where there is one
    data_root, lazy           where data is kept, and whether images are decoded when needed alone
    progress                  told what is being read
    """
    spec = spec.resolve()
    splits = spec._read(data_root, lazy, progress)
    own = protocol(spec.data, splits, spec.hold_out is not None)
    sets = {part: getattr(splits, part) for part in SPLITS}
    if spec.finetune_samples is not None:
        sets["train"], sets["test"] = few_samples(splits.test, spec.finetune_samples, spec.seed)
        del sets["training_domain"]  # it would be of environments that this training does not see
    data = sets["train"]
    shape = tuple(data.inputs[:1].shape[1:])
    spec = replace(spec, training=spec._training(own))._with_network(shape, len(data))
    config = TrainConfig(**spec.training, augment=bool(spec.augment))
    if is_own_vectors(spec.data):
        settings = settings_for(spec.algorithm, spec.settings, config, len(data.environment_names), vectors=True)
        spec = replace(spec, settings=asdict(configure(spec.algorithm, **settings)))
        data = balanced(data, config.batch_size)
    if "transfer" in config.record and len(data.environment_names) < 2:
        raise InputError("record must not hold 'transfer': it needs two training environments, and there is one")
    engine = Engine.of(device, devices, spec.precision, loaders, batch_size=config.batch_size)
    return train(
        partial(_build, spec, len(data.class_names), shape),
        data,
        create(spec.algorithm, setting_of(data), **spec.settings),
        config,
        evaluate=sets,
        watch=watch,
        seed=spec.seed,
        engine=engine,
        about=as_json(replace(spec, init=None)) | {"init": None if spec.init is None else Path(spec.init).name},
    )


def _build(spec: TrainSpec, classes: int, shape: tuple[int, ...]) -> Classifier:
    assert spec.backbone is not None
    model = build_model(spec.backbone, classes, shape, "none" if spec.init else spec.weights)
    if spec.init is not None:
        load_saved_weights(model, spec.init)
    return model


def shift_of(
    data: str,
    kind: str | None = None,
    bias: float | None = None,
    first_bias: float | None = None,
    biases: tuple[float, ...] | None = None,
) -> Shift | None:
    """The shift between the environments of a synthetic set; values that are not stated are the set's own."""
    if (kind, bias, first_bias, biases) == (None, None, None, None):
        return None
    known = find_set(data)[0]
    if "shift" not in known.takes:
        raise InputError(f"shift and bias must be left out: data set {data!r} has no shift to choose")
    if biases is not None and (bias, first_bias) != (None, None):
        raise InputError("biases must stand alone, got bias or first_bias beside it")
    own = known.shift or Shift()
    first, second, *more = own.biases
    both = (first if first_bias is None else first_bias, second if bias is None else bias)
    return replace(own, kind=kind or own.kind, biases=biases or (*both, *more))  # type: ignore[arg-type]  # Shift checks


def facts_of(data: str) -> Facts | None:
    """The facts of a data set; None where the user's files decide."""
    found = DATA_SETS.find(data.partition(":")[0])
    return found.facts if found is not None and found.facts.environments else None


def shape_of(facts: Facts, size: int | None) -> tuple[int, ...]:
    """The shape of one input, images of this size."""
    return (facts.shape[0], size, size) if size and len(facts.shape) == 3 else facts.shape
