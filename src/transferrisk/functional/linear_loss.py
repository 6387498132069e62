"""Softmax loss of a linear predictor, bias included: value, gradient, Hessian.

Conventions
-----------
B  problems in a batch (environments), n rows each, C classes, D = d + 1 columns
rows       Z  (B, n, D)  features with a constant 1 as the last column; a row of padding is all zero
labels     y  (B, n)     in 0..C-1, one-hot Y (B, n, C); padding has -1 and all zero
weights    r  (B, n)     weight of each row; 1/n for a mean, 0 for padding
predictor  W  (B, C, D)  bias last; it is penalised like the rest
logits     L  (B, n, C)  Z W^T,   S = softmax(L)

    loss      l(W) = sum_i r_i (logsumexp(L_i) - L_i . Y_i) + ridge/2 |W|^2
    gradient       = (r (S - Y))^T Z + ridge W
    Hessian   H[V] = (r J(U))^T Z + ridge V,    U = Z V^T,    J(U) = S (U - rowsum(S U))

J is the Jacobian of the softmax, a symmetric positive semi-definite C x C matrix per row.

`SoftmaxLoss` is the loss of a batch of problems; `BlockLoss` is its sum over blocks of rows that many problems share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from ..solvers import Linearisation, euclidean

_LARGEST_FACTOR = 4096  # columns; above, the rough inverse is diagonal
_LARGEST_REFINED = 16  # classes; above, the curvature of their logits costs more than it saves
_ROWS_PER_DIRECTION = 32  # rows that this curvature is estimated from


def with_bias(features: Tensor) -> Tensor:
    """Append the constant column: (..., n, d) -> (..., n, d + 1)."""
    return F.pad(features, (0, 1), value=1.0)


def one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """(..., n) -> (..., n, C), without the host check of torch's own."""
    return (labels.unsqueeze(-1) == torch.arange(num_classes, device=labels.device)).to(dtype)


def logits_of(predictor: Tensor, rows: Tensor) -> Tensor:
    """L = Z W^T, (B, n, C), laid out in memory with classes outermost: so both products with Z are fast on a CPU."""
    return (predictor @ rows.mT).mT


def probabilities_of(logits: Tensor) -> Tensor:
    """softmax(L), (..., n, C), in the same layout, which torch would change first."""
    return torch.softmax(logits, -1) if logits.stride(-1) == 1 else torch.softmax(logits.mT, -2).mT


def row_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each row: (..., n, C), (..., n, C) -> (..., n).

    It is log(1 + sum of e^margin over the other classes), where a margin is a logit minus the true class's: written so
    that a small loss keeps its digits and a large one does not overflow.
    """
    margins = logits - (logits * targets).sum(-1, keepdim=True)
    others = margins.masked_fill(targets > 0, -torch.inf)
    largest = others.amax(-1).clamp(min=0)
    rest = torch.exp(others - largest.unsqueeze(-1)).sum(-1)
    return largest + torch.log1p(torch.expm1(-largest) + rest)


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of the rows' losses: (..., n, C), (..., n, C), (..., n) -> (...)."""
    return (weights * row_losses(logits, targets)).sum(-1)


def softmax_residual(probabilities: Tensor, targets: Tensor) -> Tensor:
    """S - Y for one-hot Y, (..., n, C), with full relative precision where S is close to Y.

    The entry of the true class is minus the sum of the others, not a difference of two numbers close to one:
    small batches are separable, and then everything hangs on these small numbers.
    """
    others = torch.where(targets > 0, 0, probabilities)
    return others - targets * others.sum(-1, keepdim=True)


def softmax_jacobian(probabilities: Tensor, direction: Tensor) -> Tensor:
    """J(U) for S and U of shape (..., n, C).

    J does not change when a constant is added to a row of U. Taking the likeliest class's entry as zero keeps
    the relative precision where one probability is close to one.
    """
    top = probabilities.argmax(-1, keepdim=True)
    moment = probabilities * (direction - direction.gather(-1, top))
    return moment - probabilities * moment.sum(-1, keepdim=True)


def scale_slopes(logits: Tensor, targets: Tensor) -> Tensor:
    """d/ds CE(s L, y) at s = 1 of each row, sum_c (S - Y)_c L_c: (..., n, C), (..., n, C) -> (..., n)."""
    return ((probabilities_of(logits) - targets) * logits).sum(-1)


@dataclass(frozen=True)
class SoftmaxLoss:
    """l(W) of B problems: a `solvers.Problem`, which every minimiser takes.

    `rows` may be (n, D) and `labels` (n,) where all problems share them.

    centred  all W sum to zero over classes, as minimisers do: their logits and their gradients then do as well, and the
             last class needs no product
    chunk    numbers of rows that `evaluate` works on at once, so that they are read while they are in the cache
    """

    rows: Tensor  # (B, n, D)
    labels: Tensor  # (B, n)
    weights: Tensor  # (B, n)
    num_classes: int
    ridge: float
    centred: bool = False
    chunk: int = 1 << 20

    @cached_property
    def targets(self) -> Tensor:
        """Y, (B, n, C)."""
        return one_hot(self.labels, self.num_classes, self.rows.dtype)

    @cached_property
    def lengths(self) -> Tensor:
        """|Z_i|, (B, n)."""
        return self.rows.square().sum(-1).sqrt()

    @cached_property
    def unit(self) -> Tensor:
        """The length of a predictor that moves some logit by one, (B,)."""
        return 1 / self.lengths.amax(-1).clamp(min=torch.finfo(self.rows.dtype).tiny)

    @property
    def zero(self) -> Tensor:
        """The predictors that are zero, (B, C, D)."""
        return self.rows.new_zeros(len(self.weights), self.num_classes, self.rows.shape[-1])

    def value(self, x: Tensor) -> Tensor:
        """l(W), (B,)."""
        data = cross_entropy(logits_of(x, self.rows), self.targets, self.weights)
        return data + 0.5 * self.ridge * euclidean(x, x)

    def hessian(self, x: Tensor) -> Hessian:
        """H at W."""
        return Hessian(self.rows, probabilities_of(logits_of(x, self.rows)), self.weights, self.ridge)

    def linearise(self, x: Tensor) -> Linearisation:
        hessian = self.hessian(x)
        residual = self.weights.unsqueeze(-1) * softmax_residual(hessian.probabilities, self.targets)
        return Linearisation(
            gradient=torch.add(residual.mT @ self.rows, x, alpha=self.ridge),
            scale=(residual.abs().sum(-1) * self.lengths).sum(-1),
            hessian=hessian,
        )

    def along(self, x: Tensor, direction: Tensor, steps: Tensor) -> Tensor:
        logits, change = logits_of(x, self.rows), logits_of(direction, self.rows)
        moved = logits + steps[..., None, None] * change  # (T, B, n, C)
        square, cross, curve = euclidean(x, x), euclidean(x, direction), euclidean(direction, direction)
        norm = square + 2 * steps * cross + steps.square() * curve
        return cross_entropy(moved, self.targets, self.weights) + 0.5 * self.ridge * norm

    def safe_step(self, direction: Tensor, slope: Tensor, curvature: Tensor) -> Tensor:
        """The minimiser of an upper bound of f along the direction.

        With b the largest spread max_c U_ic - min_c U_ic of the logits' change over rows, the third central
        moment is at most b times the variance, so f''' <= b f'' and f'(t) <= f'(0) + f''(0) (e^(bt) - 1) / b,
        which is zero at t = log(1 + b |f'(0)| / f''(0)) / b.
        """
        change = logits_of(direction, self.rows)
        spread = change.amax(-1) - change.amin(-1)  # (B, n)
        largest = torch.where(self.weights > 0, spread, 0).amax(-1)
        smallest = torch.finfo(slope.dtype).tiny
        newton = slope.abs() / curvature.clamp(min=smallest)
        bounded = torch.log1p(largest * newton) / largest.clamp(min=smallest)
        return torch.where(largest * newton > 1e-4, bounded, newton)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """l(W), (B,), and dl/dW to the rounding level of the loss, by few passes over (B, C, n) numbers.

        `linearise` keeps the digits of small residuals as well.
        """
        shown = x[:, :-1].contiguous() if self.centred else x
        value, gradient = torch.zeros(len(x), dtype=torch.float64, device=x.device), torch.zeros_like(shown)
        n = self.labels.shape[-1]
        step = max(1, self.chunk * n // max(1, self.rows.numel()))
        for begin in range(0, n, step):
            chunk = slice(begin, begin + step)
            rows, labels, weights = self.rows[..., chunk, :], self.labels[..., chunk], self.weights[..., chunk]
            logits = shown @ rows.mT  # (B, C, m)
            if self.centred:
                logits = torch.cat([logits, -logits.sum(1, keepdim=True)], 1)
            logs = torch.log_softmax(logits, 1)
            own = labels.clamp(min=0).expand(len(x), -1).unsqueeze(1)  # padding has no weight, whatever its class
            value -= (weights.unsqueeze(1) * logs.gather(1, own)).sum((1, 2), dtype=torch.float64)
            residual = logs.exp_().scatter_add_(1, own, -torch.ones_like(own, dtype=x.dtype)).mul_(weights.unsqueeze(1))
            gradient += residual[:, : shown.shape[1]].contiguous() @ rows
        if self.centred:
            gradient = torch.cat([gradient, -gradient.sum(1, keepdim=True)], 1)
        return value + 0.5 * self.ridge * euclidean(x, x).double(), gradient.add_(x, alpha=self.ridge)

    def only(self, kept: Tensor) -> SoftmaxLoss:
        return replace(self, rows=self.rows[kept], labels=self.labels[kept], weights=self.weights[kept])

    def rough_inverse(self) -> Tensor:
        """About the inverse Hessian at W = 0, ((1/C) Z^T Z / n + ridge)^-1."""
        weighted = self.weights.unsqueeze(-1) * self.rows
        if self.rows.shape[-1] > _LARGEST_FACTOR:
            return rough_inverse((weighted * self.rows).sum(1, keepdim=True), self.num_classes, self.ridge)
        return rough_inverse(weighted.mT @ self.rows, self.num_classes, self.ridge)

    def curvature(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.num_classes > _LARGEST_REFINED:
            return None
        directions = logit_directions(x)
        hessian = self.hessian_along(x, directions)
        return directions, hessian + self.ridge * torch.eye(hessian.shape[-1], dtype=x.dtype, device=x.device)

    def hessian_along(self, x: Tensor, directions: Tensor) -> Tensor:
        """H without its ridge on classes x directions (B, b, D), (B, C b, C b)."""
        probabilities = torch.softmax(x @ self.rows.mT, 1)  # (B, C, n)
        C, b = x.shape[1], directions.shape[1]
        along = directions @ self.rows.mT  # (B, b, n)
        products = (probabilities.unsqueeze(2) * along.unsqueeze(1)).flatten(1, 2)  # (B, C b, n)
        weighted = self.weights.unsqueeze(1) * products
        hessian = -(weighted @ products.mT)
        own = (weighted @ along.mT).unflatten(1, (C, b))  # (B, C, b, b)
        torch.diagonal(hessian.view(-1, C, b, C, b), dim1=1, dim2=3).add_(own.permute(0, 2, 3, 1))
        return hessian


@dataclass(frozen=True)
class Hessian:
    """H at a predictor, held by the probabilities there; a `solvers.System`.

    With G_i = diag(sqrt S_i) - S_i sqrt(S_i)^T the Jacobian is J_i = G_i G_i^T, so that H = F^T F + ridge I
    where the factor F has one row for each sample i and class k: F[(i, k), (c, :)] = sqrt(r_i) G_i[c, k] Z_i.
    """

    rows: Tensor  # (B, n, D)
    probabilities: Tensor  # (B, n, C)
    weights: Tensor  # (B, n)
    ridge: float

    def product(self, vector: Tensor) -> Tensor:
        """H[V], (B, C, D): `softmax_jacobian` with all that does not depend on V computed once."""
        change = logits_of(vector, self.rows)
        change = change - change.gather(-1, self._top)
        mean = (self.probabilities * change).sum(-1, keepdim=True)
        return torch.add((self._weighted * (change - mean)).mT @ self.rows, vector, alpha=self.ridge)

    @cached_property
    def _top(self) -> Tensor:
        return self.probabilities.argmax(-1, keepdim=True)

    @cached_property
    def _weighted(self) -> Tensor:
        return self.weights.unsqueeze(-1) * self.probabilities

    def dense(self) -> Tensor:
        """H as (B, C D, C D), row-major over (class, column)."""
        S, Z = self.probabilities, self.rows
        batch, _, C = S.shape
        D = Z.shape[-1]
        jacobian = torch.diag_embed(S) - S.unsqueeze(-1) * S.unsqueeze(-2)  # (B, n, C, C)
        weighted = self.weights[..., None, None] * jacobian
        # One class at a time keeps the largest temporary at n C D instead of n C D C.
        blocks = [torch.einsum("bnc,bnd,bne->bdce", weighted[:, :, k], Z, Z) for k in range(C)]
        dense = torch.stack(blocks, 1).reshape(batch, C * D, C * D)  # (B, k, d, c, e)
        return dense + self.ridge * torch.eye(C * D, dtype=Z.dtype, device=Z.device)

    def _root(self) -> Tensor:
        """sqrt(r_i) G_i, (B, n, C, C)."""
        S = self.probabilities
        root = S.sqrt()
        factor = torch.diag_embed(root) - S.unsqueeze(-1) * root.unsqueeze(-2)
        return self.weights.sqrt()[..., None, None] * factor

    def factor_gram(self) -> Tensor:
        """F F^T, (B, n C, n C)."""
        batch, n, C = self.probabilities.shape
        root = self._root()
        gram = torch.einsum("bick,bij,bjcl->bikjl", root, self.rows @ self.rows.mT, root)
        return gram.reshape(batch, n * C, n * C)

    def factor(self, vector: Tensor) -> Tensor:
        """F V, (B, n C)."""
        return torch.einsum("bick,bic->bik", self._root(), logits_of(vector, self.rows)).flatten(1)

    def factor_adjoint(self, rows: Tensor) -> Tensor:
        """F^T u, (B, C, D)."""
        batch, n, C = self.probabilities.shape
        mixed = torch.einsum("bick,bik->bic", self._root(), rows.reshape(batch, n, C))
        return mixed.mT @ self.rows


@dataclass(frozen=True)
class BlockLoss:
    """The losses of K problems on a table (n, D) that they share: the mean over the blocks of rows that each includes.

    A `solvers.Evaluated`. The weights of all problems that include a block stand side by side in one product with it.
    All W sum to zero over classes.

    gram   about the mean of z z^T over the rows, (1, D, D), or its diagonal, (1, 1, D); a bad one costs iterations, not
           accuracy
    chunk  numbers of rows that are worked on at once
    """

    rows: Tensor  # (n, D)
    labels: Tensor  # (n,)
    blocks: Sequence[slice]  # of rows
    included: Tensor  # (K, blocks) bool; every problem includes some row
    num_classes: int
    ridge: float
    gram: Tensor
    chunk: int = 1 << 20

    @cached_property
    def sizes(self) -> Tensor:
        """Rows of each problem, (K,) float64."""
        lengths = torch.tensor([block.stop - block.start for block in self.blocks], dtype=torch.float64)
        return self.included.double() @ lengths

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if bool(x.any()):
            return self._sum(x)
        # At zero, where fits begin, problems differ in the blocks they include only: each block is read for one.
        alone = replace(self, included=torch.eye(len(self.blocks), dtype=torch.bool))
        value, gradient = alone._sum(x.new_zeros(len(self.blocks), *x.shape[1:]))
        shares = self.included * alone.sizes / self.sizes.unsqueeze(1)
        return shares @ value, (shares.to(x.dtype) @ gradient.flatten(1)).view_as(x)

    def _sum(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = 0.5 * self.ridge * euclidean(x, x).double(), self.ridge * x
        for those, loss in self._losses():
            some, change = loss.evaluate(x[those])
            value[those] += some
            gradient[those] += change
        return value, gradient

    def only(self, kept: Tensor) -> BlockLoss:
        return replace(self, included=self.included[kept])

    def rough_inverse(self) -> Tensor:
        return rough_inverse(self.gram, self.num_classes, self.ridge)

    def curvature(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """The curvature from evenly spaced rows, since it needs few."""
        if self.num_classes > _LARGEST_REFINED:
            return None
        directions = logit_directions(x)
        size = self.num_classes * directions.shape[1]
        stride = max(1, int(self.sizes.max()) // (_ROWS_PER_DIRECTION * size))
        hessian, share = x.new_zeros(len(x), size, size), torch.zeros_like(self.sizes)
        for those, loss in self._losses(stride):
            hessian[those] += loss.hessian_along(x[those], directions[those])
            share[those] += len(loss.labels) / self.sizes[those]
        hessian /= share.to(x.dtype)[:, None, None]
        return directions, hessian + self.ridge * torch.eye(size, dtype=x.dtype)

    def _losses(self, stride: int = 1) -> Iterator[tuple[Tensor, SoftmaxLoss]]:
        """Problems, and their loss without its ridge on every `stride`-th row of a block that they include."""
        for included, block in zip(self.included.unbind(1), self.blocks, strict=True):
            those, rows = included.nonzero().flatten(), self.rows[block][::stride]
            if len(those) and len(rows):
                weights = (1 / self.sizes[those]).to(rows.dtype).unsqueeze(1).expand(-1, len(rows))
                labels = self.labels[block][::stride]
                yield those, SoftmaxLoss(rows, labels, weights, self.num_classes, 0.0, True, self.chunk)


def rough_inverse(gram: Tensor, num_classes: int, ridge: float) -> Tensor:
    """C (Z^T Z / n + C ridge)^-1 from the mean of z z^T, (B, D, D), or from its diagonal, (B, 1, D)."""
    if gram.shape[1] == 1:
        return num_classes / (gram + ridge * num_classes)
    damped = gram + ridge * num_classes * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return num_classes * torch.cholesky_inverse(torch.linalg.cholesky(damped))


def logit_directions(x: Tensor) -> Tensor:
    """Orthonormal directions (B, b, D) along which logits of the predictors x (B, C, D) vary, and the constant."""
    constant = torch.zeros_like(x[:, :1])
    constant[..., -1] = 1.0
    basis: Tensor = torch.linalg.qr(torch.cat([x[:, :-1], constant], 1).mT)[0]
    return basis.mT.contiguous()
