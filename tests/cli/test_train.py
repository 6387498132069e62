"""`trm train` as a user runs it."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch

from transferrisk.models import Classifier, load_model_folder
from transferrisk.results import read_records
from transferrisk.training import load_checkpoint

SMALL = ["train", "--data", "gaussian", "--epochs", "2", "--evaluations", "2", "--backbone", "mlp:4", "--device", "cpu"]
START = """
import signal, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the one who runs the tests has set
torch.set_num_threads(1)
from transferrisk.cli import main
main()
"""


def same_weights(one, other):
    a, b = (load_checkpoint(folder / "last.safetensors").part("model") for folder in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_run_and_what_it_leaves(trm, tmp_path):
    folder = tmp_path / "run"
    code, out, err = trm(
        *SMALL, "--algorithm", "irm", "--set", "penalty_weight=0.5", "--record", "irm", "--output", folder
    )
    assert code == 0
    assert sorted(p.name for p in folder.iterdir()) == [
        "last.safetensors", "model.json", "model.safetensors", "records.jsonl", "run.json",
    ]  # fmt: skip
    settings, *steps = err.splitlines()
    assert settings.startswith("trm: training irm: penalty_weight=0.5, ")
    assert settings.endswith("batch_size=128 (the smallest environment has 1600)")
    assert [line.split(":")[0] for line in steps] == ["step 12, epoch 1", "step 24, epoch 2"]
    assert "selected by training-domain validation" in out
    last = [record for record in read_records(folder / "records.jsonl") if record["step"] == 24]
    penalties = {record["environment"]: record["irm"] for record in last if "irm" in record}
    assert set(penalties) == {"environment 1", "environment 2", "environment 3"}
    (far,) = [record for record in last if record["part"] == "test"]
    assert re.search(rf"test +far .*{100 * far['accuracy']:.1f}", out)
    spec = json.loads((folder / "run.json").read_text())["spec"]
    assert (spec["data"], spec["training"]["lr"], spec["settings"]["penalty_weight"]) == ("gaussian", 0.1, 0.5)
    assert spec["precision"] == "fp32"
    assert load_model_folder(folder).about["spec"] == spec

    code, out, err = trm(*SMALL, "--algorithm", "irm", "--output", folder)
    assert code == 2
    assert err.startswith(f"trm: {folder} holds a run already")
    code, out, err = trm(*SMALL, "--algorithm", "irm", "--output", folder, "--resume")
    assert code == 2
    assert "settings.penalty_weight: 0.5 there, 1.0 here; training.record: ['irm'] there, [] here" in err
    same = ("--algorithm", "irm", "--set", "penalty_weight=0.5", "--record", "irm")
    code, out, err = trm(*SMALL, *same, "--output", folder, "--resume")
    assert (code, err) == (0, f"trm: {folder} is finished: step 24 of 24\n")
    assert "selected by training-domain validation" in out


def test_json_is_all_there_is_on_stdout_and_quiet_says_nothing(trm, tmp_path):
    code, out, err = trm(*SMALL, "--output", tmp_path / "a", "--json", "--quiet", "--resume")
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert summary["step"] == load_model_folder(tmp_path / "a").about["step"]
    (far,) = [record for record in summary["selected"] if record["part"] == "test"]
    assert summary["test_accuracy"] == far["accuracy"]
    assert summary["model"] == str(tmp_path / "a" / "model.safetensors")
    assert trm(*SMALL, "--output", tmp_path / "b", "--quiet") == (0, "", "")


def test_fine_tuning_on_few_samples(trm, tmp_path):
    assert trm(*SMALL, "--output", tmp_path / "first", "--quiet")[0] == 0
    arguments = ["train", "--data", "gaussian", "--init", tmp_path / "first"]
    code, out, _ = trm(*arguments, "--finetune-samples", 20, "--output", tmp_path / "second", "--json")
    assert code == 0
    assert json.loads(out)["selection"] == "test_domain"
    trained_in = {record["environment"] for record in json.loads(out)["selected"] if record["part"] == "train"}
    assert trained_in == {"far"}
    code, _, err = trm(*arguments, "--finetune-samples", 5000, "--output", tmp_path / "third")
    assert code == 2
    assert re.fullmatch(r"trm: finetune_samples must be 2 to 1599, .*, got 5000\n", err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--test-env", "x"], "data set 'gaussian' has a test environment of its own"),
        (["--backbone", "clp"], "unknown backbone 'clp'"),
        (["--backbone", "cnn"], "'cnn' takes images, got inputs of shape"),
        (["--batch-size", "5000"], "environment 'environment 1' has 1600 training samples, fewer"),
        (["--precision", "fp8"], "precision must be one of 'fp32', 'tf32', 'bf16' or None, got 'fp8'"),
        (["--record", "x"], "training: record[0] must be one of 'irm', 'transfer'"),
        (["--tracker", "x"], "tracker must be one of tensorboard, mlflow, wandb, got 'x'"),
        (["--init", "no.safetensors"], "no.safetensors does not exist: name the folder"),
        (["--augment"], "augment must be False for inputs that are vectors"),
        (["--decay-at", "2"], "--decay-at must be a finite number >= 0 and <= 1, got 2"),
        (["--epochs", "0"], "--epochs must be an integer >= 1, got 0"),
        (["--evaluations", "999999999"], "training: evaluations must be an integer >= 1 and <= 100000, got 999999999"),
        (["--lr", "inf"], "--lr must be a finite number >= 0"),
        (
            ["--devices", "2", "--batch-size", "5"],
            "batch_size must be a multiple of 2, so that 2 devices share a batch evenly, got 5",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(trm, tmp_path, arguments, message):
    code, out, err = trm("train", "--data", "gaussian", "--device", "cpu", *arguments, "--output", tmp_path / "run")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"trm: {message}")
    assert not (tmp_path / "run").exists()


def test_full_memory_is_one_line_that_says_what_to_change(trm, tmp_path, monkeypatch):
    def featurise(self, inputs):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 6000000000000 bytes.")

    monkeypatch.setattr(Classifier, "featurise", featurise)
    code, out, err = trm("train", "--data", "gaussian", "--device", "cpu", "--quiet", "--output", tmp_path / "run")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("trm: memory is full (tried to allocate 6000000000000 bytes): use a lower --batch-size")


def test_variables_that_others_have_left_are_not_ours(trm, tmp_path, monkeypatch):
    """A scheduler's, or those of a launcher that is long gone: the process is still the only one, and speaks."""
    stray = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "x", "SLURM_NTASKS": "4",
             "SLURM_JOB_NAME": "job", "SLURM_PROCID": "1", "MASTER_PORT": "x"}  # fmt: skip
    for name, value in stray.items():
        monkeypatch.setenv(name, value)
    code, out, _ = trm(*SMALL, "--output", tmp_path)
    assert code == 0
    assert "selected by training-domain validation" in out


def test_small_tables_of_ones_own_need_no_batch_size(trm, tmp_path):
    rows = [f"{site},{i % 2},{i}.{k},{i % 7}" for k, site in enumerate(("a", "b", "c")) for i in range(40)]
    (tmp_path / "own.csv").write_text("\n".join(["site,label,x,y", *rows]) + "\n")
    arguments = ["train", "--data", f"table:{tmp_path / 'own.csv'}", "--environment", "site", "--label", "label"]
    arguments += ["--numeric", "y"]
    code, _, err = trm(*arguments, "--test-env", "c", "--epochs", "1", "--evaluations", "1", "--output", tmp_path / "o")
    assert code == 0, err
    assert err.splitlines()[0].endswith("batch_size=None (the smallest environment has 32)")


def test_json_has_null_for_what_is_no_number(trm, tmp_path):
    def refuse(constant):
        raise AssertionError(constant)

    assert trm(*SMALL, "--output", tmp_path, "--quiet")[0] == 0
    path = tmp_path / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["loss"] = None
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, out, _ = trm(*SMALL, "--output", tmp_path, "--quiet", "--json", "--resume")
    assert code == 0
    assert {record["loss"] for record in json.loads(out, parse_constant=refuse)["selected"]} == {None}


def test_divergence_is_a_line(trm, tmp_path):
    code, _, err = trm(*SMALL, "--algorithm", "erm", "--lr", "1e30", "--output", tmp_path, "--quiet")
    assert code == 2
    assert re.match(r"trm: erm has diverged at lr=1e\+30: the loss is (nan|inf) after step \d+; use a lower ", err)
    assert err.count("\n") == 1


def started(*arguments):
    return subprocess.Popen(
        [sys.executable, "-c", START, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_another(path, process, before=None, seconds=120):
    """Until there is a file at this path that is not the one of before."""
    end = time.monotonic() + seconds
    while not path.exists() or path.read_bytes() == before:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


LONG = [*SMALL, "--epochs", "20", "--algorithm", "trm", "--set", "query=random", "--quiet"]


def test_stopped_and_killed_it_says_how_to_go_on_and_ends_with_the_same_weights(trm, tmp_path):
    folder, before = tmp_path / "cut", None
    checkpoint, command = folder / "last.safetensors", [*LONG, "--checkpoint-every", "1", "--output", str(folder)]
    for signum, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        process = started(*command)
        try:
            wait_for_another(checkpoint, process, before)
            process.send_signal(signum)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        assert (process.returncode, out) == (code, "")
        before = checkpoint.read_bytes()
        reached = load_checkpoint(checkpoint).values["step"]
        assert 0 < reached < 240
        command = [*command[: command.index(str(folder)) + 1], "--resume"]
        if code > 0:
            told = re.fullmatch(r"trm: interrupted at step (\d+) of 240; go on with: (.*)\n", err)
            assert told
            assert int(told[1]) == reached
            assert shlex.split(told[2]) == ["trm", *command]
    assert trm(*LONG, "--output", tmp_path / "whole")[0] == trm(*LONG, "--output", folder, "--resume")[0] == 0
    assert same_weights(tmp_path / "whole", folder)
    whole, cut = (read_records(tmp_path / name / "records.jsonl") for name in ("whole", "cut"))
    assert [{**r, "seconds": 0} for r in whole] == [{**r, "seconds": 0} for r in cut]
