"""A pipeline with GridSearchCV.

A pipeline of an imputer and `TransferRiskClassifier`, with settings chosen in held-out environments. By metadata
routing, one array of sites is passed to both the splitter and the classifier.
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

from transferrisk.sklearn import LeaveOneEnvironmentOut, TransferRiskClassifier


def sites(per_site: int = 300, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.str_]]:
    """Four sites. Two measurements predict the label everywhere; a third has another relation to it at each site."""
    rng = np.random.default_rng(seed)
    names = np.repeat(["north", "east", "south", "west"], per_site)
    labels = rng.integers(2, size=len(names))
    sign = 2 * labels - 1
    inputs = rng.normal(size=(len(names), 5))
    inputs[:, :2] += 0.7 * sign[:, None]
    inputs[:, 2] += np.select([names == "north", names == "east", names == "south"], [2.0, 1.0, 0.0], -1.0) * sign
    inputs[rng.random(inputs.shape) < 0.02] = np.nan
    return inputs, labels, names


def search(per_site: int = 300) -> GridSearchCV:
    X, y, site = sites(per_site)
    pipeline = Pipeline([("impute", SimpleImputer()), ("model", TransferRiskClassifier(random_state=0))])
    grid = {"model__algorithm": ["erm", "groupdro", "trm"]}
    with sklearn.config_context(enable_metadata_routing=True):
        return GridSearchCV(pipeline, grid, cv=LeaveOneEnvironmentOut()).fit(X, y, environments=site)


def main(picture: str | None = None) -> None:
    found = search()
    names = ["east", "north", "south", "west"]  # the order of the splits
    scores = {
        row["model__algorithm"]: [found.cv_results_[f"split{i}_test_score"][place] for i in range(4)]
        for place, row in enumerate(found.cv_results_["params"])
    }
    for algorithm, values in scores.items():
        by_site = ", ".join(f"{name} {value:.3f}" for name, value in zip(names, values, strict=True))
        print(f"{algorithm}: {by_site}, mean {np.mean(values):.3f}")
    print("chosen:", found.best_params_["model__algorithm"])
    if picture:
        for algorithm, values in scores.items():
            plt.plot(names, values, "o", label=algorithm)
        plt.ylabel("accuracy where held out")
        plt.legend()
        plt.savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
