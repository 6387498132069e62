"""`TransferRisk`: the transfer risk as a module for anybody's training loop."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import DivergedError, InputError, StepWarning, warn
from ..functional import fused
from ..functional.checks import (
    check_count,
    check_environments,
    check_finite,
    check_labels,
    check_sample_weights,
    check_shapes,
    check_start,
    working_dtype,
)
from ..functional.predictor import INVERSE, PREDICTOR, attempts, warn_not_converged
from ..functional.transfer import (
    Transfer,
    WeightRule,
    exponentiated_gradient,
    given_weights,
    group,
    transfer_risk,
    uniform_weights,
    worst_weights,
)
from ..settings import NonNegative, Positive, convert
from ..solvers import LinearSolver, Minimiser, Solution
from ..solvers.minimisers import chosen_solvers

Weights = Literal["eg", "worst", "uniform"]
Query = Literal["all", "random"]
MOST_ENVIRONMENTS = 4096  # of which every pair has a weight
MOST_LOGITS = 1 << 28  # of all queries on all samples in a step


@dataclass(frozen=True)
class TransferRiskOutput:
    """The output of `TransferRisk`: the risk to minimise, and the numbers behind it.

    E environments stand in the sorted order of their ids (`criterion.environment_ids`). Tensors have the type of the
    features, float32 where those are of half precision; only `risk` carries a gradient.

    Attributes
    ----------
    risk
        Scalar: the mean over Q of the weighted losses of Q's predictor elsewhere. Add it to your loss.
    matrix
        (E, E): row Q = where the predictor was fitted, column P = where it is tested, entry = its cross-entropy there.
        nan where Q or P is absent from the batch, or Q was not drawn (query="random").
    weights
        (E, E): the weight of each P, given Q, that this risk was taken with; rows sum to one.
    solution
        The optimal predictors, `solution.value` (m, C, d + 1) with the bias last, one for each Q that was used;
        `solution.converged` (m,), `.iterations` and `.residual` (m,) say how well they were solved.
    inverse
        The same for the linear systems of the implicit gradient; None where no gradient was asked for.

    Examples
    --------
    >>> import torch
    >>> from transferrisk import TransferRisk
    >>> out = TransferRisk()(torch.randn(60, 5), torch.randint(2, (60,)), torch.arange(60) % 3)
    >>> out.weights.shape, bool(out.solution.converged.all())
    (torch.Size([3, 3]), True)
    """

    risk: Tensor
    matrix: Tensor
    weights: Tensor
    solution: Solution
    inverse: Solution | None


class TransferRisk(nn.Module):
    """Mean over environments Q of the worst loss, elsewhere, of the predictor that is optimal in Q.

    The gradient of `out.risk` with respect to the features is the total derivative of the transfer risk: the
    predictors are solved exactly, and their dependence on the features is differentiated in closed form. A batch that
    float32 cannot resolve (large features, a small ridge) is solved in float64; a ConvergenceWarning says if that too
    falls short.

    An environment absent from a batch is left out of the mean and keeps its weight. `alpha`, (E, E), is a buffer;
    it moves in train mode only, after the risk of the step was taken with the old one.

    Parameters
    ----------
    ridge
        Strength of the penalty ridge/2 |W|^2 that makes each optimal predictor exist and be unique.
    gradient_matching
        The paper's lambda: factor of the implicit part of the gradient. 1 is exact, 0 is direct only.
    weights
        How P is chosen, given Q: "eg" moves weights by exponentiated gradient (the paper), "worst" takes the largest
        loss, "uniform" the mean (the sum-sum version).
    num_classes
        Taken from the first batch when not given.
    environments
        The ids, or their number for 0..E-1; taken from the first batch when not given.
    weights_lr
        Rate of the exponentiated gradient.
    query
        "all", or "random": one Q a step (algorithm 1); in eval mode always all. Where predictors of all Q on all
        samples would have more than 2^28 logits, so many Q as fit are taken: random ones, or evenly spaced ones in eval
        mode; a StepWarning says so.
    solver
        How W(Q) is found: None or "newton" (to convergence), "dense" (the same by factoring its Hessian, faster where C
        (d + 1) is below some 300), "sgd" (the paper: 30 steps at 0.1), "captured", or a minimiser of
        `transferrisk.solvers`.
    implicit
        How the inverse Hessian is applied: "exact" (conjugate gradients to convergence), "cholesky", "woodbury",
        "neumann" (the paper: i = 0..10), "none" (direct only), or a linear solver.
    bound
        Keeps the implicit gradient's norm at most this multiple of the direct one's.
    captured
        Nothing waits for the device, so that a whole step fits a CUDA graph; how good the answer is, `out.solution` and
        `out.inverse` tell, and a bad batch gives nan, not an error. On a CUDA device with Triton, environments of up to
        128 samples are solved by fused kernels; elsewhere the number of iterations is fixed. Needs `num_classes` and
        `environments`.
    capacity
        The most samples an environment has in a batch; only for `captured`, where the size of the whole batch takes its
        place, at a cost, when it is not given.
    blocks
        Batches hold equally many samples of each environment, environment after environment in the order of the ids;
        only for `captured`, where it saves the sorting.
    fused
        Whether the kernels are used: None where they can be, False never, True or an error.

    Examples
    --------
    >>> import torch
    >>> from transferrisk import TransferRisk
    >>> features = torch.randn(60, 5, requires_grad=True)
    >>> labels, environments = torch.randint(2, (60,)), torch.arange(60) % 3
    >>> criterion = TransferRisk()
    >>> out = criterion(features, labels, environments)
    >>> out.risk.backward()  # or (cross_entropy + out.risk).backward()
    >>> features.grad.shape, out.matrix.shape
    (torch.Size([60, 5]), torch.Size([3, 3]))
    """

    alpha: Tensor  # (E, E) weight of P (column), given Q (row); zero on the diagonal
    environment_ids: Tensor  # (E,) sorted; none before they are given or the first batch has shown them
    class_count: Tensor  # () C; 0 before it is given or the first batch has shown it

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
        self.ridge: float = convert("ridge", ridge, Positive)
        self.gradient_matching: float = convert("gradient_matching", gradient_matching, NonNegative)
        self.weights: Weights = convert("weights", weights, Weights)
        self.weights_lr: float = convert("weights_lr", weights_lr, NonNegative)
        self.query: Query = convert("query", query, Query)
        self.bound: float | None = convert("bound", bound, NonNegative | None)
        self.num_classes = None if num_classes is None else check_count("num_classes", num_classes)
        self.fused = fused
        self.captured, self.blocks = False, False
        self.capacity: int | None = None
        self.solver: Minimiser
        self.implicit: LinearSolver | None
        self._asked = (solver, implicit)
        self.solver, self.implicit, self._default_solvers = chosen_solvers(solver, implicit, captured=False)
        self.register_buffer("alpha", torch.empty(0, 0))
        self.register_buffer("environment_ids", torch.empty(0, dtype=torch.int64))
        self.register_buffer("class_count", torch.tensor(self.num_classes or 0))
        if environments is not None:
            self._set_environments(_identifiers(environments))
        if captured:
            self.capture(capacity, blocks)
        elif capacity is not None or blocks or fused:
            given = {"capacity": capacity, "blocks": blocks, "fused": fused}
            name = next(name for name, value in given.items() if value)
            raise InputError(f"{name} must be left out without captured=True, got {given[name]!r}")

    def capture(self, capacity: int | None = None, blocks: bool = False) -> None:
        """Make sure that nothing waits for the device from now on, as with captured=True."""
        if self.num_classes is None or not len(self.environment_ids):
            raise InputError(
                "num_classes and environments must be given where steps are captured, since nothing is read from a "
                "first batch: write TransferRisk(num_classes=..., environments=...)"
            )
        self.solver, self.implicit, self._default_solvers = chosen_solvers(*self._asked, captured=True)
        self.captured, self.blocks = True, blocks
        self.capacity = None if capacity is None else check_count("capacity", capacity)

    def forward(
        self,
        features: Tensor,
        labels: Tensor,
        environments: Tensor,
        start: Tensor | None = None,
        sample_weights: Tensor | None = None,
    ) -> TransferRiskOutput:
        """features (n, d) float, labels (n,) int, environments (n,) int ids.

        start           (C, d + 1): where to start the search for the predictors, such as a classifier's own weights
        sample_weights  (n,) from 0 up: how much each sample counts within its environment, in fitting its predictor
                        and in testing another's; only ratios within an environment matter. Fused kernels take none

        In a function that torch.compile compiles, this is one call between two graphs: its loops end when an answer is
        good, which no graph can hold.
        """
        if torch.compiler.is_compiling():
            evaluate: Callable[..., TransferRiskOutput] = torch.compiler.disable(self._evaluate)
            return evaluate(features, labels, environments, start, sample_weights)
        return self._evaluate(features, labels, environments, start, sample_weights)

    def _evaluate(
        self,
        features: Tensor,
        labels: Tensor,
        environments: Tensor,
        start: Tensor | None,
        sample_weights: Tensor | None,
    ) -> TransferRiskOutput:
        check_shapes(features, labels, environments)
        if sample_weights is not None:
            check_sample_weights(sample_weights, features)
        if self.alpha.device != features.device:
            self.to(features.device)
        present: Tensor | None = None  # (E',) the environments that the result is about; None: all
        if self.takes_start(features, sample_weights):
            result, queries, present = self._solved_transfer(features, labels, environments, start, sample_weights)
        else:
            result, queries = self._fused_transfer(features, labels, environments)
        matrix = self._square(result.matrix, queries, present, torch.nan)
        used = self._square(result.weights, queries, present, 0.0)
        if self.training and self.weights == "eg":
            self._move_weights(result, matrix, queries)
        return TransferRiskOutput(result.risk, matrix, used, result.solution, result.inverse)

    def takes_start(self, features: Tensor, sample_weights: Tensor | None = None) -> bool:
        """Tell whether a start is of use: the fused kernels start from zero."""
        if not self.captured:
            return True
        assert self.num_classes is not None
        default = self._default_solvers and sample_weights is None
        return not fused.uses_kernels(self.fused, features, self._room(features), self.num_classes, default)

    def _solved_transfer(
        self,
        features: Tensor,
        labels: Tensor,
        environments: Tensor,
        start: Tensor | None,
        sample_weights: Tensor | None,
    ) -> tuple[Transfer, Tensor | None, Tensor | None]:
        """The risk by the solvers, the queries, None for all, and the environments it is about, None for all.

        Where values may be read, absent environments are left out, so that only those in the batch cost anything.
        """
        index = self._index(features, labels, environments, start)
        present = None
        if not self.captured:
            ids = index.unique()
            present = ids if len(ids) < len(self.environment_ids) else None
        queries = self._queries(index, present)
        places, alpha, number = queries, self.alpha, len(self.environment_ids)
        if present is not None:
            index, number = torch.searchsorted(present, index), len(present)
            places = None if queries is None else torch.searchsorted(present, queries)
            alpha = alpha[present][:, present]
        assert self.num_classes is not None
        rule: WeightRule = worst_weights if self.weights == "worst" else uniform_weights
        if self.weights == "eg":
            rule = given_weights(alpha if places is None else alpha[places])
        for attempt in attempts(features):
            try:
                result = transfer_risk(
                    attempt,
                    labels,
                    index,
                    number,
                    self.num_classes,
                    self.ridge,
                    weights=rule,
                    gradient_matching=0.0 if self.implicit is None else self.gradient_matching,
                    bound=self.bound,
                    queries=places,
                    solver=self.solver,
                    implicit=self.implicit,
                    start=start,
                    capacity=self._room(features) if self.captured else None,
                    sample_weights=sample_weights,
                )
            except DivergedError as error:
                raise DivergedError(f"{error} (environments {self.environment_ids.tolist()})") from None
            missed = []  # solutions of solvers that promise to arrive, and did not
            for name, solver, solution in (
                (PREDICTOR, self.solver, result.solution),
                (INVERSE, self.implicit, result.inverse),
            ):
                promised = not self.captured and solver is not None and not solver.fixed
                if promised and solution is not None and not bool(solution.converged.all()):
                    missed.append((solution, name))
            if not missed:
                break
        for solution, name in missed:
            warn_not_converged(solution, name)
        dtype = working_dtype(features.dtype)
        return result if result.risk.dtype == dtype else result.to(dtype), queries, present

    def _fused_transfer(self, features: Tensor, labels: Tensor, environments: Tensor) -> tuple[Transfer, Tensor | None]:
        """The same by the fused kernels, which always start from zero."""
        assert self.num_classes is not None
        E, capacity, features = len(self.environment_ids), self._room(features), features.to(torch.float32)
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

    def _move_weights(self, result: Transfer, matrix: Tensor, queries: Tensor | None) -> None:
        """Take one step of exponentiated gradient, which the kernels have taken already."""
        if result.moved is None:
            moved = ~torch.isnan(matrix)
            moved.fill_diagonal_(False)
            gains = matrix.to(self.alpha.dtype)
            self.alpha.copy_(exponentiated_gradient(self.alpha, gains, self.weights_lr, moved))
        elif queries is None:
            self.alpha.copy_(result.moved)
        else:
            self.alpha.index_copy_(0, queries, result.moved)

    def _index(self, features: Tensor, labels: Tensor, environments: Tensor, start: Tensor | None) -> Tensor:
        """Position (n,) of each sample's environment among the ids; all checks of a batch's values are here."""
        if self.captured:
            assert self.num_classes is not None
            if start is not None:
                check_start(start, features, self.num_classes)
            index = torch.searchsorted(self.environment_ids, environments).clamp(max=len(self.environment_ids) - 1)
            return torch.where(self.environment_ids[index] == environments, index, -1)  # -1 becomes nan
        num_classes = check_labels(labels, self.num_classes)
        if start is not None:
            check_start(start, features, num_classes)
        present = check_environments(environments)
        unknown = present[~torch.isin(present, self.environment_ids)]
        if len(self.environment_ids) and len(unknown):
            raise InputError(
                f"environments must be among {self.environment_ids.tolist()}, which the first batch or environments= "
                f"gave, got {int(unknown[0])}: name all of them with TransferRisk(environments=...)"
            )
        check_finite(features, environments)
        if self.num_classes is None:
            self.num_classes = num_classes
            self.class_count.fill_(num_classes)
        if not len(self.environment_ids):
            self._set_environments(present)
        return torch.searchsorted(self.environment_ids, environments)

    def _queries(self, index: Tensor, present: Tensor | None) -> Tensor | None:
        """(m,) the environments whose predictors are tested, in order; None: all that the result is about."""
        if self.query == "random" and self.training:
            return self._pick(index)
        E = len(self.environment_ids) if present is None else len(present)
        assert self.num_classes is not None
        most = max(1, MOST_LOGITS // (len(index) * self.num_classes))
        if self.captured or most >= E:
            return None
        kind = "random ones are used in each step" if self.training else "evenly spaced ones are used"
        warn(
            f"predictors of {E} environments on {len(index)} samples of {self.num_classes} classes are too many for a "
            f'step: {most} {kind}; smaller batches allow more, query="random" takes one',
            StepWarning,
        )
        if self.training:
            return self._pick(index, most)
        everyone = torch.arange(E, device=index.device) if present is None else present
        return everyone[torch.linspace(0, E - 1, most).round().long()]

    def _pick(self, index: Tensor, number: int = 1) -> Tensor:
        """(number,) of the environments that are present, uniformly, in order."""
        E = len(self.environment_ids)
        present = torch.zeros(E + 1, dtype=torch.bool, device=index.device).index_fill(0, index + 1, True)[1:]
        # From the CPU's generator unless nothing may be copied: so one generator's state is enough to resume.
        drawn = torch.rand(E, device=index.device if self.captured else "cpu").to(index.device)
        drawn = torch.where(present, drawn, -1.0)
        return drawn.argmax(0, keepdim=True) if number == 1 else drawn.topk(number).indices.sort().values

    def _square(self, rows: Tensor, queries: Tensor | None, present: Tensor | None, absent: float) -> Tensor:
        """Rows of the result as (E, E): `absent` for what is not in the batch, nan in rows that were not queried."""
        if present is not None:
            shown = rows.new_full((len(rows), len(self.alpha)), absent).index_copy(1, present, rows)
            if queries is None:
                return torch.full_like(self.alpha, absent, dtype=rows.dtype).index_copy(0, present, shown)
            rows = shown
        if queries is None:
            return rows
        return torch.full_like(self.alpha, torch.nan, dtype=rows.dtype).index_copy(0, queries, rows)

    def _set_environments(self, ids: Tensor) -> None:
        ids = ids.unique()
        E = len(ids)
        if E < 2:
            raise InputError(f"environments must be two or more, got {ids.tolist()}: transfer needs another one")
        _check_number(E)
        with torch.inference_mode(False):  # a first batch may be one of evaluation; training goes on with these
            self.environment_ids = ids.to(torch.int64, copy=True)
            # Zero on the diagonal: Q is not transferred to itself.
            self.alpha = (1 - torch.eye(E, device=ids.device)) / (E - 1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Refuse a state of other environments or classes than those that this module was told.

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
                    f"environments must be {ids.tolist()}, as in the saved criterion, got {mine.tolist()}: build it "
                    "with the same environments="
                )
            if classes and count and count != classes:
                raise InputError(f"num_classes must be {count}, as in the saved criterion, got {classes}")
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


def _identifiers(environments: object) -> Tensor:
    """Return the ids (E,) that `environments=` stands for: their number, or any collection of integers."""
    several = isinstance(environments, Iterable) and getattr(environments, "ndim", 1) > 0
    given: list[Any] = list(environments) if several else [environments]  # type: ignore[call-overload]  # is iterable
    ids: list[int] = []
    for one in given:
        is_bool = isinstance(one, bool | np.bool_) or getattr(one, "dtype", None) == torch.bool
        try:
            if is_bool:
                raise TypeError
            ids.append(operator.index(one))
        except TypeError:
            raise InputError(f"environments must be their number, or integer ids, got {environments!r}") from None
    _check_number(len(ids) if several else ids[0])
    return torch.tensor(ids, dtype=torch.int64) if several else torch.arange(max(ids[0], 0))


def _check_number(number: int) -> None:
    if number > MOST_ENVIRONMENTS:
        raise InputError(
            f"environments must be at most {MOST_ENVIRONMENTS}, got {number}, since every pair of them has a weight: "
            "merge small ones"
        )
