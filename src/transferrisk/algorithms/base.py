"""The base class of algorithms, and what an algorithm is given: a batch, facts about the data, a forward pass.

Most algorithms are a function from the outputs of one forward pass to a scalar: they override `objective`. Those that
need several passes (MLDG, Fish, SAM) override `act`, and `plan` if the step makes choices. An algorithm that overrides
`step` works too, but its steps are not captured in CUDA graphs.

Invariant: everything that changes while training, such as weights of environments, is a buffer, so that `state_dict`
holds all that is needed to go on.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from textwrap import wrap
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import InputError
from ..functional import environment_means, exponentiated_gradient
from ..functional.checks import check_count, check_sample_weights, check_tensors
from ..models import Classifier
from ..settings import Settings
from .team import Team

Logs = dict[str, Tensor]
Grid = Mapping[str, tuple[Any, ...]]
Statistics = Literal["own", "joint"]
"""Statistics of batch norm in a pass over a part of the batch: of that part, or of the whole batch."""


class Batch(NamedTuple):
    """Samples of several environments, in any order.

    Parameters
    ----------
    inputs
        Inputs of the model's featuriser, (n, ...).
    labels, environments
        Class and environment of each sample, (n,), numbered from 0.
    block
        Number of samples of each environment, if the batch holds equally many of one environment after another. None:
        samples are in any order.
    weights
        Weight of each sample, (n,), about 1 on average. None: all 1.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch
    >>> batch = Batch(torch.randn(6, 3), torch.randint(2, (6,)), torch.tensor([0, 0, 0, 1, 1, 1]))
    >>> batch.present(num_environments=3)
    [0, 1]
    """

    inputs: Tensor
    labels: Tensor
    environments: Tensor
    block: int | None = None
    weights: Tensor | None = None

    def present(self, num_environments: int) -> list[int]:
        """Return the environments in the batch; nothing is read from the device if the batch is in blocks.

        Parameters
        ----------
        num_environments
            Number E of environments.

        Returns
        -------
        list of int
            Environments, ascending.
        """
        if self.block is not None:
            return list(range(num_environments))
        return [int(e) for e in self.environments.unique()]

    def members(self, environment: int) -> slice | Tensor:
        """Return the positions of the samples of an environment.

        Parameters
        ----------
        environment
            Environment, in 0..E-1.

        Returns
        -------
        slice or Tensor
            Positions in the batch, or a mask (n,) bool of them.
        """
        if self.block is not None:
            return slice(environment * self.block, (environment + 1) * self.block)
        return self.environments == environment


@dataclass(frozen=True)
class Setting:
    """Facts about the training data that an algorithm needs before the first batch.

    Parameters
    ----------
    num_environments
        Number E of training environments, which batches number 0..E-1.
    num_classes
        Number C of classes, which batches number 0..C-1.
    group_priors
        Share of each (environment, class) group among the samples that steps draw, (E, C). Only `reweight` reads it.
        None: `reweight` counts the groups of each batch.
    num_features
        Number d of features of the model, for buffers of that shape. None: it is read from the first batch.

    Examples
    --------
    >>> from transferrisk.algorithms import Setting
    >>> Setting(num_environments=2, num_classes=10)
    Setting(num_environments=2, num_classes=10, group_priors=None, num_features=None)
    """

    num_environments: int
    num_classes: int
    group_priors: Tensor | None = None
    num_features: int | None = None

    def __post_init__(self) -> None:
        check_count("num_environments", self.num_environments)
        check_count("num_classes", self.num_classes)
        if self.num_features is not None:
            check_count("num_features", self.num_features)
        if self.group_priors is not None:
            check_tensors(group_priors=self.group_priors)
            given, shape = tuple(self.group_priors.shape), (self.num_environments, self.num_classes)
            if given != shape:
                raise InputError(f"group_priors must have one value for each group, shape {shape}, got shape {given}")


@dataclass(frozen=True)
class Config(Settings):
    """Base class of the settings of an algorithm; itself it has none.

    Each field is checked against its annotation, limits included, as in `ridge: Positive = 1e-3`. The docstring
    describes a field on a line "name  meaning", which `help` of the algorithm repeats.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from transferrisk.algorithms import Config
    >>> @dataclass(frozen=True)
    ... class TiltedConfig(Config):
    ...     tilt: float = 1.0
    >>> TiltedConfig(tilt=2)
    TiltedConfig(tilt=2.0)
    """


@dataclass(frozen=True)
class Pass:
    """Outputs of one forward pass of a model over a batch.

    Attributes
    ----------
    features, logits
        Features (n, d) and logits (n, C) of the samples.
    labels, environments
        Class and environment of each sample, (n,).
    model
        The model.
    weights
        Weight of each sample, (n,). None: all 1.
    targets
        Probabilities of the classes for each sample, (n, C). None: the class in `labels` is certain.
    block
        Number of samples of each environment, if all have equally many, one environment after another.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from transferrisk.algorithms import Pass
    >>> from transferrisk.models import Classifier
    >>> model, x = Classifier(nn.Identity(), num_features=3, num_classes=2), torch.randn(6, 3)
    >>> out = Pass(x, model(x), torch.randint(2, (6,)), torch.arange(6) % 2, model)
    >>> risks, present = out.environment_risks(num_environments=2)
    >>> present
    tensor([True, True])
    """

    features: Tensor
    logits: Tensor
    labels: Tensor
    environments: Tensor
    model: Classifier
    weights: Tensor | None = None
    targets: Tensor | None = None
    block: int | None = None

    @cached_property
    def cross_entropies(self) -> Tensor:
        """Cross-entropy of each sample, (n,)."""
        return F.cross_entropy(self.logits, self.labels if self.targets is None else self.targets, reduction="none")

    @cached_property
    def losses(self) -> Tensor:
        """Cross-entropy of each sample times its weight, (n,)."""
        return self.cross_entropies if self.weights is None else self.weights * self.cross_entropies

    @cached_property
    def empirical_risk(self) -> Tensor:
        """Mean of `losses`, a scalar."""
        return self.losses.mean()

    @property
    def all_present(self) -> bool:
        """Whether every environment is known to be present: in a batch in blocks, without weights, on a GPU."""
        return self.block is not None and self.weights is None and self.features.is_cuda

    def environment_risks(self, num_environments: int) -> tuple[Tensor, Tensor]:
        """Return the weighted mean loss of each environment, and which environments are present.

        Parameters
        ----------
        num_environments
            Number E of environments.

        Returns
        -------
        risks : Tensor
            Means, (E,).
        present : Tensor
            Whether each environment is present, (E,) bool.
        """
        if self.all_present:  # launches a ninth of the kernels of `environment_means`
            means = self.cross_entropies.unflatten(0, (num_environments, self.block)).mean(1)
            return means, torch.ones_like(means, dtype=torch.bool)
        return environment_means(self.cross_entropies, self.environments, num_environments, self.weights)


class HeldOut(NamedTuple):
    """Training samples that no step draws, for `Algorithm.finish`."""

    features: Tensor  # (n, d) of the model that is finished
    labels: Tensor  # (n,)
    environments: Tensor  # (n,)
    halves: Tensor  # (n,) 0 or 1; each environment is divided evenly, and samples of one source share a half
    weights: Tensor | None = None  # (n,); None: all 1

    def only(self, index: Tensor) -> HeldOut:
        """Return the samples at these positions."""
        return HeldOut(*(None if tensor is None else tensor[index] for tensor in self))  # type: ignore[arg-type]


def described_settings(config_type: type[Config]) -> str:
    """Return the settings of a config with their defaults and the meanings that its docstrings give, as numpydoc."""
    meanings: dict[str, str] = {}
    for base in reversed(config_type.__mro__):
        lines = re.findall(r"(?m)^(\w+) {2,}(.*(?:\n {3,}.*)*)$", inspect.cleandoc(base.__dict__.get("__doc__") or ""))
        meanings |= {name: " ".join(text.split()) for name, text in lines}
    lines = ["Settings", "--------"]
    for field in fields(config_type):
        lines.append(f"{field.name} : default {field.default!r}")
        lines += wrap(meanings.get(field.name, ""), 100, initial_indent="    ", subsequent_indent="    ")
    return "\n".join(lines) if len(lines) > 2 else "It has no settings."


C = TypeVar("C", bound=Config)


class Algorithm(nn.Module, Generic[C]):
    """Base class of all algorithms.

    Parameters
    ----------
    setting
        Facts about the training data.
    config
        Settings of the algorithm, a `config_type`. None: the defaults.

    Attributes
    ----------
    config_type
        Dataclass of the settings.
    grid
        Values to search over, by setting: those of the paper's appendix B.2 or, for methods that it does not compare,
        some of the range that DomainBed or the authors draw from.
    weighted
        Whether the objective uses the weights of samples, as one of `Pass.losses`, `Pass.empirical_risk` and
        `Pass.environment_risks` does. If not, batches with weights are refused.
    held_out
        Share of the training set that steps do not draw, and that `finish` is given.
    twice_differentiated
        Whether steps differentiate gradients of the network again, which compiled networks cannot.

    Examples
    --------
    >>> from transferrisk.algorithms import Algorithm, Config, Logs, Pass, Setting
    >>> class Mean(Algorithm[Config]):
    ...     def objective(self, out: Pass, penalised: bool) -> Logs:
    ...         return {"loss": out.empirical_risk}
    >>> algorithm = Mean(Setting(num_environments=2, num_classes=10))
    """

    name: ClassVar[str]
    config_type: ClassVar[type[Config]] = Config
    grid: ClassVar[Grid] = {}
    weighted: ClassVar[bool] = False
    held_out: float = 0.0
    twice_differentiated: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Add the settings, as the config describes them, to the docstring of an algorithm, before its examples."""
        super().__init_subclass__(**kwargs)
        if own := cls.__dict__.get("__doc__"):
            text, heading, examples = inspect.cleandoc(own).partition("\n\nExamples\n--------\n")
            cls.__doc__ = f"{text}\n\n{described_settings(cls.config_type)}{heading}{examples}"

    def __init__(self, setting: Setting, config: C | None = None) -> None:
        super().__init__()
        self.setting = setting
        self.team = Team()  # the processes that share a batch
        self.config: C = config if config is not None else self.config_type()  # type: ignore[assignment]  # is a C

    def objective(self, out: Pass, penalised: bool) -> Logs:
        """Return the scalar to minimise under "loss", and any other scalars to record.

        `penalised` is the step's plan: by default, whether the epoch has reached `start_epoch`.

        Parameters
        ----------
        out
            Forward pass over the batch.
        penalised
            Plan of the step.

        Returns
        -------
        dict of Tensor
            Scalars by name.
        """
        raise NotImplementedError(f"{type(self).__name__} overrides neither objective nor act")

    def plan(self, batch: Batch, epoch: float) -> Hashable:
        """Return the choices of a step, made before it starts; steps with equal plans do the same operations.

        By default it is whether the penalty counts: from `start_epoch` of the config, if it has one.

        Parameters
        ----------
        batch
            Batch of samples.
        epoch
            Epochs since the start of the training, from 0, with fractions.

        Returns
        -------
        Hashable
            The plan.
        """
        return epoch >= getattr(self.config, "start_epoch", 0.0)

    def capture(self, block: int) -> None:
        """Prepare for steps that a CUDA graph can hold: batches are in blocks, and nothing is read from the device.

        Parameters
        ----------
        block
            Number of samples of each environment in a batch.
        """

    def step(self, model: Classifier, batch: Batch, optimiser: Optimizer, epoch: float) -> Logs:
        """Check the batch, and update the model once.

        Parameters
        ----------
        model
            Model to train.
        batch
            Batch of samples.
        optimiser
            Optimiser of its weights.
        epoch
            Epochs since the start of the training, from 0, with fractions.

        Returns
        -------
        dict of Tensor
            Scalars by name: "loss" and what else is recorded.
        """
        self.check(batch)
        return self.act(self.plan(batch, epoch), model, batch, optimiser)

    def finish(self, model: Classifier, held: HeldOut) -> None:
        """Change the model that is evaluated and saved, a copy of the one that trains; called if `held_out` > 0.

        Parameters
        ----------
        model
            The copy to change.
        held
            Samples of the training environments that no step has drawn.
        """

    def act(self, plan: Any, model: Classifier, batch: Batch, optimiser: Optimizer) -> Logs:
        """Update the model once, by a plan.

        Parameters
        ----------
        plan
            Plan of the step.
        model
            Model to train.
        batch
            Batch of samples.
        optimiser
            Optimiser of its weights.

        Returns
        -------
        dict of Tensor
            Scalars by name: "loss" and what else is recorded.
        """
        optimiser.zero_grad(set_to_none=True)
        logs = self.differentiate(self.forward(model, batch), plan)
        optimiser.step()
        return logs

    def forward(self, model: Classifier, batch: Batch) -> Pass:
        """Return the forward pass over a batch; over all of it if several processes share it.

        Parameters
        ----------
        model
            Model to train.
        batch
            Batch of samples.

        Returns
        -------
        Pass
            Features, logits and losses.
        """
        if not hasattr(model, "featurise"):
            raise InputError(
                f"model must have features, got {type(model).__name__}: wrap it as "
                "transferrisk.models.Classifier(featuriser, num_features, num_classes)"
            )
        features, whole = model.featurise(batch.inputs), batch
        if self.team.size > 1:
            features, whole = self.gather(batch, features), self.gathered(batch)
        logits, block = model.head(features), batch.block if self.team.size == 1 else None
        return Pass(features, logits, whole.labels, whole.environments, model, whole.weights, block=block)

    def gathered(self, batch: Batch) -> Batch:
        """Return the batch of all processes that share it; its inputs stay those of this process.

        Parameters
        ----------
        batch
            Batch of samples.

        Returns
        -------
        Batch
            The whole batch.
        """
        weights = None if batch.weights is None else self.gather(batch, batch.weights)
        labels, environments = self.gather(batch, batch.labels), self.gather(batch, batch.environments)
        return batch._replace(labels=labels, environments=environments, weights=weights)

    def gather(self, batch: Batch, tensor: Tensor) -> Tensor:
        """Return a tensor of the samples of a batch as that of all processes that share the batch.

        Parameters
        ----------
        batch
            Batch of samples.
        tensor
            Values of the samples of the batch, (n, ...).

        Returns
        -------
        Tensor
            Values of the samples of all processes.
        """
        return tensor if self.team.size == 1 else self.team.gather(tensor, self._environments_in(batch))

    def _environments_in(self, batch: Batch) -> int:
        if batch.block is None:
            raise InputError(
                "block must be a number where several processes share a batch, got None: draw equally many samples of "
                "each environment"
            )
        return len(batch.labels) // batch.block

    def differentiate(self, out: Pass, plan: Any) -> Logs:
        """Add the gradient of the objective to the weights' own, and return the values to record.

        Parameters
        ----------
        out
            Forward pass over the batch.
        plan
            Plan of the step.

        Returns
        -------
        dict of Tensor
            Scalars by name: "loss" and what else is recorded.
        """
        logs = self.objective(out, plan)
        if not isinstance(logs, Mapping) or "loss" not in logs:
            given = f"the keys {list(logs)}" if isinstance(logs, Mapping) else type(logs).__name__
            raise InputError(
                f"{type(self).__name__}.objective must return a dict with a scalar under 'loss', got {given}"
            )
        for name, value in logs.items():
            if not isinstance(value, Tensor) or value.numel() != 1:
                got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
                way_out = (
                    "take a mean or a sum" if isinstance(value, Tensor) else "write torch.tensor(...) for a number"
                )
                raise InputError(
                    f"{type(self).__name__}.objective must return scalar tensors, got {got} under {name!r}: {way_out}"
                )
        if not logs["loss"].requires_grad:
            raise InputError(
                f"{type(self).__name__}.objective must return a loss with a gradient, got one without: compute it from "
                "out.features, out.logits or out.losses, without detach() or item()"
            )
        logs["loss"].backward()
        if self.team.size > 1:
            self.team.reduce_gradients(out.model.featuriser, mean=False)
        return dict(zip(logs, map(Tensor.detach, logs.values()), strict=True))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Create buffers that the first step creates, or gives a shape, as they were saved."""
        for key, saved in state_dict.items():
            name = key.removeprefix(prefix)
            held = self._buffers.get(name)
            if not key.startswith(prefix) or "." in name or name in self._parameters:
                continue
            if held is None or (held.numel() == 0 and held.shape != saved.shape):
                self.register_buffer(name, torch.empty_like(saved, device=None if held is None else held.device))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def check(self, batch: Batch) -> None:
        """Refuse a batch whose shapes, labels or environments do not fit the setting.

        Values are read on a CPU only; on a GPU that would wait for the device, which a CUDA graph cannot hold.

        Parameters
        ----------
        batch
            Batch of samples.
        """
        if not isinstance(batch, Batch):
            raise InputError(f"batch must be a Batch(inputs, labels, environments), got {type(batch).__name__}")
        check_tensors(inputs=batch.inputs, labels=batch.labels, environments=batch.environments)
        if not len(batch.inputs) == len(batch.labels) == len(batch.environments) > 0:
            raise InputError(
                "inputs, labels and environments must be equally many, one or more, got "
                f"{len(batch.inputs)}, {len(batch.labels)} and {len(batch.environments)}"
            )
        if batch.weights is not None:
            if not self.weighted:
                raise InputError(
                    f"weights must be None for {type(self).__name__}, which does not use them, got a tensor: set "
                    "`weighted = True` in the class once its objective does"
                )
            check_sample_weights(batch.weights, batch.inputs)
        for name, values, parameter in (
            ("labels", batch.labels, "num_classes"),
            ("environments", batch.environments, "num_environments"),
        ):
            if values.dtype != torch.int64:
                raise InputError(f"{name} must be torch.int64, got {values.dtype}: convert them with .long()")
            if values.device.type == "cpu":
                limit, low, high = getattr(self.setting, parameter), int(values.min()), int(values.max())
                if low < 0 or high >= limit:
                    raise InputError(
                        f"{name} must be 0..{limit - 1}, as the Setting has {parameter}={limit}, got "
                        f"{low if low < 0 else high}: number {name} from 0, or give the right {parameter}"
                    )


def robust_risk(risks: Tensor, present: Tensor | None, weights: Tensor, rate: float) -> Tensor:
    """Move the weights q (G,) by the risks R (G,), in place, and return the risk under them.

    q_g <- q_g exp(rate R_g), normalised; then sum_g q_g R_g / sum_g q_g over the groups that are present, None: all.
    """
    if present is None:
        weights.copy_(exponentiated_gradient(weights, risks.detach(), rate))
        return (weights * risks).sum()
    weights.copy_(exponentiated_gradient(weights, risks.detach(), rate, present))
    shares = torch.where(present, weights, 0)
    return (shares * risks).sum() / shares.sum()
