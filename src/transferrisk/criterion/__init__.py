"""`TransferRisk`: the transfer risk as a module for anybody's training loop."""

from .arguments import Query, Weights
from .module import TransferRisk
from .output import TransferRiskOutput

__all__ = ["Query", "TransferRisk", "TransferRiskOutput", "Weights"]
