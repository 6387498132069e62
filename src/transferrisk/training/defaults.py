"""Settings of a training, and their defaults by kind of input, with the reason beside each number.

    small images   up to 64 pixels a side   the paper's protocol for 10C-CMNIST (appendix B.3)
    photographs    larger images            the paper's protocol for PACS
    vectors        tables, embeddings       measured, see `VECTORS`

`trm train`, `trm fit` and `TransferRiskClassifier` share the defaults for vectors.
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
"""Default learning rate and weight decay of each optimiser: the paper's for SGD, PyTorch's for the others."""
Steps = Annotated[int, Bound(least=1, most=10**9)]
Rate = Annotated[float, Bound(least=0, most=1e30)]  # within the range of float32


@dataclass(frozen=True)
class TrainConfig(Settings):
    """Settings of a training. The defaults are the paper's protocol for 10C-CMNIST (appendix B.3.2).

    Parameters
    ----------
    epochs
        Number of passes over the smallest environment.
    batch_size
        Number of samples of each environment in a step. None: each step sees all samples of all environments.
    lr
        Learning rate. None: 0.1 for sgd, 1e-3 for adam and adamw.
    momentum
        Momentum of sgd; for adam and adamw the first of their betas, beside 0.999.
    weight_decay
        Weight decay. None: 1e-4 for sgd, 0 for adam, 1e-2 for adamw.
    decay_at
        Share of the steps, or several shares, after which the rate is multiplied by `decay_factor`. 1: never.
    decay_factor
        Factor of the rate at each of `decay_at`.
    evaluations
        Number of evaluations, evenly over the steps.
    transfer_ridge
        Ridge of the predictors in the recorded transfer matrix.
    augment
        Whether images are varied at random in each step.
    record
        Measurements on training-domain validation data besides accuracies and losses: "irm" for IRMv1's penalty of each
        environment, "transfer" for the transfer matrix.
    steps
        Number of steps, in place of `epochs`.
    optimiser
        "sgd", "adam" or "adamw".
    dropout
        Share of the features that are set to 0 at random in each step.
    average
        Weights that are evaluated and saved: those of the last step (None), an exponential moving average ("ema"), or
        the mean over the valley of the validation loss ("swad").
    ema_decay
        Decay of the moving average in each step. 1: the mean over all steps.
    swad_patience, swad_tolerance
        Number of evaluations without a lower loss after which the mean of SWAD begins, and number of evaluations with
        higher losses after which it ends.
    swad_ratio
        Bound of these higher losses, as a multiple of the mean loss where the mean began.

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
        """Return the settings for this optimiser, with its own weight decay and a suitable rate if it is another.

        The rate is half of SGD's and at most the optimiser's default, so that it stays small for pretrained networks;
        it is DomainBed's 5e-5 for photographs.

        Parameters
        ----------
        optimiser
            Name of the optimiser.

        Returns
        -------
        TrainConfig
            The settings.
        """
        if optimiser == self.optimiser:
            return self
        rate = RATES[optimiser]
        lr = min(self.lr / 2, rate) if self.optimiser == "sgd" else rate
        return replace(self, optimiser=optimiser, lr=lr, weight_decay=DECAYS[optimiser])

    def total(self, steps_per_epoch: int) -> int:
        """Return the number of steps of the training.

        Parameters
        ----------
        steps_per_epoch
            Number of steps of an epoch.

        Returns
        -------
        int
            Number of steps.
        """
        return self.steps or self.epochs * steps_per_epoch

    @property
    def decays(self) -> tuple[float, ...]:
        """Shares of the steps after which the rate falls; a share of 1 is none of them."""
        shares = self.decay_at if isinstance(self.decay_at, tuple) else (self.decay_at,)
        return tuple(share for share in shares if share < 1)

    @property
    def decay_words(self) -> str:
        """The schedule in words, such as "the rate multiplied by 0.1 after 40 % of the steps"."""
        if not self.decays:
            return "the rate constant"
        shares = ", ".join(f"{100 * share:.0f} %" for share in self.decays)
        return f"the rate multiplied by {self.decay_factor:g} after {shares} of the steps"

    def rate(self, step: int, total: int) -> float:
        """Return the learning rate of a step: lr decay_factor^k after k of the decays.

        Parameters
        ----------
        step
            Step, from 0 to total - 1.
        total
            Number of steps in all.

        Returns
        -------
        float
            Learning rate.
        """
        return self.lr * self.decay_factor ** int((np.asarray(self.decay_at) * total <= step).sum())

    def evaluated(self, total: int) -> frozenset[int]:
        """Return the steps after which the model is evaluated, the last one among them.

        Parameters
        ----------
        total
            Number of steps in all.

        Returns
        -------
        frozenset of int
            Numbers of steps done.
        """
        steps = total * np.arange(1, self.evaluations + 1) / self.evaluations
        return frozenset(steps.round().clip(1).astype(int).tolist())


SMALL_IMAGES = TrainConfig(record=())
PHOTOGRAPHS = TrainConfig(epochs=50, batch_size=32, lr=1e-4, decay_at=1.0, record=())

PROTOCOLS = {
    "10c-cmnist": SMALL_IMAGES,
    # The public code has 1898 steps, the rate divided by ten at 600, 1200 and 1800, and an evaluation every 100.
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
"""Up to `FEW_ROWS`, a learnt linear map is 1 to 2 points better in the worst environment; beyond, a hidden layer is 1.5
points better on average. Both give the transfer risk features to shape."""
VECTORS = TrainConfig(epochs=10, lr=0.05, decay_at=0.8, weight_decay=1e-2, record=())
"""The rate 0.1 loses half a point on few rows. Weight decay is strong, since rows are few beside the weights."""
LARGE_TABLE, LARGE_TABLE_DECAY = 5000, 1e-3  # number of rows from which this smaller weight decay is better
STEPS_ON_FEW_ROWS = 100  # steps on all rows: as good as 300 on batches, in half the time; 200 are worse
FEWEST_STEPS, MOST_STEPS = 200, 1000  # bounds of the number of steps on batches, which is 10 passes over the rows
WARM_UP = 0.6  # share of the steps before a penalty counts; 0.4 is not better and takes longer
TRM_RIDGE = 1e-2
"""The log loss in held-out environments of nine tables of 1600 to 3600 rows, eight of them real, was 0.525 on average
(300 steps, warm-up 0.4); it was 0.543 with 1e-3 and 0.526 with 1e-1. Too weak a ridge makes predictors of single
environments too confident."""
TRM_WEIGHTS = "worst"  # 3 points more in the worst environment than "eg" where sites disagree; elsewhere the same
TRM_EMPIRICAL = "mean"  # the numbers above were measured with it
EVERY = 2
"""Steps of which one computes the transfer risk on a CPU, where it takes as long as five others.

The log loss in held-out environments of eight tables was 0.630 on average; 0.628 with every step, which took 1.8 times
as long."""
MANY_ENVIRONMENTS = 8  # beyond, TRM takes one random Q in each step, since time grows with the square of their number
SMALL_HEAD = 300  # weights of a head up to which factoring its Hessian is fastest on a CPU

FEWEST_STEPS_ON_IMAGES = 100  # a few passes over few images would be a few steps
SMALLEST_BATCH, LARGEST_STEP = 16, 2048  # samples of one environment, and of all environments together, in a step


def is_own_vectors(name: str) -> bool:
    """Return whether a data set is the user's own table or embeddings, which the defaults for vectors are for."""
    return name.partition(":")[0] in ("table", "npz", "parquet")


def default_backbone(shape: Sequence[int], rows: int | None = None) -> str:
    """Return the network for inputs of this shape: the paper's for images, for vectors by their number (None: many)."""
    if len(shape) != 3:
        return ON_FEW_ROWS if rows is not None and rows <= FEW_ROWS else ON_VECTORS
    side = max(shape[1:])
    return "cnn" if side <= 28 else "wrn-16-2" if side <= 64 else "resnet18"


def protocol(name: str, splits: Splits, held_out: bool = False) -> TrainConfig:
    """Return the settings with which `trm train` trains on a data set: its own protocol, or one by the kind of input.

    A set without a protocol has that of the paper's set most like it; the batch size is the largest power of two up to
    that protocol's that the smallest environment fills. With `held_out`, the test environment is a training environment
    that is left out to select settings; it counts as one, so that the settings are the same with and without it.
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
    """Return the settings for training on vectors in environments of these sizes.

    epochs      number of passes over all rows; None: by the number of rows
    batch_size  number of rows of each environment in a step; None: by the number of environments
    all_rows    whether each step sees all rows; None: if they are few and no batch size is given
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
    """Return the settings for `trm fit` on images; `filled` repeats those of an environment with less than a batch.

    epochs  number of passes over all images; None: the protocol's, and more if these are a few steps
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
    """Return the algorithm's settings: those given, else those for this training, these environments and inputs.

    vectors  whether the inputs are vectors
    head     number of weights of a head that is trained on a CPU; None: not known, or on a GPU
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
            suggested |= {"solver": "rough", "implicit": "cholesky", "every": EVERY}
    return suggested | dict(given)


def balanced(data: EnvironmentSet, batch_size: int | None) -> EnvironmentSet:
    """Return the vectors such that all environments count the same, and rows within one by their weight.

    If a step sees all rows, weights do that; if it draws from each environment, the draws do. Environments with fewer
    rows than the mean are then repeated, so that an epoch draws about as many rows as there are.
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
    """Return the protocol of the paper's set most like these images."""
    return PHOTOGRAPHS if max(data.inputs[:1].shape[2:], default=0) > 64 else SMALL_IMAGES


def batch_for(sizes: Sequence[int], config: TrainConfig) -> int:
    """Return the number of samples of each environment in a step: fewer if environments are many or samples few."""
    usual = config.batch_size or LARGEST_STEP
    return min(max(SMALLEST_BATCH, min(usual, LARGEST_STEP // len(sizes))), max(sizes))


def environment_sizes(data: EnvironmentSet) -> list[int]:
    """Return the number of samples of each environment."""
    sizes: list[int] = data.environments.bincount(minlength=len(data.environment_names)).tolist()
    return sizes
