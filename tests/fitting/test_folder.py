"""A model's folder: whole, the same when read again, and refused when it is not what was written."""

from __future__ import annotations

import itertools
import json
import os
import pkgutil
import re
import signal
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
from rows import table

from transferrisk import fitting
from transferrisk.errors import DataWarning, InputError, LeftoverWarning
from transferrisk.fitting import folder as folders
from transferrisk.fitting import load_model, report, save_fit
from transferrisk.fitting.model import FILES
from transferrisk.sklearn import TransferRiskClassifier


def test_a_model_read_again_says_the_same(fitted, folder):
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    new = table(50, seed=1)
    model = load_model(folder)
    assert np.array_equal(model.predict_proba(new), fitted.model.predict_proba(new))
    assert model.classes == ("no", "yes")
    assert np.allclose(model.predict_proba(new).sum(1), 1)
    assert (model.predict(new) == new["outcome"]).mean() > 0.7


def test_card_and_page_tell_what_was_done(fitted, folder):
    content = (folder / "card.md").read_text()
    assert "**Chosen: ERM network**, asked for." in content
    assert "| site A | 134 |" in content
    assert re.search(r"\| version \| not used \| 0 \| constant \|", content)
    assert "`trm fit visits.csv`" in content
    assert "in a new environment was not measured" in content
    page = (folder / "report.html").read_text()
    assert "Transfer of" not in page  # all rows were trained on, so none is left to measure it on
    assert "site B" in page
    assert json.loads((folder / "comparison.json").read_text())["comparison"] is None


def test_names_with_commas_can_be_told_apart(fitted):
    samples = replace(fitted.source.samples, class_names=("no, never", "yes"))
    other = replace(fitted, source=replace(fitted.source, samples=samples))
    assert "classes 'no, never', yes." in report.model_card(other)
    assert "('no, never', yes)" in report.model_card(other)


def test_other_things_are_never_replaced(fitted, folder, tmp_path):
    with pytest.raises(InputError, match=r"holds a model already: .* --force \(force=True"):
        save_fit(fitted, folder)
    before = (folder / "model.safetensors").stat().st_ino
    save_fit(fitted, folder, force=True)
    assert (folder / "model.safetensors").stat().st_ino != before
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"must hold a model or nothing, got notes\.txt"):
        save_fit(fitted, folder, force=True)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file, not a folder"):
        save_fit(fitted, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_what_fails_leaves_nothing_behind(fitted, folder, tmp_path, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(folders, "write_page", fail)
    with pytest.raises(KeyboardInterrupt):
        save_fit(fitted, tmp_path / "new" / "model")
    kept = (folder / "model.safetensors").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        save_fit(fitted, folder, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (folder / "model.safetensors").read_bytes() == kept


def test_a_folder_that_is_there_stays_where_it_is(fitted, folder, tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "link").symlink_to(here)
    inode = here.stat().st_ino
    monkeypatch.chdir(here)
    for name in (".", "../link"):
        save_fit(fitted, name, force=True)
        assert sorted(path.name for path in here.iterdir()) == sorted(FILES)
        assert load_model(name).classes == ("no", "yes")
    assert here.stat().st_ino == inode
    assert (tmp_path / "link").is_symlink()
    (tmp_path / "later").symlink_to(tmp_path / "elsewhere")
    save_fit(fitted, tmp_path / "later")
    assert load_model(tmp_path / "elsewhere").classes == ("no", "yes")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "here", "later", "link", "model"]


@pytest.mark.parametrize("at", range(10))
def test_a_failure_at_any_move_brings_the_old_model_back(fitted, folder, monkeypatch, at):
    monkeypatch.chdir(folder)  # so the folder stays, and its files are replaced
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    replace_file, calls = os.replace, iter(range(100))

    def failing(source, target):
        if next(calls) == at:
            raise KeyboardInterrupt
        return replace_file(source, target)

    monkeypatch.setattr(os, "replace", failing)
    with pytest.raises(KeyboardInterrupt):
        save_fit(fitted, folder, "another command", force=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept


@pytest.mark.parametrize("at", range(10))
def test_a_model_without_a_schema_takes_none_away_when_it_fails(fitted, folder, monkeypatch, at):
    vectors = replace(fitted, source=replace(fitted.source, kind="vectors", frame=None, schema=None))
    test_a_failure_at_any_move_brings_the_old_model_back(vectors, folder, monkeypatch, at)


@pytest.mark.parametrize("stays", [False, True], ids=["exchanged", "stays"])
def test_a_kill_at_any_moment_leaves_a_whole_model_and_the_next_fit_cleans_up(
    fitted, folder, tmp_path, monkeypatch, stays
):
    """Killed before each call of the system that creates, renames or removes a file."""
    monkeypatch.setattr(folders, "write_page", lambda path, _: path.write_text("a page"))
    monkeypatch.chdir(folder if stays else tmp_path)
    before = (folder / "model.safetensors").read_bytes()
    other = replace(fitted, model=replace(fitted.model, environments=("new", "sites")))

    def is_killed(at):
        if child := os.fork():
            return os.waitpid(child, 0)[1] == signal.SIGKILL
        calls = itertools.count()

        def kill(event, _):
            if event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir") and next(calls) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            warnings.simplefilter("ignore", LeftoverWarning)
            sys.addaudithook(kill)
            save_fit(other, folder, force=True)
        finally:
            os._exit(0)

    kept = set()
    for at in itertools.takewhile(is_killed, itertools.count()):
        assert at < 100
        kept.add((folder / "model.safetensors").read_bytes() == before)
        with warnings.catch_warnings():  # the description may not be the weights' own yet
            warnings.simplefilter("ignore", DataWarning)
            load_model(folder)
    assert kept == {True, False}
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert is_killed(2)
    with pytest.warns(LeftoverWarning, match="that a killed process had left"):
        save_fit(fitted, folder, force=True)
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(("mask", "mode"), [(0o077, 0o700), (0o022, 0o755)])
def test_a_new_folder_has_the_mode_of_the_umask(fitted, tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        save_fit(fitted, tmp_path / "private")
    finally:
        os.umask(before)
    assert (tmp_path / "private").stat().st_mode & 0o777 == mode


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def changed(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (cut, "is damaged"),
        (changed, "is damaged"),
        (lambda path: path.write_bytes(b""), "is damaged"),
        (lambda path: path.unlink(), "holds no model.safetensors"),
    ],
)
def test_damage_is_one_line(folder, damage, told):
    damage(folder / "model.safetensors")
    with pytest.raises(InputError, match=told) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="nowhere"):
        load_model(folder / "nowhere")


def test_a_classifier_that_was_saved_predicts_files(tmp_path):
    rng = np.random.default_rng(0)
    x, site = rng.normal(size=(90, 3)), np.arange(90) % 3
    classifier = TransferRiskClassifier(max_epochs=5, random_state=0).fit(x, x[:, 0] > 0, environments=site)
    classifier.save(tmp_path / "model")
    model = load_model(tmp_path / "model")
    assert (model.origin.kind, model.classes) == ("vectors", ("False", "True"))
    np.testing.assert_allclose(model.predict_proba(x), classifier.predict_proba(x), atol=1e-12)


def test_functions_of_the_package_hide_none_of_its_modules():
    modules = {module.name for module in pkgutil.iter_modules(fitting.__path__)}
    assert "compare" in modules
    assert not modules & set(fitting.__all__)
