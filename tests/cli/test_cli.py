"""The command line as a user runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import rich.progress

from transferrisk.cli import show
from transferrisk.cli.show import provenance
from transferrisk.experiments.demo import Demo
from transferrisk.experiments.execute import commit
from transferrisk.reports import summarise


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


def test_help_has_an_example():
    result = in_a_process("demo", "--help")
    assert result.returncode == 0
    assert "Example: trm demo" in result.stdout


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
    assert "Transfer risk" in result.stdout
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


def test_each_run_has_a_bar_and_a_clock_of_its_own(monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    now = [0.0]
    seen = []

    class Clocked(rich.progress.Progress):
        def __init__(self, *columns, **options):
            super().__init__(*columns, get_time=lambda: now[0], auto_refresh=False, **options)
            seen.append(self)

    monkeypatch.setattr(show, "Progress", Clocked)
    with show.progress(2) as advance:
        (bars,) = seen
        advance("erm", 0, 1, 2)
        now[0] = 60.0
        advance("trm", 0, 1, 2)
        now[0] = 70.0
        assert [(task.description, task.elapsed) for task in bars.tasks] == [
            ("all runs", 70.0), ("erm, seed 0", 70.0), ("trm, seed 0", 10.0),
        ]  # fmt: skip
        advance("erm", 0, 2, 2)
        assert [task.description for task in bars.tasks] == ["all runs", "trm, seed 0"]
        assert bars.tasks[0].completed == 1


def test_trm_is_ahead_of_erm_by_five_points_in_the_demo(tmp_path):
    records = Demo(algorithms=("erm", "trm")).run(tmp_path)
    erm, trm_row = summarise(records)
    assert trm_row.test.mean - erm.test.mean > 0.05
    assert trm_row.transfer_risk.mean < erm.transfer_risk.mean
