"""Embeddings in NPZ and Parquet files: what is read, and one clear line for all that cannot be."""

from __future__ import annotations

import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from transferrisk.data import Options, load_data
from transferrisk.errors import DataWarning, InputError

N, D = 24, 3
VECTORS = np.random.default_rng(0).normal(size=(N, D))
LABELS = np.arange(N) % 2
SITES = np.array(["south", "north", "east"])[np.arange(N) // 2 % 3]


def npz(path, **arrays):
    np.savez(path, **({"features": VECTORS, "labels": LABELS, "environments": SITES} | arrays))
    return path


def parquet(path, features=None, **columns):
    columns = {"label": pa.array(LABELS), "environment": pa.array(SITES)} | columns
    if features is None:
        features = {f"e{j}": VECTORS[:, j] for j in range(D)}
    pq.write_table(pa.table(features | columns), path)
    return path


def lists(vectors=VECTORS, kind=None):
    return pa.array([None if row is None else list(row) for row in vectors], kind or pa.list_(pa.float32()))


def refused(name, path, **asked):
    with pytest.raises(InputError) as caught:
        load_data(f"{name}:{path}", Options(**asked))
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def check_content(data):
    assert data.inputs.dtype == torch.float32
    np.testing.assert_array_equal(data.inputs, VECTORS.astype(np.float32))
    assert data.class_names == ("0", "1")
    assert data.environment_names == ("east", "north", "south")
    assert data.labels.tolist() == LABELS.tolist()
    assert [data.environment_names[e] for e in data.environments] == SITES.tolist()


def test_npz(tmp_path):
    path = npz(tmp_path / "e.npz")
    check_content(load_data(f"npz:{path}"))
    assert list(tmp_path.iterdir()) == [path]
    np.savez_compressed(tmp_path / "other.npz", z=VECTORS.astype(">f8"), y=LABELS.astype(">i4"), site=SITES.astype("S"))
    check_content(load_data(f"npz:{tmp_path / 'other.npz'}", Options(features="z", label="y", environment="site")))
    check_content(
        load_data(f"npz:{npz(tmp_path / 'e.npz', features=np.asfortranarray(VECTORS), labels=LABELS.astype(float))}")
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int16", "uint8"])
def test_npz_types(tmp_path, dtype):
    values = (VECTORS * 10 + 50).astype(dtype)
    data = load_data(f"npz:{npz(tmp_path / 'e.npz', features=values)}")
    np.testing.assert_array_equal(data.inputs, values.astype(np.float32))


def test_npz_names(tmp_path):
    data = load_data(f"npz:{npz(tmp_path / 'e.npz', labels=LABELS == 1, environments=np.arange(N) // 2 % 3 * 5 + 5)}")
    assert data.class_names == ("False", "True")
    assert data.environment_names == ("5", "10", "15")
    data = load_data(f"npz:{npz(tmp_path / 'e.npz', labels=np.where(LABELS, np.float32(0.1), np.float32(2)))}")
    assert data.class_names == ("0.1", "2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": VECTORS[:, 0]}, "array 'features' must have the shape (n, d), a row a sample, got (24,)"),
        ({"features": VECTORS[:, :, None]}, "got (24, 3, 1)"),
        ({"features": VECTORS[:0]}, "got (0, 3)"),
        ({"features": VECTORS[:, :0]}, "got (24, 0)"),
        ({"features": VECTORS.astype(complex)}, "array 'features' must hold numbers, got complex128"),
        ({"features": VECTORS.astype(str)}, "must hold numbers, got <U"),
        ({"labels": LABELS[:-1]}, "array 'labels' has shape (23,), where 'features' has (24, 3): one label a row"),
        ({"environments": np.eye(N)}, "array 'environments' has shape (24, 24)"),
        ({"labels": LABELS.astype(complex)}, "array 'labels' must hold whole numbers or texts, got complex128"),
        ({"labels": LABELS.astype(object)}, "array 'labels' holds Python objects, which are never unpickled"),
        ({"labels": np.zeros(N)}, "has only the label '0'"),
        ({"environments": np.full(N, "a")}, "has 1 environment with samples ('a')"),
        ({"environments": np.where(SITES == "east", np.nan, 1.0)}, "8 of 24 rows cannot be used, the first is row 5"),
        ({"labels": np.where(SITES == "east", "", "a")}, "the first is row 5 (label 'labels' is missing)"),
        ({"labels": np.where(SITES == "east", "nan", "a")}, "the first is row 5 (label 'labels' is missing)"),
        ({"labels": np.where(SITES == "east", "a\ud800", "a")}, "is not a text that can be written as UTF-8"),
    ],
)
def test_npz_that_cannot_be_used(tmp_path, change, message):
    assert message in refused("npz", npz(tmp_path / "e.npz", **change))


def test_npz_keys(tmp_path):
    path = npz(tmp_path / "e.npz")
    message = refused("npz", path, label="label")
    assert "has no array 'label': did you mean 'labels'? choose from features, labels, environments" in message
    assert "with --label" in message
    assert "'labels' cannot be label and something else" in refused("npz", path, environment="labels")


def test_not_an_npz(tmp_path):
    assert "does not exist" in refused("npz", tmp_path / "no.npz")
    assert "is a folder" in refused("npz", tmp_path)
    empty, text, single, damaged = (tmp_path / f"{name}.npz" for name in ("empty", "text", "single", "damaged"))
    empty.touch()
    assert "is empty" in refused("npz", empty)
    text.write_text("features")
    assert "is not an NPZ file" in refused("npz", text)
    with single.open("wb") as file:
        np.save(file, VECTORS)
    assert "is not an NPZ file" in refused("npz", single)
    content = bytearray(npz(damaged).read_bytes())
    damaged.write_bytes(content[: len(content) // 2])
    assert "is not an NPZ file, or damaged" in refused("npz", damaged)
    content[200:260] = bytes(60)
    damaged.write_bytes(content)
    assert "is damaged" in refused("npz", damaged)


def bad_vectors():
    vectors = VECTORS.copy()
    vectors[4, 1], vectors[9, 0], vectors[20, 2] = np.nan, np.inf, 1e300
    return vectors


def test_bad_values_npz(tmp_path):
    path = npz(tmp_path / "e.npz", features=bad_vectors())
    message = refused("npz", path)
    assert (
        "3 of 24 rows cannot be used, the first is row 5 (feature 2 of 3 is missing, infinite or too large" in message
    )
    assert message.endswith("(skip_bad=True in Python)")
    with pytest.warns(DataWarning, match="3 of 24 rows left out: row 5 .feature 2 of 3 .*, row 10, row 21$"):
        data = load_data(f"npz:{path}", Options(skip_bad=True))
    kept = np.delete(np.arange(N), [4, 9, 20])
    np.testing.assert_array_equal(data.inputs, VECTORS[kept].astype(np.float32))
    assert data.labels.tolist() == LABELS[kept].tolist()
    with pytest.raises(InputError, match="24 of 24 rows cannot be used"):
        load_data(f"npz:{npz(path, features=VECTORS * np.nan)}", Options(skip_bad=True))


def test_bad_values_parquet(tmp_path):
    vectors = bad_vectors()
    path = parquet(tmp_path / "e.parquet", {f"e{j}": vectors[:, j] for j in range(D)})
    assert "3 of 24 rows cannot be used, the first is row 5 (feature 'e1' is missing" in refused("parquet", path)
    rows = [None if i == 3 else row for i, row in enumerate(vectors)]
    path = parquet(path, {"features": lists(rows)})
    assert "4 of 24 rows cannot be used, the first is row 4 (feature 1 of 3 is missing" in refused("parquet", path)
    labels = pa.array([None if i == 2 else int(label) for i, label in enumerate(LABELS)])
    path = parquet(path, {"features": lists(rows)}, label=labels)
    with pytest.warns(
        DataWarning, match="5 of 24 rows left out: row 3 .label 'label' is missing., row 4 .*, row 5, row 10, row 21$"
    ):
        data = load_data(f"parquet:{path}", Options(skip_bad=True))
    np.testing.assert_array_equal(data.inputs, np.delete(VECTORS, [2, 3, 4, 9, 20], 0).astype(np.float32))


@pytest.mark.parametrize(
    "features",
    [
        {f"e{j}": VECTORS[:, j] for j in range(D)},
        {"features": lists()},
        {"embedding": lists(kind=pa.large_list(pa.float64()))},
        {"features": lists(kind=pa.list_(pa.float32(), D))},
        {"features": pa.chunked_array([lists()[:7], lists()[7:]])},
        {
            "features": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(VECTORS.astype(np.float32))),
        },
    ],
    ids=["columns", "lists", "large lists", "fixed lists", "chunks", "tensors"],
)
def test_parquet(tmp_path, features):
    check_content(load_data(f"parquet:{parquet(tmp_path / 'e.parquet', features)}"))


def test_parquet_plurals_index_and_row_groups(tmp_path):
    frame = pd.DataFrame(VECTORS, columns=["a", "b", "c"], index=np.arange(N)[::-1])
    frame = frame.assign(labels=LABELS, environments=pd.Categorical(SITES))
    frame.to_parquet(tmp_path / "e.parquet", row_group_size=5)
    check_content(load_data(f"parquet:{tmp_path / 'e.parquet'}"))


def test_parquet_features_by_name(tmp_path):
    path = parquet(tmp_path / "e.parquet", {"a": VECTORS[:, 0], "b,c": VECTORS[:, 1], "v": lists(), "s": SITES})
    with pytest.warns(DataWarning, match="columns not used: 'v', 's'$"):
        assert load_data(f"parquet:{path}").inputs.shape == (N, 2)
    check_content(load_data(f"parquet:{path}", Options(features="v")))
    one = load_data(f"parquet:{path}", Options(features="b,c"))
    np.testing.assert_array_equal(one.inputs[:, 0], VECTORS[:, 1].astype(np.float32))
    path = parquet(tmp_path / "e.parquet")
    two = load_data(f"parquet:{path}", Options(features="e2, e0"))
    np.testing.assert_array_equal(two.inputs, VECTORS[:, [2, 0]].astype(np.float32))
    assert "has no column 'e9': choose from e0, e1, e2" in refused("parquet", path, features="e0,e9")
    assert "column 'e0' is named twice" in refused("parquet", path, features="e0,e0")
    assert "column 'label' is named twice" in refused("parquet", path, features="e0,label")
    mixed = parquet(tmp_path / "m.parquet", {"a": VECTORS[:, 0], "s": SITES, "v": lists()})
    assert "column 's' holds string: name columns of numbers" in refused("parquet", mixed, features="s")
    assert "one column of lists" in refused("parquet", mixed, features="a,v")


def test_parquet_that_cannot_be_used(tmp_path):
    path = tmp_path / "e.parquet"
    assert "does not exist" in refused("parquet", path)
    path.write_bytes(b"")
    assert "is empty" in refused("parquet", path)
    path.write_text("features")
    assert "is not a Parquet file" in refused("parquet", path)
    ragged = lists([[1.0, 2.0], [1.0], *VECTORS[2:, :2]])
    assert "different lengths, 2 in row 1 and 1 in row 2" in refused("parquet", parquet(path, {"features": ragged}))
    empty = lists([[] for _ in range(N)])
    assert "holds empty lists" in refused("parquet", parquet(path, {"features": empty}))
    texts = lists([["a"]] * N, pa.list_(pa.string()))
    assert "must hold lists of numbers, got string" in refused("parquet", parquet(path, {"features": texts}))
    assert "has no features" in refused("parquet", parquet(path, {"s": SITES}))
    message = refused("parquet", parquet(path), label="labl")
    assert "has no column 'labl': did you mean 'label'? choose from e0" in message
    assert "'label' cannot be label and something else" in refused("parquet", parquet(path), environment="label")
    pq.write_table(pa.table({"x": [1.0], "environment": ["a"]}), path)
    assert "has no column 'label'" in refused("parquet", path)
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 3, ["x", "x", "label"]), path)
    assert "has two columns named 'x'" in refused("parquet", path)
    for features in ({"x": pa.array([], pa.float32())}, {"features": pa.array([], pa.list_(pa.float32()))}):
        parquet(path, features, label=pa.array([], pa.int64()), environment=pa.array([], pa.string()))
        assert "has columns and no rows" in refused("parquet", path)


def repacked(path, change):
    """The file with its members changed: change(archive, name, content) writes each."""
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            change(archive, name, content)
    return path


def test_an_npz_member_that_is_no_array(tmp_path):
    path = repacked(npz(tmp_path / "e.npz"), lambda a, name, content: a.writestr(name.removesuffix(".npy"), b"words"))
    assert "'features' is not an array" in refused("npz", path)


@pytest.mark.parametrize(
    "header", [b"{", b"(", b"{'shape': (1,)}", b"{'descr': '<f4', 'shape': 1, 'fortran_order': 0}"]
)
def test_an_npz_with_half_a_header(tmp_path, header):
    def change(archive, name, content):
        archive.writestr(name, b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header)

    assert "array 'features' is damaged" in refused("npz", repacked(npz(tmp_path / "e.npz"), change))


def test_an_npz_that_unpacks_to_far_more_than_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr("transferrisk.data.containers.LARGEST", 1 << 20)
    np.savez_compressed(tmp_path / "e.npz", features=np.zeros((1 << 18, 2)), labels=LABELS, environments=SITES)
    assert "'features.npy' has" in refused("npz", tmp_path / "e.npz")


def test_an_npz_with_an_absurd_size(tmp_path):
    def change(archive, name, content):
        if name == "labels.npy":
            content = content.replace(b"'shape': (24,), }" + b" " * 20, b"'shape': (" + b"9" * 17 + b",), }     ")
        archive.writestr(name, content)

    message = refused("npz", repacked(npz(tmp_path / "e.npz"), change))
    assert "array 'labels'" in message


@pytest.mark.parametrize(("at", "value"), [((6, 8), 1), ((8, 10), 99)])
def test_an_npz_that_is_locked_or_packed_otherwise(tmp_path, at, value):
    path = npz(tmp_path / "e.npz")
    content = bytearray(path.read_bytes())
    for magic, place in ((b"PK\3\4", at[0]), (b"PK\1\2", at[1])):
        start = content.find(magic)
        while start >= 0:
            content[start + place] = value
            start = content.find(magic, start + 4)
    path.write_bytes(content)
    assert "damaged or locked" in refused("npz", path)
