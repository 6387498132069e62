"""`TransferRisk`: the transfer risk as a module for any training loop.

The module keeps what changes from step to step (the weights alpha, the ids of the environments, the number of classes),
checks each batch, and chooses the queries Q. The mathematics is in `functional.transfer_risk`, or in
`functional.fused` where its kernels can be used.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

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
from ..functional.transfer import Transfer, group, transfer_risk
from ..functional.weights import WeightRule, exponentiated_gradient, given_weights, uniform_weights, worst_weights
from ..settings import Bound, NonNegative, Positive, convert
from ..solvers import LinearSolver, Minimiser, Solution
from ..solvers.minimisers import chosen_solvers

Weights = Literal["eg", "worst", "uniform"]
Query = Literal["all", "random"]
MOST_ENVIRONMENTS = 4096  # every pair of them has a weight
MOST_LOGITS = 1 << 28  # logits of all predictors on all samples of a step
SMALLEST_FEATURE = 1e-3  # batches whose features are all smaller are solved in float64


@dataclass(frozen=True)
class TransferRiskOutput:
    """Output of `TransferRisk`: the risk to minimise, and the numbers behind it.

    The E environments are in the sorted order of their ids (`criterion.environment_ids`). Tensors have the type of the
    features, or float32 if that is a half precision. Only `risk` has a gradient.

    Attributes
    ----------
    risk
        Mean over Q of sum_P alpha_P(Q) M[Q, P], a scalar. Add it to your loss.
    matrix
        Transfer matrix M, (E, E): entry [Q, P] is the cross-entropy on P of the predictor fitted on Q. nan where Q or P
        is absent from the batch, or Q was not drawn (query="random").
    weights
        Weights alpha_P(Q) in this risk, (E, E); the row of a Q that was used sums to one, all others are zero.
    solution
        Optimal predictors: `solution.value` (m, C, d + 1), bias last, has one for each of the m environments Q that
        were used; `converged` (m,), `iterations` and `residual` (m,) tell how well they were solved.
    inverse
        Solutions h_Q of the linear systems of the implicit gradient, in the same form. None if no gradient was asked
        for.

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
    """Mean over environments Q of the weighted loss, in the other environments, of the predictor that is optimal in Q.

        R = mean_Q sum_{P != Q} alpha_P(Q) M[Q, P],    M[Q, P] the cross-entropy on P of W(Q),
        W(Q) = argmin over W of the cross-entropy on Q + ridge/2 |W|^2

    The gradient of `out.risk` with respect to the features is the total derivative of R: the predictors are solved
    exactly, and their dependence on the features is differentiated in closed form. A batch that float32 cannot resolve
    (tiny or large features, a small ridge) is solved in float64; a ConvergenceWarning tells if that does not suffice.

    The weights `alpha` (E, E) are a buffer. They move in train mode only, after the risk of the step was taken with the
    old ones. An environment that is absent from a batch is left out of the mean and keeps its weight.

    Parameters
    ----------
    ridge
        Strength of the penalty ridge/2 |W|^2, bias included, which makes each W(Q) exist and be unique.
    gradient_matching
        Factor of the implicit part of the gradient, the paper's lambda. 1 is exact, 0 leaves the direct part.
    weights
        Weights alpha: "eg" moves them by exponentiated gradient (the paper), "worst" takes the P of the largest loss,
        "uniform" the mean over P (the sum-sum version).
    num_classes
        Number C of classes. None: counted in the first batch.
    environments
        Ids of the environments, or their number E for 0..E-1. None: the ids of the first batch.
    weights_lr
        Rate of the exponentiated gradient.
    query
        "all", or "random" for one Q in each step (algorithm 1); in eval mode always all. If the predictors of all Q
        have more than 2^28 logits on the samples of a batch, only as many Q as fit are used: random ones, in eval mode
        evenly spaced ones, with a StepWarning.
    solver
        Minimiser that finds W(Q): None or "newton" (to convergence), "dense" (the same by factoring the Hessian, faster
        if C (d + 1) is below about 300), "rough" (as "dense", until the gradient is a hundredth of its scale), "sgd"
        (the paper: 30 steps at rate 0.1), "captured", or a minimiser of `transferrisk.solvers`.
    implicit
        Linear solver that applies the inverse Hessian: "exact" (conjugate gradients to convergence), "cholesky",
        "woodbury", "neumann" (the paper: i = 0..10), "none" (direct part only), or one of `transferrisk.solvers`.
    bound
        Largest norm of the implicit gradient, as a multiple of the direct one's. None: no bound.
    captured
        Read nothing from the device, so that a CUDA graph can hold a whole step; needs `num_classes` and
        `environments`. A bad batch then gives nan and not an error, and `out.solution` and `out.inverse` tell how good
        the answer is. On a CUDA device with Triton, environments of up to 128 samples are solved by fused kernels;
        otherwise the number of iterations is fixed.
    capacity
        Largest number of samples of an environment in a batch, for `captured`. None: the size of the batch, which costs
        more.
    blocks
        Batches hold equally many samples of one environment after another, in the order of the ids; for `captured`,
        where this saves sorting.
    fused
        Use of the fused kernels, for `captured`. None: where possible, False: never, True: an error where impossible.

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
    environment_ids: Tensor  # (E,) sorted; empty until they are given or read from the first batch
    class_count: Tensor  # () C; 0 until it is given or counted in the first batch

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
        implicit: LinearSolver | str = "exact",
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
        self.fused: bool | None = convert("fused", fused, bool | None)
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
            raise InputError(f"{name} is for captured=True only, and must be left out, got {given[name]!r}")

    def capture(self, capacity: int | None = None, blocks: bool = False) -> None:
        """Read nothing from the device from now on, as with captured=True.

        Parameters
        ----------
        capacity, blocks
            As for `TransferRisk`.
        """
        if self.num_classes is None or not len(self.environment_ids):
            raise InputError(
                "num_classes and environments must be given for captured steps, which read nothing from a first batch: "
                "write TransferRisk(num_classes=..., environments=...)"
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
        """Return the transfer risk of a batch.

        In a function compiled by torch.compile, this is one call between two graphs: a graph cannot hold loops that end
        when an answer is good.

        Parameters
        ----------
        features
            Features, (n, d) floats.
        labels
            Classes, (n,) integers in 0..C-1.
        environments
            Ids of the environments, (n,) integers; two or more of them.
        start
            Predictor (C, d + 1) where the search for the predictors starts, such as a classifier's own weights.
        sample_weights
            Weight of each sample within its environment, (n,) floats >= 0, both for its predictor and for the loss of
            another's. Only ratios within an environment matter; one whose weights are all 0 counts as absent. The fused
            kernels are then not used.

        Returns
        -------
        TransferRiskOutput
            The risk, with the numbers behind it.

        Examples
        --------
        >>> import torch
        >>> from transferrisk import TransferRisk
        >>> features, labels, environments = torch.randn(60, 5), torch.randint(2, (60,)), torch.arange(60) % 3
        >>> TransferRisk()(features, labels, environments, sample_weights=torch.rand(60)).matrix.shape
        torch.Size([3, 3])
        """
        if torch.compiler.is_compiling():
            eager: Callable[..., TransferRiskOutput] = torch.compiler.disable(self.forward)
            return eager(features, labels, environments, start, sample_weights)
        labels, environments = check_shapes(features, labels, environments)
        if sample_weights is not None:
            check_sample_weights(sample_weights, features)
        if self.alpha.device != features.device:
            self.to(features.device)
        present: Tensor | None = None  # (E',) environments that the result is about; None: all
        if self.takes_start(features, sample_weights):
            result, queries, present = self._solved_transfer(features, labels, environments, start, sample_weights)
        else:
            result, queries = self._fused_transfer(features, labels, environments)
        matrix = self._square(result.matrix, queries, present, torch.nan)
        used = self._square(result.weights, queries, present, 0.0)
        if self.training and self.weights == "eg":
            if result.moved is None:
                moved = ~torch.isnan(matrix)
                moved.fill_diagonal_(False)
                gains = matrix.to(self.alpha.dtype)
                self.alpha.copy_(exponentiated_gradient(self.alpha, gains, self.weights_lr, moved))
            elif queries is None:  # the kernels have taken the step already
                self.alpha.copy_(result.moved)
            else:
                self.alpha.index_copy_(0, queries, result.moved)
        return TransferRiskOutput(result.risk, matrix, used, result.solution, result.inverse)

    def takes_start(self, features: Tensor, sample_weights: Tensor | None = None) -> bool:
        """Return whether a start is used; the fused kernels start from zero.

        Parameters
        ----------
        features, sample_weights
            Arguments of the call.

        Returns
        -------
        bool
            Whether `start` has an effect in that call.
        """
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
        """Return the risk by the solvers, the queries Q, and the environments that it is about; None stands for all.

        Unless steps are captured, absent environments are left out, so that only those in the batch have a cost.
        """
        if sample_weights is not None and not self.captured and not bool((kept := sample_weights > 0).all()):
            features, labels, sample_weights = features[kept], labels[kept], sample_weights[kept]
            environments = environments[kept]
        index = self._index(features, labels, environments, start)
        present, counted = None, index
        if sample_weights is not None and self.captured:
            counted = torch.where(sample_weights > 0, index, -1)
        if not self.captured:
            ids = index.unique()
            present = ids if len(ids) < len(self.environment_ids) else None
        queries = self._queries(counted, present)
        places, alpha, number = queries, self.alpha, len(self.environment_ids)
        if present is not None:
            index, number = torch.searchsorted(present, index), len(present)
            places = None if queries is None else torch.searchsorted(present, queries)
            alpha = alpha[present][:, present]
        assert self.num_classes is not None
        rule: WeightRule = worst_weights if self.weights == "worst" else uniform_weights
        if self.weights == "eg":
            rule = given_weights(alpha if places is None else alpha[places])
        dtype = working_dtype(features.dtype)
        if not self.captured and features.numel() and float(features.detach().abs().max()) < SMALLEST_FEATURE:
            features = features.double()  # float32 would lose them beside the constant column
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
            missed = []  # solutions that were to converge and did not
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
        return result if result.risk.dtype == dtype else result.to(dtype), queries, present

    def _fused_transfer(self, features: Tensor, labels: Tensor, environments: Tensor) -> tuple[Transfer, Tensor | None]:
        """Return the risk by the fused kernels, and the queries Q; None stands for all."""
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
        """Return the largest number of samples that an environment may have in a batch."""
        return len(features) if self.capacity is None else self.capacity

    def _index(self, features: Tensor, labels: Tensor, environments: Tensor, start: Tensor | None) -> Tensor:
        """Check the values of a batch, and return the position (n,) of each sample's environment among the ids."""
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
                f"environments must be among {self.environment_ids.tolist()}, those of environments= or of the first "
                f"batch, got {int(unknown[0])}: name all of them with TransferRisk(environments=...)"
            )
        check_finite(features, environments)
        if not len(self.environment_ids):  # a refused batch changes nothing: all checks come first, this one's too
            self._set_environments(present)
        if self.num_classes is None:
            self.num_classes = num_classes
            self.class_count.fill_(num_classes)
        return torch.searchsorted(self.environment_ids, environments)

    def _queries(self, index: Tensor, present: Tensor | None) -> Tensor | None:
        """Return the environments Q (m,) in order; None: all that the result is about."""
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
        """Return so many of the environments that are present, drawn uniformly, in order, (number,); -1 is none."""
        E = len(self.environment_ids)
        present = torch.zeros(E + 1, dtype=torch.bool, device=index.device).index_fill(0, index + 1, True)[1:]
        # From the CPU's generator, unless steps are captured, so that one generator's state is enough to resume.
        drawn = torch.rand(E, device=index.device if self.captured else "cpu").to(index.device)
        drawn = torch.where(present, drawn, -1.0)
        return drawn.argmax(0, keepdim=True) if number == 1 else drawn.topk(number).indices.sort().values

    def _square(self, rows: Tensor, queries: Tensor | None, present: Tensor | None, absent: float) -> Tensor:
        """Return rows of the result as (E, E), with `absent` where Q or P is absent, or Q was not queried."""
        if present is not None:
            shown = rows.new_full((len(rows), len(self.alpha)), absent).index_copy(1, present, rows)
            if queries is None:
                return torch.full_like(self.alpha, absent, dtype=rows.dtype).index_copy(0, present, shown)
            rows = shown
        if queries is None:
            return rows
        return torch.full_like(self.alpha, absent, dtype=rows.dtype).index_copy(0, queries, rows)

    def _set_environments(self, ids: Tensor) -> None:
        ids = ids.unique()
        E = len(ids)
        if E < 2:
            raise InputError(f"environments must be two or more, got {ids.tolist()}: name all of them")
        if E > MOST_ENVIRONMENTS:
            raise InputError(
                f"environments must be at most {MOST_ENVIRONMENTS}, got {E}: every pair of them has a weight; merge "
                "small ones"
            )
        with torch.inference_mode(False):  # the first batch may be in inference mode, and later ones in training
            self.environment_ids = ids.to(torch.int64, copy=True)
            # Zero on the diagonal: Q is not transferred to itself.
            self.alpha = (1 - torch.eye(E, device=ids.device)) / (E - 1)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Keep `alpha` in float32 or float64 where a model moves to half precision, in which its steps would vanish."""
        alpha = self.alpha
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's
        if self.alpha.dtype not in (torch.float32, torch.float64):
            self.alpha = alpha.to(self.alpha.device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load a state, and refuse one of other environments or classes than this module has.

        A module that has seen no batch takes the shapes of the state; and the state of such a module changes nothing.
        """
        state = dict(state_dict)
        key = {name: prefix + name for name in ("environment_ids", "alpha", "class_count")}
        if all(name in state for name in key.values()):  # otherwise torch names the missing key
            ids, mine = state[key["environment_ids"]], self.environment_ids
            count, classes = int(state[key["class_count"]]), self.num_classes
            if len(mine) and len(ids) and not torch.equal(ids.cpu(), mine.cpu()):
                raise InputError(
                    f"environments must be {ids.tolist()}, as in the saved criterion, got {mine.tolist()}: build it "
                    "with the same environments="
                )
            if classes and count and count != classes:
                raise InputError(
                    f"num_classes must be {count}, as in the saved criterion, got {classes}: build it with the same "
                    "num_classes="
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


def _identifiers(environments: object) -> Tensor:
    """Return the ids (E,) that are meant by `environments=`, their number or any collection of integers."""
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
    if several:
        return torch.tensor(ids, dtype=torch.int64)
    return torch.arange(convert("environments", ids[0], Annotated[int, Bound(least=2, most=MOST_ENVIRONMENTS)]))
