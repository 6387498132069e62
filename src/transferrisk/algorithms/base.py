"""The base of algorithms: an objective on one forward pass, or a step of its own.

Most algorithms are a function from the outputs of one forward pass to a scalar: they override `objective`.
Those that need several passes (MLDG, Fish) override `plan` and `act`; a `step` of one's own works too, but cannot be
captured in a CUDA graph. Whatever changes while training (weights of environments, ...) is a buffer, so that
`state_dict` holds all there is to save.

Several processes may share a batch: each has its part of every environment, and together they take one step (`Team`).

    features      gathered, so that every process has the whole batch and computes the same objective of it
    featuriser    the gradient of its weights is summed: each process knows what its own samples contribute
    predictor     its gradient is of the whole batch already

So a step is that of one process on the whole batch, whatever the objective is. Algorithms with passes of their own
average the gradients of each pass instead.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from textwrap import wrap
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import InputError
from ..functional import environment_means
from ..functional.checks import check_count, check_sample_weights, check_tensors
from ..models import Classifier
from ..settings import Settings

Logs = dict[str, Tensor]
Grid = Mapping[str, tuple[Any, ...]]
Statistics = Literal["own", "joint"]
"""Batch norm's statistics where a pass is of a part of the batch: those of that part, or of the whole batch."""


class Batch(NamedTuple):
    """Samples of several environments, in any order.

    Parameters
    ----------
    inputs
        (n, ...) what the model's featuriser takes.
    labels, environments
        (n,), numbered from 0.
    block
        Samples of each environment, where these come one after the other.
    weights
        (n,) how much each sample counts, about 1 on average; None: all the same.

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
        """Return the environments in the batch; known without a look at the device where the batch is in blocks."""
        if self.block is not None:
            return list(range(num_environments))
        return [int(e) for e in self.environments.unique()]

    def members(self, environment: int) -> slice | Tensor:
        """Return the places of the samples of an environment."""
        if self.block is not None:
            return slice(environment * self.block, (environment + 1) * self.block)
        return self.environments == environment


@dataclass(frozen=True)
class Setting:
    """The facts about the data that an algorithm needs before the first batch.

    Parameters
    ----------
    num_environments
        E, of training; a batch's environments are numbered 0..E-1.
    num_classes
        C; its labels are numbered 0..C-1.
    group_priors
        (E, C) share of each (environment, label) group among the samples that are drawn. Only `reweight` reads it, and
        counts each batch where it is not given.
    num_features
        d, the width of the model's features, for buffers of that shape; None: the first batch shows it. `train` tells
        it to a function that makes the algorithm.

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
                raise InputError(f"group_priors must be one a group, of shape {shape}, got {given}")


@dataclass(frozen=True)
class Config(Settings):
    """Settings of an algorithm that has none; the others derive theirs from it.

    Each field is checked against its annotation, limits included: `ridge: Positive = 1e-3`.

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
    """The outputs of one forward pass.

    Attributes
    ----------
    features, logits
        (n, d) and (n, C).
    labels, environments
        (n,) of the samples.
    model
        The one that made it.
    weights
        (n,), of the samples; None: all the same.
    targets
        (n, C) probabilities of the classes; None: the labels are certain.

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
        return self.losses.mean()

    def environment_risks(self, num_environments: int) -> tuple[Tensor, Tensor]:
        """Return the mean loss in each environment, (E,), and which are present, (E,) bool."""
        return environment_means(self.cross_entropies, self.environments, num_environments, self.weights)


class HeldOut(NamedTuple):
    """Features of training samples that no step draws, for `Algorithm.finish`."""

    features: Tensor  # (n, d) of the model that is finished
    labels: Tensor  # (n,)
    environments: Tensor  # (n,)
    halves: Tensor  # (n,) 0 and 1 by turns in each environment; samples that show the same thing are in one half
    weights: Tensor | None = None  # (n,) None: all the same

    def only(self, index: Tensor) -> HeldOut:
        return HeldOut(*(None if tensor is None else tensor[index] for tensor in self))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Team:
    """Process `rank` of `size`, with equal parts: of each environment, the samples rank, rank + size, ...

    Parameters
    ----------
    rank, size
        This process, and how many there are.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Team
    >>> Team(rank=1, size=2).share(torch.arange(8), per_environment=4)
    tensor([1, 3, 5, 7])
    """

    rank: int = 0
    size: int = 1

    def check(self, per_environment: int | None) -> None:
        """Refuse a batch that cannot be shared: `per_environment` samples of each, or all there are."""
        if self.size == 1:
            return
        if per_environment is None:
            raise InputError("a batch of all samples cannot be shared by several devices: give a batch size")
        if per_environment % self.size:
            raise InputError(
                f"a batch of {per_environment} samples of each environment cannot be shared evenly by {self.size} "
                f"devices: use a multiple of {self.size}"
            )

    def share(self, index: Tensor, per_environment: int | None) -> Tensor:
        """This process's part of a batch of `per_environment` samples of each environment, in turn, (n,)."""
        if self.size == 1:
            return index
        self.check(per_environment)
        assert per_environment is not None  # it was checked
        return index.reshape(-1, per_environment)[:, self.rank :: self.size].flatten()

    def gather(self, local: Tensor, environments: int) -> Tensor:
        """(E b, ...) of this process to (E b size, ...) of all, in the order one process would have them in.

        The gradient that flows back is that of this process's part.
        """
        if self.size == 1:
            return local
        gathered: Tensor = _Gather.apply(local, environments, self)  # type: ignore[no-untyped-call]  # torch's apply
        return gathered

    def part(self, whole: Tensor, environments: int) -> Tensor:
        """The samples of this process, (E b, ...), among those of all, (E b size, ...), in the order of `gather`."""
        if self.size == 1:
            return whole
        return whole.view(environments, -1, self.size, *whole.shape[1:])[:, :, self.rank].flatten(0, 1)

    def reduce_gradients(self, module: nn.Module, *, mean: bool) -> None:
        """Sum or average the gradients of the module's weights over the processes."""
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        self._reduce(gradients, 1 / self.size if mean else 1.0)

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the means of tensors over the processes."""
        if self.size == 1:
            return list(tensors)
        means = [tensor.detach().clone() for tensor in tensors]
        self._reduce(means, 1 / self.size)
        return means

    def _reduce(self, tensors: Sequence[Tensor], factor: float) -> None:
        """Sum over the processes in place, times a factor, in one message for each type."""
        for kind in {tensor.dtype for tensor in tensors}:
            some = [tensor for tensor in tensors if tensor.dtype == kind]
            message = torch.cat([tensor.flatten() for tensor in some])
            dist.all_reduce(message)
            message *= factor
            for tensor, values in zip(some, message.split([t.numel() for t in some]), strict=True):
                tensor.copy_(values.view_as(tensor))


class _Gather(torch.autograd.Function):
    """The parts of all processes, interleaved again as `share` took them apart."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, environments: int, team: Team) -> Tensor:
        ctx.environments, ctx.team = environments, team
        parts = [torch.empty_like(local, memory_format=torch.contiguous_format) for _ in range(team.size)]
        dist.all_gather(parts, local.contiguous())
        shaped = [part.view(environments, -1, *local.shape[1:]) for part in parts]
        return torch.stack(shaped, 2).flatten(0, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.team.part(gradient, ctx.environments).contiguous(), None, None


def described_settings(config_type: type[Config]) -> str:
    """The settings of a config with their defaults, and what its docstring and those of its bases say of them."""
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
    """Base of all algorithms.

    Parameters
    ----------
    setting
        The facts about the data.
    config
        Its settings; None: the defaults.

    Attributes
    ----------
    config_type
        The dataclass of its settings.
    grid
        The values to search over, by setting: those of the paper's appendix B.2 or, for methods that it does not
        compare, some of the range that DomainBed or their authors draw from.
    weighted
        Whether it uses the weights of samples. An objective of `Pass.losses`, `empirical_risk` and `environment_risks`
        does, as they are weighted; batches with weights are refused where it is False.

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

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Add the settings, which the config describes, to the docstring of an algorithm."""
        super().__init_subclass__(**kwargs)
        if own := cls.__dict__.get("__doc__"):
            cls.__doc__ = f"{inspect.cleandoc(own)}\n\n{described_settings(cls.config_type)}"

    def __init__(self, setting: Setting, config: C | None = None) -> None:
        super().__init__()
        self.setting = setting
        self.team = Team()  # the processes that share a batch
        self.config: C = config if config is not None else self.config_type()  # type: ignore[assignment]  # is a C

    def objective(self, out: Pass, penalised: bool) -> Logs:
        """Return the quantity to minimise, under "loss", and any others to record."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither objective nor act")

    def plan(self, batch: Batch, epoch: float) -> Hashable:
        """Return the choices that a step makes before it starts; steps with equal plans do the same operations.

        Here whether the penalty is on: from `start_epoch` of the config, where it has one.
        """
        return epoch >= getattr(self.config, "start_epoch", 0.0)

    def capture(self, block: int) -> None:
        """Called before steps are captured in a CUDA graph: from now on batches are in blocks, and nothing may wait."""

    def step(self, model: Classifier, batch: Batch, optimiser: Optimizer, epoch: float) -> Logs:
        """Update the model once; `epoch` counts from 0 and has fractions."""
        self.check(batch)
        return self.act(self.plan(batch, epoch), model, batch, optimiser)

    @property
    def held_out(self) -> float:
        """The share of the training set that steps do not draw, and `finish` is given."""
        return 0.0

    def finish(self, model: Classifier, held: HeldOut) -> None:
        """Change the model that is evaluated and saved, which is a copy of the one that trains; for `held_out` > 0."""

    def act(self, plan: Any, model: Classifier, batch: Batch, optimiser: Optimizer) -> Logs:
        """Take the step itself, by its plan."""
        optimiser.zero_grad(set_to_none=True)
        logs = self.differentiate(self.forward(model, batch), plan)
        optimiser.step()
        return logs

    def forward(self, model: Classifier, batch: Batch) -> Pass:
        """Return the forward pass over the batch; over the whole of it where a team shares it."""
        if not hasattr(model, "featurise"):
            raise InputError(
                f"the model must have features to look at, got {type(model).__name__}: wrap it as "
                "transferrisk.models.Classifier(featuriser, num_features, num_classes)"
            )
        features = self.gather(batch, model.featurise(batch.inputs))
        labels, environments = self.gather(batch, batch.labels), self.gather(batch, batch.environments)
        weights = None if batch.weights is None else self.gather(batch, batch.weights)
        return Pass(features, model.head(features), labels, environments, model, weights)

    def gather(self, batch: Batch, tensor: Tensor) -> Tensor:
        """Return a tensor of the batch's samples as that of all processes that share it."""
        return tensor if self.team.size == 1 else self.team.gather(tensor, self._environments_in(batch))

    def _environments_in(self, batch: Batch) -> int:
        if batch.block is None:
            raise InputError("a batch that processes share must hold equally many samples of each environment")
        return len(batch.labels) // batch.block

    def differentiate(self, out: Pass, plan: Any) -> Logs:
        """Add the gradient of the objective to that of the weights, and return what it records."""
        logs = self.objective(out, plan)
        if not isinstance(logs, Mapping) or "loss" not in logs:
            given = f"the keys {list(logs)}" if isinstance(logs, Mapping) else type(logs).__name__
            raise InputError(
                f"{type(self).__name__}.objective must return a dict with what is minimised under 'loss', got {given}"
            )
        logs["loss"].backward()
        if self.team.size > 1:
            self.team.reduce_gradients(out.model.featuriser, mean=False)
        return dict(zip(logs, map(Tensor.detach, logs.values()), strict=True))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Make buffers that the first step makes, or gives their shape, as they were saved."""
        for key, saved in state_dict.items():
            name = key.removeprefix(prefix)
            held = self._buffers.get(name)
            if not key.startswith(prefix) or "." in name or name in self._parameters:
                continue
            if held is None or (held.numel() == 0 and held.shape != saved.shape):
                self.register_buffer(name, torch.empty_like(saved, device=None if held is None else held.device))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def check(self, batch: Batch) -> None:
        """Check that labels and environments are within the setting; every `step` begins with it.

        Values are read on the CPU only: on a GPU that would wait for the device, and could not be captured in a graph.
        """
        if not isinstance(batch, Batch):
            raise InputError(f"batch must be a Batch(inputs, labels, environments), got {type(batch).__name__}")
        check_tensors(inputs=batch.inputs, labels=batch.labels, environments=batch.environments)
        if not len(batch.inputs) == len(batch.labels) == len(batch.environments) > 0:
            raise InputError(
                "inputs, labels and environments must be one for each sample of one or more, got "
                f"{len(batch.inputs)}, {len(batch.labels)} and {len(batch.environments)}"
            )
        if batch.weights is not None:
            if not self.weighted:
                raise InputError(
                    f"weights must be left out, since {type(self).__name__} does not use them: set `weighted` on the "
                    "class once its objective does"
                )
            check_sample_weights(batch.weights, batch.inputs)
        for name, values, parameter in (
            ("labels", batch.labels, "num_classes"),
            ("environments", batch.environments, "num_environments"),
        ):
            if values.device.type == "cpu":
                limit, low, high = getattr(self.setting, parameter), int(values.min()), int(values.max())
                if low < 0 or high >= limit:
                    raise InputError(
                        f"{name} must be 0..{limit - 1}, as the Setting has {parameter}={limit}, got "
                        f"{low if low < 0 else high}: number {name} from 0, or give the right {parameter}"
                    )
