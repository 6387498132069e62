"""`trm data check` and `trm data show` as a user runs them, on good data and on every kind of bad one."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from drawn import picture, sites, write_folder, write_zip

from transferrisk.reports.pictures import left_out_words

FILES = sites()


def test_check_counts(trm, tmp_path):
    path = write_folder(tmp_path / "own", FILES)
    code, out, err = trm("data", "check", f"folder:{path}", "--size", 8)
    assert (code, err) == (0, "")
    assert "site b" in out
    assert "24 samples of shape 3 x 8 x 8: all are there and can be read" in out
    code, out, _ = trm("data", "check", f"folder:{path}", "--size", 8, "--json")
    assert json.loads(out)["parts"][""]["site c"] == {"cat": 4, "dog": 4}


def test_check_of_what_was_drawn(trm):
    code, out, err = trm("data", "check", "10c-digits", "--shift", "combined", "--biases", "1.0,0.8", "--seed", 3)
    assert (code, err) == (0, "")
    assert "bias 80%" in out
    assert "validation, like the test" in out


def test_skip_bad_goes_on_and_lists_what_it_skipped(trm, tmp_path):
    path = write_folder(tmp_path / "own", FILES | {"site a/cat/1.png": b"", "site b/dog/2.png": b"text"})
    code, out, err = trm("data", "check", f"folder:{path}", "--size", 8, "--skip-bad")
    assert code == 0
    assert "22 samples" in out
    assert err.startswith(f"trm: warning: {path}: 2 of 24 images left out: ")
    assert "1.png (it is empty), " in err
    assert "2.png (it is not an image" in err
    assert err.count("\n") == 1


def test_bad_data_is_one_line_and_nothing_is_cached(trm, tmp_path):
    path = write_folder(tmp_path / "own", FILES | {"site b/cat/0.png": b"just words"})
    (tmp_path / "t.csv").write_text("x,label,site\n1,y,a\n2,n,b\n1,2,3,4\n")
    for name, told in (
        (f"folder:{path}", "site b/cat/0.png (it is not an image"),
        (f"table:{tmp_path / 't.csv'}", "line 4"),
    ):
        columns = () if name.startswith("folder") else ("--label", "label", "--environment", "site")
        code, out, err = trm("data", "check", name, *columns)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("trm: ")
        assert told in err
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name.startswith(".")]


def test_bring_in_by_hand_is_checked_first(trm, tmp_path):
    wrong = write_zip(tmp_path / "PACS.zip", {"PACS/photo/dog/1.png": picture()})
    code, _, err = trm("data", "fetch", "pacs", "--from", wrong, "--data-root", tmp_path / "root")
    assert code == 2
    assert "photo 1 of 1670" in err
    assert [p for p in (tmp_path / "root").rglob("*") if p.is_file()] == []


def test_show_images(trm, tmp_path):
    path = write_folder(tmp_path / "own", FILES)
    code, out, err = trm("data", "show", f"folder:{path}", "--size", 16, "--per-class", 2)
    assert (code, err) == (0, "")
    assert "folder-own.png\n" in out
    assert "2 images of each class in each environment" in out
    with Image.open(tmp_path / "folder-own.png") as opened:
        image = np.asarray(opened.convert("RGB"))
    # Every colour that was drawn can be seen.
    for content in list(FILES.values())[::5]:
        colour = Image.open(io.BytesIO(content)).getpixel((0, 0))
        if colour[2] <= 30:  # among the two of each class, not all are chosen
            assert (np.abs(image.astype(int) - colour).max(-1) < 45).any()


def test_show_vectors(trm, tmp_path):
    code, out, err = trm("data", "show", "gaussian", "--output", tmp_path / "deep" / "g.png")
    assert (code, err) == (0, "")
    assert "principal components" in out
    with Image.open(tmp_path / "deep" / "g.png") as image:
        assert image.width > 1000


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_show_where_the_disk_refuses(trm, tmp_path, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuse)
    target = tmp_path / "deep" / "x.png"
    code, _, err = trm("data", "show", "gaussian", "--output", target)
    assert code == 2
    assert err == f"trm: {target} cannot be written ({os.strerror(number)}): choose another with --output\n"
    assert not (tmp_path / "deep").exists()


def test_show_refuses_before_it_works(trm, tmp_path, monkeypatch):
    (tmp_path / "g.png").mkdir()
    code, _, err = trm("data", "show", "gaussian", "--output", tmp_path / "g.png")
    assert (code, "g.png is a folder" in err) == (2, True)
    monkeypatch.setattr(os, "access", lambda *_: False)
    code, _, err = trm("data", "show", "gaussian", "--output", tmp_path / "x.png")
    assert (code, f"{tmp_path} may not be written to" in err) == (2, True)


def embeddings(path, features, labels=("a", "b"), environments=("x", "y", "z")):
    n = len(features)
    names = [np.array(values)[np.arange(n) // k % len(values)] for k, values in ((1, labels), (2, environments))]
    np.savez(path, features=features, labels=names[0], environments=names[1])
    return path


@pytest.mark.parametrize("scale", [1e38, 1e-38, 0.0])
def test_show_features_of_any_size(trm, tmp_path, scale):
    features = (np.random.default_rng(0).uniform(-1, 1, (24, 4)) * scale).astype(np.float32)
    path = embeddings(tmp_path / "e.npz", features)
    code, _, err = trm("data", "show", f"npz:{path}", "--output", tmp_path / "e.png")
    assert code == 0
    assert all(line.startswith("trm: warning: ") for line in err.splitlines())


NAMES = (r"$\frac$", "_hidden", "[bold]x[/nothing]", "[red]")


def test_names_are_only_names(trm, tmp_path):
    features = np.random.default_rng(0).normal(size=(32, 4))
    path = embeddings(tmp_path / "e[b].npz", features, NAMES[:2], NAMES[2:])
    code, out, err = trm("data", "check", f"npz:{path}")
    assert (code, err) == (0, "")
    assert all(name in out for name in NAMES)
    assert "e[b].npz" in out
    assert trm("data", "show", f"npz:{path}", "--output", tmp_path / "e.png")[::2] == (0, "")
    folder = write_folder(tmp_path / "own", sites(NAMES[:2], ("[red]", "plain$x$_^")))
    assert trm("data", "show", f"folder:{folder}", "--size", 8)[::2] == (0, "")


def test_show_of_many_environments_says_that_there_are_more(trm, tmp_path):
    features = np.random.default_rng(0).normal(size=(240, 4))
    path = embeddings(tmp_path / "e.npz", features, environments=tuple(f"site {i:02}" for i in range(30)))
    assert trm("data", "show", f"npz:{path}", "--output", tmp_path / "e.png")[0] == 0
    assert left_out_words(2, 2, 24, 30) == "the first 24 of 30 environments"
    assert left_out_words(10, 12, 3, None) == "the first 10 of 12 classes"


def test_what_validates_twice_is_counted_once(trm):
    _, out, _ = trm("data", "check", "10c-digits")
    assert "14376 samples" in out
    _, out, _ = trm("data", "check", "gaussian")
    assert "8000 samples" in out


def test_an_end_of_file_within_a_command_is_no_interruption(trm, monkeypatch):
    def fail(*_):
        raise EOFError("a bug")

    monkeypatch.setattr("transferrisk.data.catalogue.find_set", fail)
    with pytest.raises(EOFError, match="a bug"):
        trm("data", "check", "gaussian")


def test_check_looks_at_what_is_meant(trm, tmp_path):
    """A damaged MNIST is nothing to Fashion-MNIST."""
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    (tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz").write_bytes(b"damaged")
    _, _, err = trm("data", "check", "10c-cmnist:FashionMNIST", "--data-root", tmp_path)
    assert "run trm data fetch fashion-mnist" in err
    _, _, err = trm("data", "check", "10c-cmnist:Own", "--data-root", tmp_path)
    assert "put Own's idx files there" in err
    _, _, err = trm("data", "check", "10c-cmnist", "--data-root", tmp_path)
    assert "get it again with trm data fetch 10c-cmnist" in err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("data", "check", "gaussian", "--seed", 10**20), "--seed must be an integer >= 0"),
        (("data", "check", "folder:x", "--size", 100_000), "--size must be an integer >= 1 and <= 4096, got 100000"),
        (("data", "show", "gaussian", "--output", "x.pdf"), "--output must end in .png, got x.pdf"),
        (("data", "show", "gaussian", "--output", "~nosuchuser/x.png"), "there is no home folder ~nosuchuser"),
        (("data", "check", "folder"), "'folder' lacks its argument after the colon: write folder:PATH"),
        (("data", "check", "pacs:x"), "'pacs:x' takes no argument after a colon: write pacs"),
        (("data", "check", "Gausian"), "did you mean 'gaussian'?"),
        (("data", "check", "10c-digits", "--biases", "a,b"), "got 'a,b'"),
        (("data", "check", "10c-digits", "--biases", "1.5,0.9"), "biases[0] must be a finite number"),
        (("data", "check", "10c-digits", "--shift", "odd"), "got 'odd'"),
        (("data", "check", "10c-digits", "--size", "32"), "does not take size"),
        (("data", "show", "nothing"), "unknown data set 'nothing'"),
        (("data", "check", "mnist", "--data-root", "/nowhere"), "trm data fetch mnist"),
        (("data", "check", "pacs", "--data-root", "/nowhere"), "trm data fetch pacs --from"),
        (("data", "look"), "No such command 'look'. (see trm data --help)"),
    ],
)
def test_one_line(trm, arguments, line):
    code, out, err = trm(*arguments)
    assert (code, out) == (2, "")
    assert line in err
    assert err.count("\n") == 1
