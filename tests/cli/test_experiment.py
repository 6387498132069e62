"""`trm experiment`, end to end in small."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch

import transferrisk.reports.terminal  # noqa: F401  # before COLUMNS is set, so that its console looks each time
from transferrisk.experiments import estimate as estimates
from transferrisk.experiments.plan import count_runs
from transferrisk.experiments.recipe import load_recipe
from transferrisk.experiments.sweep import Event

SMALL = """
title = "small"
seeds = 2
[settings]
data = "gaussian"
backbone = "mlp:2"
training = { epochs = 1, evaluations = 1, record = [] }
[methods]
ERM = { algorithm = "erm" }
V-REx = { algorithm = "vrex", grid = { penalty_weight = [0.1, 1.0] } }
[fast]
seeds = 1
"""
GPU = torch.cuda.is_available()
HERE = ("--workers", "0", "--device", "cpu")


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def test_runs_that_are_lost_or_damaged_are_done_again_and_another_recipe_is_told(trm, small):
    assert trm("experiment", "small.toml", "--only", "ERM", *HERE)[2].count("another recipe") == 0
    one, other = (small / "results" / "runs").glob("*/records.jsonl")
    one.unlink()
    other.write_text('{"st')
    code, out, err = trm("experiment", "small.toml", "--only", "ERM", *HERE)
    assert (code, err.count(": lost, ")) == (0, 1), err
    assert "2 of 2 runs are finished (2 now)" in out
    (small / "small.toml").write_text(SMALL.replace("mlp:2", "mlp:3"))
    code, _, err = trm("experiment", "small.toml", "--only", "ERM", *HERE)
    assert (code, err.count("another recipe")) == (0, 1)
    assert "another recipe" not in trm("experiment", "small.toml", "--only", "ERM", *HERE)[2]


def test_runs_of_another_folder_are_reused(trm, small):
    assert trm("experiment", "small.toml", "--output", "first", *HERE)[0] == 0
    again = ("experiment", "small.toml", "--reuse", "first", "--output", "second", *HERE)
    code, out, _ = trm(*again, "--dry-run")
    assert (code, (small / "second" / "runs").exists()) == (0, False)
    assert "0 missing" in out
    code, out, err = trm(*again)
    assert code == 0, err
    assert "6 of 6 runs are finished (0 now)" in out
    code, _, err = trm("experiment", "small.toml", "--reuse", "nowhere", *HERE)
    assert (code, err.count("\n")) == (2, 1)
    assert "nowhere" in err


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000])
def test_damaged_files_of_an_experiment_are_written_anew(trm, small, content):
    assert trm("experiment", "small.toml", "--only", "ERM", *HERE)[0] == 0
    (small / "results" / "small" / "recipe.json").write_bytes(content)
    next((small / "results" / "runs").glob("*/done.json")).write_bytes(content)
    assert trm("experiment", "small.toml", "--only", "ERM", "--dry-run", *HERE)[0] == 0
    code, out, err = trm("experiment", "small.toml", "--only", "ERM", *HERE)
    assert code == 0, err
    assert "2 of 2 runs are finished" in out
    assert json.loads((small / "results" / "small" / "recipe.json").read_text())["recipe"]["title"] == "small"


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("cmnist-public", ("TRM, as in the public code", "problem=label-uncorrelated")),
        ("cmnist-30", ("ERM", "bias=0.85", "shift=combined")),
        ("budget", ("TRM", "problem=combined, 100 % / 85 %")),
        ("demo", ("TRM",)),
    ],
)
def test_small_versions_of_our_own_experiments_run(trm, name, only):
    options = [word for one in only for word in ("--only", one)]
    code, out, err = trm("experiment", name, "--fast", "--seeds", "1", *options, *HERE)
    assert code == 0, err
    assert "trm report results" in out
    code, out, err = trm("report", "results")
    assert code == 0, err
    assert only[0] in out


def test_the_list_names_every_experiment(trm, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = trm("experiment", "--list")
    assert (code, err) == (0, "")
    for name in ("cmnist", "pacs-resnet18", "office-home", "irm-vs-trm"):
        assert name in out
    assert "In the paper" in out
    monkeypatch.setenv("COLUMNS", "80")
    out = trm("experiment", "--list")[1]
    assert "In the paper" not in out
    assert "…" not in out


def test_what_is_missing_is_run_and_nothing_twice(trm, small):
    code, out, err = trm("experiment", "small.toml", "--only", "ERM", *HERE)
    assert code == 0, err
    assert "2 of 2 runs are finished (2 now): trm report results" in out
    code, out, err = trm("experiment", "small.toml", *HERE)
    assert code == 0, err
    assert "6 of 6 runs are finished (4 now)" in out
    code, out, err = trm("experiment", "small.toml", *HERE)
    assert (code, err) == (0, "")
    assert "6 of 6 runs are finished (0 now)" in out
    records = pd.read_parquet(small / "results" / "small" / "records.parquet")
    assert set(records["method"]) == {"ERM", "V-REx"}
    assert set(records["point"]) == {"", "penalty_weight=0.1", "penalty_weight=1"}
    assert set(records["seed"]) == {0, 1}
    assert len(list((small / "results" / "runs").iterdir())) == 6


def test_a_part_leaves_the_records_of_the_rest_in_place(trm, small):
    assert trm("experiment", "small.toml", *HERE)[0] == 0
    assert trm("experiment", "small.toml", "--only", "ERM", "--seeds", "1", *HERE)[0] == 0
    records = pd.read_parquet(small / "results" / "small" / "records.parquet")
    assert set(records["method"]) == {"ERM", "V-REx"}
    cells = json.loads((small / "results" / "small" / "recipe.json").read_text())["cells"]
    assert len(cells) == 6


def test_more_seeds_than_the_recipe_has(trm, small):
    code, out, _ = trm("experiment", "small.toml", "--only", "ERM", "--seeds", "3", "--quiet", *HERE)
    assert (code, out) == (0, "")
    records = pd.read_parquet(small / "results" / "small" / "records.parquet")
    assert set(records["seed"]) == {0, 1, 2}
    assert trm("experiment", "small.toml", "--only", "ERM", "--seeds", "1", "--quiet", *HERE)[0] == 0
    records = pd.read_parquet(small / "results" / "small" / "records.parquet")
    assert set(records["seed"]) == {0, 1, 2}, "what an earlier call asked for stays"


def test_a_dry_run_counts_and_measures_and_writes_nothing(trm, small):
    code, out, err = trm("experiment", "small.toml", "--dry-run", *HERE)
    assert (code, err) == (0, "")
    assert "6 runs: 0 finished, 6 missing" in out
    assert not (small / "results").exists()
    trm("experiment", "small.toml", "--only", "ERM", *HERE)
    assert "6 runs: 2 finished, 4 missing" in trm("experiment", "small.toml", "--dry-run", *HERE)[1]


@pytest.fixture
def steps_of_a_second(monkeypatch):
    """Steps that are not measured."""
    for measured in ("step_seconds", "forward_seconds"):
        monkeypatch.setattr(estimates, measured, lambda *given, **more: 1.0)


@pytest.mark.usefixtures("steps_of_a_second")
def test_runs_that_others_need_are_counted_everywhere(trm):
    code, out, err = trm("experiment", "transferability", "--fast", "--dry-run", *HERE)
    assert code == 0, err
    assert "54 runs (18 of them train models that others need): 0 finished, 54 missing" in out
    assert count_runs(load_recipe("transferability", fast=True)) == 54


def test_runs_of_another_precision_are_other_runs(trm, small):
    assert trm("experiment", "small.toml", "--only", "ERM", "--seeds", "1", *HERE)[0] == 0
    code, out, err = trm("experiment", "small.toml", "--only", "ERM", "--seeds", "1", "--precision", "tf32", *HERE)
    assert code == 0, err
    assert "(1 now)" in out
    assert trm("experiment", "small.toml", "--precision", "fp8", *HERE)[0] == 2


def test_the_small_version_stands_beside_the_whole(trm, small):
    assert trm("experiment", "small.toml", "--fast", "--defaults", *HERE)[0] == 0
    assert sorted(path.name for path in (small / "results").iterdir()) == ["runs", "small-defaults-fast"]


def test_what_could_not_be_shown_is_refused_before_anything_runs(trm, small):
    (small / "shown.toml").write_text(SMALL + '[show]\nkind = "tabel"\n')
    code, out, err = trm("experiment", "shown.toml", *HERE)
    assert (code, out) == (2, "")
    assert "did you mean 'table'?" in err
    assert not (small / "results").exists()


def test_data_that_is_not_there_is_told_before_anything_runs(trm, small):
    asked = ("experiment", "cmnist", "--only", "ERM", "--seeds", "1", "--data-root", str(small), "--device", "cpu")
    code, out, err = trm(*asked)
    assert (code, out) == (2, "")
    assert "MNIST does not exist: see trm data fetch 10c-cmnist, name its folder with --data-root" in err
    assert [path.name for path in small.iterdir()] == ["small.toml"]


@pytest.mark.usefixtures("steps_of_a_second")
def test_a_dry_run_says_which_data_is_not_there(trm, small):
    code, out, err = trm("experiment", "cmnist", "--only", "ERM", "--dry-run", "--data-root", str(small), *HERE)
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("data set 10c-cmnist is missing")


def test_runs_of_others_are_not_said_to_take_no_time():
    assert str(Event("name", "done", seconds=1.25)) == "done, 1.2 s"
    assert str(Event("name", "done")) == "done by another process"


def test_a_run_that_fails_is_told_and_the_others_are_done(trm, small):
    text = SMALL.replace('ERM = { algorithm = "erm" }', 'ERM = { algorithm = "erm", size = 3 }')
    (small / "bad.toml").write_text(text)
    code, out, err = trm("experiment", "bad.toml", *HERE)
    assert code == 1
    assert "4 of 6 runs are finished (4 now, 2 failed)" in out
    assert "2 runs, " in err
    assert err.count("does not take size") == 3, "each as it fails, and once at the end"
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "NAME is missing"),
        (["cmnits"], "did you mean 'cmnist'?"),
        (["small.toml", "--executor", "slurm"], "unknown executor 'slurm'"),
        (["small.toml", "--executor", "slurm", "--dry-run"], "unknown executor 'slurm'"),
        (
            ["small.toml", "--address", "auto"],
            "--address must be left out with --executor local",
        ),
        (["small.toml", "--executor", "ray", "--workers", "2"], "--workers must be left out with --executor ray"),
        (["small.toml", "--only", "TRM"], "unknown method 'TRM'"),
        pytest.param(
            ["small.toml", "--device", "cuda:7"],
            "cuda:7",
            marks=pytest.mark.skipif(GPU, reason="it has one"),
        ),
        (["small.toml", "--device", "gpu"], "device must be auto, cpu, cuda or cuda:1, got 'gpu'"),
        (["small.toml", "--device", "cpu,"], "device must be auto, cpu, cuda or cuda:1, got ''"),
        (["small.toml", "--cpus-per-run", "2"], "--cpus-per-run must be left out with --executor local"),
        (["small.toml", "--output", "small.toml"], "small.toml"),
        (["small.toml", "--output", "nowhere://x"], "nowhere://x cannot be used for results"),
    ],
)
def test_bad_input_is_one_line(trm, small, arguments, message):
    code, out, err = trm("experiment", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert [path.name for path in small.iterdir()] == ["small.toml"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[show]\nkind = "lines"\nx = "sead"', "x must name what varies, got 'sead'"),
        ("[published]\ntraining_domain = 3", "published.training_domain must be a table"),
        ("[published.training_dom.ERM]\naccuracy = [3]", "did you mean 'training_domain'?"),
        ('[published.training_domain.ERM]\naccuracy = "a"', "[mean, deviation], got 'a'"),
    ],
)
def test_what_the_report_would_refuse_is_refused_before_anything_runs(trm, small, text, message):
    (small / "small.toml").write_text(f"{SMALL}\n{text}\n")
    code, out, err = trm("experiment", "small.toml", *HERE)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert [path.name for path in small.iterdir()] == ["small.toml"]
