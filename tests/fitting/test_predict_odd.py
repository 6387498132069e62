"""Files that are nearly what a model takes: odd names, odd sizes of numbers, arrays of objects."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows import table

from transferrisk.data import Options
from transferrisk.errors import InputError
from transferrisk.fitting import Plan, fit
from transferrisk.fitting.fitted import read_source
from transferrisk.fitting.model import predict_file

PLAN = Plan(compared=False, algorithm="erm", epochs=1, device="cpu")


@pytest.fixture(scope="module")
def of_vectors(tmp_path_factory):
    """A model, in float32, of vectors around 0 whose components are about 1e-30."""
    file = tmp_path_factory.mktemp("vectors") / "e.npz"
    write(file, 1e-30 * np.random.default_rng(0).normal(size=(600, 2)))
    return fit(file, None, PLAN).model


def write(file, features, **others):
    rows = len(features)
    arrays = {"labels": np.arange(rows) % 2, "environments": np.arange(rows) // 2 % 2} | others
    np.savez(file, features=features, **arrays)


@pytest.mark.parametrize("ending", ["csv", "tsv", "csv.gz"])
def test_carriage_returns_in_names_of_classes_are_quoted(tmp_path, ending):
    frame = table(60).assign(outcome=["no\rnever", "yes"] * 30)
    frame.to_parquet(tmp_path / "t.parquet")
    fitted = fit(tmp_path / "t.parquet", Options(label="outcome", environment="site"), PLAN)
    output = tmp_path / f"out.{ending}"
    predict_file(fitted.model, str(tmp_path / "t.parquet"), output, size=25)
    found = pd.read_csv(output, sep="\t" if ending == "tsv" else ",")
    assert list(found.columns) == ["prediction", "probability_no\rnever", "probability_yes"]
    assert found["prediction"].tolist() == fitted.model.predict(frame).tolist()


def test_carriage_returns_in_the_column_to_keep_are_quoted(fitted, tmp_path):
    new = table(30).assign(code=[f"c\r{i}" if i > 20 else f"c{i}" for i in range(30)])
    new.to_parquet(tmp_path / "new.parquet")
    predict_file(fitted.model, str(tmp_path / "new.parquet"), tmp_path / "out.csv", identity="code", size=10)
    assert pd.read_csv(tmp_path / "out.csv")["code"].tolist() == new["code"].tolist()


def test_a_vector_far_from_all_that_were_trained_on(of_vectors, tmp_path):
    features = np.full((30, 2), 1e-30)
    features[25, 1] = 1e20
    write(tmp_path / "far.npz", features)
    with pytest.raises(InputError, match=r"far\.npz, from row 21 on: row 6 has no probabilities"):
        predict_file(of_vectors, str(tmp_path / "far.npz"), tmp_path / "out.csv", size=10)
    with pytest.raises(InputError, match="row 1 has no probabilities"):
        of_vectors.predict_proba(np.array([[np.nan, 0.0]]))
    assert [path.name for path in tmp_path.iterdir()] == ["far.npz"]


def test_vectors_too_large_for_float32_are_one_error_without_a_warning(of_vectors, tmp_path):
    write(tmp_path / "large.npz", np.full((5, 2), 1e60))
    with pytest.raises(InputError, match=r"features must be finite numbers of float32, got another in row 1"):
        predict_file(of_vectors, str(tmp_path / "large.npz"), tmp_path / "out.csv")


@pytest.mark.parametrize("name", ["features", "labels"])
def test_arrays_of_objects_are_not_read_and_not_to_be_trusted(of_vectors, tmp_path, name):
    arrays = {"features": np.zeros((5, 2))} | {name: np.array([{}] * 5, dtype=object)}
    write(tmp_path / "objects.npz", **arrays)
    with pytest.raises(InputError, match=rf"array '{name}' holds Python objects, which are never unpickled"):
        predict_file(of_vectors, str(tmp_path / "objects.npz"), tmp_path / "out.csv")


@pytest.mark.parametrize("values", [[[1.0], [2.0]], [1.0, 2.0]])
def test_two_columns_named_embedding(tmp_path, values):
    columns = [pa.array(values), pa.array(values), pa.array(["a", "b"]), pa.array(["u", "v"])]
    file = tmp_path / "twice.parquet"
    pq.write_table(pa.Table.from_arrays(columns, ["embedding", "embedding", "label", "environment"]), file)
    with pytest.raises(InputError, match="two columns named 'embedding': rename one"):
        read_source(str(file), Options(label="label", environment="environment"))
