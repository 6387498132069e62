"""Predictions of files: in parts as in one go, and with a word where they are not like the training table."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rows import ASKED, table

from transferrisk.data import Options
from transferrisk.errors import DataWarning, InputError
from transferrisk.fitting import Plan, fit, load_model, save_fit
from transferrisk.fitting.pictures import image_parts
from transferrisk.fitting.predict import predict_file
from transferrisk.fitting.source import read_source

COLUMNS = ["probability_no", "probability_yes"]
PLAN = Plan(compared=False, algorithm="erm", epochs=1, device="cpu")


def test_dates_are_read_in_the_order_of_the_training_table(tmp_path):
    """Also where the new rows tell no order, in a file and in a DataFrame; another order is refused."""
    known, new = table(300), table(60, seed=2)
    new["seen"] = new["seen"].mask(new["seen"].dt.day > 12, pd.Timestamp("2024-03-05"))
    frames = {"iso.csv": new, "new.csv": new.assign(seen=new["seen"].dt.strftime("%d/%m/%Y"))}
    for name, frame in frames.items():
        frame.to_csv(tmp_path / name, index=False)
    known.assign(seen=known["seen"].dt.strftime("%d/%m/%Y")).to_csv(tmp_path / "known.csv", index=False)
    plan = Plan(algorithms=("linear", "boosting"), algorithm="linear", device="cpu", workers=1)
    fitted = fit(tmp_path / "known.csv", ASKED, plan)  # every split reads them in the same way
    save_fit(fitted, tmp_path / "model")
    model = load_model(tmp_path / "model")
    found = []
    for name in frames:
        predict_file(model, str(tmp_path / name), tmp_path / "p.csv", size=17)
        found.append(pd.read_csv(tmp_path / "p.csv")[COLUMNS].to_numpy())
    found.append(model.predict_proba(pd.read_csv(tmp_path / "new.csv")))
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], found[2], atol=1e-6)
    assert "31/05/2024" in refusal_of(model, known.assign(seen="02/13/2021"), tmp_path)


def refusal_of(model, frame, tmp_path):
    frame.to_csv(tmp_path / "refused.csv", index=False)
    with pytest.raises(InputError, match="'02/13/2021' in row 1") as error:
        predict_file(model, str(tmp_path / "refused.csv"), tmp_path / "none.csv")
    assert not (tmp_path / "none.csv").exists()
    return str(error.value)


@pytest.mark.parametrize("algorithm", ["linear", "boosting"])
def test_values_that_mean_missing_are_so_for_a_model_too(tmp_path, algorithm):
    """In a file, in parts of it and in a DataFrame, predictions are those of rows with empty cells."""
    known, new = table(300), table(60, seed=2)
    known.loc[::7, "x0"], known.loc[::5, "colour"] = None, None
    new.loc[::3, "x0"], new.loc[::4, "colour"], new.loc[::9, "x1"] = None, None, None
    coded = {"x0": "unknown", "colour": "unknown", "x1": -999}
    paths = [tmp_path / name for name in ("known.csv", "new.csv", "empty.csv")]
    for frame, path in zip(
        (known.astype(object).fillna(coded), new.astype(object).fillna(coded), new), paths, strict=True
    ):
        frame.to_csv(path, index=False)
    options = replace(ASKED, missing="unknown,x1=-999")
    with pytest.warns(DataWarning, match="'-999'"):  # which the known rows do not have
        fitted = fit(paths[0], options, Plan(algorithm=algorithm, compared=False, device="cpu"))
    save_fit(fitted, tmp_path / "model")
    model = load_model(tmp_path / "model")
    found = []
    for path, size in ((paths[1], 1000), (paths[1], 17), (paths[2], 1000)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predict_file(model, str(path), tmp_path / "p.csv", size=size)
            found.append(pd.read_csv(tmp_path / "p.csv")[COLUMNS].to_numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.append(model.predict_proba(pd.read_csv(paths[1])))
    for one in found[1:]:
        np.testing.assert_allclose(one, found[0], atol=1e-6)
    assert model.schema.columns[0].kind == "numeric"
    again = fit(
        paths[0], replace(ASKED, schema=tmp_path / "model" / "schema.json"), Plan(algorithm="linear", compared=False)
    )
    assert again.model.schema.missing == model.schema.missing


@pytest.mark.parametrize(
    ("ending", "size"),
    [("csv", 1), ("csv", 17), ("csv", 1000), ("parquet", 1), ("parquet", 17), ("csv.gz", 17), ("tsv", 17)],
)
def test_parts_give_what_one_go_gives(fitted, tmp_path, ending, size):
    new = table(60, seed=2)
    new.loc[20:45, ["seen", "income", "colour"]] = None  # whole parts without a value
    file, output = tmp_path / f"new.{ending}", tmp_path / f"out.{ending}"
    if ending == "parquet":
        new.to_parquet(file)
    else:
        new.to_csv(file, index=False, sep="\t" if ending == "tsv" else ",")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = fitted.model.predict_proba(new)
        done = predict_file(fitted.model, str(file), output, identity="code", size=size)
    found = pd.read_parquet(output) if ending == "parquet" else pd.read_csv(output, sep=None, engine="python")
    assert list(found.columns) == ["code", "prediction", *COLUMNS]
    assert found["code"].tolist() == new["code"].tolist()
    assert np.allclose(found[COLUMNS], expected, atol=1e-7)
    guesses = np.array(["no", "yes"])[expected.argmax(1)]
    assert found["prediction"].tolist() == guesses.tolist()
    for site, rows in new.groupby("site").groups.items():
        assert done.right[site] == ((guesses[rows] == new.loc[rows, "outcome"]).sum(), len(rows))
    assert done.rows == 60


def test_each_difference_is_told_once(fitted, tmp_path):
    new = table(60, seed=2).drop(columns=["x3", "outcome"]).assign(extra=1)
    new["colour"] = np.where(np.arange(60) % 2, "mauve", new["colour"])
    new.to_csv(tmp_path / "new.csv", index=False)
    with pytest.warns(UserWarning) as told:  # noqa: PT030  # what they say is looked at below
        done = predict_file(fitted.model, str(tmp_path / "new.csv"), tmp_path / "out.csv", size=7)
    lines = [str(warning.message).removeprefix(f"{tmp_path / 'new.csv'}: ") for warning in told]
    kinds = [re.sub(r"\d+", "N", line) for line in lines]
    assert kinds.count("columns not used: 'extra'") == 1
    assert kinds.count("missing columns, taken as missing values: 'xN'") == 1
    assert sum("categories not seen before ('mauve')" in kind for kind in kinds) == 1
    assert any("'colour' has 30 rows" in line for line in lines)
    assert sum("accuracy" in line and "without columns" in line for line in lines) == 1
    assert len(lines) == 4
    assert done.right == {}


def test_a_column_that_is_missing_under_its_name_is_looked_for_under_another(fitted, tmp_path):
    lines = told_of(fitted.model, table(60, seed=2).rename(columns={"colour": "Colour"}), tmp_path)
    assert sum("for 'colour', did you mean 'Colour'?" in line for line in lines) == 1


def test_columns_that_differ_by_a_digit_are_each_told(tmp_path):
    names = ["k1", "k2", "k's"]
    old = table(90)[["x0", "site", "outcome"]].assign(**{name: ["a", "b", "c"] * 30 for name in names})
    old.to_csv(tmp_path / "old.csv", index=False)
    model = fit(tmp_path / "old.csv", ASKED, PLAN).model
    new = old.head(12).assign(**{name: ["z (1)", "y", "x", None] * 3 for name in names})
    new.to_csv(tmp_path / "new.csv", index=False)
    with pytest.warns(UserWarning) as told:  # noqa: PT030  # what they say is looked at below
        predict_file(model, str(tmp_path / "new.csv"), tmp_path / "out.csv", size=5)
    lines = [str(warning.message) for warning in told]
    assert len(lines) == 6
    for name in names:  # all rows of the file are counted, whatever part they are in
        assert sum(f"column {name!r} has 9 rows" in line and "not seen before" in line for line in lines) == 1
        assert sum(f"column {name!r} has 3 missing values" in line for line in lines) == 1


def told_of(model, frame, tmp_path, size=7):
    """What is said of a table that is predicted in parts."""
    frame.to_csv(tmp_path / "new.csv", index=False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        done = predict_file(model, str(tmp_path / "new.csv"), tmp_path / "out.csv", size=size)
    assert done.rows == len(frame)
    return [str(warning.message).removeprefix(f"{tmp_path / 'new.csv'}: ") for warning in told]


def test_numbers_in_other_units_are_told_with_all_their_rows(fitted, tmp_path):
    old, new = table(400), table(60, seed=2)
    assert told_of(fitted.model, old, tmp_path) == []  # of the rows trained on, none is outside
    new["income"] *= 1000
    (line,) = told_of(fitted.model, new, tmp_path)
    low, high = old["income"].min(), old["income"].max()
    assert line.startswith(
        f"column 'income' lies far outside {low:g} to {high:g}, all that was trained on, in 54 of 60"
    )
    assert f"reaching {new['income'].max():g}: check its units" in line
    (line,) = told_of(fitted.model, table(60, seed=2).assign(x1=old["x1"].min() - 0.01), tmp_path)
    assert line.startswith("column 'x1' lies outside ")  # by little, but all of them
    assert "in 60 of 60 rows" in line


def test_many_columns_in_other_units_share_a_line(fitted, tmp_path):
    new = table(60, seed=2)
    new[["x0", "x1", "x2", "x3", "shortcut", "income"]] *= 1e6
    (line,) = told_of(fitted.model, new, tmp_path)
    assert line.startswith("6 columns have numbers outside of all that were trained on, in up to 60 of 60 rows: 'x0', ")


def test_labels_the_model_does_not_know_are_wrong(fitted, tmp_path):
    new = table(12).drop(columns="site")
    new["outcome"] = ["perhaps"] * 7 + [None] * 2 + ["no"] * 3
    new.to_csv(tmp_path / "new.csv", index=False)
    told = "new.csv: 2 rows without a label left out of the accuracy; labels the model does not know count as wrong: 'p"
    with pytest.warns(UserWarning, match=told):
        done = predict_file(fitted.model, str(tmp_path / "new.csv"), tmp_path / "out.csv", size=8)
    guesses = pd.read_csv(tmp_path / "out.csv")["prediction"]
    assert done.right == {"all rows": ((guesses[9:] == "no").sum(), 10)}


def test_without_a_label_the_model_knows_there_is_no_accuracy(fitted, tmp_path):
    table(12).assign(outcome=["perhaps", None] * 6).to_csv(tmp_path / "new.csv", index=False)
    told = "no accuracy, since the model knows none of the labels 'perhaps', but 'no', 'yes'"
    with pytest.warns(UserWarning, match=told) as lines:
        done = predict_file(fitted.model, str(tmp_path / "new.csv"), tmp_path / "out.csv")
    assert (len(lines), done.rows, done.right) == (1, 12, {})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda new: new[["site", "outcome"]], "are missing: name another file"),
        (
            lambda new: new[["x0", "site", "outcome"]],
            r"most of the \d columns of the model, and 'colour'",
        ),
        (lambda new: new.assign(x0="high"), "column 'x0' has 'high' in row 1, which is not a number"),
        (lambda new: new.rename(columns={"code": "kode"}), "has no column 'code': did you mean 'kode'"),
        (lambda new: new.assign(seen="soon"), "which is not a date"),
        (lambda new: new.iloc[:0], "columns and no rows"),
    ],
)
def test_what_cannot_be_predicted_leaves_no_file(fitted, tmp_path, change, told):
    change(table(30)).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(InputError, match=told):
        predict_file(fitted.model, str(tmp_path / "new.csv"), tmp_path / "out.parquet", identity="code")
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]


@pytest.mark.parametrize("option", ["label", "environment"])
def test_a_name_that_was_given_has_to_be_there(fitted, tmp_path, option):
    new = table(30).rename(columns={"outcome": "result", "site": "place"})
    new.to_csv(tmp_path / "new.csv", index=False)
    wanted, near = {"label": ("resultt", "result"), "environment": ("plaze", "place")}[option]
    with pytest.raises(InputError, match=f"has no column '{wanted}': did you mean '{near}'.* with --{option}"):
        predict_file(fitted.model, str(tmp_path / "new.csv"), tmp_path / "out.csv", **{option: wanted})
    assert [path.name for path in tmp_path.iterdir()] == ["new.csv"]
    with pytest.warns(UserWarning, match="columns not used"):
        assert predict_file(fitted.model, str(tmp_path / "new.csv"), tmp_path / "out.csv").right == {}


def test_an_error_late_in_a_file_leaves_the_old_output(fitted, tmp_path):
    new = table(30).astype({"x0": object})
    new.loc[25, "x0"] = "high"
    new.to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "out.csv").write_text("old")
    with pytest.raises(InputError, match=r"new.csv, from row 21 on: column 'x0' has 'high' in row 6"):
        predict_file(fitted.model, str(tmp_path / "new.csv"), tmp_path / "out.csv", size=10)
    assert (tmp_path / "out.csv").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(InputError, match=r"--id \(identity .* got 'prediction'"):
        predict_file(fitted.model, str(tmp_path / "new.csv"), tmp_path / "out.csv", identity="prediction")
    with pytest.raises(InputError, match=r"must end in \.csv, .*out\.xls"):
        predict_file(fitted.model, str(tmp_path / "new.csv"), tmp_path / "out.xls")


def test_the_samples_are_never_replaced(fitted, tmp_path):
    file = tmp_path / "new.csv"
    table(12).to_csv(file, index=False)
    before = file.read_bytes()
    (tmp_path / "link.csv").symlink_to(file)
    (tmp_path / "hard.csv").hardlink_to(file)
    for given in (str(file), f"table:{file}"):
        for output in ("new.csv", "link.csv", "hard.csv"):
            with pytest.raises(InputError, match=rf"{output} is read( as .*new\.csv)?, and is not replaced"):
                predict_file(fitted.model, given, tmp_path / output)
    assert file.read_bytes() == before
    assert predict_file(fitted.model, str(file), tmp_path / "other.csv").rows == 12


def test_whole_numbers_to_keep_stay_whole_beside_missing_ones(fitted, tmp_path):
    new = table(30).assign(key=[*range(25), None, *range(26, 30)])
    new["key"] = new["key"].astype("Int64")
    new.to_parquet(tmp_path / "new.parquet")
    predict_file(fitted.model, str(tmp_path / "new.parquet"), tmp_path / "out.parquet", identity="key", size=10)
    found = pd.read_parquet(tmp_path / "out.parquet")["key"]
    assert found.isna().tolist() == new["key"].isna().tolist()
    assert found.dropna().astype(int).tolist() == new["key"].dropna().astype(int).tolist()


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_embeddings(tmp_path, kind):
    random = np.random.default_rng(0)
    x = (100 + 5 * random.normal(size=(240, 6))).astype(np.float32)
    x[:, 5] = 3
    labels, sites = np.where(x[:, 0] > 100, "b", "a"), random.choice(["u", "v", "w"], 240)
    file = tmp_path / f"e.{kind}"
    if kind == "npz":
        np.savez(file, features=x, labels=labels, environments=sites)
    else:
        pd.DataFrame({"embedding": list(x), "label": labels, "environment": sites}).to_parquet(file)
    fitted = fit(file, None, Plan(("erm",), compared=False, algorithm="erm", device="cpu"))
    with pytest.raises(InputError, match=r"has no (array|column) 'labelz': did you mean 'labels?'"):
        predict_file(fitted.model, str(file), tmp_path / "none.csv", label="labelz")
    standardise = fitted.model.network.featuriser.standardise
    assert standardise.mean.tolist() == pytest.approx(x.astype(np.float64).mean(0), rel=1e-6)
    other = x.copy()
    other[:, 5] = 4  # it was constant
    assert np.array_equal(fitted.model.predict_proba(other), fitted.model.predict_proba(x))
    done = predict_file(fitted.model, str(file), tmp_path / "out.csv", size=50)
    found = pd.read_csv(tmp_path / "out.csv")[["probability_a", "probability_b"]]
    assert np.allclose(found, fitted.model.predict_proba(x), atol=1e-12)
    assert sum(right for right, _ in done.right.values()) / 240 > 0.95
    with pytest.raises(InputError, match=r"shape \(n, 6\), got \(2, 5\)"):
        fitted.model.predict_proba(x[:2, :5])


def test_images_in_folders_and_manifests(tmp_path):
    from PIL import Image

    rows = []
    for site in "abc":
        for label, green in (("cat", 30), ("dog", 220)):
            for i in range(6):
                path = tmp_path / "pictures" / site / label / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (9, 9), (20 * i, green, 40 * i)).save(path)
                rows.append((str(path.relative_to(tmp_path)), label, site))
    plan = Plan(compared=False, algorithm="erm", backbone="cnn:4", epochs=40, device="cpu")
    fitted = fit(tmp_path / "pictures", Options(size=8), plan)
    done = predict_file(fitted.model, str(tmp_path / "pictures"), tmp_path / "folder.csv")
    assert set(done.right) == {"a", "b", "c"}
    (part,) = image_parts(fitted.model, tmp_path / "pictures", ("label", "environment"), "path", {}, False)
    assert torch.equal(part.inputs, fitted.source.samples.inputs[:])
    chances = fitted.model.predict_proba(part.inputs)
    found = pd.read_csv(tmp_path / "folder.csv")
    assert np.allclose(found[["probability_cat", "probability_dog"]], chances, atol=1e-12)
    pd.DataFrame(rows, columns=["path", "label", "environment"]).to_csv(tmp_path / "list.csv", index=False)
    again = predict_file(fitted.model, str(tmp_path / "list.csv"), tmp_path / "list_out.csv")
    assert again.right == done.right
    for listing, told in (("list.csv", "has no column 'sites': choose from"), ("pictures", "has folders and no col")):
        with pytest.raises(InputError, match=told):
            predict_file(fitted.model, str(tmp_path / listing), tmp_path / "none.csv", environment="sites")
    listed = pd.read_csv(tmp_path / "list_out.csv")
    assert listed["prediction"].tolist() == found["prediction"].tolist()
    classes_alone = predict_file(fitted.model, str(tmp_path / "pictures" / "a"), tmp_path / "a.csv")
    assert classes_alone.right == {"all rows": done.right["a"]}
    (tmp_path / "pictures" / "a" / "cat" / "bad.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"bad\.png cannot be used"):
        predict_file(fitted.model, str(tmp_path / "pictures"), tmp_path / "bad.csv")
    with pytest.warns(UserWarning, match=r"bad\.png is left out"):
        assert predict_file(fitted.model, str(tmp_path / "pictures"), None, skip_bad=True).rows == 36


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
    fitted = fit(tmp_path / "t.parquet", ASKED, PLAN)
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
    with pytest.raises(InputError, match=r"far\.npz, from row 21 on: row 6 has no finite probabilities"):
        predict_file(of_vectors, str(tmp_path / "far.npz"), tmp_path / "out.csv", size=10)
    with pytest.raises(InputError, match="row 1 has no finite probabilities"):
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
