"""The command line as a user runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from transferrisk.experiments.demo import Demo
from transferrisk.experiments.execute import commit, provenance
from transferrisk.reports.comparison import summarise
from transferrisk.reports.terminal import run_progress


def in_a_process(*arguments, cwd=None):
    code = "import torch; torch.set_num_threads(1); from transferrisk.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--sedes", "3"], r"No such option: --sedes.* \(trm demo --help shows what there is\)"),
        (["dmo"], r"No such command 'dmo'.* \(trm --help shows what there is\)"),
        (["demo", "--seeds", "0"], r"Invalid value for '--seeds'.* \(trm demo --help shows"),
        (["demo", "--seeds", "many"], "Invalid value for '--seeds'"),
        (["demo", "--workers", "0"], "Invalid value for '--workers'"),
        (["demo", "--output", ""], "Invalid value for '--output': it is empty"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(trm, arguments, message):
    code, out, err = trm(*arguments)
    assert (code, out) == (2, "")
    assert re.match(f"trm: {message}", err)
    assert err.count("\n") == 1


@pytest.mark.parametrize("output", ["taken", "taken/below"])
def test_output_that_is_a_file_is_told_before_training(tmp_path, output):
    target = tmp_path / "taken"
    target.write_text("precious")
    result = in_a_process("demo", "--output", str(tmp_path / output))
    assert result.returncode == 2
    assert result.stderr == f"trm: {target} is a file, not a folder: choose another folder for the output\n"
    assert target.read_text() == "precious"


def test_report_that_is_a_folder_is_told_before_training(tmp_path):
    (tmp_path / "report.html").mkdir()
    result = in_a_process("demo", "--output", str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.startswith(f"trm: {tmp_path / 'report.html'} is a folder, where a file must go")
    assert result.stderr.count("\n") == 1


COMMANDS = ["demo", "train", "fit", "predict", "export", "audit", "experiment", "report", "bench"]
COMMANDS += [f"data {name}" for name in ("list", "fetch", "check", "show")]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example_and_only_options_that_apply(trm, command):
    code, out, _ = trm(*command.split(), "--help")
    assert code == 0
    assert f"Example: trm {command}" in out
    synthetic = command in ("train", "data check", "data show")
    assert all((option in out) is synthetic for option in ("--shift", "--biases", "--oracle", "Synthetic sets"))
    assert ("--environment" in out) is (synthetic or command in ("fit", "audit", "predict"))


def test_plain_command_shows_its_help():
    result = in_a_process()
    assert result.returncode == 0
    assert "demo" in result.stdout
    assert result.stderr == ""


def test_commit_is_left_out_without_git(monkeypatch):
    assert "PyTorch" in provenance()
    known = provenance().get("Commit")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert provenance().get("Commit") == known, "it is that of the beginning"
    commit.cache_clear()
    assert "Commit" not in provenance()
    commit.cache_clear()


def test_version():
    assert in_a_process("--version").stdout.startswith("trm ")


def test_the_package_runs_as_a_module():
    result = subprocess.run([sys.executable, "-m", "transferrisk", "--version"], capture_output=True, check=False)
    assert result.stdout.startswith(b"trm ")


def test_small_demo_end_to_end(tmp_path):
    result = in_a_process("demo", "--seeds", "1", "--epochs", "1", "--output", "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "TRM" in result.stdout
    assert "In the environment it has not seen" in " ".join(result.stdout.split())
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["records.jsonl", "report.html", "samples.npz"]


def test_json_is_all_there_is_on_stdout(tmp_path):
    result = in_a_process(
        "demo", "--seeds", "1", "--epochs", "1", "--json", "--workers", "1", "--output", str(tmp_path)
    )
    table = json.loads(result.stdout)
    assert set(table) == {"erm", "irm", "groupdro", "trm"}
    assert 0 <= table["trm"]["test_accuracy"] <= 1
    assert "trm, seed 0: 4 of 4 runs finished" in result.stderr


@pytest.mark.parametrize("terminal", [True, False])
def test_each_run_has_a_bar_of_its_own_or_a_line(monkeypatch, capsys, terminal):
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(terminal)))
    with run_progress("all runs", 2) as bars:
        bars.step("erm, seed 0", 1, 2)
        bars.step("trm, seed 0", 1, 2)
        bars.end("erm, seed 0")
        assert bars.done == 1
        bars.end("trm, seed 0", "failed", finished=False, said=True)
    said = capsys.readouterr().err
    assert "failed" in said
    assert ("erm, seed 0: 1 of 2 runs finished" in said) is not terminal
    assert ("all runs" in said) is terminal


def test_json_goes_to_a_file_or_to_standard_output(trm, tmp_path):
    code, out, _ = trm("data", "list", "--json")
    assert code == 0
    assert trm("data", "list", "--json", tmp_path / "sets.json")[0] == 0
    assert json.loads((tmp_path / "sets.json").read_text()) == json.loads(out)
    code, out, err = trm("data", "list", "--json", tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_trm_is_ahead_of_erm_by_five_points_in_the_demo(tmp_path):
    erm, trm_row = summarise(Demo(algorithms=("erm", "trm")).run(tmp_path))
    assert trm_row.test.mean - erm.test.mean > 0.05
    assert trm_row.transfer_risk.mean < erm.transfer_risk.mean
