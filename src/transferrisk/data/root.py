"""Where data sets are kept: `--data-root`, else $TRANSFERRISK_DATA, else the platform's cache folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "TRANSFERRISK_DATA"


def data_root(given: Path | str | None = None) -> Path:
    if given is not None:
        return Path(given).expanduser()
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE]).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return base / "transferrisk"
