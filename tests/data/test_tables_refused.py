"""Tables that cannot be read as they are, or hold what their owner may want to know."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from table_files import ASKED, TEXT, frame_of, refused, write

from transferrisk.data import Options, load_data
from transferrisk.data.checks import review, twins
from transferrisk.data.environments import EnvironmentSet
from transferrisk.errors import DataWarning


def test_columns_have_to_be_named(tmp_path):
    path = write(tmp_path)
    assert "has the columns 'age', 'colour', 'y', 'site': say which holds the label" in refused(path, Options())
    assert "say which holds the environment, with --environment" in refused(path, Options(label="y"))
    message = refused(path, Options(label="y", environment="sites"))
    assert "has no column 'sites': did you mean 'site'? choose from age, colour, y, site" in message
    assert "cannot be both label and environment" in refused(path, Options(label="y", environment="y"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "has no columns"),
        ("age,y,site\n", "has columns and no rows"),
        ("age;y;site\n1;0;a\n2;1;b\n", "one column, 'age;y;site': its separators are semicolons; save it with commas"),
        ("size, cm;y;site\n1,5;0;a\n", "has two columns, 'size' and 'cm;y;site': its separators are semicolons; save"),
        ("age\ty\tsite\n1\t0\ta\n", "its separators are tabs; name it .tsv, or save it with commas"),
        ("age|y|site\n1|0|a\n", "its separators are bars; save it with commas"),
        ("y,site\n0,a\n1,b\n", "a label, an environment and a feature are needed"),
        ("age,age,y,site\n1,2,0,a\n", "has two columns named 'age'"),
        ("x,y,site\n1,0,a\n2,1,b,9\n", "line 3 has 4 fields, the header has 3"),
        ("x,y,site\n1,0,a,9\n2,1,b,9\n", "line 2 has 4 fields, the header has 3"),
        ("x,y,site\n1,0,a\n2,1\n", "line 3 has 2 fields, the header has 3"),
        ('x,y,site\n1,0,a\n2,1,"b\n', "is not well-formed"),
        ("x,y,site\n1,0,a\n2,1,a\n", "has 1 environment with samples ('a')"),
        ("x,y,site\n1,0,a\n2,0,b\n", "has only the label '0'"),
        ("x,y,site\n1,0,a\n1,1,b\n", "no column can be a feature: 'x' (constant)"),
        ("x,y,site\n1,0,a\n2,,b\n3,,b\n", "2 of 3 rows cannot be used, the first is row 2 (column 'y' is empty"),
        ("x,y,site\n1,0,NA\n2,1,b\n", "1 of 2 rows cannot be used, the first is row 1 (column 'site' is empty; NA"),
        (
            "x,y,site\n1,0,a\n-inf,1,b\n",
            "1 of 2 rows cannot be used, the first is row 2 (column 'x' is infinite): correct",
        ),
    ],
)
def test_malformed(tmp_path, text, message):
    assert message in refused(write(tmp_path, text))


def test_unreadable(tmp_path):
    assert "does not exist: did you mean 'table.csv'?" in refused(write(tmp_path).with_name("tabel.csv"))
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    assert "is a folder" in refused(folder)
    assert "must end in .csv, .csv.gz, .tsv" in refused(write(tmp_path, name="table.xlsx"))
    latin = tmp_path / "latin.csv"
    latin.write_bytes("x,y,site\n1,0,Köln\n2,1,Bonn\n".encode("latin-1"))
    assert "is not UTF-8 text" in refused(latin)
    late = tmp_path / "late.csv"
    late.write_bytes(b"x,y,site\n" + b"1,0,a\n" * 100_000 + "2,1,Köln\n".encode("latin-1"))
    assert "is not UTF-8 text" in refused(late)
    assert "is not UTF-8 text" in refused(_written(tmp_path / "utf16.csv", TEXT.encode("utf-16")))
    assert "cannot be read" in refused(_written(tmp_path / "plain.csv.gz", TEXT.encode()))
    packed = gzip.compress(TEXT.encode() * 10_000)
    assert "cannot be read" in refused(_written(tmp_path / "half.csv.gz", packed[: len(packed) // 2]))
    assert "is not a Parquet file" in refused(_written(tmp_path / "text.parquet", TEXT.encode()))
    frame_of(5000).to_parquet(tmp_path / "whole.parquet")
    content = bytearray((tmp_path / "whole.parquet").read_bytes())
    assert "is not a Parquet file" in refused(_written(tmp_path / "half.parquet", content[: len(content) // 2]))
    content[10:60] = bytes(50)
    assert "damaged" in refused(_written(tmp_path / "damaged.parquet", content))
    pq.write_table(pa.Table.from_arrays([pa.array([1])] * 3, ["y", "y", "site"]), tmp_path / "twice.parquet")
    assert "has two columns named 'y'" in refused(tmp_path / "twice.parquet")


def _written(path, content):
    path.write_bytes(content)
    return path


def test_labels_that_name_no_classes(tmp_path):
    n = 200
    values = np.random.default_rng(0).normal(size=n)
    for name, column, message in (
        ("y", values, "label 'y' looks continuous (200 different fractions"),
        ("y", (values * 1e6).astype(int), "label 'y' has 200 different values in 200 rows"),
        ("site", values, "environment 'site' looks continuous"),
        ("site", [f"row {i}" for i in range(n)], "environment 'site' has 200 different values in 200 rows"),
    ):
        path = tmp_path / "table.csv"
        frame_of(n, **{name: column}).to_csv(path, index=False)
        assert message in refused(path)
    frame_of(n, y=np.repeat(np.arange(50) / 4, 4), site=np.tile(["a", "b"], 100)).to_csv(path, index=False)
    assert len(load_data(f"table:{path}", ASKED).class_names) == 50  # not so many
    table = pa.table({"x": [1, 2], "y": [[1], [2]], "site": ["a", "b"]})
    pq.write_table(table, tmp_path / "lists.parquet")
    assert "label 'y' holds list values" in refused(tmp_path / "lists.parquet")


def test_bad_rows_are_left_out_if_asked(tmp_path):
    frame = frame_of(40).astype({"y": object, "site": object})
    frame.loc[4, "y"] = None
    frame.loc[[7, 9], "site"] = None
    frame.loc[12, "x"] = np.inf
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False)
    with pytest.warns(
        DataWarning, match=r"4 of 40 rows left out: row 5 .column 'y' is empty.*, row 8 .*, row 10.*, row 13.*"
    ):
        data = load_data(f"table:{path}", Options(label="y", environment="site", skip_bad=True))
    kept = frame.drop([4, 7, 9, 12])["x"].to_numpy(float)
    np.testing.assert_allclose(data.inputs[:, 0], (kept - kept.mean()) / kept.std(), atol=1e-6)
    assert data.class_names == ("0", "1")
    assert data.environment_names == ("0", "1")

    frame["y"] = None
    frame.to_csv(path, index=False)
    assert "rows cannot be used, the first is row 1 " in refused(
        path, Options(label="y", environment="site", skip_bad=True)
    )


def test_many_bad_rows_are_counted(tmp_path):
    frame = frame_of(60)
    frame.loc[:24, "x"] = np.inf
    path = tmp_path / "table.parquet"
    frame.to_parquet(path)
    with pytest.warns(DataWarning, match=r"25 of 60 rows left out: row 1 .*, row 2, row 3, .*row 10 and 15 more$"):
        load_data(f"table:{path}", Options(label="y", environment="site", skip_bad=True))


def test_dropped_columns_are_one_warning(tmp_path):
    path = tmp_path / "table.csv"
    frame_of(60, same=1, who=[f"p{i}" for i in range(60)]).to_csv(path, index=False)
    expected = r"columns not used: 'same' \(constant\), 'who' \(60 different texts in 60 rows\)"
    with pytest.warns(DataWarning, match=expected) as caught:
        load_data(f"table:{path}", ASKED)
    assert len(caught) == 1


def test_classes_not_seen_everywhere(tmp_path):
    path = write(tmp_path, "x,y,site\n1,0,a\n2,1,a\n3,0,b\n4,2,b\n")
    with pytest.warns(DataWarning, match=r"no samples of class '2' in 'a', '1' in 'b'$"):
        load_data(f"table:{path}", ASKED)
    data = EnvironmentSet(
        torch.zeros(8, 3, 2, 2), torch.arange(8), torch.arange(8) % 4, tuple("abcd"), tuple("01234567")
    )
    with pytest.warns(DataWarning, match=r"the data: no samples of class '1' in 'a', .* and 19 more$"):
        assert review(data) is data


def test_shared_rows(tmp_path):
    path = write(tmp_path, "x,z,y,site\n1,u,0,a\n2,v,1,a\n3,v,0,b\n1,u,0,b\n1,u,0,b\n2,u,1,b\n1,u,0,a\n3,v,1,a\n")
    with pytest.warns(DataWarning, match=r"2 rows with the features and label .* such as row 4 and row 1$"):
        load_data(f"table:{path}", ASKED)
    skipped = write(tmp_path, "x,z,y,site\n0,w,,a\n0,w,,a\n1,u,0,a\n2,v,1,a\n1,u,0,b\n2,u,1,b\n", "skipped.csv")
    with pytest.warns(DataWarning) as caught:
        load_data(f"table:{skipped}", Options(label="y", environment="site", skip_bad=True))
    assert "1 row with the features" in str(caught[-1].message)
    assert str(caught[-1].message).endswith("such as row 5 and row 3")


def test_twins_agree_with_comparing_all_pairs():
    generator = torch.Generator().manual_seed(0)
    features = torch.randint(-1, 2, (300, 4), generator=generator).float()
    features[features == 0] *= torch.where(torch.rand(int((features == 0).sum()), generator=generator) < 0.5, -1, 1)
    labels, environments = torch.randint(2, (300,), generator=generator), torch.randint(3, (300,), generator=generator)
    truth = []
    for i in range(300):
        like = [j for j in range(i) if labels[i] == labels[j] and bool((features[i] == features[j]).all())]
        if like and environments[like[0]] != environments[i]:
            truth.append([like[0], i])
    assert twins(features, labels, environments).tolist() == truth


def test_numbers_too_large_for_a_float(tmp_path):
    frame = frame_of().astype({"x": object})
    frame.loc[3, "x"] = 10**400
    from transferrisk.data.values import as_numbers

    assert np.isinf(as_numbers(frame["x"], "x")[3])
    assert as_numbers(pd.Series([-(10**400), 1, None], dtype=object), "x")[0] == -np.inf


def test_what_may_not_be_read_says_so(tmp_path, monkeypatch):
    path = write(tmp_path)
    plain = type(path).open

    def locked(self, *args, **kwargs):
        if self.name == path.name:
            raise PermissionError(13, "Permission denied", str(self))
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(type(path), "open", locked)
    assert "cannot be read (Permission denied): mend that" in refused(path)
