"""Tables in files: those that are read, and one clear line for those that cannot be."""

from __future__ import annotations

import gzip
import json
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from table_files import ASKED, TEXT, frame_of, refused, write

from transferrisk.data import Options, load_data
from transferrisk.data.environments import EnvironmentSet, review, twins
from transferrisk.data.schema import Schema
from transferrisk.data.sets.tables import read_table
from transferrisk.data.table_files import read_frame, read_frames
from transferrisk.data.values import as_days, as_numbers
from transferrisk.errors import DataWarning, InputError

AGES = np.array([31, 45, 22, 45, 67, 50])  # the median stands for the missing one


def check_content(data):
    assert data.class_names == ("no", "yes")
    assert data.environment_names == ("10", "north", "south")
    assert data.labels.tolist() == [0, 1, 0, 1, 0, 1]
    assert data.environments.tolist() == [1, 1, 2, 2, 0, 0]
    assert data.inputs.dtype == torch.float32
    np.testing.assert_allclose(data.inputs[:, 0], (AGES - AGES.mean()) / AGES.std(), rtol=1e-6)
    assert data.inputs[:, 1].tolist() == [0, 0, 0, 1, 0, 0]
    assert data.inputs[:, 2:].tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    "kind", ["csv", "csv.gz", "tsv", "tsv.gz", "spaces", "bom", "crlf", "quoted", "unnamed", "trailing"]
)
def test_other_ways_to_write_it(tmp_path, kind):
    if kind == "csv.gz":
        path = tmp_path / "table.csv.gz"
        path.write_bytes(gzip.compress(TEXT.encode()))
    elif kind.startswith("tsv"):
        path = tmp_path / f"table.{kind}"
        text = TEXT.replace(",", "\t").encode()
        path.write_bytes(gzip.compress(text) if kind.endswith("gz") else text)
    elif kind == "unnamed":
        path = tmp_path / "table.csv"
        pd.read_csv(write(tmp_path, name="plain.csv")).to_csv(path)
    else:
        text = {
            "csv": TEXT,
            "spaces": TEXT.replace(",", ", "),
            "bom": "\ufeff" + TEXT,
            "crlf": TEXT.replace("\n", "\r\n"),
            "quoted": TEXT.replace("red", '"red"').replace("colour", '"colour"'),
            "trailing": "\n".join(line + "," for line in TEXT.splitlines()),
        }[kind]
        path = write(tmp_path, text)
    check_content(load_data(f"table:{path}", ASKED))


def test_columns_without_a_name_are_not_read(tmp_path):
    path = write(tmp_path, ",x,0,y,site,\n7,1,5,0,a,8\n8,2,6,1,a,9\n7,3,6,0,b,8\n8,4,5,1,b,9\n")
    assert read_table(path, ASKED).schema.feature_names == ("x", "0")


def test_parquet(tmp_path):
    frame = pd.read_csv(write(tmp_path))
    frame.to_parquet(tmp_path / "plain.parquet")
    frame.set_index("site").to_parquet(tmp_path / "indexed.parquet")  # an index with a name is a column
    frame.iloc[::-1].iloc[::-1].set_axis([5, 3, 1, 0, 2, 4]).to_parquet(tmp_path / "odd.parquet")
    frame.astype({"colour": "category", "site": "category"}).to_parquet(tmp_path / "categories.pq")
    hive = tmp_path / "y=1" / "plain.parquet"  # a folder's name is no column
    hive.parent.mkdir()
    frame.to_parquet(hive)
    for path in ("plain.parquet", "indexed.parquet", "odd.parquet", "categories.pq", hive):
        check_content(load_data(f"table:{tmp_path / path}", ASKED))


def test_parquet_types(tmp_path):
    table = pa.table(
        {
            "i": pa.array([1, None, 3, 4]),
            "b": pa.array([True, None, False, True]),
            "d": pa.array([0, 1, 2, None], pa.date32()),
            "t": pa.array([0, 1, 2, 3], pa.timestamp("us", tz="Europe/Paris")),
            "n": pa.array([1, 2, 3, 5], pa.int32()).cast(pa.decimal128(12, 2)),
            "null": pa.nulls(4),
            "a.b": pa.array([1.0, 2.0, 3.0, 5.0]),
            "y": pa.array([True, False, True, False]),
            "site": pa.array([2019, 2019, 2020, 2020]),
        }
    )
    pq.write_table(table, tmp_path / "types.parquet")
    found = read_table(tmp_path / "types.parquet", ASKED)
    with pytest.warns(DataWarning, match=r"columns not used: 'null' \(every value is missing\)"):
        load_data(f"table:{tmp_path / 'types.parquet'}", ASKED)
    assert [(column.name, column.kind) for column in found.schema.columns] == [
        ("i", "numeric"),
        ("b", "boolean"),
        ("d", "date"),
        ("t", "date"),
        ("n", "numeric"),
        ("a.b", "numeric"),
    ]
    assert found.data.class_names == ("False", "True")
    assert found.data.environment_names == ("2019", "2020")


def test_names_are_in_order(tmp_path):
    n = 36
    frame = frame_of(n, y=np.tile([10.0, 9.0, 1.5], n // 3), site=np.repeat(["b", "a", "B"], n // 3))
    path = tmp_path / "table.csv"
    frame.to_csv(path, index=False)
    data = load_data(f"table:{path}", ASKED)
    assert data.class_names == ("1.5", "9", "10")
    assert data.environment_names == ("B", "a", "b")
    assert data.labels[:3].tolist() == [2, 1, 0]


def test_features_can_be_chosen(tmp_path):
    path = write(tmp_path)
    found = read_table(path, Options(label="y", environment="site", features="age"))
    assert found.schema.feature_names == ("age", "age (missing)")
    for features, message in (
        ("color", "did you mean 'colour'"),
        ("age,site", "column 'site' is named twice"),
        ("age,age", "column 'age' is named twice"),
    ):
        assert message in refused(path, Options(label="y", environment="site", features=features))


def test_categories_are_read_as_written(tmp_path):
    """A later file whose categories all look like numbers is encoded like the first one."""
    first = read_table(write(tmp_path, "c,y,site\n007,0,a\nA1,1,a\n007,1,b\n08,0,b\n"), ASKED)
    later = write(tmp_path, "c\n08\n007\n", "later.csv")
    result = first.schema.encode(read_frame(later, texts=("c",)))
    assert result.notes == ()
    assert result.features.tolist() == [[0, 1, 0], [1, 0, 0]]


def random_frame(seed, n=5000):
    rng = np.random.default_rng(seed)
    makers = (
        lambda: rng.normal(size=n) * 10.0 ** rng.integers(-5, 9),
        lambda: rng.integers(-3, 40, n),
        lambda: rng.random(n) < 0.2,
        lambda: rng.choice([f"k{i}" for i in range(rng.integers(1, 90))], n),
        lambda: pd.to_datetime("1999-01-01") + pd.to_timedelta(rng.integers(0, 10_000, n), "D"),
        lambda: [f"id {i}" for i in range(n)],
    )
    frame = pd.DataFrame({f"column {i}": makers[i % len(makers)]() for i in rng.permutation(18)})
    for name in frame.columns[rng.random(18) < 0.5]:
        frame[name] = frame[name].astype(object).where(rng.random(n) < rng.choice([0.1, 0.9]), None)
    return frame.assign(y=rng.choice(["a", "b", "c"], n), site=rng.integers(0, 4, n))


@pytest.mark.parametrize("seed", range(3))
def test_mixed_tables_are_read_the_same_each_time_and_from_either_format(tmp_path, seed):
    frame = random_frame(seed)
    frame.to_csv(tmp_path / "t.csv", index=False)
    pd.read_csv(tmp_path / "t.csv", low_memory=False).to_parquet(tmp_path / "t.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        first, again, parquet = (read_table(tmp_path / name, ASKED) for name in ("t.csv", "t.csv", "t.parquet"))
    assert first.schema == again.schema == parquet.schema
    assert torch.equal(first.data.inputs, again.data.inputs)
    assert torch.equal(first.data.inputs, parquet.data.inputs)
    assert bool(first.data.inputs.isfinite().all())
    assert first.data.inputs.shape == (5000, len(first.schema.feature_names))
    codes = pd.Categorical(frame["y"]).codes
    np.testing.assert_array_equal(first.data.labels, codes)
    result = first.schema.encode(first.frame)
    assert torch.equal(result.features, first.data.inputs)
    assert result.notes == ()


def test_codes_keep_their_zeros(tmp_path):
    codes, places = ("01", "1"), ("01", "1", "001")
    text = "x,y,site\n" + "".join(f"{i},{codes[i % 2]},{places[i % 3]}\n" for i in range(12))
    data = load_data(f"table:{write(tmp_path, text)}", ASKED)
    assert data.class_names == ("01", "1")
    assert data.environment_names == ("001", "01", "1")


def test_whole_numbers_and_spaces(tmp_path):
    text = "x,y,site\n0,1.0,a\n1,0 ,b \n2,1, b\n3,0.0,a\n4, 1,a\n"
    data = load_data(f"table:{write(tmp_path, text)}", ASKED)
    assert data.class_names == ("0", "1")
    assert data.environment_names == ("a", "b")
    assert data.labels.tolist() == [1, 0, 1, 0, 1]
    frame = frame_of()
    frame["y"] = frame["y"].astype(float)
    frame.to_parquet(tmp_path / "table.parquet")
    assert load_data(f"table:{tmp_path / 'table.parquet'}", ASKED).class_names == ("0", "1")
    frame["site"] = frame["site"].map({0: " a", 1: "a "})
    frame.to_parquet(tmp_path / "table.parquet")
    assert "1 environment" in refused(tmp_path / "table.parquet")


@pytest.mark.parametrize("before", [",,,\n", "\n,,,\n\n", " , , , \n,,,\n"])
def test_a_first_line_of_separators_is_not_the_header(tmp_path, before):
    path = write(tmp_path, before + TEXT)
    check_content(load_data(f"table:{path}", ASKED))
    path.write_text(before + TEXT + "1,2\n")
    line = before.count("\n") + TEXT.count("\n") + 1
    assert f"line {line} has 2 fields" in refused(path)


def test_a_column_whose_name_has_a_comma(tmp_path):
    frame = frame_of().rename(columns={"x": "a,b"}).assign(c=np.arange(40) % 7)
    frame.to_csv(tmp_path / "table.csv", index=False)
    data = load_data(f"table:{tmp_path / 'table.csv'}", Options(label="y", environment="site", features="a,b"))
    assert data.inputs[:].shape == (40, 1)
    with pytest.raises(InputError, match="no column 'a'"):
        load_data(f"table:{tmp_path / 'table.csv'}", Options(label="y", environment="site", features="a,c"))


def test_a_long_field(tmp_path):
    path = write(tmp_path, TEXT.replace("colour", "colour" * 40_000))
    assert load_data(f"table:{path}", ASKED).inputs[:].shape[0] == 6


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
    with pytest.warns(DataWarning, match="50 different numbers"):  # not so many
        assert len(load_data(f"table:{path}", ASKED).class_names) == 50
    table = pa.table({"x": [1, 2], "y": [[1], [2]], "site": ["a", "b"]})
    pq.write_table(table, tmp_path / "lists.parquet")
    assert "label 'y' must hold texts or numbers, got list values" in refused(tmp_path / "lists.parquet")


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
    assert "cannot be read (Permission denied)" in refused(path)


def test_a_table_is_encoded_once_by_the_schema_of_its_own_rows(tmp_path):
    table = read_table(write(tmp_path), ASKED)
    every = torch.arange(len(table))
    assert table.select(every) is table
    assert table.schema is table.schema
    assert table.data is table.data
    part = table.select(torch.tensor([4, 0, 1]))
    assert part.schema.feature_names == ("age", "colour=blue", "colour=red")
    assert part.data.labels.tolist() == [0, 0, 1]
    assert part.data.environments.tolist() == [0, 1, 1]  # numbered as in the whole
    held_out = part.schema.encode(table.select(torch.tensor([2, 3])).frame).features
    assert held_out.shape == (2, 3)
    assert held_out[1, 1:].tolist() == [0, 0]  # green, which the part does not have


def test_declared_columns_are_read_as_they_are_written(tmp_path):
    frame = frame_of(60, code=np.tile(["01", "1", "2.0"], 20), dose=np.arange(60) % 7, **{"a,b": np.arange(60) % 4})
    frame.to_csv(tmp_path / "t.csv", index=False)
    asked = replace(ASKED, categorical="code", numeric="a,b", drop=("dose",))
    schema = read_table(tmp_path / "t.csv", asked).schema
    code, both = schema.columns[1:]
    assert (code.kind, set(code.categories)) == ("categorical", {"01", "1", "2"})
    assert (both.name, both.kind) == ("a,b", "numeric")
    assert "dose" in schema.dropped
    later = read_frame(_written(tmp_path / "new.csv", b"x,code\n0,2\n0,01\n0,1.0\n"), texts=("code",))
    assert schema.encode(later).features[:, 1:4].argmax(1).tolist() == [
        code.categories.index(one) for one in ("2", "01", "1")
    ]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"categorical": "ages"}, "has no column 'ages': did you mean 'age'?"),
        ({"numeric": "age", "drop": "colour,age"}, "'age' is named twice, with --numeric and --drop"),
        ({"drop": ("colour", "colour")}, "'colour' is named twice"),
        ({"drop": "site"}, "column 'site' must be a feature for --drop"),
        ({"numeric": "colour"}, "column 'colour' has 'red' in row 1, which is not a number"),
        ({"drop": "age,colour"}, "no column can be a feature"),
        ({"schema": {"colur": {"kind": "drop"}}}, "has no column 'colur': did you mean 'colour'?"),
    ],
)
def test_what_is_said_about_columns_has_to_be_so(tmp_path, asked, told):
    if "schema" in asked:
        asked = {"schema": _written(tmp_path / "schema.json", json.dumps(asked["schema"]).encode())}
    assert told in refused(write(tmp_path), replace(ASKED, **asked))


def test_a_file_says_what_columns_are_and_options_go_before_it(tmp_path):
    path = write(tmp_path)
    file = _written(tmp_path / "schema.json", b'{"age": {"kind": "categorical"}, "colour": {"kind": "drop"}, "y": {}}')
    by_option = replace(ASKED, schema=file, numeric="age", categorical="colour")
    for asked, kinds in ((replace(ASKED, schema=file), ["categorical"]), (by_option, ["numeric", "categorical"])):
        assert [column.kind for column in read_table(path, asked).schema.columns] == kinds
    with pytest.raises(InputError, match="does not take schema"):
        load_data("npz:x.npz", Options(schema=file))


def remarks_on(path, asked=ASKED):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_data(f"table:{path}", asked)
    return [str(one.message) for one in caught]


def test_few_whole_numbers_are_asked_about_in_one_line(tmp_path):
    random = np.random.default_rng(0)
    columns = {
        "grade": random.integers(1, 5, 60),
        "stage": random.integers(0, 3, 60),
        "half": random.integers(0, 4, 60) / 2,
    }
    columns |= {"flag": random.integers(0, 2, 60), "age": random.integers(20, 60, 60)}
    path = tmp_path / "t.csv"
    frame_of(60, **columns).to_csv(path, index=False)
    (line,) = remarks_on(path)
    assert all(part in line for part in ("'grade'", "'stage'", "1 to 4", "0 to 2", "--categorical", "--numeric"))
    assert not any(repr(name) in line for name in ("half", "flag", "age"))
    (line,) = remarks_on(path, replace(ASKED, numeric="grade"))
    assert "--categorical stage takes them as codes" in line
    assert remarks_on(path, replace(ASKED, numeric="grade", categorical="stage")) == []
    frame_of(60, **columns).iloc[:35].to_csv(path, index=False)  # too few rows for four codes
    (line,) = remarks_on(path)
    assert "grade" not in line


def test_codes_of_some_sites_alone_are_asked_about_where_they_lie_apart(tmp_path):
    random, site = np.random.default_rng(0), np.repeat(["a", "b", "c", "d"], 50)
    pressure, score = random.normal(120, 15, 200).round(), random.normal(0, 60, 200).round()
    pressure[10:20], score[10:40] = -999, -99  # which is among the scores
    path = tmp_path / "t.csv"
    frame_of(200, site=site, pressure=pressure, score=score).to_csv(path, index=False)
    (line,) = remarks_on(path)
    assert "column 'pressure' is -999 in 10 of 50 rows at 'a' and nowhere else" in line


@pytest.mark.parametrize("byte", [b"\x86", b"\x01"])
def test_what_pandas_notes_in_a_parquet_file_may_be_damaged(tmp_path, byte):
    frame = pd.DataFrame({"x": [1.5, 2.5], "y": ["a", "b"]})
    content = frame.to_parquet()
    path = _written(tmp_path / "t.parquet", content.replace(b'"columns"', b'"c' + byte + b'lumns"'))
    assert path.read_bytes() != content
    pd.testing.assert_frame_equal(read_frame(path), frame, check_dtype=False)
    (part,) = read_frames(path, 10, ["x", "y"])
    pd.testing.assert_frame_equal(part, frame, check_dtype=False)


def test_texts_of_a_parquet_file_that_are_not_utf8_are_refused(tmp_path):
    """As a damaged file has them: the rest of it can be read."""
    offsets = pa.py_buffer(np.arange(7, dtype=np.int32).tobytes())
    broken = pa.Array.from_buffers(pa.string(), 6, [None, offsets, pa.py_buffer(b"ab\xffabc")])
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"y": list("aabbab"), "site": list("nnssnn"), "x": broken}), path)
    with pytest.raises(InputError, match=r"t\.parquet"):
        read_frame(path)
    with pytest.raises(InputError, match=r"t\.parquet"):
        list(read_frames(path, 2))


def test_marks_among_numbers_count_as_missing(tmp_path):
    """In a column of numbers alone, as it is read for a fit and in parts; other columns keep them."""
    path = tmp_path / "t.csv"
    marked = frame_of(6, x=["1", "?", "2.5", ".", "", "4"], word=["a", "?", "b", "-", "a", "b"])
    marked.to_csv(path, index=False)
    with pytest.warns(DataWarning, match="'x'"):
        found = read_frame(path)
    np.testing.assert_array_equal(found["x"], [1, np.nan, 2.5, np.nan, np.nan, 4])
    assert found["word"].tolist() == ["a", "?", "b", "-", "a", "b"]
    parts = pd.concat(read_frames(path, 2))
    np.testing.assert_array_equal(parts["x"].astype(float), found["x"])
    assert read_frame(path, texts=["x"])["x"].tolist()[1] == "?"


def test_zeroes_of_some_sites_alone_are_asked_about(tmp_path):
    random, site = np.random.default_rng(0), np.repeat(["a", "b", "c", "d"], 50)
    chol, rain = random.normal(250, 30, (2, 200)).round(1)
    chol[site == "a"], chol[100:120], rain[random.random(200) < 0.4] = 0, 0, 0
    path = tmp_path / "t.csv"
    signed = np.where(np.arange(200) < 50, 0, random.normal(size=200))
    frame_of(200, site=site, chol=chol, rain=rain, signed=signed).to_csv(path, index=False)
    (line,) = remarks_on(path)
    assert (
        "column 'chol' is 0 in 50 of 50 rows at 'a', 20 of 50 rows at 'c' and nowhere else: does 0 mean missing?"
        in line
    )
    chol[150] = 0  # one of fifty in d: neither rare nor frequent
    frame_of(200, site=site, chol=chol).to_csv(path, index=False)
    assert remarks_on(path) == []


@pytest.mark.parametrize("others", ["near", "thousands"])
def test_a_code_of_missing_values_is_asked_about_wherever_it_is(tmp_path, others):
    random, path = np.random.default_rng(0), tmp_path / "t.csv"
    x = random.normal(5, 1, 200).round(2) if others == "near" else random.uniform(0, 5000, 200).round(2)
    x[:20] = -999
    frame_of(200, x=x, z=random.normal(size=200)).to_csv(path, index=False)
    (line,) = remarks_on(path)
    assert "--missing x=-999" in line
    assert "20 of 200 rows" in line


CODED = {
    "age": ["31.5", "unknown", "40", "-999", "52"] * 12,
    "visits": ["1", "2", "-999", "4.5", "-1"] * 12,
    "smokes": ["True", "False", "unknown"] * 20,
    "ward": ["a", "unknown", "b", "c"] * 15,
    "born": ["1990-01-31", "unknown", "1985-06-01", "1970-12-31"] * 15,
}
"""Columns in which unknown and -999 stand for a missing value."""


def coded_tables(tmp_path, ending):
    """Paths of a table with codes of missing values, and of the same with empty cells."""
    paths = []
    for name, replaced in (("coded", {}), ("empty", {"unknown": None, "-999": None})):
        columns = {key: pd.Series(values, dtype=object).replace(replaced) for key, values in CODED.items()}
        paths.append(tmp_path / f"{name}{ending}")
        frame = frame_of(60, **columns)
        if ending == ".csv":
            frame.to_csv(paths[-1], index=False)
        elif name == "coded":
            frame.to_parquet(paths[-1])
        else:  # as a program writes a table without codes
            frame = frame.assign(age=frame["age"].astype(float), visits=frame["visits"].astype(float))
            frame.assign(smokes=frame["smokes"].map({"True": True, "False": False})).to_parquet(paths[-1])
    return paths


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_values_that_mean_missing_are_read_as_empty_cells_are(tmp_path, ending):
    coded, empty = coded_tables(tmp_path, ending)
    options = Options(label="y", environment="site")
    found = read_table(coded, replace(options, missing=" unknown, -999.0"))
    expected = read_table(empty, options)
    assert found.schema.columns == expected.schema.columns
    assert [column.kind for column in found.schema.columns[-5:]] == [
        "numeric", "numeric", "boolean", "categorical", "date"
    ]  # fmt: skip
    assert torch.equal(found.data.inputs[:], expected.data.inputs[:])


def test_a_value_may_mean_missing_in_one_column_alone(tmp_path):
    path = tmp_path / "t.csv"
    frame_of(60, age=[20.5, -1, 30, 40] * 15, change=[-1.5, -1, 0.5, 2] * 15, **{"a=b": [-1.5, 3, 4, 5] * 15}).to_csv(
        path, index=False
    )
    options = Options(label="y", environment="site", missing=("age=-1", "a=b=3"))
    frame = read_table(path, options).frame
    assert frame.isna().sum()[["age", "change", "a=b"]].tolist() == [15, 0, 15]


def test_a_value_that_no_column_has_is_told(tmp_path):
    coded, _ = coded_tables(tmp_path, ".csv")
    with pytest.warns(DataWarning, match="'unknwon'$"):
        read_table(coded, Options(label="y", environment="site", missing="unknwon,-999"))
    with pytest.raises(InputError, match=r"--missing must be .* got 'age='"):
        read_table(coded, Options(label="y", environment="site", missing="age="))


def test_values_that_mean_missing_may_be_declared_in_a_file(tmp_path):
    coded, _ = coded_tables(tmp_path, ".csv")
    schema = tmp_path / "schema.json"
    schema.write_text('{"age": {"missing": ["unknown", -999]}, "visits": {"missing": [-999]}}')
    table = read_table(coded, Options(label="y", environment="site", schema=schema))
    assert table.schema.missing == {"age": ("unknown", "-999"), "visits": ("-999",)}
    assert table.frame[["age", "visits"]].isna().sum().tolist() == [24, 12]
    schema.write_text('{"age": {"missing": "unknown"}}')
    with pytest.raises(InputError, match=r"missing of column 'age' must be .*'unknown'"):
        read_table(coded, Options(label="y", environment="site", schema=schema))


def test_the_largest_numbers_are_no_codes_and_no_warning(tmp_path):
    x = np.sin(np.arange(60))
    x[:2] = -1.7e308, 1.7e308
    frame_of(60, x=np.sin(np.arange(60)), wide=x).to_parquet(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet", ASKED).suspects == {}


DAYS = pd.Series(pd.date_range("2021-01-05", periods=60, freq="9D"))


def dated(tmp_path, form, days=DAYS, name="t.csv", **more):
    texts = days.dt.strftime(form)
    texts[7] = None
    frame_of(len(days), x=np.sin(np.arange(len(days))), day=texts, **more).to_csv(tmp_path / name, index=False)
    return tmp_path / name


@pytest.mark.parametrize(
    ("form", "order"),
    [
        ("%d/%m/%Y", "day-first"),
        ("%m/%d/%Y", "month-first"),
        ("%d.%m.%Y", "day-first"),
        ("%m-%d-%Y %H:%M", "month-first"),
    ],
)
def test_one_day_after_the_twelfth_tells_the_order_of_dates(tmp_path, form, order):
    days = DAYS[DAYS.dt.day <= 12].reset_index(drop=True)
    days[len(days)] = pd.Timestamp("2021-02-13")
    expected = read_table(dated(tmp_path, "%Y-%m-%d", days, "iso.csv"), ASKED)
    found = read_table(dated(tmp_path, form, days), ASKED)
    assert [column.kind for column in found.schema.columns][-1] == "date"
    assert found.schema.columns[-1] == replace(expected.schema.columns[-1], order=order)
    assert torch.equal(found.data.inputs[:], expected.data.inputs[:])
    again = Schema.from_dict(json.loads(json.dumps(found.schema.to_dict())))
    raw = pd.read_csv(tmp_path / "t.csv", dtype={"day": str})
    assert torch.equal(again.encode(raw.iloc[:5]).features, found.data.inputs[:][:5])  # none of which tells the order
    wrong = pd.DataFrame({"x": [0.0], "day": ["13/13/2021"]})
    with pytest.raises(InputError, match="'13/13/2021' in row 1"):
        again.encode(wrong)


def test_dates_that_tell_no_order_are_texts_until_it_is_given(tmp_path):
    days = DAYS[DAYS.dt.day <= 12].reset_index(drop=True)
    path = dated(tmp_path, "%d/%m/%Y", days)
    (line,) = remarks_on(path)
    assert "--dates day-first or --dates month-first" in line
    for order, form in (("day-first", "%d/%m/%Y"), ("month-first", "%m/%d/%Y")):
        table = read_table(path, replace(ASKED, dates=order))
        given = pd.to_datetime(pd.read_csv(path)["day"], format=form)
        np.testing.assert_array_equal(as_days(table.frame["day"], "day"), as_days(given, "day"))
        assert table.schema.columns[-1].order == order
    schema = tmp_path / "schema.json"
    schema.write_text('{"day": {"kind": "date"}}')
    with pytest.raises(InputError, match=r"'day' must .*--dates"):
        read_table(path, replace(ASKED, schema=schema))
    schema.write_text('{"day": {"kind": "date", "dates": "month-first"}}')
    assert read_table(path, replace(ASKED, schema=schema)).schema.columns[-1].order == "month-first"
    schema.write_text('{"day": {"dates": "month-first"}}')
    with pytest.raises(InputError, match=r"t\.csv: column 'day' has '\d\d/\d\d/2021'.* 05/31/2024"):
        read_table(dated(tmp_path, "%d/%m/%Y"), replace(ASKED, schema=schema))


def test_dates_in_two_orders_stay_texts(tmp_path):
    texts = ["13/02/2021", "02/13/2021", "01/02/2021"] * 20
    frame_of(60, x=np.sin(np.arange(60)), day=texts).to_csv(tmp_path / "t.csv", index=False)
    (line,) = remarks_on(tmp_path / "t.csv")
    assert "two orders" in line
    table = read_table(tmp_path / "t.csv", replace(ASKED, dates="day-first"))
    assert table.schema.columns[-1].kind == "categorical"


@pytest.mark.parametrize("most", [False, True])
def test_many_numbers_as_labels_are_asked_about(tmp_path, most):
    """An age or a count is not 60 classes; codes of many classes are, and so are texts."""
    y = np.repeat(np.arange(60), 10) if not most else np.r_[np.arange(60).repeat(3), np.zeros(100, int)]
    frame_of(len(y), y=y, x=np.sin(np.arange(len(y)))).to_csv(tmp_path / "t.csv", index=False)
    if most:
        assert "label 'y' must name classes, got 60 different numbers" in refused(tmp_path / "t.csv", ASKED)
    else:
        with pytest.warns(DataWarning, match="60 different numbers.*--categorical y"):
            assert len(read_table(tmp_path / "t.csv", ASKED).class_names) == 60
    table = read_table(tmp_path / "t.csv", replace(ASKED, categorical="y"))
    assert len(table.class_names) == 60
    assert [column.name for column in table.schema.columns] == ["x"]
    schema = tmp_path / "schema.json"
    schema.write_text('{"y": {"kind": "categorical"}}')
    assert len(read_table(tmp_path / "t.csv", replace(ASKED, schema=schema)).class_names) == 60
    texts = frame_of(len(y), y=[f"C{i}" for i in y], x=np.sin(np.arange(len(y))))
    texts.to_csv(tmp_path / "t.csv", index=False)
    assert len(read_table(tmp_path / "t.csv", ASKED).class_names) == 60


def test_empty_bytes_are_empty_cells(tmp_path):
    frame_of(40, site=[b"a", b"b", b"a", b""] * 10).to_parquet(tmp_path / "t.parquet")
    assert "column 'site' is empty" in refused(tmp_path / "t.parquet")


@pytest.mark.parametrize("copy", [["1", "0"], [7.5, 2.0], ["p", "q"]])
def test_a_column_that_says_the_label_is_told_with_the_way_out(tmp_path, copy):
    random = np.random.default_rng(0)
    label = random.integers(2, size=60)
    frame = pd.DataFrame({"x": random.normal(size=60), "result": np.array(copy, dtype=object)[label]})
    frame.loc[3, "result"] = None
    frame = frame.assign(site=np.arange(60) % 3, outcome=np.array(["no", "yes"])[label])
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = Options(label="outcome", environment="site")
    with pytest.warns(DataWarning, match="--drop result"):
        load_data(f"table:{tmp_path / 't.csv'}", options)
    load_data(f"table:{tmp_path / 't.csv'}", replace(options, drop="result"))
    frame.loc[5:7, "result"] = copy[0]
    frame.loc[8:10, "result"] = copy[1]
    frame.to_csv(tmp_path / "t.csv", index=False)
    load_data(f"table:{tmp_path / 't.csv'}", options)
