"""The command line as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from transferrisk.cli import main
from transferrisk.cli.show import provenance
from transferrisk.experiments.demo import Demo
from transferrisk.reports import summarise


def trm(*arguments, cwd=None):
    code = "import torch; torch.set_num_threads(1); from transferrisk.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--sedes", "3"], "trm: No such option: --sedes"),
        (["dmo"], "trm: No such command 'dmo'"),
        (["demo", "--seeds", "0"], "trm: Invalid value for '--seeds'"),
        (["demo", "--seeds", "many"], "trm: Invalid value for '--seeds'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["trm", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    captured = capsys.readouterr()
    assert exit_.value.code == 2
    assert captured.err.startswith(message)
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_output_that_is_a_file(tmp_path):
    target = tmp_path / "taken"
    target.write_text("precious")
    result = trm("demo", "--seeds", "1", "--epochs", "1", "--output", str(target))
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.rstrip().splitlines()[-1].startswith("trm: ")
    assert target.read_text() == "precious"


def test_help_has_an_example():
    result = trm("demo", "--help")
    assert result.returncode == 0
    assert "Example: trm demo" in result.stdout


def test_plain_command_shows_its_help():
    result = trm()
    assert result.returncode == 0
    assert "demo" in result.stdout
    assert result.stderr == ""


def test_commit_is_left_out_without_git(monkeypatch):
    assert "PyTorch" in provenance()
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "Commit" not in provenance()


def test_version():
    assert trm("--version").stdout.startswith("trm ")


def test_small_demo_end_to_end(tmp_path):
    result = trm("demo", "--seeds", "1", "--epochs", "1", "--output", "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Transfer risk" in result.stdout
    assert "In the environment it has not seen" in " ".join(result.stdout.split())
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["records.jsonl", "report.html", "samples.npz"]


def test_json_is_all_there_is_on_stdout(tmp_path):
    result = trm("demo", "--seeds", "1", "--epochs", "1", "--json", "--output", str(tmp_path))
    table = json.loads(result.stdout)
    assert set(table) == {"erm", "irm", "groupdro", "trm"}
    assert 0 <= table["trm"]["test_accuracy"] <= 1


def test_trm_is_ahead_of_erm_by_five_points_in_the_demo(tmp_path):
    records = Demo(algorithms=("erm", "trm")).run(tmp_path)
    erm, trm_row = summarise(records)
    assert trm_row.test.mean - erm.test.mean > 0.05
    assert trm_row.transfer_risk.mean < erm.transfer_risk.mean
