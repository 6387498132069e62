"""`trm experiment`, end to end in small."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch

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


def test_a_run_whose_rows_are_lost_is_done_again(trm, small):
    assert trm("experiment", "small.toml", "--only", "ERM", *HERE)[0] == 0
    next((small / "results" / "runs").glob("*/rows.jsonl")).unlink()
    code, out, err = trm("experiment", "small.toml", "--only", "ERM", *HERE)
    assert code == 0, err
    assert "2 of 2 runs are done (1 now)" in out


def test_a_run_whose_rows_are_damaged_is_told_and_done_again(trm, small):
    assert trm("experiment", "small.toml", "--only", "ERM", *HERE)[0] == 0
    next((small / "results" / "runs").glob("*/rows.jsonl")).write_text('{"st')
    code, out, err = trm("experiment", "small.toml", "--only", "ERM", *HERE)
    assert code == 0, err
    assert ": lost, " in err
    assert "2 of 2 runs are done (1 now)" in out


def test_the_list_names_every_experiment(trm):
    code, out, err = trm("experiment", "--list")
    assert (code, err) == (0, "")
    for name in ("cmnist", "pacs-resnet18", "office-home", "irm-vs-trm"):
        assert name in out


def test_what_is_missing_is_run_and_nothing_twice(trm, small):
    code, out, err = trm("experiment", "small.toml", "--only", "ERM", *HERE)
    assert code == 0, err
    assert "2 of 2 runs are done (2 now): trm report results" in out
    code, out, err = trm("experiment", "small.toml", *HERE)
    assert code == 0, err
    assert "6 of 6 runs are done (4 now)" in out
    code, out, err = trm("experiment", "small.toml", *HERE)
    assert (code, err) == (0, "")
    assert "6 of 6 runs are done (0 now)" in out
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
    assert "6 runs: 0 done, 6 missing" in out
    assert not (small / "results").exists()
    trm("experiment", "small.toml", "--only", "ERM", *HERE)
    assert "6 runs: 2 done, 4 missing" in trm("experiment", "small.toml", "--dry-run", *HERE)[1]


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


def test_a_run_that_fails_is_told_and_the_others_are_done(trm, small):
    text = SMALL.replace('ERM = { algorithm = "erm" }', 'ERM = { algorithm = "erm", size = 3 }')
    (small / "bad.toml").write_text(text)
    code, out, err = trm("experiment", "bad.toml", *HERE)
    assert code == 1
    assert "4 of 6 runs are done (4 now, 2 failed)" in out
    assert "does not take size" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no experiment is named"),
        (["cmnits"], "did you mean 'cmnist'?"),
        (["small.toml", "--executor", "slurm"], "executor 'slurm' is not known"),
        (
            ["small.toml", "--address", "auto"],
            "--address is not for --executor local: leave it out, or add --executor ray",
        ),
        (["small.toml", "--executor", "ray", "--workers", "2"], "--workers is not for --executor ray"),
        (["small.toml", "--only", "TRM"], "no method 'TRM'"),
        pytest.param(
            ["small.toml", "--device", "cuda:7"], "finds no GPU", marks=pytest.mark.skipif(GPU, reason="it has one")
        ),
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
