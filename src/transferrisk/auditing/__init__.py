"""Audits of features: will predictors on them transfer, before a model is trained on them or put to use?"""

from .report import Audit, Estimate, WorstPair
from .run import audit

__all__ = ["Audit", "Estimate", "WorstPair", "audit"]
