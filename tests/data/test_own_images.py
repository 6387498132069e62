"""The user's folders and manifests, and PACS and Office-Home in the layouts people have them in."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch
from drawn import picture, sites, write_folder, write_tar, write_zip

from transferrisk.data import Options, load_data, load_splits
from transferrisk.data.image_set import LazyImages
from transferrisk.data.images import decode
from transferrisk.data.sets.published import OFFICE_HOME, PACS
from transferrisk.errors import BadImageError, DataWarning, InputError

SMALL = Options(size=6)
FILES = sites()


def image(data, position):
    return (data[position].inputs * 255).round().to(torch.uint8)


@pytest.mark.parametrize("wrapper", ["", "my data/"])
@pytest.mark.parametrize("kind", ["folder", "zip", "tar", "tar.gz"])
def test_own_folder(tmp_path, kind, wrapper):
    files = {wrapper + name: content for name, content in FILES.items()} | {wrapper + "README.txt": b"hello"}
    if kind == "folder":
        path = write_folder(tmp_path / "own", files)
    elif kind == "zip":
        path = write_zip(tmp_path / "own.zip", files)
    else:
        path = write_tar(tmp_path / f"own.{kind}", files, "w:gz" if kind == "tar.gz" else "w")
    data = load_data(f"folder:{path}", SMALL)
    assert data.environment_names == ("site a", "site b", "site c")
    assert data.class_names == ("cat", "dog")
    assert len(data) == len(FILES)
    for position, name in enumerate(sorted(FILES)):
        environment, label, _ = name.split("/")
        assert data.environment_names[data[position].environment] == environment
        assert data.class_names[data[position].label] == label
        assert torch.equal(image(data, position), torch.from_numpy(decode(FILES[name], 6)))


def test_lazy_gives_the_same(tmp_path):
    path = write_zip(tmp_path / "own.zip", FILES)
    cached, lazy = (load_data(f"folder:{path}", replace(SMALL, lazy=lazy)) for lazy in (False, True))
    assert isinstance(lazy.inputs, LazyImages)
    assert torch.equal(cached.batch(), lazy.batch())
    index = torch.tensor([5, 0, 5])
    assert torch.equal(cached.batch(index), lazy.batch(index))
    assert torch.equal(cached.environment("site b").batch(), lazy.environment("site b").batch())


def test_large_sets_are_lazy_by_themselves(tmp_path, monkeypatch):
    path = write_folder(tmp_path / "own", FILES)
    monkeypatch.setattr("transferrisk.data.image_set.LARGEST_CACHE", 3 * 6 * 6 * len(FILES) - 1)
    assert isinstance(load_data(f"folder:{path}", SMALL).inputs, LazyImages)
    monkeypatch.setattr("transferrisk.data.image_set.LARGEST_CACHE", 3 * 6 * 6 * len(FILES))
    assert not isinstance(load_data(f"folder:{path}", SMALL).inputs, LazyImages)


def test_splits_need_a_test_environment(tmp_path):
    path = write_folder(tmp_path / "own", FILES)
    with pytest.raises(InputError, match="choose from 'site a', 'site b', 'site c' with --test-env"):
        load_splits(f"folder:{path}", SMALL)
    splits = load_splits(f"folder:{path}", SMALL, "site b")
    assert splits.train.environment_names == ("site a", "site c")
    assert splits.test.environment_names == ("site b",)


BAD = {"site a/cat/0.png": b"", "site b/dog/1.png": b"no image", "site c/cat/2.png": picture(size=(99, 99))[:-30]}


@pytest.mark.parametrize("lazy", [False, True])
def test_bad_images_are_named_or_skipped(tmp_path, lazy):
    path = write_folder(tmp_path / "own", FILES | BAD)
    asked = replace(SMALL, lazy=lazy)
    if lazy:
        with pytest.raises(BadImageError, match=r"site a/cat/0\.png cannot be used: it is empty"):
            load_data(f"folder:{path}", asked).batch()
    else:
        with pytest.raises(
            InputError, match=r"own: 3 of 24 images cannot be used, the first is site a/cat/0\.png .it is empty"
        ):
            load_data(f"folder:{path}", asked)
    with pytest.warns(DataWarning, match="3 of 24 images left out: .*0.png .it is empty., .*1.png.*, .*2.png"):
        data = load_data(f"folder:{path}", replace(asked, skip_bad=True))
    assert len(data) == 21
    good = [name for name in sorted(FILES) if name not in BAD]
    for position in (0, 7, 20):
        assert torch.equal(image(data, position), torch.from_numpy(decode(FILES[good[position]], 6)))


def test_no_images(tmp_path):
    with pytest.raises(InputError, match="holds no images"):
        load_data(f"folder:{write_folder(tmp_path / 'own', {'a/b/c.txt': b'x'})}")
    with pytest.raises(InputError, match=r"none as <environment>/<class>/<image>: the first is 'a/x\.png'"):
        load_data(f"folder:{write_folder(tmp_path / 'flat', {'a/x.png': picture()})}")
    with pytest.raises(InputError, match="does not exist"):
        load_data(f"folder:{tmp_path / 'nowhere'}")


def test_stray_images_are_left_out_with_a_word(tmp_path):
    path = write_folder(tmp_path / "own", FILES | {"logo.png": picture()})
    with pytest.warns(DataWarning, match="1 images lie outside .*'logo.png'"):
        assert len(load_data(f"folder:{path}", SMALL)) == len(FILES)


def test_an_empty_class(tmp_path):
    path = write_folder(tmp_path / "own", FILES)
    (path / "site a" / "zebra").mkdir()
    with pytest.raises(InputError, match="class 'zebra' has a folder and no image in any environment"):
        load_data(f"folder:{path}", SMALL)
    with pytest.warns(DataWarning, match="zebra"):
        assert load_data(f"folder:{path}", replace(SMALL, skip_bad=True)).class_names == ("cat", "dog")


def small(published, counts):
    return replace(published, facts=replace(published.facts, environments=counts))


PACS_COUNTS = dict.fromkeys(PACS.facts.environments, 14)  # two of each class


def pacs_files(pattern):
    return {
        pattern.format(environment=environment, label=label, i=i): picture((10 * e, 10 * c, i))
        for e, environment in enumerate(PACS.facts.environments)
        for c, label in enumerate(PACS.facts.classes)
        for i in range(2)
    }


USUAL = "{environment}/{label}/{i}.png"


def lay_out(root, layout):
    files = pacs_files(USUAL)
    if layout == "usual":
        write_folder(root / "PACS", files)
    elif layout == "dassl":
        write_folder(root / "pacs", pacs_files("images/" + USUAL) | {"splits/photo_train_kfold.txt": b"..."})
    elif layout == "kfold":
        write_folder(root / "PACS", pacs_files("kfold/" + USUAL))
    elif layout == "one zip beside":
        write_zip(root / "PACS.zip", pacs_files("PACS/" + USUAL))
    elif layout == "one tar.gz inside":
        write_tar(root / "PACS" / "all.tar.gz", pacs_files("kfold/" + USUAL), "w:gz")
    else:
        for environment in PACS.facts.environments:
            inside = {
                (name if layout == "tars with folders" else name.split("/", 1)[1]): content
                for name, content in files.items()
                if name.startswith(environment)
            }
            write_tar(root / "PACS" / f"{environment}.tar", inside)


@pytest.mark.parametrize(
    "layout",
    ["usual", "dassl", "kfold", "one zip beside", "one tar.gz inside", "tars with folders", "tars without folders"],
)
def test_pacs_in_every_layout(tmp_path, layout):
    lay_out(tmp_path, layout)
    data = small(PACS, PACS_COUNTS).load("", replace(SMALL, root=tmp_path))
    assert data.environment_names == ("art_painting", "cartoon", "photo", "sketch")
    assert data.group_counts().tolist() == [[2] * 7] * 4
    colours = data.inputs[:][:, :, 0, 0].tolist()
    assert colours == [[10 * e, 10 * c, i] for e in range(4) for c in range(7) for i in range(2)]


def test_office_home_as_published_and_as_dassl_has_it(tmp_path):
    counts = dict.fromkeys(OFFICE_HOME.facts.environments, 65)
    names = {"art": "Art", "clipart": "Clipart", "product": "Product", "real_world": "Real World"}
    classes = OFFICE_HOME.facts.classes
    usual = {f"{names[e]}/{c}/1.jpg": picture(kind="JPEG") for e in counts for c in classes}
    dassl = {
        f"{e}/{'train' if i % 3 else 'val'}/{c.lower()}/1.jpg": picture(kind="JPEG")
        for e in counts
        for i, c in enumerate(classes)
    }
    for name, folder, files in (("usual", "OfficeHomeDataset_10072016", usual), ("dassl", "office_home_dg", dassl)):
        write_folder(tmp_path / name / folder, files)
        data = small(OFFICE_HOME, counts).load("", replace(SMALL, root=tmp_path / name))
        assert data.group_counts().tolist() == [[1] * 65] * 4
        assert data.class_names == classes


def test_counts_are_checked(tmp_path):
    lay_out(tmp_path, "usual")
    (tmp_path / "PACS/sketch/dog/0.png").unlink()
    asked = replace(SMALL, root=tmp_path)
    with pytest.raises(InputError, match="does not hold all of pacs or holds more: sketch 13 of 14 images"):
        small(PACS, PACS_COUNTS).load("", asked)
    with pytest.warns(DataWarning, match="sketch 13 of 14"):
        assert len(small(PACS, PACS_COUNTS).load("", replace(asked, skip_bad=True))) == 55


def test_a_set_that_is_not_there_says_how_to_get_it(tmp_path):
    with pytest.raises(InputError, match=r"trm data fetch pacs --from PACS\.zip"):
        load_data("pacs", Options(root=tmp_path / "nothing"))


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
        ("x.jsonl", b"\n \n\n", "no rows"),
        ("x.jsonl", b"[" * 100_000, "line 1, is not JSON"),
        ("x.jsonl", b'{"path": ' + b"1" * 5000 + b"}", "line 1, is not JSON"),
        ("x.jsonl", b'{"path": "caf\xe9", "label": 1, "environment": 2}', "is not UTF-8 text"),
        ("x.jsonl", b'{"path": "1.png", "label": "\\ud800", "environment": 2}', r"x.jsonl: '\\ud800' is not a text"),
        ("x.csv", b"path,label,environment\n", "no rows"),
        ("x.parquet", b"PAR1 no", "not a Parquet file"),
        ("x.xlsx", b"PK", "must end in .csv"),
    ],
)
def test_damaged_manifests(tmp_path, name, content, match):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=match) as error:
        load_data(f"manifest:{tmp_path / name}")
    assert "\n" not in str(error.value)


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
