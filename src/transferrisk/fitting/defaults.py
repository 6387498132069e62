"""How a model is trained where nothing else is asked for.

Vectors are given one hidden layer, so that the transfer risk has features to shape, and a number of steps that depends
on the number of rows rather than on the smallest environment: an epoch of `BalancedSampler` ends with that one. Images
are passed over as often as in the paper, and more often where that would be a handful of steps. An environment
smaller than a batch has its rows repeated until it fills one. The features of a frozen backbone are vectors.

`transferrisk.sklearn` has other values for tables, for the reasons in its `training`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

from ..algorithms import setting_names
from ..data import EnvironmentSet
from ..training import TrainConfig
from ..training.protocols import TABLE_STEPS, batch_per_environment, default_backbone, protocol_like, side

PASSES = 10  # over the rows of a table, within these bounds
FEWEST_STEPS, MOST_STEPS = 300, TABLE_STEPS
FEWEST_ON_IMAGES = 100  # steps, which take longer
SMALL_TABLE = 5000  # rows below which weights decay more
WARM_UP = 0.4  # share of the steps on the empirical risk alone, for algorithms with a penalty
MANY_ENVIRONMENTS = 8  # beyond, the transfer risk of one drawn environment a step


ON_VECTORS = "mlp:64"


def backbone_for(data: EnvironmentSet) -> str:
    return default_backbone(data.inputs[:1].shape[1:]) if side(data) else ON_VECTORS


def config_for(data: EnvironmentSet, epochs: int | None, augment: bool) -> TrainConfig:
    """For these training samples; `epochs` are passes over all rows."""
    count, environments = len(data), len(data.environment_names)
    largest = int(data.group_counts().sum(1).max())
    if side(data):
        config = replace(protocol_like(data), augment=augment)
    else:
        decay = 1e-2 if count < SMALL_TABLE else 1e-3
        config = TrainConfig(epochs=PASSES, lr=0.05, weight_decay=decay, decay_at=0.6, record=())
    batch = min(batch_per_environment(environments, batch_of(config)), largest)
    steps = ceil((epochs or config.epochs) * count / (environments * batch))
    if epochs is None:
        steps = max(steps, FEWEST_ON_IMAGES) if side(data) else min(max(steps, FEWEST_STEPS), MOST_STEPS)
    smallest = max(int(data.group_counts().sum(1).min()), batch)
    return replace(config, batch_size=batch, epochs=ceil(steps / (smallest // batch)), evaluations=1)


def batch_of(config: TrainConfig) -> int:
    """Samples of each environment in a step: nothing here takes all there are."""
    assert config.batch_size is not None
    return config.batch_size


def settings_for(algorithm: str, given: Mapping[str, Any], config: TrainConfig, environments: int) -> dict[str, Any]:
    """The algorithm's settings: those given, and what the number of steps and of environments suggests."""
    known = setting_names(algorithm)
    suggested: dict[str, Any] = {"start_epoch": WARM_UP * config.epochs} if "start_epoch" in known else {}
    if "query" in known and environments > MANY_ENVIRONMENTS:
        suggested["query"] = "random"
    return suggested | dict(given)
