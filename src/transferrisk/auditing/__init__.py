"""Audits of features: how well linear predictors on them transfer between environments."""

from .report import Audit, Estimate, WorstPair
from .run import audit

__all__ = ["Audit", "Estimate", "WorstPair", "audit"]
