"""A folder holds all that a fitted classifier is, and what is not one is refused."""

from __future__ import annotations

import json
import os
from datetime import date

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from shifted import sites
from sklearn.exceptions import NotFittedError

from transferrisk.errors import InputError
from transferrisk.models import build_model
from transferrisk.models.saved import SavedModel, encode_tensors, load_model_folder, read_tensors, save_model
from transferrisk.sklearn import TransferRiskClassifier

FILES = {"model.json", "model.safetensors"}
X, y, SITE = sites(30, (0.9, 0.3, 0.6))


def short(**parameters):
    return TransferRiskClassifier(**{"max_epochs": 6, "representation": "linear:3", "random_state": 0} | parameters)


@pytest.mark.parametrize(
    "labels",
    [
        y,
        y.astype(bool),
        np.array(["no", "yes"])[y],
        np.array(["no", "yes"], dtype=object)[y],
        y * 2.0 - 1,
        y.astype(np.uint8) + 3,
        y + (X[:, 0] > 0),
    ],
    ids=lambda labels: f"{labels.dtype}-{len(set(labels.tolist()))}",
)
def test_round_trip_of_labels(labels, tmp_path):
    fitted = short(representation="mlp:4").fit(X, labels, environments=SITE)
    fitted.save(tmp_path / "model")
    loaded = TransferRiskClassifier.load(tmp_path / "model")
    assert loaded.classes_.dtype == fitted.classes_.dtype
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    assert loaded.predict(X).dtype == fitted.predict(X).dtype
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    np.testing.assert_array_equal(loaded.transform(X), fitted.transform(X))
    assert loaded.get_params() == fitted.get_params()


def test_round_trip_of_the_rest(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcdef"))
    fitted = short(
        early_stopping=True, validation_environments=np.array(["site 1"]), algorithm_params={"ridge": np.float64(0.02)}
    )
    fitted.fit(frame, y, environments=pd.Series(SITE))
    fitted.save(str(tmp_path / "model"))
    fitted.save(str(tmp_path / "model"))  # over the old one
    loaded = TransferRiskClassifier.load(str(tmp_path / "model"))
    assert loaded.feature_names_in_.tolist() == list("abcdef")
    assert loaded.feature_names_in_.dtype == object
    for name in ("algorithm_", "n_iter_", "n_features_in_", "loss_curve_", "validation_scores_"):
        assert getattr(loaded, name) == getattr(fitted, name), name
    for name in ("environments_", "validation_environments_"):
        assert getattr(loaded, name).tolist() == getattr(fitted, name).tolist()
    assert loaded.algorithm_params == {"ridge": 0.02}
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(frame[list("fedcba")])
    np.testing.assert_array_equal(loaded.fit(frame, y, environments=SITE).predict(frame), fitted.predict(frame))


YEARS = 2018 + np.unique(SITE, return_inverse=True)[1]


@pytest.mark.parametrize(
    ("environments", "expected"),
    [
        (YEARS.astype(str).astype("datetime64[ns]"), np.array(["2018", "2019", "2020"], dtype="datetime64[ns]")),
        (YEARS.astype(str).astype("datetime64[D]"), np.array(["2018", "2019", "2020"], dtype="datetime64[ns]")),
        (pd.Series(pd.to_datetime(YEARS.astype(str))), np.array(["2018", "2019", "2020"], dtype="datetime64[ns]")),
        (pd.Series(YEARS, dtype="Int64"), [2018, 2019, 2020]),
        (pd.array(YEARS, dtype="Int64"), [2018, 2019, 2020]),
        (pd.Series(YEARS, dtype="Int64").to_frame(), [2018, 2019, 2020]),
        (pl.Series(YEARS), [2018, 2019, 2020]),
        (pd.Series(YEARS, dtype="category"), [2018, 2019, 2020]),
        (pd.Series(YEARS).astype(str).astype("string"), ["2018", "2019", "2020"]),
        ([date(year, 1, 31) for year in YEARS], ["2018-01-31", "2019-01-31", "2020-01-31"]),
        (
            pd.Series(pd.to_datetime(YEARS.astype(str), utc=True)),
            [f"{year}-01-01T00:00:00+00:00" for year in (2018, 2019, 2020)],
        ),
    ],
    ids=lambda values: f"{type(values).__name__}-{getattr(values, 'dtype', '')}",
)
def test_environments_that_can_be_fitted_can_be_saved(tmp_path, environments, expected):
    fitted = short().fit(X, y, environments=environments)
    fitted.save(tmp_path)
    loaded = TransferRiskClassifier.load(tmp_path).environments_
    same = loaded.astype("datetime64[ns]") if loaded.dtype.kind == "M" else loaded
    np.testing.assert_array_equal(same, expected)
    assert [type(value) for value in same.tolist()] == [type(value) for value in np.asarray(expected).tolist()]
    if not isinstance(fitted.environments_[0], date):
        assert fitted.environments_.dtype == loaded.dtype
    np.testing.assert_array_equal(short().fit(X, y, environments=SITE).predict_proba(X), fitted.predict_proba(X))


def test_batches_are_of_float32_and_stay_so(tmp_path):
    fitted = short(batch_size=8).fit(X.astype(np.float32), y, environments=SITE)
    fitted.save(tmp_path)
    loaded = TransferRiskClassifier.load(tmp_path)
    assert loaded.model_.head.weight.numpy(force=True).dtype == np.float32
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))


def test_generators_are_not_kept(tmp_path):
    short(random_state=np.random.default_rng(0)).fit(X, y, environments=SITE).save(tmp_path)
    assert TransferRiskClassifier.load(tmp_path).random_state is None


def test_what_cannot_be_saved_leaves_nothing(tmp_path):
    with pytest.raises(NotFittedError):
        short().save(tmp_path / "model")
    fitted = short(validation_environments=object()).fit(X, y, environments=SITE)
    with pytest.raises(InputError, match=r"validation_environments must be .* JSON"):
        fitted.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file, not a folder"):
        short().fit(X, y, environments=SITE).save(tmp_path / "file")


@pytest.mark.parametrize("moment", range(4))
def test_an_interruption_while_it_is_replaced_leaves_the_old_model_or_the_new_one(tmp_path, monkeypatch, moment):
    """Before and after each of the two files takes its name."""
    old, new = short().fit(X, y, environments=SITE), short(random_state=1).fit(X, 1 - y, environments=SITE)
    old.save(tmp_path)
    replace, moments = os.replace, iter(range(4))

    def interrupted(*names):
        if next(moments) == moment:
            raise KeyboardInterrupt
        replace(*names)
        if next(moments) == moment:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        new.save(tmp_path)
    monkeypatch.undo()
    expected = (old if moment == 0 else new).predict_proba(X)
    np.testing.assert_array_equal(TransferRiskClassifier.load(tmp_path).predict_proba(X), expected)
    new.save(tmp_path)
    np.testing.assert_array_equal(TransferRiskClassifier.load(tmp_path).predict_proba(X), new.predict_proba(X))


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    fitted = short().fit(X, y, environments=SITE)
    fitted.save(tmp_path / "own")
    for name in FILES:
        (tmp_path / "own" / f".{name}.half").write_text("")
    fitted.save(tmp_path / "own")  # replaces what `save` wrote
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "notes.txt").write_text("{}")
    with pytest.raises(InputError, match=r"must hold a classifier or nothing, got notes\.txt"):
        fitted.save(tmp_path / "model")
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["notes.txt"]


def test_what_cannot_be_loaded(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        TransferRiskClassifier.load(tmp_path / "nowhere")
    short().fit(X, y, environments=SITE).save(tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    for damaged in (content[: len(content) // 2], content[:-3] + b"abc", b"", b"no model"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="is damaged") as error:
            TransferRiskClassifier.load(tmp_path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("values", "n_features_in_"), 5),
        (("values", "n_features_in_"), "odd"),
        (("arrays", "classes_"), None),
        (("arrays", "classes_", "values"), 1),
        (("arrays", "classes_", "values"), ["0", "2"]),
        (("arrays", "environments_", "values"), [[1], [2]]),
        (("arrays", "environments_", "values"), 2**70),
        (("params",), 5),
        (("config",), []),
    ],
)
def test_a_description_that_does_not_belong_to_the_network_is_refused(tmp_path, place, value):
    short().fit(X, y, environments=SITE).save(tmp_path)
    tensors, header = read_tensors(tmp_path / "model.safetensors")
    inner = header["about"]
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "model.safetensors").write_bytes(encode_tensors(tensors, header))
    (tmp_path / "model.json").unlink()
    with pytest.raises(InputError):
        TransferRiskClassifier.load(tmp_path).predict(X)


def test_another_model_is_refused(tmp_path):
    saved = SavedModel(build_model("mlp:4", 2, (3,)), "mlp:4", (3,), ("no", "yes"), ())
    save_model(tmp_path, saved)
    with pytest.raises(InputError, match="must hold a TransferRiskClassifier"):
        TransferRiskClassifier.load(tmp_path)


def test_the_folder_is_that_of_every_model(tmp_path):
    fitted = short().fit(X, y, environments=SITE)
    fitted.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    described = json.loads((tmp_path / "model.json").read_text())
    assert described["classes"] == ["0", "1"]
    assert described["environments"] == ["site 0", "site 1", "site 2"]
    assert described["about"]["params"]["representation"] == "linear:3"
    saved = load_model_folder(tmp_path)
    rows = torch.from_numpy(X)
    assert torch.equal(saved.network(rows), fitted.model_(rows))
