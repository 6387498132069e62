"""Penalties that baselines add to the empirical risk, and risks that they minimise in its place.

Shapes: features (n, d), logits (n, C), labels (n,) in 0..C-1, index (n,) of environments in 0..E-1, risks (E,).
"""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

from .checks import working_dtype
from .linear_loss import environment_means, environment_weights, one_hot, scale_slopes, with_bias
from .predictor import full_precision


def environment_shares(
    index: Tensor, num_environments: int, dtype: torch.dtype, sample_weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the share of each sample in the mean of its environment, (n, E), and which are present, (E,) bool."""
    member, total = environment_weights(index, num_environments, dtype, sample_weights)
    return member / torch.where(total > 0, total, 1), total > 0


def irm_penalty(
    logits: Tensor,
    labels: Tensor,
    index: Tensor,
    num_environments: int,
    sample_weights: Tensor | None = None,
    *,
    halves: bool = False,
) -> Tensor:
    """Return IRMv1's penalty of each environment, (dR_e/ds)^2 at s = 1 for the risk R_e of logits s L.

    The derivative is in closed form, sum_c (S - Y)_c L_c for each sample, so that no double backward is needed.

    Parameters
    ----------
    logits
        Logits L, (n, C).
    labels, index
        Class and environment of each sample, (n,).
    num_environments
        Number E of environments.
    sample_weights
        Weight of each sample, (n,). None: all the same.
    halves
        Whether to return the product of the derivatives on every other sample and on the rest. It estimates the square
        without bias, may be negative, and is 0 for an environment of one sample.

    Returns
    -------
    Tensor
        Penalties, (E,); 0 for an absent environment.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import irm_penalty
    >>> irm_penalty(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]), 2)
    tensor([0., 0.])
    """
    slopes = scale_slopes(logits, one_hot(labels, logits.shape[-1], logits.dtype))
    if halves:
        count = one_hot(index, num_environments, torch.int64).cumsum(0)  # of each environment's samples so far, (n, E)
        half = count.gather(1, index.unsqueeze(1)).squeeze(1) % 2
        means, _ = environment_means(slopes, 2 * index + half, 2 * num_environments, sample_weights)
        return means.view(num_environments, 2).prod(1)
    return environment_means(slopes, index, num_environments, sample_weights)[0].square()


def irm_predictor_penalty(
    features: Tensor,
    logits: Tensor,
    labels: Tensor,
    index: Tensor,
    num_environments: int,
    sample_weights: Tensor | None = None,
) -> Tensor:
    """Return IRM's penalty of each environment for the whole linear predictor, |dR_e/dW|^2 (eq. 2 of the paper).

    dR_e/dW is the mean of (S - Y)^T [Z, 1] over environment e, bias included.

    Parameters
    ----------
    features, logits
        Features Z (n, d) and logits (n, C).
    labels, index
        Class and environment of each sample, (n,).
    num_environments
        Number E of environments.
    sample_weights
        Weight of each sample, (n,). None: all the same.

    Returns
    -------
    Tensor
        Penalties, (E,); 0 for an absent environment.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import irm_predictor_penalty
    >>> features, logits = torch.tensor([[1.0], [1.0]]), torch.zeros(2, 2)
    >>> irm_predictor_penalty(features, logits, torch.tensor([0, 1]), torch.tensor([0, 1]), 2)
    tensor([1., 1.])
    """
    with full_precision(features.device):
        logits, features = (t.to(working_dtype(t.dtype)) for t in (logits, features))
        residual = torch.softmax(logits, -1) - one_hot(labels, logits.shape[-1], logits.dtype)
        share, _ = environment_shares(index, num_environments, logits.dtype, sample_weights)
        by_weight = torch.einsum("ne,nc,nd->ecd", share, residual, features)
        by_bias = share.mT @ residual  # (E, C)
        return by_weight.square().sum((1, 2)) + by_bias.square().sum(1)


def risk_variance(risks: Tensor, present: Tensor) -> Tensor:
    """Return V-REx: the population variance of the risks of the environments that are present.

    Parameters
    ----------
    risks, present
        Risk of each environment, (E,), and which environments are present, (E,) bool.

    Returns
    -------
    Tensor
        Variance, a scalar.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import risk_variance
    >>> risk_variance(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False]))
    tensor(1.)
    """
    count = present.sum().clamp(min=1)
    mean = torch.where(present, risks, 0).sum() / count
    return torch.where(present, (risks - mean).square(), 0).sum() / count


def pair_distance(values: Tensor, present: Tensor) -> Tensor:
    """Return the mean, over pairs of present environments and over entries, of (a_e - a_f)^2 for values a (E, ...).

    With k present environments and their mean m it is 2 / (k - 1) sum_e mean (a_e - m)^2; 0 for a single one.
    """
    values = values.flatten(1)
    there = present.unsqueeze(-1).to(values.dtype)
    count = there.sum()
    deviations = there * (values - (there * values).sum(0) / count.clamp(min=1))
    return 2 * deviations.square().sum(0).mean() / (count - 1).clamp(min=1)


def moment_distance(
    features: Tensor, index: Tensor, num_environments: int, sample_weights: Tensor | None = None
) -> Tensor:
    """Return CORAL's penalty: the mean over pairs of environments of mean (m_e - m_f)^2 + mean (S_e - S_f)^2.

    m_e (d,) is the mean and S_e (d, d) the covariance of the features in e; the inner means are over entries.
    """
    with full_precision(features.device):
        features = features.to(working_dtype(features.dtype))
        share, present = environment_shares(index, num_environments, features.dtype, sample_weights)
        means = share.mT @ features  # (E, d)
        centred = features - means[index]
        covariances = (share.mT.unsqueeze(-1) * centred).mT @ centred  # (E, d, d)
        return pair_distance(means, present) + pair_distance(covariances, present)


def gradient_variances(
    features: Tensor,
    logits: Tensor,
    labels: Tensor,
    index: Tensor,
    num_environments: int,
    sample_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return Fishr's variances, over the samples of each environment, of the linear head's gradients, (E, C, d + 1).

    The gradient of sample i is (s_i - y_i) [z_i, 1]^T and its square (s_i - y_i)^2 [z_i^2, 1]^T, so that two matrix
    products give the means of both. The second value tells which environments are present, (E,) bool.
    """
    with full_precision(features.device):
        logits, rows = (t.to(working_dtype(t.dtype)) for t in (logits, with_bias(features)))
        residual = torch.softmax(logits, -1) - one_hot(labels, logits.shape[-1], logits.dtype)
        share, present = environment_shares(index, num_environments, logits.dtype, sample_weights)
        share = share.mT.unsqueeze(-1)  # (E, n, 1)
        mean = (share * residual).mT @ rows
        mean_square = (share * residual.square()).mT @ rows.square()
        return mean_square - mean.square(), present


def risk_quantile(risks: Tensor, present: Tensor, alpha: float, kernels: bool = True) -> Tensor:
    """Return EQRM's risk: the alpha-quantile q of the distribution of risks R (E,) over environments.

    With `kernels` the distribution is a density of normal kernels around the k risks that are present, of the bandwidth
    h = 1.06 std k^(-1/5) that is best if these are normal; else it is normal with their mean and standard deviation.

    Invariant: mean_e Phi((q - R_e) / h) = alpha. So with u_e = (q - R_e) / h and weights w_e proportional to phi(u_e)
    the differential of q is sum_e w_e (dR_e + u_e dh), and q itself is sum_e w_e (R_e + u_e h).
    """
    there = present.to(risks.dtype)
    count = there.sum()
    mean = (there * risks).sum() / count
    variance = (there * (risks - mean).square()).sum() / (count - 1).clamp(min=1)
    deviation = variance.clamp(min=torch.finfo(risks.dtype).tiny).sqrt()
    normal = NormalDist().inv_cdf(alpha)
    if not kernels:
        return mean + normal * deviation
    width = 1.06 * deviation * count.pow(-0.2)
    with torch.no_grad():
        centre = torch.where(present, risks, mean)
        low, high = centre.min() + normal * width, centre.max() + normal * width
        steps = torch.linspace(0, 1, _POINTS, dtype=risks.dtype, device=risks.device)
        digits = -math.log2(torch.finfo(risks.dtype).eps)
        for _ in range(math.ceil(digits / math.log2(_POINTS - 1)) + 1):  # each iteration divides the bracket
            grid = low + (high - low) * steps
            below = (_share_below(grid, risks, there, width) < alpha).sum().clamp(1, _POINTS - 1)
            low, high = grid.take(below - 1), grid.take(below)  # an index would be read from the device
        quantile = (low + high) / 2
        units = (quantile - risks) / width
        log_density = torch.where(present, -0.5 * units.square(), -torch.inf)
        weights = torch.softmax(log_density, 0)
    value: Tensor = (weights * (torch.where(present, risks, 0) + torch.where(present, units, 0) * width)).sum()
    return value


_POINTS = 65  # points of the distribution function in a bracket around the quantile


def _share_below(points: Tensor, risks: Tensor, there: Tensor, width: Tensor) -> Tensor:
    """Return mean_e Phi((t - R_e) / h) at each point t, (T,)."""
    units = (points.unsqueeze(-1) - risks) / (math.sqrt(2) * width)
    share: Tensor = (there * torch.special.erfc(-units)).sum(-1) / (2 * there.sum())
    return share
