"""The command line as a user runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from operator import lt

import pytest

from transferrisk.experiments.demo import Demo
from transferrisk.experiments.execute import commit, provenance
from transferrisk.reports.demo_page import summarise
from transferrisk.reports.terminal import run_progress


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--sedes", "3"], r"No such option: --sedes.* \(see trm demo --help\)"),
        (["dmo"], r"No such command 'dmo'.* \(see trm --help\)"),
        (["demo", "--seeds", "0"], "--seeds must be .*got 0"),
        (["demo", "--seeds", "many"], "Invalid value for '--seeds'"),
        (["demo", "--workers", "0"], "--workers must be .*got 0"),
        (["demo", "--output", ""], "an empty value after .*--output: "),
        (["demo", "--output="], "an empty value after --output: "),
        (["report", " "], "an empty value after trm report: "),
        (
            ["fit", "a.csv", "--drop", "x", "--drop", "y"],
            "--drop must be given once",
        ),
        (["audit", "a.csv", "--missing", "-9", "--missing", "x"], "--missing must be given once"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(trm, arguments, message):
    code, out, err = trm(*arguments)
    assert (code, out) == (2, "")
    assert re.match(f"trm: {message}", err)
    assert err.count("\n") == 1


@pytest.mark.parametrize("output", ["taken", "taken/below"])
def test_output_that_is_a_file_is_told_before_training(trm, tmp_path, output):
    target = tmp_path / "taken"
    target.write_text("precious")
    code, out, err = trm("demo", "--output", tmp_path / output)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"trm: {target} is a file, not a folder")
    assert target.read_text() == "precious"


def test_report_that_is_a_folder_is_told_before_training(trm, tmp_path):
    (tmp_path / "report.html").mkdir()
    code, out, err = trm("demo", "--output", tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"trm: {tmp_path / 'report.html'} is a folder, where a file must go")


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
    options = out[out.index("Options") :]
    assert not re.search(r"<\w+|range|<=x", options), "a metavar is a word, and a flag has none"


def test_plain_command_shows_its_help(trm):
    code, out, err = trm()
    assert (code, err) == (0, "")
    assert "demo" in out


def test_commit_is_left_out_without_git(monkeypatch):
    assert "PyTorch" in provenance()
    known = provenance().get("Commit")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert provenance().get("Commit") == known, "it is that of the beginning"
    commit.cache_clear()
    assert "Commit" not in provenance()
    commit.cache_clear()


def test_version(trm):
    assert trm("--version")[1].startswith("trm ")
    result = subprocess.run([sys.executable, "-m", "transferrisk", "--version"], capture_output=True, check=False)
    assert result.stdout.startswith(b"trm ")


def test_small_demo_end_to_end(trm, tmp_path):
    code, out, err = trm("demo", "--seeds", 1, "--epochs", 1, "--workers", 1, "--json", "table.json", "--output", "out")
    assert code == 0, err
    assert "TRM" in out
    assert "In the environment it has not seen" in " ".join(out.split())
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["records.jsonl", "report.html", "samples.npz"]
    assert "trm, seed 0: 4 of 4 runs finished" in err
    table = json.loads((tmp_path / "table.json").read_text())
    assert set(table) == {"erm", "irm", "groupdro", "trm"}
    assert 0 <= table["trm"]["test_accuracy"] <= 1


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
    (tmp_path / "table.csv").write_text("a,b\n")
    assert trm("data", "list", "--json", "table.csv")[0] == 2
    assert (tmp_path / "table.csv").read_text() == "a,b\n"


def test_trm_is_ahead_of_erm_by_five_points_in_the_demo(tmp_path):
    """On each of its other seeds; the numbers of seed 0 are in test_golden.py."""
    erm, trm_row = summarise(Demo(algorithms=("erm", "trm"), seeds=(1, 2)).run(tmp_path))
    assert all(ours - theirs > 0.05 for ours, theirs in zip(trm_row.test.values, erm.test.values, strict=True))
    assert all(map(lt, trm_row.transfer_risk.values, erm.transfer_risk.values))
