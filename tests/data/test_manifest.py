"""Images listed in a table."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
from drawn import sites, write_folder

from transferrisk.data import Options, load_data
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
    data, folder = load_data(f"manifest:{path}", SMALL), load_data(f"folder:{tmp_path / 'images'}", SMALL)
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
    data = load_data(f"manifest:{path}", replace(SMALL, path="file", label="y", environment="site"))
    assert data.class_names == ("0", "1")
    assert len(data) == len(FILES)


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_an_unknown_column_names_the_nearest(tmp_path, kind):
    path = write(tmp_path, kind)
    with pytest.raises(InputError, match=r"no (column|key) 'lable': did you mean 'label'\?"):
        load_data(f"manifest:{path}", replace(SMALL, label="lable"))


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_rows_that_cannot_be_used(tmp_path, kind):
    table = rows()
    table[2]["path"] = "images/nowhere.png"
    table[5]["environment"] = None
    path = write(tmp_path, kind, table)
    with pytest.raises(
        InputError, match=r"2 of 24 rows cannot be used, the first is row 3 .images/nowhere\.png does not exist"
    ):
        load_data(f"manifest:{path}", SMALL)
    with pytest.warns(DataWarning, match="2 of 24 rows left out: row 3 .*, row 6 .it has no environment"):
        assert len(load_data(f"manifest:{path}", replace(SMALL, skip_bad=True))) == len(FILES) - 2


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("x.jsonl", b"", "is empty"),
        ("x.jsonl", b"{", "line 1, is not JSON"),
        ("x.jsonl", b"[1, 2]", "line 1, is not an object"),
        ("x.csv", b"path,label,environment\n", "no rows"),
        ("x.parquet", b"PAR1 no", "not a Parquet file"),
        ("x.xlsx", b"PK", "must end in .csv"),
    ],
)
def test_damaged_manifests(tmp_path, name, content, match):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=match):
        load_data(f"manifest:{tmp_path / name}")


def test_nothing_left(tmp_path):
    path = write(tmp_path, "csv", [{"path": "gone.png", "label": "a", "environment": "b"}])
    with pytest.raises(InputError, match="1 row cannot be used"):
        load_data(f"manifest:{path}", replace(SMALL, skip_bad=True))


def lines(tmp_path, *records, ending="\n", before=b""):
    write_folder(tmp_path / "images", FILES)
    path = tmp_path / "list.jsonl"
    path.write_bytes(before + ending.join(r if isinstance(r, str) else json.dumps(r) for r in records).encode())
    return path


def test_json_lines_with_a_mark_blank_lines_and_odd_separators(tmp_path):
    table = rows()
    for row in table:
        row["label"] = row["label"] + "\u2028x"
    path = lines(tmp_path, "", "  ", *(json.dumps(row, ensure_ascii=False) for row in table), before=b"\xef\xbb\xbf")
    assert load_data(f"manifest:{path}", SMALL).class_names == ("cat\u2028x", "dog\u2028x")
    with pytest.raises(InputError, match=r"no key 'lable': did you mean 'label'\?"):
        load_data(f"manifest:{path}", replace(SMALL, label="lable"))


def test_json_numbers_are_classes(tmp_path):
    table = rows()
    for i, row in enumerate(table):
        row["label"] = [1, 1.0, 0, "0"][i % 4]
    assert load_data(f"manifest:{lines(tmp_path, *table)}", SMALL).class_names == ("0", "1")
    table[4]["label"] = float("nan")
    with pytest.raises(InputError, match=r"the first is row 5 .it has no label"):
        load_data(f"manifest:{lines(tmp_path, *table)}", SMALL)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"\n \n\n", "has no rows"),
        (b"[" * 100_000, "line 1, is not JSON"),
        (b'{"path": ' + b"1" * 5000 + b"}", "line 1, is not JSON"),
        (b'{"path": "caf\xe9", "label": 1, "environment": 2}', "is not UTF-8 text"),
    ],
)
def test_json_lines_that_cannot_be_read(tmp_path, content, match):
    (tmp_path / "x.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=match) as error:
        load_data(f"manifest:{tmp_path / 'x.jsonl'}")
    assert "\n" not in str(error.value)


def test_blank_tables_and_semicolons(tmp_path):
    (tmp_path / "x.csv").write_text("\n\n \n")
    with pytest.raises(InputError, match="has no columns"):
        load_data(f"manifest:{tmp_path / 'x.csv'}")
    (tmp_path / "x.csv").write_text("path;label;environment\na;b;c\n")
    with pytest.raises(InputError, match="its separators are semicolons; save it with commas"):
        load_data(f"manifest:{tmp_path / 'x.csv'}")


@pytest.mark.parametrize("name", ["x" * 5000 + ".png", "nul\0l.png"])
def test_paths_that_no_file_can_have(tmp_path, name):
    table = rows()
    table[1]["path"] = name
    path = lines(tmp_path, *table)
    with pytest.raises(InputError, match="1 of 24 rows cannot be used, the first is row 2 "):
        load_data(f"manifest:{path}", SMALL)
    with pytest.warns(DataWarning, match="1 of 24 rows left out"):
        assert len(load_data(f"manifest:{path}", replace(SMALL, skip_bad=True))) == 23
