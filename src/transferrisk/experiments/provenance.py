"""With what a result was made."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch


@cache
def commit() -> str | None:
    """The commit of the source tree this runs from; None when it is installed elsewhere or there is no git.

    With "-dirty" where the tree has changes beyond it. It is what it was when first asked for: long runs outlive
    commits, and ask as they begin.
    """
    root = Path(__file__).parents[3]
    if not (root / ".git").exists() or not (root / "src" / "transferrisk").is_dir():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        head = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return head.stdout.strip() if head.returncode == 0 else None


def hardware(device: str = "cpu") -> str:
    """What computes there; "auto" is a GPU where there is one."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name(None if device == "auto" else device)
    return f"{os.cpu_count()} CPU cores, {_processor()}, {platform.system()}"


@cache
def _processor() -> str:
    """Its model where the system tells, else its kind."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, model = line.partition(":")
            if name.strip() == "model name" and model.strip():
                return " ".join(model.split())
    return platform.processor() or platform.machine()
