"""Reading results with pandas.

`trm experiment` stores one row for each evaluation, part of the data and environment. This program reads the results of
figure 4 from the repository, selects an evaluation of each run by validation data of the training environments, and
draws accuracy against the bias of the second environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from transferrisk.results import read_table, values_at_selected

RECORDS = Path(__file__).parents[1] / "results" / "paper" / "cmnist-defaults" / "records.parquet"
METHODS = ("ERM", "GroupDRO", "MLDG", "TRM")


def accuracies(rule: str = "training_domain") -> pd.DataFrame:
    """Mean accuracy over seeds in the test environment: bias x method."""
    records = read_table(RECORDS)
    records = records[(records["shift"] == "label-correlated") & records["method"].isin(METHODS)]
    runs = records.drop_duplicates("run")[["run", "method", "bias", "seed"]]
    selected = values_at_selected(records, rule, ["accuracy"]).merge(runs, on="run")
    return selected.pivot_table("accuracy", "bias", "method").rename_axis(columns=None)


def main(picture: str | None = None) -> None:
    table = accuracies()
    print(table.round(1))
    if picture:
        table.plot(ax=plt.gca(), marker="o")
        plt.ylabel("accuracy in the test environment, %")
        plt.savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
