"""The paper's equations as pure functions on tensors."""

from .linear_loss import Hessian
from .penalties import (
    environment_means,
    exponentiated_gradient,
    irm_penalty,
    irm_predictor_penalty,
    risk_variance,
)
from .predictor import inverse_hessian_product, optimal_predictor, solve_predictor
from .transfer import (
    Transfer,
    given_weights,
    transfer_matrix,
    transfer_risk,
    uniform_weights,
    worst_weights,
)

__all__ = [
    "Hessian",
    "Transfer",
    "environment_means",
    "exponentiated_gradient",
    "given_weights",
    "inverse_hessian_product",
    "irm_penalty",
    "irm_predictor_penalty",
    "optimal_predictor",
    "risk_variance",
    "solve_predictor",
    "transfer_matrix",
    "transfer_risk",
    "uniform_weights",
    "worst_weights",
]
