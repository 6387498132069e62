"""Streams that are closed or full, names that steer a terminal, cells that a spreadsheet runs, packages that fail."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

ESCAPE = "\x1b[31mred\x1b]0;title\x07"
COMMAND = [sys.executable, "-m", "transferrisk"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a model with classes and environments that steer a terminal, and its rows."""
    from transferrisk.fitting import Plan, save_fit
    from transferrisk.fitting.fitted import fit_source
    from transferrisk.fitting.source import read_source

    folder = tmp_path_factory.mktemp("escapes")
    x = np.random.default_rng(0).normal(size=60)
    labels = np.where(x > 0, f"={ESCAPE}", "-1")
    sites = np.where(np.arange(60) % 3 == 0, f"north{ESCAPE}", np.where(np.arange(60) % 3 == 1, "south", "east"))
    frame = pd.DataFrame({"y": labels, "site": sites, f"x{ESCAPE}": x, "who": "@SUM(1+1)"})
    frame.to_csv(folder / "rows.csv", index=False)
    from transferrisk.data import Options

    plan = Plan(algorithm="linear", compared=False)
    source = read_source(str(folder / "rows.csv"), Options(label="y", environment="site"))
    save_fit(fit_source(source, plan), folder / "model")
    return folder


def test_names_do_not_steer_the_terminal(trm, model, tmp_path):
    rows = model / "rows.csv"
    commands = [
        ["fit", rows, "--label", "y", "--environment", "site", "--algorithm", "linear", "--no-compare"],
        ["audit", rows, "--label", "y", "--environment", "site", "--folds", "2", "--bootstrap", "5"],
        ["predict", model / "model", rows, "--id", "who"],
        ["data", "check", f"table:{rows}", "--label", "y", "--environment", "site"],
        ["fit", rows, "--label", f"y{ESCAPE}"],
        ["audit", f"none{ESCAPE}.csv"],
    ]
    outputs = ["--output=m", "--output=a.html", "--output=p.csv", "--seed=0", "--output=n", "--output=a.html"]
    for command, output in zip(commands, outputs, strict=True):
        code, out, err = trm(*command, output)
        assert code in (0, 2)
        assert "\x1b" not in out + err, command
        assert "\x07" not in out + err
        assert r"\x1b[31mred" in out + err, command


def test_formulas_are_told_and_on_request_neutralised(trm, model, tmp_path):
    rows = model / "rows.csv"
    code, _, err = trm("predict", model / "model", rows, "--output", "p.csv", "--id", "who")
    assert code == 0
    assert "'@SUM(1+1)' begin as formulas do" in err
    raw = pd.read_csv("p.csv")
    code, _, err = trm("predict", model / "model", rows, "--output", "q.csv", "--id", "who", "--neutralise")
    assert code == 0
    assert "formulas" not in err
    safe = pd.read_csv("q.csv")
    assert set(safe["who"]) == {"'@SUM(1+1)"}
    assert set(safe["prediction"]) == {f"'={ESCAPE}", "-1"}  # a number is none
    pd.testing.assert_frame_equal(raw.iloc[:, 2:], safe.iloc[:, 2:])


def piped(words: str) -> tuple[int, list[str]]:
    """Exit code of trm before a | or another redirection, and the lines on stderr that are not warnings."""
    line = f"{' '.join(COMMAND)} {words}; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    return result.returncode, [line for line in result.stderr.splitlines() if not line.startswith("trm: warning: ")]


def test_predictions_without_standard_output_end_loudly(model):
    code, errors = piped(f"predict {model / 'model'} {model / 'rows.csv'} --output - >&-")
    assert code == 2
    assert "standard output" in errors[-1]
    assert not any("Traceback" in line or "Exception" in line for line in errors)


@pytest.mark.parametrize("words", ["predict {model} {rows} --output -", "data list", "data list --json", "--help"])
@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_reader_that_has_seen_enough_ends_a_command_quietly(model, words, buffered, monkeypatch):
    """As cat does: by the exit code of SIGPIPE, and without a word."""
    monkeypatch.setenv("PYTHONUNBUFFERED", buffered)
    words = words.format(model=model / "model", rows=model / "rows.csv")
    code, errors = piped(f"{words} | true")
    assert code == 141
    assert not [line for line in errors if "standard output" in line or "Traceback" in line or "Error" in line]


def test_a_pipe_that_breaks_inside_is_not_taken_for_the_output():
    """Output is read here: the error of another pipe stays one."""
    program = (
        "import sys, transferrisk.cli as cli\n"
        "def broken():\n"
        "    raise BrokenPipeError(32, 'Broken pipe')\n"
        "cli._command_ended = broken\n"
        "cli.main()"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)


def test_settings_are_refused_before_anything_is_printed(trm, model):
    rows = ["fit", model / "rows.csv", "--label", "y", "--environment", "site", "--output", "m"]
    code, out, err = trm(*rows, "--algorithms", "trm,linear", "--set", "no_such=1")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "no_such" in err


IMPORTS = """
class Full:
    def find_spec(self, name, *_):
        if name == "transferrisk.cli.app":
            raise {error}
import sys
sys.meta_path.insert(0, Full())
from transferrisk.cli import main
main()
"""


@pytest.mark.parametrize(
    "error", ["MemoryError()", "ImportError('x.so: failed to map segment from shared object')", "OSError(12, 'none')"]
)
def test_full_memory_while_modules_are_read_is_one_line(error):
    command = [sys.executable, "-c", IMPORTS.format(error=error), "data", "list"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("trm: ")


@pytest.mark.parametrize(
    "option", [["--lr", "1e308"], ["--backbone", f"mlp:{'9' * 20}"], ["--backbone", f"mlp:{'9' * 5000}"],
               ["--seed", "9" * 5000], ["--evaluations", "9" * 9], ["--set", f"ridge={'9' * 5000}"],
               ["--epochs", "9" * 30]],
)  # fmt: skip
def test_numbers_that_are_too_large_are_one_line(trm, model, option):
    rows = [f"table:{model / 'rows.csv'}", "--label", "y", "--environment", "site", "--test-env", "south"]
    code, out, err = trm("train", "--data", *rows, "--output", "run", "--epochs", 1, *option, "--quiet")
    *warnings, line = err.splitlines()
    assert (code, out) == (2, ""), err
    assert len(line) <= 300
    assert all(one.startswith("trm: warning: ") for one in warnings)
