"""Who has work next year? Real people in Massachusetts, 2015 to 2018; the environment is the year.

The table is the part of the American Community Survey that comes with the wheel of `nannyml`, 278 000 rows. The wheel
is downloaded and read as an archive, not installed. The predictions of its authors' model are dropped. Models are
fitted on the years up to 2017; 2018 is the new year.

    python examples/employment.py work/

Writes work/past.parquet and work/next.parquet, then runs `trm audit`, `trm fit` and `trm predict` on them.
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path

import pandas as pd
from shared import audit_fit_predict, download_wheel, parse

REQUIREMENT = "nannyml==0.13.1"
SHA256 = "cf5f4a33489834ae6773cb1baa33a0f98c0a3ee6ed9b43049478b25ce22fe869"
PARTS = "nannyml/datasets/data/employment_MA_{}.pq"
NOT_FEATURES = ["id", "prediction", "predicted_probability"]


def survey(wheel: Path) -> pd.DataFrame:
    """One row for each person: age, education, marriage, ..., `employed` (0 or 1) and `year`."""
    with zipfile.ZipFile(wheel) as archive:

        def part(name: str) -> pd.DataFrame:
            return pd.read_parquet(io.BytesIO(archive.read(PARTS.format(name))))

        later = part("analysis").merge(part("analysis_target"), on="id", validate="one_to_one")
        people = pd.concat([part("reference"), later], ignore_index=True)
    return people.drop(columns=NOT_FEATURES)


def main(arguments: list[str]) -> None:
    asked = parse(__doc__, arguments)
    people = survey(download_wheel(REQUIREMENT, SHA256, asked.folder))
    if asked.rows is not None:
        people = people.sample(asked.rows, random_state=0)
    past, following = asked.folder / "past.parquet", asked.folder / "next.parquet"
    people[people.year < 2018].to_parquet(past)
    people[people.year == 2018].to_parquet(following)
    audit_fit_predict(past, following, ["--label", "employed", "--environment", "year"], asked.fit)


if __name__ == "__main__":
    main(sys.argv[1:])
