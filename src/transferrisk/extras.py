"""The one place where optional packages are asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from .errors import InputError


def require(module: str, extra: str) -> ModuleType:
    """A module of a package that comes with an extra, such as require("pycocotools.mask", "coco")."""
    package = module.partition(".")[0]
    if find_spec(package) is None:
        raise InputError(f"{package} is not installed: pip install 'transferrisk[{extra}]'")
    return import_module(module)
