"""The paper's equations as pure functions of tensors: optimal predictors, transfer risk, penalties of the baselines."""

from .linear_loss import Hessian, SoftmaxLoss, environment_means
from .penalties import (
    irm_penalty,
    irm_predictor_penalty,
    risk_variance,
)
from .predictor import Fit, fit_rows, implicit_vjp, optimal_predictor, solve_predictor
from .transfer import Transfer, transfer_matrix, transfer_risk
from .weights import exponentiated_gradient, given_weights, uniform_weights, worst_weights

__all__ = [
    "Fit",
    "Hessian",
    "SoftmaxLoss",
    "Transfer",
    "environment_means",
    "exponentiated_gradient",
    "fit_rows",
    "given_weights",
    "implicit_vjp",
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
