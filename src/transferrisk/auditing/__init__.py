"""Whether features will transfer, told before a model is trained on them or put to use."""

from .intervals import Estimate
from .report import Audit, WorstPair
from .run import audit

__all__ = ["Audit", "Estimate", "WorstPair", "audit"]
