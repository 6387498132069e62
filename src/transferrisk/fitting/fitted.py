"""From a table, embeddings or images to a model: read them, compare candidates, choose one, train it on everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.pipeline import make_pipeline

from ..auditing.columns import ColumnReport, column_effects
from ..auditing.predictors import settle_indicators
from ..auditing.samples import column_groups, join_sets
from ..auditing.shift import Shift, decompose_shift
from ..data import EnvironmentSet, Options, Splits, load_data
from ..data.catalogue import set_name
from ..data.checks import ask_about_columns, review_vectors
from ..data.environments import concatenate
from ..data.infer import Declared, infer_schema
from ..data.schema import Form, Schema
from ..data.sets.embeddings import find_columns
from ..data.sets.tables import read_table
from ..data.splits import retyped
from ..errors import DataWarning, InputError, WeightsWarning, counted, listed, warn
from ..files import existing_file
from ..models import Classifier, OnFrozen, backbone_at_hand, build_model, features_of, is_registered
from ..models.blend import BLEND, Member, blend_on
from ..models.saved import versions
from ..models.trees import TREES, sizes_of
from ..settings import Count, Seed, Settings, as_json
from ..training import Engine, Steps, TrainConfig
from ..training.defaults import default_backbone
from ..training.engine import device_of
from ..training.feed import inputs_digest
from .candidates import (
    BASELINES,
    ImageClassifier,
    TableEncoder,
    check_candidate,
    default_candidates,
    forget_tables,
    form_of,
    make_candidates,
    named,
    rows_of,
    stable_schema,
)
from .compare import Choice, Comparison, Curve, Kept, can_blend, choose, compare, curve_of, numbered_in_time
from .decisions import Calibration, Decision, learn_decision
from .metrics import Metric, row_losses
from .model import Kind, Model, Origin

if TYPE_CHECKING:
    import pandas as pd

OnProgress = Callable[[str, int, int], None]
"""(what, done, total), in images, trainings or steps"""

FEWEST = 10  # rows of an environment that can be trained or tested on
LIBRARIES = ("lightgbm", "numpy", "pandas", "scikit-learn", "scipy")  # whose versions predictions depend on
SMALL = 20_000  # rows below which starting processes costs more than it brings


@dataclass(frozen=True)
class Source:
    """
    name         the data set, as in `trm data list`
    samples      labels and environments; inputs are images or vectors as they are, of a table its encoded rows
    label        what the label is called, likewise the environment
    columns      of a file of vectors: the columns or the array that hold them
    frame        of a table, its columns; None: there is no table
    schema       of a table, how all its rows were encoded
    declared     of a table, what is said about its columns
    """

    name: str
    kind: Kind
    samples: EnvironmentSet
    label: str
    environment: str
    columns: tuple[str, ...] = ()
    frame: pd.DataFrame | None = None
    schema: Schema | None = None
    declared: Declared | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each environment."""
        return dict(zip(self.samples.environment_names, self.samples.group_counts().sum(1).tolist(), strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.samples.inputs[:1].shape[1:])


@dataclass(frozen=True)
class Plan(Settings):
    """Settings of a fit.

    Parameters
    ----------
    algorithms
        Candidates that are compared; None: by the kind of data, see `candidates.default_candidates`.
    algorithm
        The one to take, whatever a comparison says; None: chosen.
    compared
        Whether there is a comparison at all.
    metric
        What the choice goes by.
    settings
        "key=value" for each algorithm that has the key, or "trm.ridge=1e-2" for one.
    backbone
        None: by the kind of input.
    weights
        Of the backbone, as `models.build_model` takes them.
    epochs
        Passes over all rows; None: by their number.
    seed, device
        Random seed, and where to train.
    repeats
        Seeds of the comparison, from `seed` on.
    folds
        Environments that are held out at most, drawn by the seed; the last ones where they are ordered.
    ordered
        Environments follow each other in time: in the comparison each is tested after the earlier ones alone.
    workers
        Processes that train at the same time; None: as many as cores, for vectors on a CPU.
    drop_small
        Leave out environments with fewer than 10 rows.
    drop_unstable
        Of a table, leave out columns whose effect on the label differs between environments; in the comparison, those
        that do so between the environments of each training.
    frozen
        A pretrained backbone stays as it is, and a network on its features is trained; None: on a CPU.
    on_top
        That network; None: the one for vectors.

    Examples
    --------
    >>> from transferrisk.fitting import Plan
    >>> Plan(algorithms=("linear", "trm"), metric="brier").metric
    'brier'
    """

    algorithms: tuple[str, ...] | None = None
    algorithm: str | None = None
    compared: bool = True
    metric: Metric = "log_loss"
    settings: tuple[str, ...] = ()
    backbone: str | None = None
    weights: str | None = None
    epochs: Count | None = None
    seed: Seed = 0
    repeats: Count = 1
    folds: Count = 10
    ordered: bool = False
    device: str = "auto"
    workers: Count | None = None
    drop_small: bool = False
    drop_unstable: bool = False
    frozen: bool | None = None
    on_top: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.algorithms
        for name in filter(None, (*(given or ()), self.algorithm)):
            check_candidate(name)
        if given is not None and (not given or len(set(given)) < len(given)):
            raise InputError(f"algorithms must be names, each given once, got {listed(given) or 'none'}")
        if self.ordered and not self.compared:
            raise InputError("ordered (--ordered) is about the comparison, and there is none: leave out --no-compare")
        if self.algorithm == BLEND and not self.compared:
            raise InputError(f"algorithm {BLEND!r} takes its weights from the comparison: leave out --no-compare")
        averaged = {*(given or ()), self.algorithm} - {BLEND, None}
        if self.averages and given is not None and len(averaged) < 2:
            names = listed(averaged) or "none"
            raise InputError(f"algorithms must name two or more candidates for {BLEND!r} to average, got {names}")

    @property
    def averages(self) -> bool:
        """Whether the weighted average of the candidates is asked for."""
        return BLEND in (*(self.algorithms or ()), self.algorithm)

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates: all that are compared, and the one that is asked for."""
        compared = (self.algorithms or ()) if self.compared else (self.algorithm or "trm",)
        return tuple(dict.fromkeys((*compared, *filter(None, (self.algorithm,)))))


@dataclass(frozen=True)
class Fitted:
    """A model, and how it came to be.

    Attributes
    ----------
    model
        The model.
    source
        The data it was fitted to.
    plan
        With nothing left open.
    comparison
        None where there was none.
    choice
        The candidate that was chosen, and why.
    decision
        What was learned from the predictions for held-out environments.
    curve
        Of the final training, with the config and the algorithm's settings it had; None: no network was trained or, for
        an average, maybe several.
    config, settings
        Of the final training.
    with_all
        The same with all columns, where unstable ones were dropped; None: they were not.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from tempfile import mkdtemp
    >>> from transferrisk.data import Options
    >>> from transferrisk.fitting import Plan, fit
    >>> i = np.arange(60)
    >>> table = pd.DataFrame({"x": np.sin(i), "y": np.sin(i) > 0, "site": ["a", "b", "c"] * 20})
    >>> file = mkdtemp() + "/table.csv"
    >>> table.to_csv(file, index=False)
    >>> fitted = fit(file, Options(label="y", environment="site"), Plan(algorithms=("majority", "linear"), workers=1))
    >>> fitted.choice.algorithm
    'linear'
    """

    model: Model
    source: Source
    plan: Plan
    comparison: Comparison | None
    choice: Choice
    decision: Decision
    curve: Curve | None
    config: TrainConfig | None
    settings: Mapping[str, Any]
    with_all: Comparison | None = None

    @cached_property
    def held_out(self) -> NDArray[np.float64]:
        """Probabilities of each row when it was held out, (n, C), calibrated by the others; nan where it was not."""
        assert self.comparison is not None
        samples, found = self.source.samples, self.comparison.probabilities[self.choice.algorithm].copy()
        for name, temperature in self.decision.temperatures.items():
            own = samples.environments.numpy() == samples.environment_names.index(name)
            found[own] = Calibration(temperature).apply(found[own])
        return found

    @cached_property
    def losses(self) -> NDArray[np.float64]:
        """Log loss of each row, (n,), when it was held out; nan where it was not."""
        return row_losses(self.source.samples.labels.numpy(), self.held_out)

    @property
    def loss_variances(self) -> NDArray[np.float64]:
        """Error variances of the log losses in `decision.seen`, in its order: of the mean over the rows of each."""
        samples, places = self.source.samples, self.source.samples.environments.numpy()
        groups = [self.losses[places == samples.environment_names.index(name)] for name in self.decision.seen]
        return np.array([np.nanvar(group) / np.isfinite(group).sum() for group in groups])

    @cached_property
    def columns(self) -> ColumnReport | None:
        """What does not transfer of a table's columns, those included that were dropped for it; None: not a table."""
        source, frame, samples = self.source, self.source.frame, self.source.samples
        if frame is None:
            return None
        kinds = {} if source.declared is None else source.declared.kinds
        schema = infer_schema(frame, source.label, source.environment, Declared(kinds))  # with all indicators
        inputs = schema.encode(frame).features
        groups, missing = column_groups(schema)
        if not groups:
            return None
        rows = join_sets([samples], [inputs])
        return column_effects(inputs, groups, *rows[1:3], missing=missing, seed=self.plan.seed)

    @cached_property
    def shifts(self) -> tuple[Shift, ...]:
        """Why environments lose more than others when they are held out; of tables and vectors."""
        if self.comparison is None or self.comparison.held != "environments" or self.source.kind == "images":
            return ()
        tested = np.isfinite(self.losses)
        held = self.source.samples.select(torch.from_numpy(tested))
        if len(self.decision.seen) < 2 or len(held.labels.unique()) < 2:
            return ()
        return decompose_shift(self.losses[tested], *join_sets([held], [held.inputs[:]])[:3], seed=self.plan.seed)


def fit(
    data: str | Path,
    options: Options | None = None,
    plan: Plan | None = None,
    on_progress: OnProgress | None = None,
    keep: Path | None = None,
) -> Fitted:
    """Fit a model to a file, a folder of images or a data set by name.

    Parameters
    ----------
    data
        A file, a folder of images, or a name as in `trm data list`.
    options
        What its columns are; None: nothing is said.
    plan
        What to compare; None: the defaults.
    on_progress
        Called with (what, done, total) on the way.
    keep
        Folder for the trainings of the comparison that are done: the same call goes on from them if this one is killed.
        `save_fit` removes that of `kept_beside`.

    Returns
    -------
    Fitted
        The model, and how it came to be.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from transferrisk.data import Options
    >>> from transferrisk.fitting import Plan, fit, load_model, save_fit
    >>> folder = Path(mkdtemp())
    >>> i = np.arange(60)
    >>> table = pd.DataFrame({"x": np.sin(i), "y": np.sin(i) > 0, "site": ["a", "b", "c"] * 20})
    >>> table.to_csv(folder / "table.csv", index=False)
    >>> plan = Plan(algorithms=("majority", "linear"), workers=1)
    >>> fitted = fit(folder / "table.csv", Options(label="y", environment="site"), plan)
    >>> save_fit(fitted, folder / "model")
    >>> load_model(folder / "model").predict_proba(table[["x"]]).shape
    (60, 2)
    """
    options, plan = options or Options(), plan or Plan()
    return fit_source(read_source(str(data), options, plan.drop_small), plan, options, on_progress, keep)


def read_source(given: str, options: Options, drop_small: bool = False) -> Source:
    """Read the data of a path or a name. Environments with few rows are an error, or left out with `drop_small`."""
    name = set_name(given, options)
    base, _, argument = name.partition(":")
    if base == "table":
        table = read_table(argument, options)
        names, counts = table.environment_names, np.bincount(table.environments, minlength=len(table.environment_names))
        small = _small_environments(dict(zip(names, counts.tolist(), strict=True)), name, drop_small)
        if small:  # before anything is inferred from the rows
            kept = ~np.isin(table.environments, [names.index(one) for one in small])
            table = table.select(torch.from_numpy(np.flatnonzero(kept)))
        schema = settle_indicators(table.schema, table.declared, table.frame, table.labels, table.environments)
        samples = table.encode(schema)
        if small:
            samples = samples.only([one for one in names if one not in small])
        ask_about_columns(table)
        review_vectors(samples, table.file, table.positions)
        return Source(name, "table", samples, table.label, table.environment, (), table.frame, schema, table.declared)
    data = load_data(name, options)
    if isinstance(data, Splits):
        warn(f"{name}: its training environments are used, and its test environment is not touched", DataWarning)
        data = concatenate([data.train, retyped(data.training_domain, EnvironmentSet)])
    kind: Kind = "images" if data.inputs[:1].dim() == 4 else "vectors"
    columns: tuple[str, ...] = ()
    label, environment = options.label or "label", options.environment or "environment"
    if base == "npz":
        columns = (options.features or "features",)
        label, environment = options.label or "labels", options.environment or "environments"
    elif base == "parquet":
        found = find_columns(existing_file(argument), options)
        columns, label, environment = found.features, found.label, found.environment
    source = Source(name, kind, data, label, environment, columns)
    small = _small_environments(source.sizes, name, drop_small)
    if small:
        source = replace(source, samples=data.only([one for one in data.environment_names if one not in small]))
    return source


def _small_environments(sizes: Mapping[str, int], name: str, drop_small: bool) -> list[str]:
    """Environments to leave out, since they have few rows; without `drop_small`, they are an error."""
    small = [environment for environment, size in sizes.items() if size < FEWEST]
    if not small:
        return []
    told = listed(f"{environment!r} ({counted(sizes[environment], 'row')})" for environment in small)
    line = f"{name}: environments must have {FEWEST} rows or more, got {told}"
    if not drop_small:
        raise InputError(f"{line}: merge them with others, or go on without them with drop_small (--drop-small)")
    left = len(sizes) - len(small)
    if left < 2:
        raise InputError(f"{line}; without them {left} would be left, and two are needed: merge some")
    warn(f"{line}; they are left out", DataWarning)
    return small


def fit_source(
    source: Source,
    plan: Plan,
    options: Options | None = None,
    on_progress: OnProgress | None = None,
    keep: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Fitted:
    """Fit a model to data that has been read; `say` is called with a line where `keep` holds trainings."""
    options, on_progress = options or Options(), on_progress or (lambda what, done, total: None)
    plan = settle(source, plan)
    names = plan.names
    candidates = make_candidates(source, plan, names)
    if plan.algorithm == BLEND and not can_blend(source.samples, plan.folds, plan.seed, plan.ordered):
        raise InputError(
            f"algorithm {BLEND!r} needs three environments or more that are held out, got fewer in {source.name}: name "
            "another"
        )
    samples, backbone, with_all = source.samples, None, None
    if plan.drop_unstable:
        if plan.compared:
            kept = replace(plan, drop_unstable=False)
            with_all = _compare(candidates, samples.inputs[:].numpy(), source, samples, kept, on_progress, keep, say)
        source = _without_unstable(source)
        samples = source.samples
    if plan.frozen:
        backbone = build_model(str(plan.backbone), len(samples.class_names), source.shape, plan.weights)
        samples = replace(samples, inputs=frozen_features(source, plan, backbone, on_progress))
    by_number = source.kind == "images" and not plan.frozen
    X = np.arange(len(samples))[:, None] if by_number else samples.inputs[:].numpy()
    comparison = None
    if plan.compared:
        comparison = _compare(candidates, X, source, samples, plan, on_progress, keep, say)
    if plan.algorithm == BLEND and comparison is not None and BLEND not in comparison.probabilities:
        choice = Choice(next(iter(comparison.members)), "the only member of the average that was asked for")
    elif plan.algorithm is not None:
        choice = Choice(plan.algorithm, "asked for")
    elif comparison is None:
        choice = Choice(names[0], "the default; nothing was compared")
    else:
        choice = choose(comparison)
    decision = Decision()
    members = comparison.members if comparison is not None and choice.algorithm == BLEND else {choice.algorithm: 1.0}
    environments = samples.environments.numpy()  # as in the comparison: names would sort in another order
    for name in members:
        if name not in BASELINES:
            candidates[name].set_params(watch=(Steps(partial(on_progress, f"{named(name)} on all rows")),))
        candidates[name].fit(_final_rows(source, X, name), samples.labels.numpy(), environments=environments)
    if comparison is not None:
        decision = learn_decision(
            samples.labels.numpy(),
            comparison.probabilities[choice.algorithm],
            numbered_in_time(samples, comparison.order),
            comparison.order or samples.environment_names,
            plan.metric,
            comparison.held,
            bool(comparison.order),
        )
    trained = {name: candidates[name] for name in members}
    model = _whole_model(source, plan, choice.algorithm, trained, members, backbone, options, decision)
    final = candidates.get(choice.algorithm)  # None: several, for an average
    config, settings = getattr(final, "config_", None), getattr(final, "settings_", {})
    return Fitted(model, source, plan, comparison, choice, decision, curve_of(final), config, settings, with_all)


def _without_unstable(source: Source) -> Source:
    """The table without the columns whose effect on the label differs between its environments."""
    if source.schema is None or source.frame is None:
        raise InputError(f"drop_unstable (--drop-unstable) is for tables, got {source.name}: leave it out")
    samples = source.samples
    schema = stable_schema(source.schema, samples.inputs[:], samples.labels.numpy(), samples.environments.numpy())
    return replace(source, schema=schema, samples=replace(samples, inputs=schema.encode(source.frame).features))


def _final_rows(source: Source, X: NDArray[Any], algorithm: str) -> Any:
    """All rows in the form that a candidate takes."""
    if source.schema is None or source.frame is None or form_of(algorithm) == "features":
        return X
    return rows_of(source.schema.encode(source.frame, form_of(algorithm)))


def settle(source: Source, plan: Plan) -> Plan:
    """The plan with what it leaves open about the network decided by the data, the device and the weights there are.

    A CPU is too slow to train all of a pretrained network, so there it is frozen. Settings that no candidate has are
    refused.
    """
    images = source.kind == "images"
    usual = default_backbone(source.shape, len(source.samples))
    backbone, weights = plan.backbone or usual, plan.weights
    if not is_registered(backbone):
        if plan.backbone is None and weights is None and (backbone := backbone_at_hand(usual)) != usual:
            warn(
                f"the ImageNet weights of {usual} cannot be fetched: {backbone} is taken, whose weights pip has "
                "installed; to choose yourself, name one with --backbone",
                WeightsWarning,
            )
        weights = weights or "imagenet"
    pretrained = images and weights not in (None, "none")
    if plan.frozen and not images:
        raise InputError(f"frozen (--frozen) is for the backbone of images, got {source.name}: leave it out")
    if plan.frozen and not pretrained:
        raise InputError(
            f"frozen (--frozen) needs a pretrained backbone, got {backbone!r} without weights: name one with "
            "--backbone, or a file with --weights"
        )
    frozen = plan.frozen if plan.frozen is not None else pretrained and device_of(plan.device).type == "cpu"
    if plan.on_top is not None and not frozen:
        raise InputError(f"on_top={plan.on_top!r} (--on-top) needs a frozen backbone: add --frozen, or leave it out")
    on_top = (plan.on_top or default_backbone((1,), len(source.samples))) if frozen else None
    algorithms = plan.algorithms or default_candidates(source.kind, images and not frozen)
    settled = replace(plan, backbone=backbone, weights=weights, frozen=frozen, on_top=on_top, algorithms=algorithms)
    make_candidates(source, settled, settled.names)
    return settled


def frozen_features(source: Source, plan: Plan, backbone: Classifier, on_progress: OnProgress) -> torch.Tensor:
    """The features (n, d) that a backbone has of images, which are read once, in their order.

    They are computed in full precision on any device, since it is on a CPU that the model will predict.
    """
    samples = source.samples
    # That the network on top fits is seen before features are computed, which takes longer.
    build_model(str(plan.on_top), len(samples.class_names), (backbone.head.in_features,))
    engine = Engine.of(plan.device, precision="fp32")
    with engine.arithmetic():
        on_rows = partial(on_progress, f"features by {plan.backbone}")
        features = features_of(backbone.to(engine.device), samples.batch, len(samples), on_rows).cpu()
    backbone.cpu()
    wrong = ~features.isfinite().all(1)
    if wrong.any():
        raise InputError(
            f"{source.name}: the features of image {int(wrong.int().argmax()) + 1} must be finite: use other weights"
        )
    return features


def _compare(
    candidates: Mapping[str, Any],
    X: NDArray[Any],
    source: Source,
    samples: EnvironmentSet,
    plan: Plan,
    on_progress: OnProgress,
    keep: Path | None,
    say: Callable[[str], None],
) -> Comparison:
    """The comparison, in which a table is encoded anew by the rows of each training."""
    workers = plan.workers
    if workers is None:
        trains_images = source.kind == "images" and not plan.frozen
        alone = trains_images or len(samples) < SMALL or device_of(plan.device).type == "cuda"
        workers = 1 if alone else int(joblib.cpu_count())
    kept = None if keep is None else Kept(keep, _digests(candidates, source, samples, plan), say)
    with TemporaryDirectory(prefix="transferrisk-") as folder:
        if source.frame is not None:
            X = np.arange(len(samples))[:, None]
            joblib.dump(source.frame, Path(folder, "table"))
            candidates = {
                name: make_pipeline(
                    TableEncoder(
                        Path(folder, "table"),
                        source.label,
                        source.environment,
                        form_of(name),
                        plan.drop_unstable,
                        source.declared,
                    ),
                    one,
                )
                for name, one in candidates.items()
            }
        seeds = range(plan.seed, plan.seed + plan.repeats)
        said = f"comparing {len(candidates)} candidates"
        try:
            tell = partial(on_progress, said)
            return compare(
                candidates, X, samples, seeds, plan.folds, workers, tell, plan.metric, ordered=plan.ordered, kept=kept,
                blend=plan.averages and can_blend(samples, plan.folds, plan.seed, plan.ordered),
                race=plan.algorithm is None,
            )  # fmt: skip
        except InputError as error:
            raise InputError(f"{source.name}, without the rows held out: {error}") from None
        finally:
            forget_tables()  # the file is about to go


def _digests(candidates: Mapping[str, Any], source: Source, samples: EnvironmentSet, plan: Plan) -> dict[str, str]:
    """Candidate -> digest of all that its predictions depend on, but for the seed and the rows of a training."""
    libraries = [found.version for name in LIBRARIES for found in distributions(name=name)]
    rows: Any = source.frame
    if rows is None:
        rows = [joblib.hash(samples.inputs[start : start + 1024].numpy()) for start in range(0, len(samples), 1024)]
    shared = joblib.hash(
        (
            *(versions(), libraries, device_of(plan.device).type, source.kind),
            *(rows, source.label, source.environment, source.declared, plan.drop_unstable),
            *(samples.labels.numpy(), samples.environments.numpy(), samples.environment_names, samples.class_names),
        )
    )
    found = {}
    for name, candidate in candidates.items():
        given = {key: value for key, value in candidate.get_params().items() if key != "images"}  # their rows count
        file = Path(given.get("weights") or "")  # "" is the working folder, not a file
        found[name] = joblib.hash((shared, type(candidate), given, file.read_bytes() if file.is_file() else b""))
    return found


def _whole_model(
    source: Source,
    plan: Plan,
    algorithm: str,
    trained: Mapping[str, Any],
    weights: Mapping[str, float],
    backbone: Classifier | None,
    options: Options,
    decision: Decision,
) -> Model:
    """The fitted estimators' network, behind the backbone whose features it takes where there is one.

    Its logits are divided by the temperature that calibrates them.
    """
    first, final = next(iter(trained.items()))
    samples, network, name, on_top, shape = source.samples, final.model_, str(plan.backbone), "", source.shape
    sizes, form, members = sizes_of(network), form_of(first), None
    if algorithm == BLEND:
        members, form, columns = _members(source, trained, weights)
        if backbone is None:
            name, shape = "linear", (columns,)
        base = backbone or build_model(name, network.head.out_features, shape, "none")
        network, on_top, sizes = blend_on(base, members, [one.model_ for one in trained.values()]), BLEND, None
    elif sizes is not None:
        name, shape = TREES, (final.n_features_in_,)
    elif not isinstance(final, ImageClassifier):
        on_top = getattr(final, "representation_", "linear")
        if backbone is None:
            name = "linear"
        else:
            top = Classifier(network.featuriser.top, network.head.in_features, network.head.out_features)
            top.head = network.head
            network = OnFrozen(backbone, top, network.featuriser.standardise).eval()
    with torch.no_grad():
        network.head.weight /= decision.temperature
        network.head.bias /= decision.temperature
    origin = Origin(
        source.name,
        source.kind,
        source.label,
        source.environment,
        {name: value for name in ("features", "path") if (value := getattr(options, name))},
        source.columns,
        algorithm,
        inputs_digest(samples),
    )
    about = {
        "on_top": on_top,
        "dtype": str(network.head.weight.dtype).removeprefix("torch."),
        "origin": as_json(origin),
        "schema": None if source.schema is None else source.schema.to_dict(),
        "form": form,
        "sizes": as_json(sizes),
        "members": as_json(members),
        "decision": as_json(decision),
    }
    classes = tuple(np.array(samples.class_names, dtype=object)[final.classes_])
    return Model(network, name, shape, classes, samples.environment_names, about, origin, source.schema, form, decision)


def _members(
    source: Source, trained: Mapping[str, Any], weights: Mapping[str, float]
) -> tuple[list[Member], Form, int]:
    """What an average is made of, the form in which it takes rows of a table, and how many columns that has."""
    schema = source.schema if len(set(map(form_of, trained))) > 1 else None
    form: Form = "both" if schema is not None else form_of(next(iter(trained)))
    members = []
    for name, one in trained.items():
        sizes = sizes_of(one.model_)
        members.append(
            Member(
                name,
                weights[name],
                one.n_features_in_,
                start=0 if schema is None or form_of(name) == "features" else len(schema.feature_names),
                on_top=getattr(one, "representation_", "linear") if sizes is None else "",
                dtype="float64" if one.model_.head.weight.dtype == torch.float64 else "float32",
                sizes=sizes,
            )
        )
    return members, form, max(member.start + member.width for member in members)
