"""Images listed in a table."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
from drawn import sites, write_folder

from transferrisk.data import Options, load
from transferrisk.errors import DataWarning, InputError

FILES = sites()
SMALL = Options(size=6)


def rows():
    return [{"path": f"images/{n}", "label": n.split("/")[1], "environment": n.split("/")[0]} for n in sorted(FILES)]


def write(tmp_path, kind, table=None):
    write_folder(tmp_path / "images", FILES)
    table = rows() if table is None else table
    path = tmp_path / f"list.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, table)) + "\n")
    elif kind == "csv":
        pd.DataFrame(table).to_csv(path, index=False)
    else:
        pd.DataFrame(table).to_parquet(path)
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_the_same_as_its_folder(tmp_path, kind):
    path = write(tmp_path, kind)
    data, folder = load(f"manifest:{path}", SMALL), load(f"folder:{tmp_path / 'images'}", SMALL)
    assert data.environment_names == folder.environment_names
    assert data.class_names == folder.class_names
    assert torch.equal(data.batch(), folder.batch())
    assert torch.equal(data.labels, folder.labels)
    assert torch.equal(data.environments, folder.environments)


def test_other_columns_numbers_and_absolute_paths(tmp_path):
    table = [
        {"file": str(tmp_path / row["path"]), "y": int(row["label"] == "dog"), "site": row["environment"], "x": 1}
        for row in rows()
    ]
    path = write(tmp_path, "csv", table)
    data = load(f"manifest:{path}", replace(SMALL, path="file", label="y", environment="site"))
    assert data.class_names == ("0", "1")
    assert len(data) == len(FILES)


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_an_unknown_column_names_the_nearest(tmp_path, kind):
    path = write(tmp_path, kind)
    with pytest.raises(InputError, match=r"no (column|key) 'lable': did you mean 'label'\?"):
        load(f"manifest:{path}", replace(SMALL, label="lable"))


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_rows_that_cannot_be_used(tmp_path, kind):
    table = rows()
    table[2]["path"] = "images/nowhere.png"
    table[5]["environment"] = None
    path = write(tmp_path, kind, table)
    with pytest.raises(
        InputError, match=r"2 rows cannot be used; row 3 names images/nowhere\.png, which does not exist"
    ):
        load(f"manifest:{path}", SMALL)
    with pytest.warns(DataWarning, match="2 rows left out: row 3 .*, row 6 has no environment"):
        assert len(load(f"manifest:{path}", replace(SMALL, skip_bad=True))) == len(FILES) - 2


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("x.jsonl", b"", "is empty"),
        ("x.jsonl", b"{", "line 1, is not JSON"),
        ("x.jsonl", b"[1, 2]", "line 1, is not an object"),
        ("x.csv", b"path,label,environment\n", "no rows"),
        ("x.parquet", b"PAR1 no", "not a Parquet file"),
        ("x.xlsx", b"PK", "is not a table by its name"),
    ],
)
def test_damaged_manifests(tmp_path, name, content, match):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=match):
        load(f"manifest:{tmp_path / name}")


def test_nothing_left(tmp_path):
    path = write(tmp_path, "csv", [{"path": "gone.png", "label": "a", "environment": "b"}])
    with pytest.raises(InputError, match="1 row cannot be used"):
        load(f"manifest:{path}", replace(SMALL, skip_bad=True))
