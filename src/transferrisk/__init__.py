"""Transfer risk minimisation: representations whose predictors still work elsewhere."""

from importlib.metadata import PackageNotFoundError, version

from .criterion import TransferRisk, TransferRiskOutput

try:
    __version__ = version("transferrisk")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+source"

__all__ = ["TransferRisk", "TransferRiskOutput", "__version__"]
