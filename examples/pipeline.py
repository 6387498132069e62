"""TransferRiskClassifier among scikit-learn's own tools: a pipeline, judged at every site by a model of the others.

python examples/pipeline.py
"""

from __future__ import annotations

import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.impute import SimpleImputer
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

from transferrisk.sklearn import LeaveOneEnvironmentOut, TransferRiskClassifier


def sites(per_site: int = 300, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.str_]]:
    """Four sites. Two measurements say something about the label everywhere, a third something else at each site."""
    rng = np.random.default_rng(seed)
    names = np.repeat(["north", "east", "south", "west"], per_site)
    labels = rng.integers(2, size=len(names))
    sign = 2 * labels - 1
    inputs = rng.normal(size=(len(names), 5))
    inputs[:, :2] += 0.7 * sign[:, None]
    inputs[:, 2] += np.select([names == "north", names == "east", names == "south"], [2.0, 1.0, 0.0], -1.0) * sign
    inputs[rng.random(inputs.shape) < 0.02] = np.nan
    return inputs, labels, names


def main(per_site: int = 300) -> dict[str, NDArray[np.float64]]:
    X, y, site = sites(per_site)
    scores = {}
    with sklearn.config_context(enable_metadata_routing=True):
        for algorithm in ("erm", "trm"):
            model = TransferRiskClassifier(algorithm=algorithm, random_state=0)
            pipeline = make_pipeline(SimpleImputer(), model)
            scores[algorithm] = cross_val_score(
                pipeline, X, y, cv=LeaveOneEnvironmentOut(), params={"environments": site}
            )
            named = zip(np.unique(site), scores[algorithm], strict=True)
            unseen = ", ".join(f"{name} {score:.3f}" for name, score in named)
            print(f"{algorithm}: accuracy at a site not seen: {unseen}")
    return scores


if __name__ == "__main__":
    main()
