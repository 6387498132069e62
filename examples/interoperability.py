"""TransferRiskClassifier with skrub, LightGBM, fairlearn and polars.

pip install 'transferrisk[boosting,interop]'
python examples/interoperability.py
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import sklearn
from fairlearn.metrics import MetricFrame, count
from lightgbm import LGBMClassifier
from sklearn.metrics import accuracy_score, recall_score
from sklearn.model_selection import cross_val_predict, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from skrub import TableVectorizer

from transferrisk import audit
from transferrisk.sklearn import BoostingClassifier, LeaveOneEnvironmentOut, TransferRiskClassifier


def patients(per_hospital: int = 120, seed: int = 0) -> pd.DataFrame:
    """Four hospitals. Age and ward have the same effect everywhere; the device has another effect at each hospital."""
    rng = np.random.default_rng(seed)
    hospital = np.repeat(["east", "north", "south", "west"], per_hospital)
    ill = rng.random(len(hospital)) < 0.5
    drift = pd.Series(hospital).map({"east": 2.0, "north": 1.0, "south": 0.0, "west": -1.5}).to_numpy()
    surgery = rng.random(len(hospital)) < np.where(ill, 0.75, 0.3)
    return pd.DataFrame(
        {
            "age": rng.normal(50, 10, len(hospital)) + 10 * ill,
            "ward": np.where(surgery, "surgery", "medicine"),
            "admitted": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(300, size=len(hospital)), "D"),
            "device": rng.normal(size=len(hospital)) + drift * (ill - 0.5),
            "ill": ill.astype(int),
            "hospital": hospital,
        }
    )


def vectorised(classifier: object) -> Pipeline:
    """skrub encodes the numbers, categories and dates of a table within each fold."""
    return make_pipeline(TableVectorizer(), classifier)


def accuracies(table: pd.DataFrame) -> pd.DataFrame:
    """skrub and LightGBM: compare candidates by cross-validation, testing each hospital with a model of the others.

    Metadata routing passes `environments` to the splitter, TransferRiskClassifier and the baselines of transferrisk.
    LGBMClassifier and the estimators of scikit-learn do not request it and do not get it.
    """
    X, y, hospital = table.drop(columns=["ill", "hospital"]), table["ill"], table["hospital"]
    candidates = {
        "TransferRiskClassifier": TransferRiskClassifier(random_state=0),
        "BoostingClassifier": BoostingClassifier("lightgbm", random_state=0),
        "LGBMClassifier": LGBMClassifier(random_state=0, verbose=-1),
    }
    scores = {}
    with sklearn.config_context(enable_metadata_routing=True):
        for name, candidate in candidates.items():
            scores[name] = cross_validate(
                vectorised(candidate), X, y, cv=LeaveOneEnvironmentOut(), params={"environments": hospital}
            )["test_score"]
    return pd.DataFrame(scores, index=sorted(hospital.unique()))


def fairness(table: pd.DataFrame) -> MetricFrame:
    """fairlearn: by how much does the quality of predictions differ between held-out hospitals?"""
    X, y, hospital = table.drop(columns=["ill", "hospital"]), table["ill"], table["hospital"]
    with sklearn.config_context(enable_metadata_routing=True):
        predicted = cross_val_predict(
            vectorised(TransferRiskClassifier(random_state=0)),
            X,
            y,
            cv=LeaveOneEnvironmentOut(),
            params={"environments": hospital},
        )
    metrics = {"accuracy": accuracy_score, "ill and found": recall_score, "rows": count}
    return MetricFrame(metrics=metrics, y_true=y, y_pred=predicted, sensitive_features=hospital)


def from_polars(table: pl.DataFrame) -> pd.DataFrame:
    """polars in, pandas out: a model of three hospitals predicts for the fourth."""
    known, new = table.filter(pl.col("hospital") != "west"), table.filter(pl.col("hospital") == "west")
    transfer = audit(known[["age", "device"]], known["ill"], known["hospital"]).to_frame()
    print(transfer.pivot(index="fitted_on", columns="tested_on", values="accuracy").round(3))
    model = TransferRiskClassifier(random_state=0)
    model.fit(known[["age", "device"]], known["ill"], environments=known["hospital"])
    chances = pd.DataFrame(model.predict_proba(new[["age", "device"]]), columns=model.classes_)
    return new.to_pandas().assign(chance=chances[1], predicted=model.predict(new[["age", "device"]]))


def main() -> None:
    table = patients()
    print("Accuracy at a hospital not trained on:", accuracies(table).round(3), sep="\n")
    found = fairness(table)
    print("\nBy hospital, when it was held out:", found.by_group.round(3), sep="\n")
    print("Largest difference:", found.difference().round(3).to_dict())
    print("\nAudited and fitted from polars:")
    print(from_polars(pl.from_pandas(table)).head())


if __name__ == "__main__":
    main()
