"""`TransferRisk`: the transfer risk as a module for anybody's training loop."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import DivergedError, InputError
from ..functional import fused
from ..functional.checks import (
    check_count,
    check_environments,
    check_finite,
    check_labels,
    check_sample_weights,
    check_shapes,
    check_start,
)
from ..functional.grouping import group
from ..functional.named_solvers import chosen_solvers
from ..functional.penalties import exponentiated_gradient
from ..functional.precision import in_enough_precision
from ..functional.predictor import INVERSE, PREDICTOR, warn_unless_converged
from ..functional.transfer import Transfer, WeightRule, given_weights, transfer_risk, uniform_weights, worst_weights
from ..solvers import LinearSolver, Minimiser, Solution
from .arguments import Query, Weights, check_classes, check_values, identifiers
from .kernel_use import uses_kernels
from .memory import Memory
from .output import TransferRiskOutput


class TransferRisk(Memory):
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
    solver             how W(Q) is found: None or "newton" (to convergence), "dense" (the same by factoring its
                       Hessian, faster where C (d + 1) is below some 300), "sgd" (the paper: 30 steps at 0.1),
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
        check_values(ridge, gradient_matching, weights, weights_lr, query, bound)
        classes = check_classes(num_classes, environments, captured, capacity=capacity, blocks=blocks, fused=fused)
        super().__init__(classes)
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
        if environments is not None:
            self._set_environments(identifiers(environments))

    def capture(self, capacity: int | None = None, blocks: bool = False) -> None:
        """From now on as with captured=True: nothing waits for the device."""
        self._choose_solvers(captured=True)
        self.captured = True
        self.capacity = None if capacity is None else check_count("capacity", capacity)
        self.blocks = blocks

    def _choose_solvers(self, captured: bool) -> None:
        self.solver: Minimiser
        self.implicit: LinearSolver | None
        self.solver, self.implicit, self._default_solvers = chosen_solvers(*self._asked, captured)

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
        """
        check_shapes(features, labels, environments)
        if sample_weights is not None:
            check_sample_weights(sample_weights, features)
        if self.alpha.device != features.device:
            self.to(features.device)
        if self.captured and self._fuses(features, sample_weights):
            result, queries = self._fused_transfer(features, labels, environments)
        else:
            result, queries = self._plain_transfer(features, labels, environments, start, sample_weights)
        matrix, used = self._square(result.matrix, queries), self._square(result.weights, queries)
        if self.training and self.weights == "eg":
            self._move_weights(result, matrix, queries)
        return TransferRiskOutput(result.risk, matrix, used, result.solution, result.inverse)

    def _move_weights(self, result: Transfer, matrix: Tensor, queries: Tensor | None) -> None:
        """One step of exponentiated gradient, which the kernels have taken already."""
        if result.moved is None:
            moved = ~torch.isnan(matrix)
            moved.fill_diagonal_(False)
            gains = matrix.to(self.alpha.dtype)
            self.alpha.copy_(exponentiated_gradient(self.alpha, gains, self.weights_lr, moved))
        elif queries is None:
            self.alpha.copy_(result.moved)
        else:
            self.alpha.index_copy_(0, queries, result.moved)

    def _plain_transfer(
        self,
        features: Tensor,
        labels: Tensor,
        environments: Tensor,
        start: Tensor | None,
        sample_weights: Tensor | None,
    ) -> tuple[Transfer, Tensor | None]:
        """And the queries, None for all."""
        index = self._index(features, labels, environments, start)
        queries = self._pick(index) if self.query == "random" and self.training else None

        def solve(features: Tensor) -> Transfer:
            return self._transfer(features, labels, index, queries, start, sample_weights)

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
        self,
        features: Tensor,
        labels: Tensor,
        index: Tensor,
        queries: Tensor | None,
        start: Tensor | None,
        sample_weights: Tensor | None,
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
                sample_weights=sample_weights,
            )
        except DivergedError as error:
            raise DivergedError(f"{error} (environments {self.environment_ids.tolist()})") from None

    def takes_start(self, features: Tensor, sample_weights: Tensor | None = None) -> bool:
        """Whether a start is of use; the kernels start from zero."""
        return not (self.captured and self._fuses(features, sample_weights))

    def _fuses(self, features: Tensor, sample_weights: Tensor | None) -> bool:
        assert self.num_classes is not None
        default = self._default_solvers and sample_weights is None
        return uses_kernels(self.fused, features, self._room(features), self.num_classes, default)

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

    def extra_repr(self) -> str:
        return (
            f"ridge={self.ridge:g}, gradient_matching={self.gradient_matching:g}, weights={self.weights!r}, "
            f"environments={self.environment_ids.tolist()}, num_classes={self.num_classes}"
        )
