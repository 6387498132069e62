"""A table with hospitals, and a model for the next one.

Age has the same effect everywhere; the reading of a device has another effect at each hospital. Candidates are
compared in held-out hospitals, and the chosen one predicts for a hospital that was not in the table: once with all
columns, once without those whose effect differs between hospitals. `trm fit --drop-unstable` and `trm predict` do the
same from the command line.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from transferrisk.data import Options
from transferrisk.fitting import Plan, fit, load_model, save_fit

SHIFTS = {"north": 3.0, "east": 1.5, "south": 0.0, "west": -1.5, "new": -3.0}


def patients(hospital: str, rows: int, rng: np.random.Generator) -> pd.DataFrame:
    ill = rng.integers(2, size=rows)
    return pd.DataFrame(
        {
            "age": rng.normal(50, 10, rows) + 14 * ill,
            "device": rng.normal(size=rows) + SHIFTS[hospital] * (ill - 0.5),
            "smoker": np.where(rng.random(rows) < 0.3 + 0.2 * ill, "yes", "no"),
            "ill": np.where(ill == 1, "yes", "no"),
            "hospital": hospital,
        }
    )


def accuracies(drop_unstable: bool, rows: int = 200, seed: int = 0) -> pd.Series:
    """Accuracy in each hospital by a model that was not trained on it."""
    rng = np.random.default_rng(seed)
    known = pd.concat([patients(name, rows, rng) for name in SHIFTS if name != "new"])
    new = patients("new", 1000, rng)
    with TemporaryDirectory() as folder:
        table = Path(folder) / "known.csv"
        known.to_csv(table, index=False)
        plan = Plan(algorithms=("majority", "linear"), drop_unstable=drop_unstable, workers=1)
        fitted = fit(table, Options(label="ill", environment="hospital"), plan)
        save_fit(fitted, Path(folder) / "model")
        model = load_model(Path(folder) / "model")
    predicted = np.asarray(model.classes)[model.predict_proba(new.drop(columns=["ill", "hospital"])).argmax(1)]
    held_out = fitted.comparison.accuracy[fitted.choice.algorithm]
    return pd.concat([held_out, pd.Series({"new": np.mean(predicted == new["ill"])})])


def main(picture: str | None = None) -> None:
    table = pd.DataFrame({"all columns": accuracies(False), "without unstable ones": accuracies(True)})
    print("Accuracy in a hospital that was not trained on, %:")
    print((100 * table).round(1).to_string())
    if picture:
        (100 * table).plot.bar(ax=plt.gca(), rot=0)
        plt.ylabel("accuracy, %")
        plt.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
        plt.savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
