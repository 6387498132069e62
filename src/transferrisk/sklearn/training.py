"""How a table is trained on: how much of it a step sees, for how long, and which weights are kept.

Differs from `trm fit` (`fitting.defaults`), which trains a hidden layer on rows drawn for each step:

1. The representation is linear unless asked otherwise, so that decisions are. Rate, weight decay and warm-up are
   others than a hidden layer's, and matter little to it.
2. A step sees all rows of a small table. TRM's weights of the environments then need not be averaged over steps: the
   worst one is known exactly.
3. The ridge is larger, since steps are: see `RIDGE`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch
from torch import nn

from ..algorithms import create, setting_names
from ..data.standardise import Standardise
from ..models import MLP, Classifier
from ..results import Record
from ..training import EarlyStopping, Engine, LossCurve, TrainConfig, Watch, setting_of, train
from ..training.protocols import TABLE_STEPS, batch_per_environment
from .table import Table, training_set

WHOLE = 2000  # rows up to which a step sees them all
BATCH = 128  # rows of an environment that are drawn otherwise, at most
WHOLE_STEPS = 100  # where they see all rows
WARM_UP = 0.1  # share of the epochs that pass before a penalty is switched on
DECAY_AT = 0.8
RIDGE = 1e-2  # with the default of 1e-3, steps at this rate are unstable where rows are many
DENSE = 300  # rows of a Hessian up to which it is factored
EVALUATIONS = 50

_ALONE = Lock()


@dataclass(frozen=True)
class Plan:
    """
    batch_size  rows of each environment in a step; None: all rows
    epochs      of about as many rows as the table has
    """

    batch_size: int | None
    epochs: int

    @classmethod
    def of(cls, table: Table, batch_size: int | str | None, max_epochs: int | str) -> Plan:
        """With "auto" replaced by what suits a table of this size."""
        n, E = len(table), len(table.names)
        if batch_size == "auto":
            batch_size = None if n <= WHOLE else batch_per_environment(E, BATCH)
        size = None if batch_size is None else int(batch_size)
        if max_epochs == "auto":
            max_epochs = WHOLE_STEPS if size is None else max(2, -(-TABLE_STEPS // max(1, n // (E * size))))
        return cls(size, int(max_epochs))


@dataclass(frozen=True)
class Options:
    """What of the estimator's parameters training needs."""

    algorithm: str
    settings: Mapping[str, Any]
    representation: str
    width: int
    learning_rate: float
    weight_decay: float
    standardise: bool
    seed: int
    device: str
    patience: int
    verbose: int


@dataclass
class Fitted:
    """
    loss_curve  of the steps, on a GPU of every fiftieth
    scores      accuracy in the held-out environments, at each evaluation
    epochs      that were trained
    """

    model: Classifier
    loss_curve: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    epochs: float = 0.0


class _Told(Watch):
    """Prints a line for each evaluation."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def after_evaluation(self, records: Sequence[Record]) -> None:
        loss = next(record["loss"] for record in records if record["part"] == "batch")
        scores = "".join(f", {r['environment']} {r['accuracy']:.1%}" for r in records if r["part"] == "test")
        print(f"epoch {records[0]['epoch']:g} of {self.epochs}: loss {loss:.4f}{scores}")


def fit(table: Table, held_out: Table | None, plan: Plan, options: Options) -> Fitted:
    """Train on the table; with environments held out, keep the weights that are best there.

    Torch's own generators are left as they were. Algorithms draw from them, so that threads fit one after another:
    the same seed then gives the same model, whatever else is fitted meanwhile.
    """
    with _ALONE, torch.random.fork_rng(range(torch.cuda.device_count()) if options.device != "cpu" else []):
        return _fit(table, held_out, plan, options)


def _fit(table: Table, held_out: Table | None, plan: Plan, options: Options) -> Fitted:
    # Differences of results between rows that are weighted and rows that are repeated are of rounding only; in float64
    # a hundred steps on all rows leave them below what anybody sees, and small tables can afford it.
    dtype = torch.float64 if plan.batch_size is None and options.device == "cpu" else torch.float32
    model = build_model(table, options, dtype)
    chosen = settings(table, plan, options)
    # A penalty shows its effect a while after it is switched on.
    patient_until = chosen.get("start_epoch", WARM_UP * plan.epochs) + WARM_UP * plan.epochs
    evaluations = EVALUATIONS if held_out is not None else 10 if options.verbose else 1
    config = TrainConfig(
        epochs=plan.epochs,
        batch_size=plan.batch_size,
        lr=options.learning_rate,
        weight_decay=options.weight_decay,
        decay_at=DECAY_AT,
        evaluations=evaluations,
        record=(),
    )
    data = training_set(table, plan.batch_size, dtype)
    losses, stopping = LossCurve(), EarlyStopping("test", options.patience, after=patient_until)
    watch: list[Watch] = [losses]
    if options.verbose:
        watch.append(_Told(plan.epochs))
    if held_out is not None:
        watch.append(stopping)
    trained = train(
        model,
        data,
        create(options.algorithm, setting_of(data), **chosen),
        config,
        evaluate={} if held_out is None else {"test": training_set(held_out, None, dtype)},
        watch=watch,
        seed=options.seed,
        engine=Engine.of(options.device, precision="fp32"),
    )
    model.to("cpu").eval()
    return Fitted(model, losses.losses, stopping.scores, trained.state.epoch)


def build_model(table: Table, options: Options, dtype: torch.dtype) -> Classifier:
    """Initial weights, of torch's usual range, come from the seed alone."""
    d, width = table.rows.shape[1], options.width
    generator = torch.Generator().manual_seed(options.seed)
    layer = nn.Linear(d, width) if options.representation == "linear" else MLP(d, width)
    model = Classifier(layer, width, table.num_classes).to(dtype)
    with torch.no_grad():
        for linear in (part for part in model.modules() if isinstance(part, nn.Linear)):
            bound = linear.in_features**-0.5
            for parameter in linear.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
    standardise = Standardise.identity(d, dtype)
    if options.standardise:
        standardise = Standardise.fit(table.rows, table.weights, dtype)
    model.featuriser = nn.Sequential(standardise, layer)
    return model


def settings(table: Table, plan: Plan, options: Options) -> dict[str, Any]:
    """Those given, and for tables: a warm-up by the length of training, a larger ridge, solvers for a small head."""
    known = setting_names(options.algorithm)
    chosen: dict[str, Any] = {"start_epoch": WARM_UP * plan.epochs, "ridge": RIDGE}
    if plan.batch_size is None:
        chosen["weights"] = "worst"
    if options.device == "cpu" and table.num_classes * (options.width + 1) <= DENSE:
        chosen |= {"solver": "dense", "implicit": "cholesky"}
    return {name: value for name, value in chosen.items() if name in known} | dict(options.settings)
