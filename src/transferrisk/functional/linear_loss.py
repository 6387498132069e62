"""Softmax loss of a linear predictor, bias included: value, gradient and Hessian.

Conventions
-----------
B  problems in a batch (environments), of n rows each, with C classes and D = d + 1 columns
rows       Z  (B, n, D)  features with a constant 1 as the last column; a row of padding is all zero
labels     y  (B, n)     in 0..C-1, one-hot Y (B, n, C); padding has -1 and all zero
weights    r  (B, n)     weight of each row; 1/n for a mean, 0 for padding
predictor  W  (B, C, D)  bias last; it is penalised like the rest
logits     L  (B, n, C)  Z W^T,   S = softmax(L)

    loss      l(W) = sum_i r_i (logsumexp(L_i) - L_i . Y_i) + ridge/2 |W|^2
    gradient       = (r (S - Y))^T Z + ridge W
    Hessian   H[V] = (r J(U))^T Z + ridge V,    U = Z V^T,    J(U) = S (U - rowsum(S U))

J is the Jacobian of the softmax, a symmetric positive semi-definite C x C matrix per row.

`SoftmaxLoss` is the loss of a batch of problems, `Hessian` its second derivative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..solvers import Linearisation, euclidean, solve_positive

_LARGEST_FACTOR = 4096  # columns; with more, the rough inverse is diagonal
_LARGEST_REFINED = 16  # classes; with more, the curvature of their logits costs more than it saves
_LARGEST_DENSE = 320  # entries C D of a predictor; up to here its whole Hessian saves more than it costs
_ROWS_PER_DIRECTION = 32  # rows that this curvature is estimated from


def with_bias(features: Tensor) -> Tensor:
    """Append the constant column: (..., n, d) -> (..., n, d + 1)."""
    return F.pad(features, (0, 1), value=1.0)


def one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """Return labels (..., n) as (..., n, C); nothing is read from the device, as torch's own function does."""
    return (labels.unsqueeze(-1) == torch.arange(num_classes, device=labels.device)).to(dtype)


def logits_of(predictor: Tensor, rows: Tensor) -> Tensor:
    """Return L = Z W^T, (B, n, C), with classes outermost in memory, so that products with Z are fast on a CPU."""
    return (predictor @ rows.mT).mT


def probabilities_of(logits: Tensor) -> Tensor:
    """Return softmax(L), (..., n, C), in the layout of L, which torch itself would change."""
    return torch.softmax(logits, -1) if logits.stride(-1) == 1 else torch.softmax(logits.mT, -2).mT


def row_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each row, (..., n), for logits and one-hot targets (..., n, C).

    It is log(1 + sum_c e^(L_c - L_y)) over the classes c other than y, computed so that a small loss keeps its digits
    and a large one does not overflow.
    """
    margins = logits - (logits * targets).sum(-1, keepdim=True)
    others = margins.masked_fill(targets > 0, -torch.inf)
    largest = others.amax(-1).clamp(min=0)
    rest = torch.exp(others - largest.unsqueeze(-1)).sum(-1)
    return largest + torch.log1p(torch.expm1(-largest) + rest)


def losses_and_residuals(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return `row_losses` and `softmax_residual` of logits (..., n, C) and labels (n,), by one pass of exp.

    The logits are overwritten. Rows of padding, whose label is -1, must have weight zero.
    """
    own = labels.clamp(0, logits.shape[-1] - 1).unsqueeze(-1).expand(*logits.shape[:-1], 1)
    others = logits.sub_(logits.gather(-1, own)).scatter_(-1, own, -torch.inf)
    largest = others.amax(-1, keepdim=True).clamp_(min=0)
    others = others.sub_(largest).exp_()
    rest = others.sum(-1, keepdim=True)
    losses = (largest + torch.log1p(torch.expm1(-largest) + rest)).squeeze(-1)
    total = rest + torch.exp(-largest)
    return losses, others.div_(total).scatter_(-1, own, -rest / total)


def environment_weights(
    index: Tensor, num_environments: int, dtype: torch.dtype, sample_weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the weight of each sample in its environment, (n, E), zero in the others, and their sums, (E,)."""
    member = one_hot(index, num_environments, dtype)
    if sample_weights is not None:
        member = member * sample_weights.to(dtype).unsqueeze(-1)
    return member, member.sum(0)


def environment_means(
    values: Tensor, index: Tensor, num_environments: int, sample_weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mean of values in each environment, and which environments are present.

    With weights w the mean is sum_i w_i v_i / sum_i w_i. An absent environment, or one whose weights are all zero, has
    mean 0, so that sums over environments need no special case.

    Parameters
    ----------
    values, index
        Value of each sample, (n,), and its environment, (n,) in 0..E-1.
    num_environments
        Number E of environments.
    sample_weights
        Weight of each sample, (n,). None: all the same.

    Returns
    -------
    tuple[Tensor, Tensor]
        Means, (E,), and which environments are present, (E,) bool.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import environment_means
    >>> environment_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2]), 3)
    (tensor([2., 0., 5.]), tensor([ True, False,  True]))
    """
    member, counts = environment_weights(index, num_environments, values.dtype, sample_weights)
    total = (values.unsqueeze(-1) * member).sum(0)  # not a matrix product, which autocast would round
    return total / torch.where(counts > 0, counts, 1), counts > 0


def softmax_residual(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return S - Y for one-hot Y, (..., n, C), with full relative precision where S is close to Y.

    The entry of the true class is minus the sum of the others, not a difference of two numbers close to one: on small
    batches, which are separable, the solution depends on these small numbers.
    """
    others = torch.where(targets > 0, 0, probabilities)
    return others - targets * others.sum(-1, keepdim=True)


def softmax_jacobian(probabilities: Tensor, direction: Tensor) -> Tensor:
    """Return J(U) = S (U - rowsum(S U)) for S and U of shape (..., n, C).

    J(U) stays the same when a constant is added to a row of U. With the entry of the likeliest class at zero it keeps
    its relative precision where one probability is close to one.
    """
    top = probabilities.argmax(-1, keepdim=True)
    moment = probabilities * (direction - direction.gather(-1, top))
    return moment - probabilities * moment.sum(-1, keepdim=True)


def scale_slopes(logits: Tensor, targets: Tensor) -> Tensor:
    """Return d/ds CE(s L, y) at s = 1 of each row, sum_c (S - Y)_c L_c, (..., n), for L and Y (..., n, C)."""
    return ((probabilities_of(logits) - targets) * logits).sum(-1)


@dataclass(frozen=True)
class SoftmaxLoss:
    """Loss l(W) of B problems: a `solvers.Problem`, for any minimiser.

    Problems may share one table of rows (n, D) and labels (n,), and differ in their weights alone.

    Parameters
    ----------
    rows
        Rows Z, (B, n, D), the constant included.
    labels, weights
        Label and weight of each row, (B, n).
    num_classes, ridge
        Number C of classes, and strength of the penalty.
    centred
        Whether all W sum to zero over classes, as minimisers do. Logits and gradients then do as well, and the last
        class needs no product.
    gram
        Approximate mean of z z^T over the rows, (1, D, D), or its diagonal, (1, 1, D), for `rough_inverse`; a bad one
        costs iterations, not accuracy. None: computed from all rows.
    chunks
        Slices of rows that `evaluate` takes one after the other, small enough for the cache; rows in none of them must
        have weight zero. None: all rows at once.
    shares
        Share of the ridge by column, (B, D) or (1, D), such as 0 for a bias without penalty; needs `centred`, and
        L-BFGS as minimiser. None: 1 everywhere.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import SoftmaxLoss
    >>> from transferrisk.solvers import Newton
    >>> loss = SoftmaxLoss(torch.randn(1, 9, 4), torch.randint(2, (1, 9)), torch.full((1, 9), 1 / 9), 2, ridge=0.1)
    >>> Newton().minimise(loss, torch.zeros(1, 2, 4)).converged
    tensor([True])
    """

    rows: Tensor
    labels: Tensor
    weights: Tensor
    num_classes: int
    ridge: float
    centred: bool = False
    gram: Tensor | None = None
    chunks: Sequence[slice] | None = None
    shares: Tensor | None = None

    @cached_property
    def targets(self) -> Tensor:
        """One-hot labels Y, (B, n, C)."""
        return one_hot(self.labels, self.num_classes, self.rows.dtype)

    @cached_property
    def lengths(self) -> Tensor:
        """Norms |Z_i| of the rows, (B, n)."""
        return self.rows.square().sum(-1).sqrt()

    @cached_property
    def unit(self) -> Tensor:
        """Norm of the shortest predictor with a logit of one, (B,)."""
        return 1 / self.lengths.amax(-1).clamp(min=torch.finfo(self.rows.dtype).tiny)

    def hessian(self, x: Tensor) -> Hessian:
        """Return the Hessian at x.

        Parameters
        ----------
        x
            Points, (B, C, D).

        Returns
        -------
        Hessian
            Hessian.
        """
        assert self.shares is None
        return Hessian(self.rows, probabilities_of(logits_of(x, self.rows)), self.weights, self.ridge)

    def linearise(self, x: Tensor) -> Linearisation:
        """Return gradient, Hessian and value at x.

        Parameters
        ----------
        x
            Points, (B, C, D).

        Returns
        -------
        Linearisation
            Gradient, Hessian and value.
        """
        assert self.shares is None
        logits = logits_of(x, self.rows)
        hessian = Hessian(self.rows, probabilities_of(logits), self.weights, self.ridge)
        residual = self.weights.unsqueeze(-1) * softmax_residual(hessian.probabilities, self.targets)

        @cache
        def value() -> Tensor:
            """Return l(x): with k the likeliest class, the loss of a row is L_k - L_y - log S_k."""
            likeliest, own = logits.amax(-1), logits.gather(-1, self.labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
            losses = likeliest - own - hessian.probabilities.amax(-1).log()
            return (self.weights * losses).sum(-1) + 0.5 * self.ridge * euclidean(x, x)

        return Linearisation(
            gradient=torch.baddbmm(x, residual.mT, self.rows, beta=self.ridge),
            scale=(residual.abs().sum(-1) * self.lengths).sum(-1),
            hessian=hessian,
            value=value,
        )

    def along(self, x: Tensor, direction: Tensor, steps: Tensor) -> Tensor:
        """Return the values l(x + t direction) on a line.

        Parameters
        ----------
        x
            Points, (B, C, D).
        direction
            Directions, (B, C, D).
        steps
            Steps t, (T, B).

        Returns
        -------
        Tensor
            Values, (T, B).
        """
        logits, change = logits_of(x, self.rows), logits_of(direction, self.rows)
        moved = logits + steps[..., None, None] * change  # (T, B, n, C)
        square, cross, curve = euclidean(x, x), euclidean(x, direction), euclidean(direction, direction)
        norm = square + 2 * steps * cross + steps.square() * curve
        return (self.weights * row_losses(moved, self.targets)).sum(-1) + 0.5 * self.ridge * norm

    def safe_step(self, direction: Tensor, slope: Tensor, curvature: Tensor) -> Tensor:
        """Return the minimiser t of an upper bound of f(t) = l(x + t direction).

        With b the largest spread max_c U_ic - min_c U_ic over rows i of the logits' change U, the third central
        moment is at most b times the variance, so f''' <= b f'' and f'(t) <= f'(0) + f''(0) (e^(bt) - 1) / b,
        which is zero at t = log(1 + b |f'(0)| / f''(0)) / b.

        Parameters
        ----------
        direction
            Directions, (B, C, D).
        slope, curvature
            First and second derivative f'(0) and f''(0), (B,).

        Returns
        -------
        Tensor
            Steps t, (B,).
        """
        change = logits_of(direction, self.rows)
        spread = change.amax(-1) - change.amin(-1)  # (B, n)
        largest = torch.where(self.weights > 0, spread, 0).amax(-1)
        smallest = torch.finfo(slope.dtype).tiny
        newton = slope.abs() / curvature.clamp(min=smallest)
        bounded = torch.log1p(largest * newton) / largest.clamp(min=smallest)
        return torch.where(largest * newton > 1e-4, bounded, newton)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return values, and gradients to the rounding level of the loss, by few passes over (B, C, n) numbers.

        `linearise` keeps the digits of small residuals as well.

        Parameters
        ----------
        x
            Points, (B, C, D).

        Returns
        -------
        values : Tensor
            Values l(x), (B,).
        gradients : Tensor
            Gradients, (B, C, D).
        """
        shown = x[:, :-1] if self.centred else x
        value, gradient = torch.zeros(len(x), dtype=torch.float64, device=x.device), torch.zeros_like(shown)
        for chunk in self.chunks or [slice(None)]:
            rows, labels, weights = self.rows[..., chunk, :], self.labels[..., chunk], self.weights[:, chunk]
            alike = rows.dim() == 2  # problems in which these rows have weight zero need no product
            those = weights.any(1).nonzero().flatten() if alike else slice(None)
            weights, predictors = weights[those], shown[those].transpose(0, 1)
            logits = x.new_empty(self.num_classes, *weights.shape)  # (C, B, m): each class is contiguous
            others = logits[: len(predictors)]
            if alike:
                torch.mm(predictors.reshape(-1, x.shape[-1]), rows.mT, out=others.view(-1, len(rows)))
            else:
                torch.bmm(predictors.transpose(0, 1), rows.mT, out=others.transpose(0, 1))
            if self.centred:
                torch.sum(others, 0, out=logits[-1]).neg_()
            logs = torch.log_softmax(logits, 0)
            own = labels.clamp(min=0).expand_as(weights).unsqueeze(0)  # padding has weight zero
            value[those] -= (weights * logs.gather(0, own)[0]).sum(1, dtype=torch.float64)
            residual = logs.exp_().scatter_add_(0, own, logs.new_full((1, 1, 1), -1.0).expand_as(own)).mul_(weights)
            residual = residual[: len(predictors)]
            if alike:
                gradient[those] += (residual.view(-1, len(rows)) @ rows).view_as(predictors).transpose(0, 1)
            else:
                gradient += residual.transpose(0, 1) @ rows
        value += 0.5 * self.ridge * euclidean(x, self._penalised(x))
        gradient.add_(self._penalised(shown), alpha=self.ridge)
        # The last class is minus the sum of the others, so that steps of a minimiser stay centred despite rounding.
        return value, torch.cat([gradient, -gradient.sum(1, keepdim=True)], 1) if self.centred else gradient

    def _penalised(self, x: Tensor) -> Tensor:
        return x if self.shares is None else x * self.shares.unsqueeze(1)

    def only(self, kept: Tensor) -> SoftmaxLoss:
        """Return some problems of the batch.

        Parameters
        ----------
        kept
            Whether to keep each problem, (B,) bool.

        Returns
        -------
        SoftmaxLoss
            The problems that are kept.
        """
        shares = self.shares if self.shares is None or len(self.shares) == 1 else self.shares[kept]
        if self.rows.dim() == 2:
            return replace(self, weights=self.weights[kept], shares=shares)
        return replace(self, rows=self.rows[kept], labels=self.labels[kept], weights=self.weights[kept], shares=shares)

    def rough_inverse(self) -> Tensor:
        """Return the approximate inverse Hessian of each class at W = 0, C (Z^T Z / n + C ridge)^-1.

        It leaves out the shares of the ridge, which costs iterations alone.
        """
        gram = self.gram
        if gram is None:
            weighted = self.weights.unsqueeze(-1) * self.rows
            few = self.rows.shape[-1] <= _LARGEST_FACTOR
            gram = weighted.mT @ self.rows if few else (weighted * self.rows).sum(1, keepdim=True)
        damping = self.ridge * self.num_classes
        if gram.shape[1] == 1:
            return self.num_classes / (gram + damping)
        damped = gram + damping * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        return self.num_classes * torch.cholesky_inverse(torch.linalg.cholesky(damped))

    def curvature(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return directions, and the Hessian on them, from a few evenly spaced rows.

        The directions are all of them if the whole Hessian is small, else the constant and those along which the logits
        of x vary.

        Parameters
        ----------
        x
            Points, (B, C, D).

        Returns
        -------
        tuple of Tensor, or None
            Directions (B, b, D), and the Hessian on them (B, C b, C b).
        """
        C, D = x.shape[1:]
        whole = C * D <= _LARGEST_DENSE
        if not whole and self.num_classes > _LARGEST_REFINED:
            return None
        eye = torch.eye(D, dtype=x.dtype, device=x.device)
        if whole:
            directions = eye.expand(len(x), D, D)
        else:
            constant = eye[-1:].expand(len(x), 1, D)
            directions = torch.linalg.qr(torch.cat([x[:, :-1], constant], 1).mT)[0].mT.contiguous()  # (B, b, D)
        b = directions.shape[1]
        counted = self.weights.any(0).nonzero().flatten()
        most = int((self.weights > 0).sum(1).max())
        counted = counted[:: max(1, most // (_ROWS_PER_DIRECTION * C * b))]
        rows, weights = self.rows[..., counted, :], self.weights[:, counted].unsqueeze(1)
        probabilities = torch.softmax(x @ rows.mT, 1)  # (B, C, m)
        along = rows.mT.expand(len(x), -1, -1) if whole else directions @ rows.mT  # (B, b, m)
        products = (probabilities.unsqueeze(2) * along.unsqueeze(1)).flatten(1, 2)  # (B, C b, m)
        weighted = weights / weights.sum(-1, keepdim=True) * products
        hessian = -(weighted @ products.mT)
        own = (weighted @ along.mT).unflatten(1, (C, b))  # (B, C, b, b)
        blocks = torch.diagonal(hessian.view(-1, C, b, C, b), dim1=1, dim2=3)  # (B, b, b, C)
        penalty = self.ridge * self._penalised(directions) @ directions.mT  # (B, b, b)
        blocks.add_((own + penalty.unsqueeze(1)).permute(0, 2, 3, 1))
        if self.centred:  # curvature where all classes change alike: there may be none there, and there is no gradient
            common = torch.eye(b, dtype=x.dtype, device=x.device).repeat(C, C) / C
            hessian = hessian + common
        return directions, hessian


def _class_directions(num_classes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return T (C, C - 1), with orthonormal columns that are orthogonal to the constant."""
    row, column = torch.arange(num_classes, device=device).unsqueeze(1), torch.arange(num_classes - 1, device=device)
    directions = torch.where(row <= column, 1, torch.where(row == column + 1, -row, 0)).to(dtype)
    unit: Tensor = directions / directions.norm(dim=0)
    return unit


@lru_cache(maxsize=_LARGEST_REFINED)
def _class_differences(
    num_classes: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return T, the pairs of classes a < b, (P,) each, and (T_a - T_b)(T_a - T_b)^T, (P, (C - 1)^2)."""
    with torch.inference_mode(False):  # the first call may be in inference mode, and later ones in training
        directions = _class_directions(num_classes, dtype, device)
        a, b = torch.triu_indices(num_classes, num_classes, 1, device=device)
        apart = directions[a] - directions[b]
        return directions, a, b, (apart.unsqueeze(-1) * apart.unsqueeze(-2)).flatten(1)


@dataclass(frozen=True)
class Hessian:
    """Hessian H of the loss at a predictor, given by the probabilities there: a `solvers.System`.

    With G_i = diag(sqrt S_i) - S_i sqrt(S_i)^T the Jacobian of row i is J_i = G_i G_i^T. So H = F^T F + ridge I, where
    the factor F has one row for each row i and class k: F[(i, k), (c, :)] = sqrt(r_i) G_i[c, k] Z_i.

    Attributes
    ----------
    rows, probabilities, weights, ridge
        Rows Z (B, n, D), probabilities S (B, n, C), weights r (B, n), and the ridge.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import SoftmaxLoss
    >>> loss = SoftmaxLoss(torch.randn(1, 9, 4), torch.randint(2, (1, 9)), torch.full((1, 9), 1 / 9), 2, ridge=0.1)
    >>> loss.hessian(torch.zeros(1, 2, 4)).product(torch.ones(1, 2, 4)).shape
    torch.Size([1, 2, 4])
    """

    rows: Tensor
    probabilities: Tensor
    weights: Tensor
    ridge: float

    @cached_property
    def _constants(self) -> tuple[Tensor, Tensor]:
        """Parts of a product that do not depend on V: the likeliest class of each row, (B, n, 1), and r S."""
        return self.probabilities.argmax(-1, keepdim=True), self.weights.unsqueeze(-1) * self.probabilities

    def product(self, vector: Tensor) -> Tensor:
        """Return H[V] = (r J(U))^T Z + ridge V, with J(U) as in `softmax_jacobian`.

        Parameters
        ----------
        vector
            Vectors V, (B, C, D).

        Returns
        -------
        Tensor
            Products, (B, C, D).
        """
        top, weighted = self._constants
        change = logits_of(vector, self.rows)
        change = change.sub_(change.gather(-1, top))
        change = change.sub_((self.probabilities * change).sum(-1, keepdim=True)).mul_(weighted)
        return torch.baddbmm(vector, change.mT, self.rows, beta=self.ridge)

    def dense(self) -> Tensor:
        """Return H as (B, C D, C D), row-major over (class, column)."""
        S = self.probabilities
        return self._assemble(torch.diag_embed(S) - S.unsqueeze(-1) * S.unsqueeze(-2))

    def direct(self, rhs: Tensor) -> Tensor:
        """Return H^-1 rhs, by factoring H.

        H is ridge times the identity on the part that all classes share. C - 1 directions T (C, C - 1), orthonormal and
        orthogonal to the constant, are left to factor: for two classes, an eighth of the work.
        T^T J_i T = sum over a < b of S_ia S_ib (T_a - T_b)(T_a - T_b)^T is a sum of positive terms, in which nothing
        cancels. With many classes there are too many pairs, and it is T^T diag(S_i) T - (T^T S_i)(T^T S_i)^T.

        Parameters
        ----------
        rhs
            Right-hand sides, (B, C, D).

        Returns
        -------
        Tensor
            Solutions, (B, C, D).
        """
        S, C = self.probabilities, rhs.shape[1]
        if C > _LARGEST_REFINED:
            directions = _class_directions(C, S.dtype, S.device)
            mean = S @ directions
            jacobian = directions.mT @ (S.unsqueeze(-1) * directions) - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        else:
            # Tensors that a CUDA graph computes belong to the graph, and must not be cached.
            differences = _class_differences if S.device.type == "cpu" else _class_differences.__wrapped__
            directions, a, b, squares = differences(C, S.dtype, S.device)
            jacobian = ((S[..., a] * S[..., b]) @ squares).unflatten(-1, (C - 1, C - 1))  # (B, n, C - 1, C - 1)
        inside = directions.mT @ rhs
        solved = solve_positive(self._assemble(jacobian), inside.flatten(1)).view_as(inside)
        return directions @ solved + rhs.mean(1, keepdim=True) / self.ridge

    def _assemble(self, jacobian: Tensor) -> Tensor:
        """Return sum over i of r_i J_i (x) Z_i Z_i^T + ridge I, (B, c D, c D), for J (B, n, c, c)."""
        c, D = jacobian.shape[-1], self.rows.shape[-1]
        weighted = self.weights[..., None, None] * jacobian
        dense = self.rows.new_empty(len(self.rows), c, D, c, D)
        for a in range(c):  # one block at a time keeps the largest temporary at n D
            for b in range(a + 1):
                dense[:, a, :, b] = dense[:, b, :, a] = (weighted[:, :, a, b, None] * self.rows).mT @ self.rows
        dense = dense.flatten(3).flatten(1, 2)
        dense.diagonal(dim1=1, dim2=2).add_(self.ridge)
        return dense

    def _root(self) -> Tensor:
        """Return sqrt(r_i) G_i, (B, n, C, C)."""
        S = self.probabilities
        root = S.sqrt()
        factor = torch.diag_embed(root) - S.unsqueeze(-1) * root.unsqueeze(-2)
        return self.weights.sqrt()[..., None, None] * factor

    def factor_gram(self) -> Tensor:
        """Return F F^T, (B, n C, n C)."""
        batch, n, C = self.probabilities.shape
        root = self._root()
        gram = torch.einsum("bick,bij,bjcl->bikjl", root, self.rows @ self.rows.mT, root)
        return gram.reshape(batch, n * C, n * C)

    def factor(self, vector: Tensor) -> Tensor:
        """Return F V.

        Parameters
        ----------
        vector
            Vectors V, (B, C, D).

        Returns
        -------
        Tensor
            Products, (B, n C).
        """
        return torch.einsum("bick,bic->bik", self._root(), logits_of(vector, self.rows)).flatten(1)

    def factor_adjoint(self, rows: Tensor) -> Tensor:
        """Return F^T u.

        Parameters
        ----------
        rows
            Vectors u, (B, n C).

        Returns
        -------
        Tensor
            Products, (B, C, D).
        """
        batch, n, C = self.probabilities.shape
        mixed = torch.einsum("bick,bik->bic", self._root(), rows.reshape(batch, n, C))
        return mixed.mT @ self.rows
