"""The folders of data sets and of caches."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..files import expand_home

VARIABLE = "TRANSFERRISK_DATA"
CACHE_VARIABLE = "TRANSFERRISK_CACHE"


def data_root(given: Path | str | None = None) -> Path:
    """Return the folder of the data sets: `given`, else $TRANSFERRISK_DATA, else the platform's cache folder."""
    if given is not None:
        return expand_home(given)
    return _from_environment(VARIABLE) or _platform_folder()


def cache_root() -> Path:
    """Return the folder of caches, $TRANSFERRISK_CACHE or the platform's: a data root may be read-only."""
    return _from_environment(CACHE_VARIABLE) or _platform_folder()


def _from_environment(variable: str) -> Path | None:
    return expand_home(os.environ[variable]) if os.environ.get(variable) else None


def _platform_folder() -> Path:
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or expand_home("~/AppData/Local"))
    elif sys.platform == "darwin":
        base = expand_home("~/Library/Caches")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or expand_home("~/.cache"))
    return base / "transferrisk"
