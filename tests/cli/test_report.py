"""`trm report`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from fsspec.implementations.memory import MemoryFileSystem

sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))
from results_folder import cells_of, evaluation, write

TABLE = {"kind": "table", "value": "accuracy"}
PART = ["results", "part"]


@pytest.fixture
def results(tmp_path):
    """Two experiments, one of which has run in part."""
    root = tmp_path / "results"
    cells = list(cells_of({}, ["ERM", "TRM"], 2))
    published = {"training_domain": {"TRM": {"accuracy": [71.0, 1.0]}}}
    write(root, "whole", TABLE, cells, lambda c: evaluation(1, 0.5 + 0.1 * c["seed"] + 0.2 * (c["method"] == "TRM")),
          {"published": published})  # fmt: skip
    write(root, "part", {"kind": "table"}, cells, lambda c: None if c["method"] == "TRM" else evaluation(1, 0.5))
    (root / "runs").mkdir()
    return root


def retyped(results, **columns):
    """Replace whole columns of the records of an experiment."""
    path = results / "part" / "records.parquet"
    pd.read_parquet(path).assign(**columns).to_parquet(path)


def test_prints_tables_and_writes_beside_the_results(trm, results):
    code, out, err = trm("report", results)
    assert (code, err) == (0, "")
    for told in ("About whole", "75.0 ± 7.1", "paper 71.0 ± 1.0", "difference +4.0", "20.0 to 20.0", "over 2 seeds",
                 "Missing: TRM.",
                 "75.0 ± 7.1*", "Starred: the best mean", "report.html",
                 "Selected by training-domain validation", "2 of 4 runs are missing."):  # fmt: skip
        assert told in re.sub(r"\s+", " ", out)
    assert {path.suffix for path in (results / "whole").iterdir()} == {".json", ".parquet", ".md", ".tex", ".csv"}
    html = (results / "report.html").read_text()
    assert "About whole" in html
    assert "About part" in html
    assert not re.search(r"""(?:src|href)=["'](?!#|data:)""", html)


def test_some_experiments_elsewhere_as_json(trm, results, tmp_path, text_of):
    code, out, _ = trm("report", results, "whole", "--output", "elsewhere", "--json")
    found = json.loads(out)
    assert code == 0
    assert list(found["experiments"]) == ["whole"]
    assert [line["mean"] for line in found["experiments"]["whole"]["numbers"]] == pytest.approx([55, 75])
    assert (tmp_path / "elsewhere" / "whole" / "training_domain.md").is_file()
    assert not (results / "report.html").exists()
    assert f"trm report {results} whole --output elsewhere" in text_of(tmp_path / "elsewhere" / "report.html")


def test_results_at_an_address(trm, results, tmp_path, text_of):
    shelf = MemoryFileSystem()
    shelf.put(str(results), "/shelf/results", recursive=True)
    (failed,) = [name for name, columns in json.loads((results / "part" / "recipe.json").read_text())["cells"]
                 if (columns["method"], columns["seed"]) == ("TRM", 1)]  # fmt: skip
    shelf.makedirs(f"/shelf/results/runs/{failed}")
    shelf.pipe_file(f"/shelf/results/runs/{failed}/failed.json", json.dumps({"error": "the reason"}).encode())
    code, out, err = trm("report", "memory://shelf/results", "--output", "here")
    assert (code, err) == (0, "")
    assert "75.0 ± 7.1" in out
    page = text_of(tmp_path / "here" / "report.html")
    assert "--output memory://shelf/results" in page
    assert "the reason" in page
    code, out, err = trm("report", "memory://shelf/results")
    assert (code, out) == (2, "")
    assert all(word in err for word in ("memory://shelf/results", "--output"))
    assert trm("report", f"file://{results}")[0] == 0
    shelf.pipe_file("/shelf/results/part/recipe.json", b"{")
    code, out, err = trm("report", "memory://shelf/results", "part", "--output", "here")
    assert (code, out) == (2, "")
    assert err.startswith("trm: memory://shelf/results/part/recipe.json cannot be read as JSON")
    assert "memory://nothing holds no results" in trm("report", "memory://nothing", "--output", "here")[2]


def test_some_experiments_have_a_page_of_their_own(trm, results):
    assert trm("report", results)[0] == 0
    whole = (results / "report.html").read_bytes()
    assert trm("report", results, "whole", "--output", results / ".." / "results")[0] == 0
    assert (results / "report.html").read_bytes() == whole
    assert (results / "report-whole.html").exists()


def test_a_terminal_without_the_letters_gets_others(results):
    command = [sys.executable, "-m", "transferrisk", "report", str(results)]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"75.0 +- 7.1" in done.stdout


def test_help_has_an_example(trm):
    assert "Example: trm report results" in trm("report", "--help")[1]


@pytest.mark.parametrize(
    ("spoil", "arguments", "said"),
    [
        (lambda r: None, ["nowhere"], "must be a folder, the --output of trm experiment, got nowhere"),
        (lambda r: (r / "empty").mkdir(), ["results/empty"], "holds no results"),
        (lambda r: None, ["results/whole"], "is one experiment: name the folder that holds it, trm report results"),
        (lambda r: None, ["results", "whol"], "has no experiment 'whol': did you mean 'whole'?"),
        (lambda r: (r / "part/recipe.json").write_text("{"), PART, "recipe.json cannot be read as JSON"),
        (lambda r: (r / "part/recipe.json").write_text("{}"), PART, "recipe.json: cells must be a list, got None"),
        (lambda r: (r / "part/recipe.json").write_bytes(b"\xff"), PART, "recipe.json cannot be read as JSON"),
        (lambda r: (r / "part/recipe.json").write_text('{"recipe": {"select": ["best"]}, "cells": []}'), PART,
         "recipe.json: select must name rules of selection, got 'best'"),
        (lambda r: (r / "part/recipe.json").write_text('{"recipe": {"select": ["last"], "published": {"last": 1}}, '
                                                       '"cells": []}'), PART, "published.last must be a table"),
        (lambda r: (r / "part/records.parquet").write_bytes(b"PAR1 no"), PART, "cannot be read as Parquet"),
        (lambda r: (r / "part/records.parquet").write_bytes(b""), PART, "cannot be read as Parquet"),
        (lambda r: retyped(r, accuracy="x"), PART, "column 'accuracy' must hold numbers"),
        (lambda r: retyped(r, step=pd.Timestamp(0)), PART, "column 'step' must hold numbers"),
        (lambda r: retyped(r, part=3), PART, "column 'part' must hold text"),
        (lambda r: retyped(r, date=1.5), PART, "column 'date' must hold text"),
        (lambda r: (r / "part/recipe.json").write_text('{"recipe": {"select": ["last"]}, "cells": [], "pruned": 3}'),
         PART, "pruned must be a list, got 3"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line_and_writes_nothing(trm, results, monkeypatch, spoil, arguments, said):
    spoil(results)
    before = sorted(results.rglob("*"))
    code, out, err = trm("report", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert sorted(results.rglob("*")) == before


def test_runs_that_failed_are_counted_with_the_first_reason(trm, results):
    first, second = [run for run, columns in json.loads((results / "part/recipe.json").read_text())["cells"]
                     if columns["method"] == "TRM"]  # fmt: skip
    for run in (first, second):
        (results / "runs" / run).mkdir()
    (results / "runs" / first / "failed.json").write_text('{"error": "out of\\nmemory.", "traceback": ""}')
    assert "2 of 4 runs are missing, 1 of which failed: out of memory." in trm("report", results)[1].replace("\n", " ")
    page = (results / "report.html").read_text()
    assert "8 runs, 2 of which are missing (1 of these failed)." in page
    assert "1 of which failed: out of memory." in page
    (results / "runs" / second / "failed.json").write_text("[]")
    found = json.loads(trm("report", results, "--json")[1])["experiments"]["part"]
    assert found["failed_runs"] == {first: "out of\nmemory.", second: "its failed.json cannot be read"}
    for format in ("md", "tex"):
        text = (results / "part" / f"training_domain.{format}").read_text()
        assert "2 of 4 runs are missing, 2 of which failed, the first: out of memory." in text
    (results / "runs" / first / "failed.json").write_text(json.dumps({"error": "too long " * 99}))
    trm("report", results)
    assert (results / "part/training_domain.md").read_text().count("too long") < 40
    (results / "runs" / first / "done.json").write_text("{}")
    assert "1 of which failed: its failed.json cannot be read." in trm("report", results)[1].replace("\n", " ")


@pytest.mark.parametrize(
    ("spoiled", "said"),
    [("recipe.json", "recipe.json cannot be read as JSON"), ("records.parquet", "cannot be read as Parquet")],
)
def test_a_damaged_experiment_does_not_keep_the_others_from_being_reported(trm, results, spoiled, said):
    (results / "part" / spoiled).write_bytes(b"{")
    code, out, err = trm("report", results)
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith("trm: part is left out: ")
    assert said in err
    assert "About whole" in out
    page = (results / "report.html").read_text()
    assert "About whole" in page
    assert "part is left out: " in page
    (line,) = json.loads(trm("report", results, "--json")[1])["left_out"]
    assert said in line
    assert trm("report", results, "whole")[::2] == (0, "")


def test_where_no_experiment_can_be_read_nothing_is_written(trm, results):
    for name in ("part", "whole"):
        (results / name / "recipe.json").write_text("{")
    code, out, err = trm("report", results)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "none of 2 experiments" in err
    assert "part is left out: " in err
    assert not (results / "report.html").exists()


def test_a_show_that_is_not_known_is_one_line(trm, results):
    write(results, "odd", {"kind": "tables"}, [], lambda c: None)
    code, _, err = trm("report", "results", "odd")
    assert code == 2
    assert "recipe odd, [show]: kind must be a kind of view, got 'tables': did you mean 'table'?" in err
