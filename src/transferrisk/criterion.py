"""`TransferRisk`: the transfer risk as a module for anybody's training loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .errors import DivergedError, InputError
from .functional import fused
from .functional.checks import (
    as_integer,
    check_count,
    check_environments,
    check_finite,
    check_labels,
    check_number,
    check_ridge,
    check_shapes,
    check_start,
)
from .functional.grouping import group
from .functional.named_solvers import chosen_solvers
from .functional.penalties import exponentiated_gradient
from .functional.precision import in_enough_precision
from .functional.predictor import INVERSE, PREDICTOR, warn_unless_converged
from .functional.transfer import Transfer, WeightRule, given_weights, transfer_risk, uniform_weights, worst_weights
from .solvers import LinearSolver, Minimiser, Solution

Weights = Literal["eg", "worst", "uniform"]
Query = Literal["all", "random"]


@dataclass(frozen=True)
class TransferRiskOutput:
    """What `TransferRisk` returns: the risk to minimise, and what it was computed from.

    E environments stand in the sorted order of their ids (`criterion.environment_ids`). Tensors have the type of the
    features, float32 where those are of half precision; only `risk` carries a gradient.

    risk      scalar: the mean over Q of the weighted losses of Q's predictor elsewhere. Add it to your loss
    matrix    (E, E): row Q = where the predictor was fitted, column P = where it is tested, entry = its cross-entropy
              there. nan where Q or P is absent from the batch, or Q was not drawn (query="random")
    weights   (E, E): the weight of each P, given Q, that this risk was taken with; rows sum to one
    solution  the optimal predictors, `solution.value` (m, C, d + 1) with the bias last, one for each Q that was used;
              `solution.converged` (m,), `.iterations` and `.residual` (m,) say how well they were solved
    inverse   the same for the linear systems of the implicit gradient; None where no gradient was asked for
    """

    risk: Tensor
    matrix: Tensor
    weights: Tensor
    solution: Solution
    inverse: Solution | None


def _identifiers(environments: object) -> Tensor:
    """The ids (E,) that `environments=` stands for."""
    number = as_integer(environments)
    if number is not None:
        return torch.arange(max(number, 0))
    several = isinstance(environments, Iterable) and getattr(environments, "ndim", 1) > 0
    ids = [as_integer(i) for i in environments] if several else [None]  # type: ignore[attr-defined]  # is iterable
    if None in ids:
        raise InputError(f"environments={environments!r} are not integers: give their number, or integer ids")
    return torch.tensor(ids, dtype=torch.int64)


class TransferRisk(nn.Module):
    """Mean over environments Q of the worst loss, elsewhere, of the predictor that is optimal in Q.

    >>> criterion = TransferRisk()
    >>> out = criterion(features, labels, environments)
    >>> (cross_entropy + out.risk).backward()

    The gradient of `out.risk` with respect to the features is the total derivative of the transfer risk: the
    predictors are solved exactly, and their dependence on the features is differentiated in closed form. A batch that
    float32 cannot resolve (large features, a small ridge) is solved in float64; a ConvergenceWarning says if that too
    falls short.

    ridge              strength of the penalty ridge/2 |W|^2 that makes each optimal predictor exist and be unique
    gradient_matching  the paper's lambda: factor of the implicit part of the gradient. 1 is exact, 0 is direct only
    weights            how P is chosen, given Q: "eg" moves weights by exponentiated gradient (the paper), "worst"
                       takes the largest loss, "uniform" the mean (the sum-sum version)
    num_classes        taken from the first batch when not given
    environments       the ids, or their number for 0..E-1; taken from the first batch when not given
    weights_lr         rate of the exponentiated gradient
    query              "all", or "random": one Q a step (algorithm 1); in eval mode always all
    solver             how W(Q) is found: None or "newton" (to convergence), "sgd" (the paper: 30 steps at 0.1),
                       "captured", or a minimiser of `transferrisk.solvers`
    implicit           how the inverse Hessian is applied: "exact" (conjugate gradients to convergence), "cholesky",
                       "woodbury", "neumann" (the paper: i = 0..10), "none" (direct only), or a linear solver
    bound              keeps the implicit gradient's norm at most this multiple of the direct one's
    captured           nothing waits for the device, so that a whole step fits a CUDA graph; how good the answer is,
                       `out.solution` and `out.inverse` tell, and a bad batch gives nan, not an error. On a CUDA device
                       with Triton, environments of up to 128 samples are solved by fused kernels; elsewhere the
                       number of iterations is fixed. Needs `num_classes` and `environments`
    capacity           the most samples an environment has in a batch; only for `captured`, where the size of the
                       whole batch takes its place, at a cost, when it is not given
    blocks             batches hold equally many samples of each environment, environment after environment in the
                       order of the ids; only for `captured`, where it saves the sorting
    fused              whether the kernels are used: None where they can be, False never, True or an error

    An environment absent from a batch is left out of the mean and keeps its weight. `alpha`, (E, E), is a buffer;
    it moves in train mode only, after the risk of the step was taken with the old one.
    """

    alpha: Tensor
    environment_ids: Tensor
    class_count: Tensor

    def __init__(
        self,
        ridge: float = 1e-3,
        gradient_matching: float = 1.0,
        weights: Weights = "eg",
        *,
        num_classes: int | None = None,
        environments: int | Sequence[int] | Tensor | None = None,
        weights_lr: float = 0.01,
        query: Query = "all",
        solver: Minimiser | str | None = None,
        implicit: LinearSolver | str | None = "exact",
        bound: float | None = None,
        captured: bool = False,
        capacity: int | None = None,
        blocks: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__()
        check_ridge(ridge)
        if weights not in ("eg", "worst", "uniform"):
            raise InputError(f"weights={weights!r} is not known: use 'eg', 'worst' or 'uniform'")
        if query not in ("all", "random"):
            raise InputError(f"query={query!r} is not known: use 'all' or 'random'")
        for name, value in (("gradient_matching", gradient_matching), ("weights_lr", weights_lr)):
            check_number(name, value)
            if not (math.isfinite(value) and value >= 0):
                raise InputError(f"{name}={value} is not a number from 0 up")
        if bound is not None and not check_number("bound", bound) >= 0:
            raise InputError(
                f"bound={bound} is negative: give the largest ratio of implicit to direct gradient, or None"
            )
        if captured and (num_classes is None or environments is None):
            raise InputError("captured=True reads nothing from the first batch: give num_classes and environments")
        num_classes = None if num_classes is None else check_count("num_classes", num_classes)
        for name, given in (("capacity", capacity), ("blocks", blocks), ("fused", fused)):
            if given and not captured:
                raise InputError(f"{name}={given!r} is for captured=True only: leave it out, or set captured")
        self.ridge = ridge
        self.gradient_matching = gradient_matching
        self.weights = weights
        self.weights_lr = weights_lr
        self.query = query
        self.bound = bound
        self._asked = (solver, implicit)
        self.captured = False
        self.capacity: int | None = None
        self.blocks = False
        self.fused = fused
        self._choose_solvers(captured)
        if captured:
            self.capture(capacity, blocks)

        self.register_buffer("alpha", torch.empty(0, 0))
        self.register_buffer("environment_ids", torch.empty(0, dtype=torch.int64))
        self.register_buffer("class_count", torch.tensor(num_classes or 0))
        self.num_classes = num_classes
        if environments is not None:
            self._set_environments(_identifiers(environments))

    def capture(self, capacity: int | None = None, blocks: bool = False) -> None:
        """From now on as with captured=True: nothing waits for the device."""
        self._choose_solvers(captured=True)
        self.captured = True
        self.capacity = None if capacity is None else check_count("capacity", capacity)
        self.blocks = blocks

    def _choose_solvers(self, captured: bool) -> None:
        self.solver: Minimiser
        self.implicit: LinearSolver | None
        # The kernels stand for the default solvers; others that were asked for are used.
        self.solver, self.implicit, self._default_solvers = chosen_solvers(*self._asked, captured)

    @property
    def num_environments(self) -> int:
        return len(self.environment_ids)

    def forward(
        self, features: Tensor, labels: Tensor, environments: Tensor, start: Tensor | None = None
    ) -> TransferRiskOutput:
        """features (n, d) float, labels (n,) int, environments (n,) int ids.

        start  (C, d + 1): where to start the search for the predictors, for instance a classifier's own weights
        """
        check_shapes(features, labels, environments)
        if self.alpha.device != features.device:
            self.to(features.device)
        if self.captured and self._fuses(features):
            result, queries = self._fused_transfer(features, labels, environments)
        else:
            result, queries = self._plain_transfer(features, labels, environments, start)
        matrix, used = self._square(result.matrix, queries), self._square(result.weights, queries)
        if self.training and self.weights == "eg":
            if result.moved is not None:
                self.alpha.copy_(result.moved) if queries is None else self.alpha.index_copy_(0, queries, result.moved)
            else:
                moved = ~torch.isnan(matrix)
                moved.fill_diagonal_(False)
                gains = matrix.to(self.alpha.dtype)
                self.alpha.copy_(exponentiated_gradient(self.alpha, gains, self.weights_lr, moved))
        return TransferRiskOutput(result.risk, matrix, used, result.solution, result.inverse)

    def _plain_transfer(
        self, features: Tensor, labels: Tensor, environments: Tensor, start: Tensor | None
    ) -> tuple[Transfer, Tensor | None]:
        """And the queries, None for all."""
        index = self._index(features, labels, environments, start)
        queries = self._pick(index) if self.query == "random" and self.training else None

        def solve(features: Tensor) -> Transfer:
            return self._transfer(features, labels, index, queries, start)

        if self.captured:
            return solve(features), queries
        result = in_enough_precision(solve, features, self._arrived)
        self._warn(result)
        return result, queries

    def _fused_transfer(self, features: Tensor, labels: Tensor, environments: Tensor) -> tuple[Transfer, Tensor | None]:
        """The same by the kernels, which start from zero whatever they are given."""
        assert self.num_classes is not None
        E, capacity, features = self.num_environments, self._room(features), features.to(torch.float32)
        random, everyone = self.query == "random" and self.training, torch.arange(E, device=features.device)
        with torch.no_grad():
            if self.blocks:
                ids = self.environment_ids
                grouped = fused.group_fused(features.detach(), labels, environments, ids, self.num_classes, capacity)
                queries = torch.randint(E, (1,), device=features.device) if random else None
            else:
                index = self._index(features, labels, environments, None)
                grouped = group(features.detach(), labels, index, E, self.num_classes, fused.side(capacity))
                queries = self._pick(index) if random else None
        result = fused.fused_transfer_risk(
            features,
            grouped,
            everyone if queries is None else queries,
            self.alpha if queries is None else self.alpha[queries],
            "given" if self.weights == "eg" else self.weights,
            self.ridge,
            0.0 if self.implicit is None else self.gradient_matching,
            self.bound,
            self.weights_lr,
        )
        return result, queries

    def _room(self, features: Tensor) -> int:
        """The most samples that an environment may have in a batch."""
        return len(features) if self.capacity is None else self.capacity

    def _transfer(
        self, features: Tensor, labels: Tensor, index: Tensor, queries: Tensor | None, start: Tensor | None
    ) -> Transfer:
        assert self.num_classes is not None
        try:
            return transfer_risk(
                features,
                labels,
                index,
                self.num_environments,
                self.num_classes,
                self.ridge,
                weights=self._rule(queries),
                gradient_matching=0.0 if self.implicit is None else self.gradient_matching,
                bound=self.bound,
                queries=queries,
                solver=self.solver,
                implicit=self.implicit,
                start=start,
                capacity=self._room(features) if self.captured else None,
            )
        except DivergedError as error:
            raise DivergedError(f"{error} (environments {self.environment_ids.tolist()})") from None

    def takes_start(self, features: Tensor) -> bool:
        """Whether a start is of use; the kernels start from zero."""
        return not (self.captured and self._fuses(features))

    def _fuses(self, features: Tensor) -> bool:
        assert self.num_classes is not None
        capacity = self._room(features)
        can = (
            self._default_solvers
            and features.is_cuda
            and features.dtype != torch.float64
            and find_spec("triton") is not None
            and fused.fits(capacity, self.num_classes)
        )
        if self.fused and not can:
            raise InputError(
                f"fused=True does not go with {capacity} samples an environment, {self.num_classes} classes and "
                f"features of type {features.dtype} on {features.device}: it needs CUDA, Triton, float32 or less, at "
                f"most {fused.LARGEST_SIDE} samples, and the default solvers"
            )
        return can and self.fused is not False

    def _promised(self, result: Transfer) -> list[tuple[Solution, str]]:
        """What was solved by solvers that promise to arrive, and how it is called."""
        promised = [] if self.solver.fixed else [(result.solution, PREDICTOR)]
        if result.inverse is not None and self.implicit is not None and not self.implicit.fixed:
            promised.append((result.inverse, INVERSE))
        return promised

    def _arrived(self, result: Transfer) -> bool:
        return all(solution.all_converged for solution, _ in self._promised(result))

    def _warn(self, result: Transfer) -> None:
        for solution, what in self._promised(result):
            warn_unless_converged(solution, what)

    def _rule(self, queries: Tensor | None) -> WeightRule:
        if self.weights == "eg":
            return given_weights(self.alpha if queries is None else self.alpha[queries])
        return worst_weights if self.weights == "worst" else uniform_weights

    def _index(self, features: Tensor, labels: Tensor, environments: Tensor, start: Tensor | None) -> Tensor:
        """Position (n,) of each sample's environment among the ids; all checks of a batch's values are here."""
        if self.captured:
            assert self.num_classes is not None
            if start is not None:
                check_start(start, features, self.num_classes)
            index = torch.searchsorted(self.environment_ids, environments).clamp(max=self.num_environments - 1)
            return torch.where(self.environment_ids[index] == environments, index, -1)  # -1 becomes nan
        num_classes = check_labels(labels, self.num_classes)
        if start is not None:
            check_start(start, features, num_classes)
        present = check_environments(environments)
        unknown = present[~torch.isin(present, self.environment_ids)]
        if self.num_environments and len(unknown):
            raise InputError(
                f"environment {int(unknown[0])} is not among {self.environment_ids.tolist()}, which the first batch or "
                "environments= gave: name all of them with TransferRisk(environments=...)"
            )
        check_finite(features, environments)
        if self.num_classes is None:
            self.num_classes = num_classes
            self.class_count.fill_(num_classes)
        if not self.num_environments:
            self._set_environments(present)
        return torch.searchsorted(self.environment_ids, environments)

    def _set_environments(self, ids: Tensor) -> None:
        ids = ids.unique()
        E = len(ids)
        if E < 2:
            raise InputError(f"{E} environment{'s' * (E != 1)} given: transfer needs at least two")
        with torch.inference_mode(False):  # a first batch may be one of evaluation; training goes on with these
            self.environment_ids = ids.to(torch.int64, copy=True)
            # Zero on the diagonal: Q is not transferred to itself.
            self.alpha = (1 - torch.eye(E, device=ids.device)) / (E - 1)

    def _pick(self, index: Tensor) -> Tensor:
        """(1,) one of the environments that are present, uniformly."""
        everyone = torch.arange(self.num_environments, device=index.device)
        present = (index.unsqueeze(-1) == everyone).any(0)
        # From the CPU's generator unless nothing may be copied: so one generator's state is enough to resume.
        drawn = torch.rand(len(everyone), device=index.device if self.captured else "cpu").to(index.device)
        return torch.where(present, drawn, -1.0).argmax(0, keepdim=True)

    def _square(self, rows: Tensor, queries: Tensor | None) -> Tensor:
        """(m, E) to (E, E), with nan in the rows that were not queried."""
        if queries is None:
            return rows
        full = rows.new_full((self.num_environments, self.num_environments), torch.nan)
        return full.index_copy(0, queries, rows)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """A state that knows its environments or classes must agree with a module that does.

        Buffers take the shape of what is loaded, so a module that has seen no batch can be restored; and the state of
        such a module leaves one that was told its environments as it is.
        """
        state = dict(state_dict)
        key = {name: prefix + name for name in ("environment_ids", "alpha", "class_count")}
        if all(name in state for name in key.values()):  # otherwise torch names what is missing
            ids, mine = state[key["environment_ids"]], self.environment_ids
            count, classes = int(state[key["class_count"]]), self.num_classes
            if len(mine) and len(ids) and not torch.equal(ids.cpu(), mine.cpu()):
                raise InputError(
                    f"the saved criterion has environments {ids.tolist()}, this one {mine.tolist()}: "
                    "build it with the same environments="
                )
            if classes and count and count != classes:
                raise InputError(
                    f"the saved criterion has {count} classes, this one {classes}: build it with the same num_classes="
                )
            if len(mine) and not len(ids):
                state |= {key["environment_ids"]: mine, key["alpha"]: self.alpha}
            elif len(ids) and not len(mine):
                self.environment_ids = torch.empty_like(ids, device=mine.device)
                self.alpha = torch.empty_like(state[key["alpha"]], device=mine.device)
            if classes and not count:
                state[key["class_count"]] = self.class_count
        super()._load_from_state_dict(state, prefix, *args)
        self.num_classes = int(self.class_count) or None

    def extra_repr(self) -> str:
        return (
            f"ridge={self.ridge:g}, gradient_matching={self.gradient_matching:g}, weights={self.weights!r}, "
            f"environments={self.environment_ids.tolist()}, num_classes={self.num_classes}"
        )
