"""Fitting: compare candidates on the data, choose one, and train it on all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import distributions
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.pipeline import make_pipeline

from ..auditing.columns import ColumnReport, column_effects
from ..auditing.samples import column_groups, join_sets
from ..auditing.shift import Shift, decompose_shift
from ..data import EnvironmentSet, Options
from ..data.infer import Declared, infer_schema
from ..data.schema import Form
from ..errors import InputError
from ..models import Classifier, OnFrozen, build_model, features_of
from ..models.blend import BLEND, Member, blend_on
from ..models.saved import versions
from ..models.trees import TREES, sizes_of
from ..settings import as_json
from ..training import Engine, Steps, TrainConfig
from ..training.engine import device_of
from ..training.feed import inputs_digest
from .candidates import (
    BASELINES,
    RESULTS,
    UNSTABLE,
    ImageClassifier,
    TableEncoder,
    form_of,
    make_candidates,
    named,
    rows_of,
)
from .compare import Choice, Comparison, can_blend, choose, compare, numbered_in_time, split_rows
from .decisions import Calibration, Decision, learn_decision
from .metrics import row_losses
from .model import Model, Origin
from .plan import Plan, settle
from .source import Source, read_source
from .trainings import Curve, Kept, curve_of

OnProgress = Callable[[str, int, int], None]
"""(what, done, total), in images, trainings or steps"""

LIBRARIES = ("lightgbm", "numpy", "pandas", "scikit-learn", "scipy")  # whose versions predictions depend on
SMALL = 20_000  # rows below which starting processes costs more time than it saves


@dataclass(frozen=True)
class Fitted:
    """A fitted model with its data, its settings and the comparison that it was chosen by.

    Attributes
    ----------
    model
        The model.
    source
        The data it was fitted to.
    plan
        The settings, with defaults filled in.
    comparison
        Comparison of the candidates; None: nothing was compared.
    choice
        The candidate that was chosen, and the reason.
    decision
        Temperature, threshold and sets that were learned in held-out environments.
    curve
        Loss curve of the final training; None: not a network, or an average of several candidates.
    config, settings
        Training configuration and the algorithm's settings of the final training.
    with_all
        Comparison with all columns, if unstable columns were dropped; otherwise None.

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
        """Probabilities of each row when held out, (n, C), calibrated by the others; nan if it never was."""
        assert self.comparison is not None
        samples, found = self.source.samples, self.comparison.probabilities[self.choice.algorithm].copy()
        for name, temperature in self.decision.temperatures.items():
            own = samples.environments.numpy() == samples.environment_names.index(name)
            found[own] = Calibration(temperature).apply(found[own])
        return found

    @cached_property
    def losses(self) -> NDArray[np.float64]:
        """Log loss of each row when held out, (n,); nan if it never was."""
        return row_losses(self.source.samples.labels.numpy(), self.held_out)

    @property
    def loss_variances(self) -> NDArray[np.float64]:
        """Error variance of each environment's mean log loss, in the order of `decision.seen`."""
        samples, places = self.source.samples, self.source.samples.environments.numpy()
        groups = [self.losses[places == samples.environment_names.index(name)] for name in self.decision.seen]
        return np.array([np.nanvar(group) / np.isfinite(group).sum() for group in groups])

    @cached_property
    def columns(self) -> ColumnReport | None:
        """Effects of all columns of a table on the label, dropped columns included; None: not a table."""
        source, frame, samples = self.source, self.source.judged, self.source.samples
        if frame is None:
            return None
        kinds = {} if source.declared is None else source.declared.kinds
        schema = infer_schema(frame, source.label, source.environment, Declared(kinds))  # with all indicators
        inputs = schema.encode(frame).features
        groups, missing = column_groups(schema)
        if not groups:
            return None
        rows = join_sets([samples], [inputs])
        return column_effects(
            inputs, groups, *rows[1:3], missing=missing, suspects=source.suspects, seed=self.plan.seed
        )

    @cached_property
    def shifts(self) -> tuple[Shift, ...]:
        """Shifts that explain the loss of each held-out environment; for tables and vectors."""
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
        Names and kinds of its columns. Default: inferred.
    plan
        Settings of the fit. Default: those of `Plan()`.
    on_progress
        Function that is called with (task, done, total).
    keep
        Folder for finished trainings of the comparison: if this call is killed, the same call goes on from them.

    Returns
    -------
    Fitted
        The model with its data and its comparison.

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


def fit_source(
    source: Source,
    plan: Plan,
    options: Options | None = None,
    on_progress: OnProgress | None = None,
    keep: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Fitted:
    """Fit a model to data that has been read; `say` is called with a line if `keep` holds trainings."""
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
        source = source.without_unstable()
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
    trained: dict[str, Any] = {}
    for name in members:
        rows: Any = X
        if source.schema is not None and source.frame is not None and form_of(name) != "features":
            rows = rows_of(source.schema.encode(source.frame, form_of(name)))
        if name not in BASELINES:
            candidates[name].set_params(watch=(Steps(partial(on_progress, f"{named(name)} on all rows")),))
        trained[name] = candidates[name].fit(rows, samples.labels.numpy(), environments=environments)
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
    model = assemble_model(source, plan, choice.algorithm, trained, members, backbone, options, decision)
    final = candidates.get(choice.algorithm)  # None: several, for an average
    config, settings = getattr(final, "config_", None), getattr(final, "settings_", {})
    return Fitted(model, source, plan, comparison, choice, decision, curve_of(final), config, settings, with_all)


def assemble_model(
    source: Source,
    plan: Plan,
    algorithm: str,
    trained: Mapping[str, Any],
    weights: Mapping[str, float],
    backbone: Classifier | None,
    options: Options,
    decision: Decision,
) -> Model:
    """Build the model of the fitted estimators: their network, behind the frozen backbone if there is one.

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
    """Return the members of an average, the form in which it takes rows of a table, and its number of columns."""
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


def frozen_features(source: Source, plan: Plan, backbone: Classifier, on_progress: OnProgress) -> torch.Tensor:
    """Compute the features (n, d) of all images by a backbone, reading each image once, in order.

    They are computed in full precision on any device, since the model will predict on a CPU.
    """
    samples = source.samples
    # A network on top that cannot be built is refused before the features are computed, which takes longer.
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
    """Compare the candidates; a table is encoded anew from the rows of each training."""
    workers = plan.workers
    if workers is None:
        trains_images = source.kind == "images" and not plan.frozen
        alone = trains_images or len(samples) < SMALL or device_of(plan.device).type == "cuda"
        workers = 1 if alone else int(joblib.cpu_count())
    kept = None if keep is None else Kept(keep, _digests(candidates, source, samples, plan), say)
    with TemporaryDirectory(prefix="transferrisk-") as folder:
        if source.frame is not None:
            X, candidates, table = np.arange(len(samples))[:, None], dict(candidates), Path(folder, "table")
            joblib.dump(source.frame, table)
            names = table, source.label, source.environment
            for name, one in candidates.items():
                encoder = TableEncoder(*names, form_of(name), plan.drop_unstable, source.declared)
                candidates[name] = make_pipeline(encoder, one)
        seeds = range(plan.seed, plan.seed + plan.repeats)
        blend = plan.averages and can_blend(samples, plan.folds, plan.seed, plan.ordered)
        tell = partial(on_progress, f"comparing {len(candidates)} candidates" + " and their average" * blend)
        try:
            found = compare(
                candidates, X, samples, seeds, plan.folds, workers, tell, plan.metric, ordered=plan.ordered, kept=kept,
                blend=blend, race=plan.algorithm is None,
            )  # fmt: skip
            if not plan.drop_unstable or found.held == "rows":
                return found
            dropped: dict[str, tuple[str, ...]] = {}
            y, environments = samples.labels.numpy(), samples.environments.numpy()
            encoder = TableEncoder(*names, "features", True, source.declared)
            for train, test in split_rows(samples, plan.folds, seeds, plan.ordered)[1][plan.seed]:
                why = encoder.fit(train[:, None], y[train], environments[train]).schema_.dropped
                gone = tuple(column for column in why if why[column] == UNSTABLE)
                dropped |= {samples.environment_names[e]: gone for e in np.unique(environments[test])}
            return replace(found, dropped=dropped)
        except InputError as error:
            raise InputError(f"{source.name}, without the rows held out: {error}") from None
        finally:
            RESULTS.clear()  # the file is about to go


def _digests(candidates: Mapping[str, Any], source: Source, samples: EnvironmentSet, plan: Plan) -> dict[str, str]:
    """Return candidate -> hash of all that its predictions depend on, except the seed and rows of a training."""
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
        given = candidate.get_params()
        given.pop("images", None)  # their rows count
        file = Path(given.get("weights") or "")  # "" is the working folder, not a file
        found[name] = joblib.hash((shared, type(candidate), given, file.read_bytes() if file.is_file() else b""))
    return found
