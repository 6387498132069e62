"""The base of algorithms: an objective on one forward pass, or a step of its own.

Most algorithms are a function from the outputs of one forward pass to a scalar: they override `objective`.
Those that need several passes (MLDG, Fish) override `plan` and `act`; a `step` of one's own works too, but cannot be
captured in a CUDA graph. Whatever changes while training (weights of environments, ...) is a buffer, so that
`state_dict` holds all there is to save.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import InputError
from ..functional import environment_means
from ..functional.checks import check_count, check_sample_weights, check_tensors
from ..models import Classifier
from ..settings import Settings
from .team import Team

Logs = dict[str, Tensor]
Grid = Mapping[str, tuple[Any, ...]]


class Batch(NamedTuple):
    """Samples of several environments, in any order.

    >>> Batch(images, labels, sites)
    """

    inputs: Tensor  # (n, ...) what the model's featuriser takes
    labels: Tensor  # (n,) 0..C-1
    environments: Tensor  # (n,) 0..E-1
    block: int | None = None  # samples of each environment, where these come one after the other
    weights: Tensor | None = None  # (n,) how much each sample counts, about 1 on average; None: all the same

    def present(self, num_environments: int) -> list[int]:
        """The environments in the batch; known without a look at the device where the batch is in blocks."""
        if self.block is not None:
            return list(range(num_environments))
        return [int(e) for e in self.environments.unique()]

    def members(self, environment: int) -> slice | Tensor:
        """The places of the samples of an environment."""
        if self.block is not None:
            return slice(environment * self.block, (environment + 1) * self.block)
        return self.environments == environment


@dataclass(frozen=True)
class Setting:
    """The facts about the data that an algorithm needs before the first batch.

    num_environments  E, of training; a batch's environments are numbered 0..E-1
    num_classes       C; its labels are numbered 0..C-1
    group_priors      (E, C) share of each (environment, label) group among the samples that are drawn. Only `reweight`
                      reads it, and counts each batch where it is not given

    >>> Setting(num_environments=2, num_classes=10)
    """

    num_environments: int
    num_classes: int
    group_priors: Tensor | None = None

    def __post_init__(self) -> None:
        check_count("num_environments", self.num_environments)
        check_count("num_classes", self.num_classes)
        if self.group_priors is not None:
            check_tensors(group_priors=self.group_priors)
            given, shape = tuple(self.group_priors.shape), (self.num_environments, self.num_classes)
            if given != shape:
                raise InputError(f"group_priors must be one a group, of shape {shape}, got {given}")


@dataclass(frozen=True)
class Config(Settings):
    """Settings of an algorithm that has none; the others derive theirs from it.

    Each field is checked against its annotation, limits included: `ridge: Positive = 1e-3`.
    """


@dataclass(frozen=True)
class Pass:
    """The outputs of one forward pass."""

    features: Tensor  # (n, d)
    logits: Tensor  # (n, C)
    labels: Tensor  # (n,)
    environments: Tensor  # (n,)
    model: Classifier  # that made it
    weights: Tensor | None = None  # (n,), of the samples

    @cached_property
    def predictor(self) -> Tensor:
        """The head's weights, bias last, detached, (C, d + 1)."""
        return self.model.predictor

    @cached_property
    def cross_entropies(self) -> Tensor:
        """Cross-entropy of each sample, (n,)."""
        return F.cross_entropy(self.logits, self.labels, reduction="none")

    @cached_property
    def losses(self) -> Tensor:
        """Cross-entropy of each sample times its weight, (n,)."""
        return self.cross_entropies if self.weights is None else self.weights * self.cross_entropies

    @cached_property
    def empirical_risk(self) -> Tensor:
        return self.losses.mean()

    def environment_risks(self, num_environments: int) -> tuple[Tensor, Tensor]:
        """Mean loss in each environment, (E,), and which are present, (E,) bool."""
        return environment_means(self.cross_entropies, self.environments, num_environments, self.weights)


C = TypeVar("C", bound=Config)


class Algorithm(nn.Module, Generic[C]):
    """Base of all algorithms.

    config_type  the dataclass of its settings
    grid         the values of appendix B.2 over which the paper searches, by setting
    weighted     whether it heeds the weights of samples. An objective of `Pass.losses`, `empirical_risk` and
                 `environment_risks` does, as they are weighted; batches with weights are refused where it is False
    """

    name: ClassVar[str]
    config_type: ClassVar[type[Config]] = Config
    grid: ClassVar[Grid] = {}
    weighted: ClassVar[bool] = False

    def __init__(self, setting: Setting, config: C | None = None) -> None:
        super().__init__()
        self.setting = setting
        self.team = Team()  # the processes that share a batch
        self.config: C = config if config is not None else self.config_type()  # type: ignore[assignment]  # is a C

    def penalised(self, epoch: float) -> bool:
        """Whether the penalty is on: from `start_epoch` of the config, where it has one."""
        return epoch >= getattr(self.config, "start_epoch", 0.0)

    def objective(self, out: Pass, penalised: bool) -> Logs:
        """The quantity to minimise, under "loss", and whatever else is worth recording."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither objective nor act")

    def plan(self, batch: Batch, epoch: float) -> Hashable:
        """The choices that a step makes before it starts; steps with equal plans do the same operations."""
        return self.penalised(epoch)

    def capture(self, block: int) -> None:
        """Called before steps are captured in a CUDA graph: from now on batches are in blocks, and nothing may wait."""

    def step(self, model: Classifier, batch: Batch, optimiser: Optimizer, epoch: float) -> Logs:
        """One update of the model; `epoch` counts from 0 and has fractions."""
        self.check(batch)
        return self.act(self.plan(batch, epoch), model, batch, optimiser)

    def act(self, plan: Any, model: Classifier, batch: Batch, optimiser: Optimizer) -> Logs:
        """The step itself, by its plan."""
        optimiser.zero_grad(set_to_none=True)
        logs = self.objective(forward(model, batch, self.team), plan)
        if not isinstance(logs, Mapping) or "loss" not in logs:
            given = f"the keys {list(logs)}" if isinstance(logs, Mapping) else type(logs).__name__
            raise InputError(
                f"{type(self).__name__}.objective returned {given}: return a dict with what is minimised under 'loss'"
            )
        logs["loss"].backward()
        self.team.sum_gradients(model.featuriser)
        optimiser.step()
        return {name: value.detach() for name, value in logs.items()}

    def check(self, batch: Batch) -> None:
        """Labels and environments are within the setting; every `step` begins with it.

        Values are read on the CPU only: on a GPU that would wait for the device, and could not be captured in a graph.
        """
        if not isinstance(batch, Batch):
            raise InputError(f"the batch is a {type(batch).__name__}: give Batch(inputs, labels, environments)")
        check_tensors(inputs=batch.inputs, labels=batch.labels, environments=batch.environments)
        if not len(batch.inputs) == len(batch.labels) == len(batch.environments) > 0:
            raise InputError(
                f"{len(batch.inputs)} inputs, {len(batch.labels)} labels and {len(batch.environments)} environments: "
                "a batch has one of each for every sample, and at least one sample"
            )
        if batch.weights is not None:
            if not self.weighted:
                raise InputError(
                    f"{type(self).__name__} does not heed the weights of samples: leave them out, or set `weighted` "
                    "on the class once its objective does"
                )
            check_sample_weights(batch.weights, batch.inputs)
        for name, values, limit, known in (
            ("label", batch.labels, self.setting.num_classes, "num_classes"),
            ("environment", batch.environments, self.setting.num_environments, "num_environments"),
        ):
            if values.device.type != "cpu":
                continue
            for value in (int(values.min()), int(values.max())):
                if not 0 <= value < limit:
                    raise InputError(
                        f"{name} {value} is not in 0..{limit - 1}, though the Setting says {known}={limit}: "
                        f"number {name}s from 0, or create the algorithm with the right {known}"
                    )


def forward(model: Classifier, batch: Batch, team: Team) -> Pass:
    """One forward pass, over the whole batch where a team shares it."""
    if not hasattr(model, "featurise"):
        raise InputError(
            f"the model is a {type(model).__name__}, without features to look at: "
            "wrap it as transferrisk.models.Classifier(featuriser, num_features, num_classes)"
        )
    features, labels, environments = model.featurise(batch.inputs), batch.labels, batch.environments
    weights = batch.weights
    if team.size > 1:
        if batch.block is None:
            raise InputError("a batch that several processes share must hold equally many samples of each environment")
        count = len(labels) // batch.block
        features, labels, environments = (team.gather(t, count) for t in (features, labels, environments))
        weights = None if weights is None else team.gather(weights, count)
    return Pass(features, model.head(features), labels, environments, model, weights)
