"""Whatever a file holds, a command ends well or says in one line why not, and leaves nothing half written.

FUZZ_CASES=2000 tries so many at random (`make fuzz`); without it, the suite tries the same hundred each time.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from odd_tables import PAIRS, File, Unpickled

from transferrisk.cli import main

CASES = os.environ.get("FUZZ_CASES")
LIMIT = 120  # seconds after which a case counts as one that never ends
WENT_WELL: Counter[str] = Counter()  # by command
QUICK = ("--epochs", "1", "--device", "cpu", "--workers", "1")
FITS = [
    ("--no-compare", "--algorithm", "erm"),
    ("--no-compare", "--algorithm", "trm", "--drop-small", "--json"),
    ("--no-compare", "--algorithm", "groupdro", "--skip-bad", "--json"),
    ("--algorithms", "erm", "--folds", "1", "--skip-bad", "--drop-small"),
    ("--algorithms", "erm", "--folds", "1", "--json"),
    ("--no-compare", "--algorithm", "linear", "--missing-indicators", "never"),
]
AUDITS = [(), ("--json",), ("--raw", "--json"), ("--ridge", "1e-3", "--skip-bad"), ("--skip-bad", "--json")]
OUTPUTS = [("csv", ()), ("tsv", ("--id",)), ("parquet", ("--id", "--chunk-rows=7")), ("csv.gz", ("--chunk-rows=1",))]


Wanted = tuple[str, tuple[str, ...]]
"""Of predictions: the file's ending, and further options"""


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Endless(BaseException):
    """Not an error that a command would answer."""


@contextmanager
def alarm() -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise Endless

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_trm(*arguments: str) -> Ended:
    """The command in this process, with streams that take what real ones do; any other end than its own is raised."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace", newline="")
    before, sys.argv = sys.argv, ["trm", *arguments]
    try:
        with alarm(), redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as exit_:
        out.flush()
        err.flush()
        texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
        return Ended(int(exit_.code or 0), *texts)
    finally:
        sys.argv = before
    raise AssertionError("main() returned")


def judge(ended: Ended, *arguments: str) -> bool:
    """Whether all went well; it ended as a command may, in any case."""
    errors = [line for line in ended.err.splitlines() if not line.startswith("trm: warning: ")]
    assert ended.code in (0, 2), (arguments, ended)
    assert len(errors) == (ended.code != 0), (arguments, ended.err)
    assert all(line.startswith("trm: ") and len(line) > 10 for line in errors), (arguments, ended.err)
    WENT_WELL[arguments[0]] += ended.code == 0
    if ended.code == 0 and "--json" in arguments:
        strict_json(ended.out)
    return ended.code == 0


def strict_json(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.relative_to(folder).parts[0] != "cache"}


def read_predictions(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return pd.read_parquet(path)
    separator = "\t" if path.suffix == ".tsv" else ","
    return pd.read_csv(path, sep=separator, dtype={"prediction": str}, keep_default_na=False)


def check_model(model: Path) -> list[str]:
    """All its files can be read; the names of its classes."""
    described = strict_json((model / "model.json").read_text())
    files = {"model.safetensors", "model.json", "card.md", "comparison.json", "report.html"}
    assert tree(model) == files | ({"schema.json"} if described["about"]["schema"] else set())
    strict_json((model / "comparison.json").read_text())
    assert (model / "card.md").read_text().strip()
    assert "</html>" in (model / "report.html").read_text()
    classes: list[str] = described["classes"]
    return classes


def check_predictions(path: Path, classes: list[str], rows: int) -> None:
    frame = read_predictions(path)
    assert list(frame.columns)[-1 - len(classes) :] == ["prediction", *(f"probability_{name}" for name in classes)]
    assert len(frame) == rows
    chances = frame.iloc[:, -len(classes) :].to_numpy(float)
    assert (chances >= 0).all()
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-5)
    assert list(frame["prediction"]) == [classes[i] for i in chances.argmax(1)]


def fit_and_predict(file: File, name: str, other: str, how: tuple[str, ...], wanted: Wanted) -> None:
    arguments = ("fit", name, *file.options, "--output", "model", *QUICK, *how)
    before = tree(Path())
    if not judge(run_trm(*arguments), *arguments):
        assert tree(Path()) == before, arguments
        return
    assert tree(Path()) - before == {"model", *(f"model/{part}" for part in tree(Path("model")))}
    classes = check_model(Path("model"))
    output, options = f"predictions.{wanted[0]}", [f"--id={file.identity}" if o == "--id" else o for o in wanted[1]]
    for new in (name, other):
        arguments = ("predict", "model", new, "--output", output, "--json", *options)
        before = tree(Path())
        ended = run_trm(*arguments)
        if judge(ended, *arguments):
            assert tree(Path()) - before <= {output}
            check_predictions(Path(output), classes, strict_json(ended.out)["rows"])
        else:
            assert new == other or "--skip-bad" in how or "--id" in wanted[1], (arguments, ended.err)
            assert tree(Path()) == before, arguments


def audit(file: File, name: str, how: tuple[str, ...]) -> None:
    arguments = ("audit", name, *file.options, "--output", "audit.html", "--folds", "2", "--bootstrap", "5", *how)
    if Path("model/schema.json").exists():  # what was written can be given back
        arguments = (*arguments, "--schema", "model/schema.json")
    before = tree(Path())
    fine = judge(run_trm(*arguments), *arguments)
    assert tree(Path()) - before == ({"audit.html"} if fine else set()), arguments
    assert not fine or "</html>" in Path("audit.html").read_text()


@pytest.mark.parametrize("kind", sorted(PAIRS))
def test_no_file_ends_in_a_traceback(kind, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")

    @settings(
        max_examples=int(CASES or 100) // len(PAIRS),
        derandomize=CASES is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(PAIRS[kind], st.sampled_from(FITS), st.sampled_from(AUDITS), st.sampled_from(OUTPUTS))
    def try_case(pair, fitting, auditing, output):
        with tempfile.TemporaryDirectory() as folder, monkeypatch.context() as patch, warnings.catch_warnings():
            patch.chdir(folder)
            patch.setenv("TRANSFERRISK_CACHE", str(Path(folder, "cache")))
            file, other = pair
            name, second = f"table.{file.ending}", f"other.{other.ending}"
            Path(name).write_bytes(file.content)
            Path(second).write_bytes(other.content)
            fit_and_predict(file, name, second, fitting, output)
            audit(file, name, auditing)
            assert not Unpickled.happened

    WENT_WELL.clear()
    try_case()
    assert min(WENT_WELL[command] for command in ("fit", "predict", "audit")) > 0, "every file was refused"
