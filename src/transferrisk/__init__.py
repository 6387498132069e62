"""Transfer risk minimisation: representations whose predictors still work elsewhere.

Names are imported when they are first used, so that `import transferrisk` and the command line do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import algorithms, errors, functional, solvers
    from .auditing import Audit, audit
    from .criterion import TransferRisk, TransferRiskOutput

try:
    __version__ = version("transferrisk")
except PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+source"

__all__ = [
    "Audit",
    "TransferRisk",
    "TransferRiskOutput",
    "__version__",
    "algorithms",
    "audit",
    "errors",
    "functional",
    "solvers",
]

_HOME = {
    "Audit": "auditing",
    "TransferRisk": "criterion",
    "TransferRiskOutput": "criterion",
    "audit": "auditing",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
