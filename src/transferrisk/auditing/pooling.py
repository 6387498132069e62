"""A number of every environment, pooled: its mean over environments, how much they differ, and what a new one may have.

The model of a random-effects meta-analysis. Environment e has the true value theta_e, drawn around the mean mu with the
variance tau^2 between environments, and y_e is what was measured there, with the error variance v_e:

    y_e ~ N(theta_e, v_e),    theta_e ~ N(mu, tau^2)

    Q     = sum w_e (y_e - m)^2,  w_e = 1 / v_e,  m = sum w_e y_e / sum w_e    (Cochran's; about k - 1 where tau = 0)
    tau^2 = max(0, (Q - (k - 1)) / (sum w_e - sum w_e^2 / sum w_e))           (DerSimonian and Laird, 1986)
    I^2   = max(0, (Q - (k - 1)) / Q)                                         (share of the spread that is not error)
    mu    = sum u_e y_e / sum u_e,  u_e = 1 / (v_e + tau^2)
    error = sqrt(max(1, q) / sum u_e),  q = sum u_e (y_e - mu)^2 / (k - 1)    (Knapp and Hartung, 2003)
    low, high = mu -+ t_{k-2} sqrt(tau^2 + error^2)                           (prediction; Higgins et al., 2009)

Knapp and Hartung's factor q is not taken below 1, so that environments that agree by luck do not make the mean surer
than their errors allow (Roever et al., 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from ..errors import InputError
from ..settings import Bound, convert

_LEAST = 1e-9  # an error variance is at least this share of the largest, or of the spread of the values


@dataclass(frozen=True)
class Pooled:
    """The mean over k environments and the heterogeneity between them; nan where k is too small to know.

    mean       mu, of the random-effects model; known from k = 1
    error      its standard error; k = 1: that of the one environment
    tau2       variance between environments; from k = 2, as q and i2
    q          Cochran's Q
    i2         share of the spread that is not error, 0 to 1
    low, high  prediction interval: where a new environment's true value lies; from k = 3
    k          environments whose value and variance are known
    """

    mean: float
    error: float
    tau2: float
    q: float
    i2: float
    low: float
    high: float
    k: int

    @property
    def tau(self) -> float:
        """Deviation between environments."""
        return float(np.sqrt(self.tau2))


def pool(values: Any, variances: Any, confidence: float = 0.95) -> Pooled:
    """Pool a value of every environment, (E,), each with its error variance, (E,), as the module says.

    Environments whose value or variance is not finite are left out. A variance of zero counts as a very small one.
    """
    confidence = convert("confidence", confidence, Annotated[float, Bound(above=0, below=1)])
    y, v = np.asarray(values, float), np.asarray(variances, float)
    if y.ndim != 1 or y.shape != v.shape:
        raise InputError(f"values and variances must be one for each environment, got shapes {y.shape} and {v.shape}")
    if (v < 0).any():
        raise InputError(f"variances must be >= 0, got {v.min():g}")
    there = np.isfinite(y) & np.isfinite(v)
    y, v = y[there], v[there]
    k, nan = len(y), float("nan")
    if k == 0:
        return Pooled(nan, nan, nan, nan, nan, nan, nan, 0)
    if k == 1:
        return Pooled(float(y[0]), float(np.sqrt(v[0])), nan, nan, nan, nan, nan, 1)
    v = np.maximum(v, _LEAST * max(v.max(), y.var(), 1e-30))
    w = 1 / v
    q = float((w * (y - np.average(y, weights=w)) ** 2).sum())
    tau2 = max(0.0, float((q - (k - 1)) / (w.sum() - (w**2).sum() / w.sum())))
    u = 1 / (v + tau2)
    mean = float(np.average(y, weights=u))
    error = float(np.sqrt(max(1.0, (u * (y - mean) ** 2).sum() / (k - 1)) / u.sum()))
    half = t_quantile(confidence, k - 2) * np.sqrt(tau2 + error**2) if k > 2 else nan
    return Pooled(mean, error, tau2, q, max(0.0, 1 - (k - 1) / q) if q else 0.0, mean - half, mean + half, k)


def t_quantile(confidence: float, degrees: float) -> float:
    """How many standard errors either side of a value hold it with this confidence: Student's t, two-sided."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + confidence) / 2))
