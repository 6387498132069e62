"""What the criterion returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..solvers import Solution


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
