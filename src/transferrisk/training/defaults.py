"""The settings of a training, and their defaults by kind of input, with the reason beside each number.

    small images   up to 64 pixels a side   the paper's protocol for 10C-CMNIST (appendix B.3)
    photographs    larger images            the paper's protocol for PACS
    vectors        tables, embeddings       measured: see `VECTORS`

`trm train`, `trm fit` and `TransferRiskClassifier` train on vectors alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated, Any, Literal

import numpy as np

from ..algorithms import TRM, get_algorithm, setting_names
from ..data import EnvironmentSet, Splits, filled
from ..errors import InputError
from ..settings import Bound, Count, Positive, Settings, Share, convert

Precision = Literal["fp32", "tf32", "bf16"]
Extra = Literal["irm", "transfer"]
Optimiser = Literal["sgd", "adam", "adamw"]
RATES: dict[Optimiser, float] = {"sgd": 0.1, "adam": 1e-3, "adamw": 1e-3}
DECAYS: dict[Optimiser, float] = {"sgd": 1e-4, "adam": 0.0, "adamw": 1e-2}
"""Optimiser -> its learning rate and weight decay by default: the paper's for SGD, PyTorch's for the others."""


Steps = Annotated[int, Bound(least=1, most=10**9)]
Rate = Annotated[float, Bound(least=0, most=1e30)]  # a number of float32


@dataclass(frozen=True)
class TrainConfig(Settings):
    """Settings of a training. The defaults are the paper's protocol for 10C-CMNIST (appendix B.3.2).

    Parameters
    ----------
    epochs
        Passes over the smallest environment.
    batch_size
        Samples of each environment in a step; None: every step sees all samples, however many each has.
    lr
        Learning rate; None: 0.1 for sgd, 1e-3 for the others.
    momentum
        Of sgd; for the others the first of the two factors of their averages, beside 0.999.
    weight_decay
        Factor of the weights in the gradient; None: 1e-4 for sgd, 0 for adam, 1e-2 for adamw.
    decay_at
        Share of the steps after which the rate is multiplied by decay_factor, or several; 1: never.
    decay_factor
        What the rate is multiplied by at each of `decay_at`.
    evaluations
        How often the model is evaluated, evenly over the steps.
    transfer_ridge
        Of the predictors in the recorded transfer matrix.
    augment
        Vary images at random in each step.
    record
        What evaluations measure besides accuracies and losses, on training-domain validation data: "irm" the IRMv1
        penalty of each environment, "transfer" the exact transfer matrix.
    steps
        Number of steps, in place of the epochs.
    optimiser
        sgd, adam, or adamw, which decays weights apart from the gradient.
    dropout
        Share of the features that are set to 0 at random in each step.
    average
        What is evaluated and saved: the weights of the last step (None), an exponential moving average ("ema"), or
        their mean over the valley of the validation loss ("swad"), which is looked at in each evaluation.
    ema_decay
        Factor of the average in each step; with 1 it is the mean over all steps.
    swad_patience, swad_tolerance
        Evaluations without a lower loss after which SWAD's mean begins, and with higher losses after which it ends.
    swad_ratio
        How high these losses are: above the mean loss where it began times this.

    Examples
    --------
    >>> from transferrisk.training import TrainConfig
    >>> TrainConfig(epochs=5).lr
    0.1
    """

    epochs: Steps = 10
    batch_size: Count | None = 128
    lr: Rate = None  # type: ignore[assignment]  # replaced below
    momentum: Share = 0.9
    weight_decay: Rate = None  # type: ignore[assignment]  # replaced below
    decay_at: Share | tuple[Share, ...] = 0.4
    decay_factor: Rate = 0.1
    evaluations: Annotated[int, Bound(least=1, most=100_000)] = 10
    transfer_ridge: Positive = 1e-3
    augment: bool = False
    record: tuple[Extra, ...] = ("transfer",)
    steps: Steps | None = None
    optimiser: Optimiser = "sgd"
    dropout: Annotated[float, Bound(least=0, below=1)] = 0.0
    average: Literal["ema", "swad"] | None = None
    ema_decay: Annotated[float, Bound(above=0, most=1)] = 0.999
    swad_patience: Count = 3
    swad_tolerance: Count = 6
    swad_ratio: Positive = 1.3

    def __post_init__(self) -> None:
        optimiser = convert("optimiser", self.optimiser, Optimiser)
        for name, defaults in (("lr", RATES), ("weight_decay", DECAYS)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, defaults[optimiser])
        super().__post_init__()
        if self.momentum == 1 and optimiser != "sgd":
            raise InputError(f"momentum must be < 1 for {optimiser}, got 1")

    def with_optimiser(self, optimiser: Optimiser) -> TrainConfig:
        """The settings with this optimiser; where it is another, with its own weight decay and a rate that suits it.

        The rate is half of that of SGD, and at most the optimiser's own: so it stays small for pretrained networks, and
        is DomainBed's 5e-5 for photographs.
        """
        if optimiser == self.optimiser:
            return self
        rate = RATES[optimiser]
        lr = min(self.lr / 2, rate) if self.optimiser == "sgd" else rate
        return replace(self, optimiser=optimiser, lr=lr, weight_decay=DECAYS[optimiser])

    def total(self, steps_per_epoch: int) -> int:
        """The number of steps."""
        return self.steps or self.epochs * steps_per_epoch

    @property
    def decays(self) -> tuple[float, ...]:
        """Shares of the steps after which the rate falls; a share of 1 is none of them."""
        shares = self.decay_at if isinstance(self.decay_at, tuple) else (self.decay_at,)
        return tuple(share for share in shares if share < 1)

    @property
    def decay_words(self) -> str:
        """ "the rate times 0.1 after 40% of the steps", or that it is constant."""
        if not self.decays:
            return "the rate constant"
        shares = ", ".join(f"{share:.0%}" for share in self.decays)
        return f"the rate times {self.decay_factor:g} after {shares} of the steps"

    def rate(self, step: int, total: int) -> float:
        """Return the learning rate of a step, 0 <= step < total: lr decay_factor^k after k of the decays."""
        return self.lr * self.decay_factor ** int((np.asarray(self.decay_at) * total <= step).sum())

    def evaluated(self, total: int) -> frozenset[int]:
        """The steps after which the model is evaluated, the last one among them."""
        steps = total * np.arange(1, self.evaluations + 1) / self.evaluations
        return frozenset(steps.round().clip(1).astype(int).tolist())


SMALL_IMAGES = TrainConfig(record=())
PHOTOGRAPHS = TrainConfig(epochs=50, batch_size=32, lr=1e-4, decay_at=1.0, record=())

PROTOCOLS = {
    "10c-cmnist": SMALL_IMAGES,
    # The public code's: 1898 steps, the rate divided by ten at 600, 1200 and 1800, an evaluation every 100.
    "10c-cmnist-public": replace(SMALL_IMAGES, steps=1898, decay_at=(0.316, 0.632, 0.948), evaluations=19),
    "10c-digits": SMALL_IMAGES,
    "scenecoco": replace(SMALL_IMAGES, epochs=100),
    "pacs": PHOTOGRAPHS,
    "office-home": PHOTOGRAPHS,
    "celeba": PHOTOGRAPHS,
}
"""The paper's protocols, by data set."""

# Vectors: chosen by TRM's accuracy in held-out environments of a dozen small real tables (wages, employment, health
# insurance, opinion polls, scikit-learn's own) and of one where sites disagree by construction, two seeds each.
FEW_ROWS = 500
ON_FEW_ROWS, ON_VECTORS = "linear:16", "mlp:64"
"""Up to `FEW_ROWS`, a learnt linear map does better in the worst environment by 1 to 2 points; beyond, a hidden layer
does by 1.5 points on average. Both give the transfer risk features to shape."""
VECTORS = TrainConfig(epochs=10, lr=0.05, decay_at=0.8, weight_decay=1e-2, record=())
"""The rate 0.1 loses half a point on few rows. Weights decay strongly, since rows are few beside the weights."""
LARGE_TABLE, LARGE_TABLE_DECAY = 5000, 1e-3  # rows from which less decay fits more
STEPS_ON_FEW_ROWS = 100  # each on all rows: as good as 300 steps on some of them, in half the time; 200 are worse
FEWEST_STEPS, MOST_STEPS = 200, 1000  # that draw rows: 10 passes over them, within these bounds
WARM_UP = 0.6  # share of the steps on the empirical risk alone, for penalties: 0.4 is not better, and takes longer
TRM_RIDGE = 1e-2
"""The log loss in held-out environments of nine tables of 1600 to 3600 rows, eight of them real, was 0.525 on average
(300 steps, warm-up 0.4); with 1e-3 it was 0.543 and with 1e-1 0.526. Too weak a ridge makes predictors of single
environments too sure."""
TRM_WEIGHTS = "worst"  # where sites disagree, 3 points more in the worst one than averaged weights; elsewhere the same
TRM_EMPIRICAL = "mean"  # what the numbers above were measured with
MANY_ENVIRONMENTS = 8  # beyond, TRM looks at the transfer from one environment a step: time grows with their square
SMALL_HEAD = 300  # weights of a head up to which factoring its Hessian is fastest on a CPU

FEWEST_STEPS_ON_IMAGES = 100  # a handful of passes over few images would be a handful of steps
SMALLEST_BATCH, LARGEST_STEP = 16, 2048  # samples of an environment, and of all of them together


def is_own_vectors(name: str) -> bool:
    """Whether a data set is the user's own table or embeddings, for which the defaults of vectors were measured."""
    return name.partition(":")[0] in ("table", "npz", "parquet")


def default_backbone(shape: Sequence[int], rows: int | None = None) -> str:
    """The network for inputs of this shape: the paper's for images, for vectors by their number; None: many."""
    if len(shape) != 3:
        return ON_FEW_ROWS if rows is not None and rows <= FEW_ROWS else ON_VECTORS
    side = max(shape[1:])
    return "cnn" if side <= 28 else "wrn-16-2" if side <= 64 else "resnet18"


def protocol(name: str, splits: Splits, held_out: bool = False) -> TrainConfig:
    """How `trm train` trains on a data set: by its own protocol, or by the kind of input.

    Sets without a protocol are trained on as the paper's set most like them, with batches that the smallest environment
    fills: the largest power of two up to the protocol's. A test environment that is one of training's, `held_out` to
    select settings by, counts too: with and without it, the settings are the same.
    """
    own = PROTOCOLS.get(name.partition(":")[0])
    if own is not None:
        return own
    sizes = environment_sizes(splits.train) + (environment_sizes(splits.test) if held_out else [])
    if is_own_vectors(name):
        return replace(vector_config(sizes), evaluations=TrainConfig.evaluations)
    like = image_protocol(splits.train)
    return replace(like, batch_size=min(like.batch_size or LARGEST_STEP, 2 ** (max(1, min(sizes)).bit_length() - 1)))


def vector_config(
    sizes: Sequence[int], epochs: int | None = None, batch_size: int | None = None, all_rows: bool | None = None
) -> TrainConfig:
    """How to train on vectors in environments of these sizes.

    epochs      passes over as many rows as there are; None: by their number
    batch_size  rows of each environment in a step; None: by the number of environments
    all_rows    whether a step sees all rows instead; None: where they are few, and no batch size is given
    """
    rows, environments = sum(sizes), len(sizes)
    config = VECTORS if rows < LARGE_TABLE else replace(VECTORS, weight_decay=LARGE_TABLE_DECAY)
    if all_rows is None:
        all_rows = batch_size is None and rows <= FEW_ROWS
    if all_rows:
        return replace(config, batch_size=None, epochs=epochs or STEPS_ON_FEW_ROWS, evaluations=1)
    batch = batch_size or batch_for(sizes, config)
    per_epoch = max(1, max(ceil(rows / environments), batch) // batch)  # see `balanced`
    if epochs is None:
        steps = min(max(ceil(VECTORS.epochs * rows / (environments * batch)), FEWEST_STEPS), MOST_STEPS)
        epochs = ceil(steps / per_epoch)
    return replace(config, batch_size=batch, epochs=epochs, evaluations=1)


def image_config(data: EnvironmentSet, epochs: int | None, augment: bool) -> TrainConfig:
    """How `trm fit` trains on images, which `filled` repeats where an environment has less than a batch of them.

    epochs  passes over all images; None: the protocol's, and more of them where that would be a handful of steps
    """
    sizes = environment_sizes(data)
    config = replace(image_protocol(data), augment=augment)
    batch = batch_for(sizes, config)
    steps = ceil((epochs or config.epochs) * len(data) / (len(sizes) * batch))
    if epochs is None:
        steps = max(steps, FEWEST_STEPS_ON_IMAGES)
    per_epoch = max(min(sizes), batch) // batch
    return replace(config, batch_size=batch, epochs=ceil(steps / per_epoch), evaluations=1)


def settings_for(
    algorithm: str,
    given: Mapping[str, Any],
    config: TrainConfig,
    environments: int,
    *,
    vectors: bool,
    head: int | None = None,
) -> dict[str, Any]:
    """The algorithm's settings: those given, and those that the steps, the environments and the inputs suggest.

    head  number of weights of the head that is trained on a CPU; None: it is on a GPU, or not known
    """
    suggested: dict[str, Any] = {}
    if "start_epoch" in setting_names(algorithm):
        suggested["start_epoch"] = WARM_UP * config.epochs
    if issubclass(get_algorithm(algorithm), TRM):
        if vectors:
            suggested |= {"weights": TRM_WEIGHTS, "ridge": TRM_RIDGE, "empirical": TRM_EMPIRICAL}
        if environments > MANY_ENVIRONMENTS:
            suggested["query"] = "random"
        if head is not None and head <= SMALL_HEAD:
            suggested |= {"solver": "dense", "implicit": "cholesky"}
    return suggested | dict(given)


def balanced(data: EnvironmentSet, batch_size: int | None) -> EnvironmentSet:
    """The vectors so that every environment counts the same, and within it each row by its weight.

    Where a step sees all rows, weights see to it. Where it draws from each environment, the draw does; environments
    with fewer rows than the mean are repeated, so that an epoch is about as many rows as there are.
    """
    E = len(data.environment_names)
    counts = data.environments.bincount(minlength=E)
    if data.weights is not None or (batch_size is None and not (counts == counts[0]).all()):
        weights = data.labels.new_ones(len(data)).double() if data.weights is None else data.weights.double()
        total = data.environments.bincount(weights, minlength=E)
        wanted = counts if batch_size is not None else len(data) / E
        data = replace(data, weights=((wanted / total)[data.environments] * weights).to(data.inputs[:1].dtype))
    if batch_size is None:
        return data
    return filled(data, max(ceil(len(data) / E), batch_size))


def image_protocol(data: EnvironmentSet) -> TrainConfig:
    """The protocol of the paper's set most like these images."""
    return PHOTOGRAPHS if max(data.inputs[:1].shape[2:], default=0) > 64 else SMALL_IMAGES


def batch_for(sizes: Sequence[int], config: TrainConfig) -> int:
    """Samples of each environment in a step: the usual number, fewer with many environments or few samples."""
    usual = config.batch_size or LARGEST_STEP
    return min(max(SMALLEST_BATCH, min(usual, LARGEST_STEP // len(sizes))), max(sizes))


def environment_sizes(data: EnvironmentSet) -> list[int]:
    """Number of samples of each environment."""
    sizes: list[int] = data.environments.bincount(minlength=len(data.environment_names)).tolist()
    return sizes
