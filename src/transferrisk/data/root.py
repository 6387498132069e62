"""Where data sets are kept, and where what can be made again from them is."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "TRANSFERRISK_DATA"
CACHE_VARIABLE = "TRANSFERRISK_CACHE"


def data_root(given: Path | str | None = None) -> Path:
    """`--data-root`, else $TRANSFERRISK_DATA, else the platform's cache folder."""
    if given is not None:
        return Path(given).expanduser()
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).expanduser()
    return _platform_folder()


def cache_root() -> Path:
    """$TRANSFERRISK_CACHE, else the platform's cache folder: a data root may be read-only or shared."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE]).expanduser()
    return _platform_folder()


def _platform_folder() -> Path:
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "transferrisk"
