"""Optional packages: the one place where they are imported."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

from .errors import InputError

if TYPE_CHECKING:
    from torch.library import Library


def require(module: str, extra: str | None = None) -> ModuleType:
    """Import and return a module of an optional package, such as require("pycocotools.mask", "coco").

    Where it is missing, the error names the extra to install, or the package itself if it belongs to no extra.
    """
    package = module.partition(".")[0]
    if find_spec(package) is None:
        wanted = package if extra is None else f"'transferrisk[{extra}]'"
        raise InputError(f"{package} is not installed: pip install {wanted}")
    if package == "timm":
        require("torchvision", extra)
    if package == "torchvision":
        _import_torchvision()
    return import_module(module)


def _import_torchvision() -> None:
    """Import torchvision, also where its compiled operators do not fit the torch beside it.

    PyPI's torchvision is compiled for CUDA. Beside a CPU-only torch its library cannot be loaded, which torchvision
    allows, except that it describes two operators which then do not exist. Declaring these two mends the import.
    """
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for half_imported in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[half_imported]
        _declare_operators()
        import_module("torchvision")


@cache  # a declaration lives as long as its Library object
def _declare_operators() -> Library:
    import torch

    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
