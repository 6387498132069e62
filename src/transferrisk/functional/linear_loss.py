"""Softmax loss of a linear predictor, bias included: value, gradient, Hessian.

Conventions
-----------
B  problems in a batch (environments), n rows each, C classes, D = d + 1 columns
rows       Z  (B, n, D)  features with a constant 1 as the last column; a row of padding is all zero
targets    Y  (B, n, C)  one-hot labels
weights    r  (B, n)     weight of each row; 1/n for a mean, 0 for padding
predictor  W  (B, C, D)  bias last; it is penalised like the rest
logits     L  (B, n, C)  Z W^T,   S = softmax(L)

    loss      l(W) = sum_i r_i (logsumexp(L_i) - L_i . Y_i) + ridge/2 |W|^2
    gradient       = (r (S - Y))^T Z + ridge W
    Hessian   H[V] = (r J(U))^T Z + ridge V,    U = Z V^T,    J(U) = S (U - rowsum(S U))

J is the Jacobian of the softmax, a symmetric positive semi-definite C x C matrix per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor


def with_bias(features: Tensor) -> Tensor:
    """Append the constant column: (..., n, d) -> (..., n, d + 1)."""
    return F.pad(features, (0, 1), value=1.0)


def one_hot(labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """(..., n) -> (..., n, C), without the host check of torch's own."""
    return (labels.unsqueeze(-1) == torch.arange(num_classes, device=labels.device)).to(dtype)


def logits_of(predictor: Tensor, rows: Tensor) -> Tensor:
    """L = Z W^T, (B, n, C), laid out in memory with classes outermost: so both products with Z are fast on a CPU."""
    return (predictor @ rows.mT).mT


def cross_entropy(logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum over rows: (..., n, C), (..., n, C), (..., n) -> (...).

    Of a row it is log(1 + sum of e^margin over the other classes), where a margin is a logit minus the true class's:
    written so that a small loss keeps its digits and a large one does not overflow.
    """
    margins = logits - (logits * targets).sum(-1, keepdim=True)
    others = margins.masked_fill(targets > 0, -torch.inf)
    largest = others.amax(-1).clamp(min=0)
    rest = torch.exp(others - largest.unsqueeze(-1)).sum(-1)
    return (weights * (largest + torch.log1p(torch.expm1(-largest) + rest))).sum(-1)


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


def loss(predictor: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, ridge: float) -> Tensor:
    """l(W), (B,)."""
    logits = logits_of(predictor, rows)
    penalty = 0.5 * ridge * predictor.square().sum((-2, -1))
    return cross_entropy(logits, targets, weights) + penalty


def gradient(predictor: Tensor, rows: Tensor, targets: Tensor, weights: Tensor, ridge: float) -> Tensor:
    """dl/dW, (B, C, D)."""
    probabilities = torch.softmax(logits_of(predictor, rows), -1)
    residual = weights.unsqueeze(-1) * softmax_residual(probabilities, targets)
    return residual.mT @ rows + ridge * predictor


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

    @classmethod
    def at(cls, predictor: Tensor, rows: Tensor, weights: Tensor, ridge: float) -> Hessian:
        return cls(rows, torch.softmax(logits_of(predictor, rows), -1), weights, ridge)

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
