"""Where data sets are kept, and where what can be made again from them is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..errors import InputError

VARIABLE = "TRANSFERRISK_DATA"
CACHE_VARIABLE = "TRANSFERRISK_CACHE"


def expanded(path: Path | str) -> Path:
    """A path whose ~ is a home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"{path}: there is no home folder {Path(path).parts[0]}: write the path in full") from None


def data_root(given: Path | str | None = None) -> Path:
    """`--data-root`, else $TRANSFERRISK_DATA, else the platform's cache folder."""
    if given is not None:
        return expanded(given)
    if os.environ.get(VARIABLE):
        return expanded(os.environ[VARIABLE])
    return _platform_folder()


def cache_root() -> Path:
    """$TRANSFERRISK_CACHE, else the platform's cache folder: a data root may be read-only or shared."""
    if os.environ.get(CACHE_VARIABLE):
        return expanded(os.environ[CACHE_VARIABLE])
    return _platform_folder()


def _platform_folder() -> Path:
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or expanded("~/AppData/Local"))
    elif sys.platform == "darwin":
        base = expanded("~/Library/Caches")
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or expanded("~/.cache"))
    return base / "transferrisk"
