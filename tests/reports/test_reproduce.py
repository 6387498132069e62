"""The command that makes the records of an experiment again."""

from __future__ import annotations

import json
import shlex

import pytest
from results_folder import cells_of, evaluation, write

from transferrisk.experiments.plan import make_plan
from transferrisk.experiments.recipe import load_recipe
from transferrisk.reports.experiment import load_experiment
from transferrisk.reports.report import write_report

AXES = {"shift": ["label-correlated", "combined"], "bias": [0.85, 0.9, 0.95]}
TABLE = {"kind": "table", "columns": "bias"}


def run_on(have=lambda c: True, precision="bf16", date="2026-01-30T10:00:00+00:00"):
    about = {"precision": precision, "hardware": "NVIDIA H200", "commit": "1a2b3c4", "date": date}
    return lambda c: [{**row, **about} for row in evaluation(1, 0.5)] if have(c) else None


def experiment(folder, name="cmnist", rows_of=None, seeds=3, **recipe):
    cells = cells_of(AXES, ["ERM", "TRM"], seeds)
    return load_experiment(write(folder, name, TABLE, cells, rows_of or run_on(), {"seeds": [0, 1, 2], **recipe}))


@pytest.mark.parametrize(
    ("given", "have", "seeds", "options"),
    [
        (["cmnist"], lambda c: True, 3, ""),
        (["cmnist", "--defaults", "--fast"], lambda c: True, 3, ""),
        (["mine.toml", "--fast"], lambda c: True, 3, ""),
        (["cmnist"], lambda c: c["seed"] < 2, 3, "--seeds 2 "),
        (["cmnist"], lambda c: True, 5, "--seeds 5 "),
        (["cmnist"], lambda c: c["seed"] in (0, 2), 3, ""),  # the third is not the second
        (["cmnist"], lambda c: c["seed"] in (0, 3), 5, "--seeds 4 "),
        (["cmnist"], lambda c: c["bias"] == 0.9 and c["method"] == "ERM", 3, "--only bias=0.9 --only ERM "),
        (["cmnist"], lambda c: c["method"] == "TRM", 3, "--only TRM "),
        (
            ["cmnist"],
            lambda c: c["shift"] == "combined" and c["bias"] > 0.85,
            3,
            "--only shift=combined --only bias=0.9,0.95 ",
        ),
        (["cmnist"], lambda c: c["seed"] < 2 or c["method"] == "ERM", 3, ""),  # some are missing
    ],
)
def test_the_command_asks_for_what_is_done(tmp_path, given, have, seeds, options):
    found = experiment(tmp_path, rows_of=run_on(have), seeds=seeds, given=given)
    assert found.command("there") == f"trm experiment {' '.join(given)} {options}--precision bf16 --output there"


def test_a_recipe_knows_by_which_words_it_was_asked_for(tmp_path):
    assert load_recipe("cmnist", fast=True, defaults=True).given == ("cmnist", "--defaults", "--fast")
    mine = tmp_path / "mine.toml"
    mine.write_text('extends = "cmnist"')
    assert load_recipe(mine).given == (str(mine),)


def test_what_the_command_says_is_what_an_experiment_takes(tmp_path):
    found = experiment(tmp_path, rows_of=run_on(lambda c: c["method"] == "TRM" and c["bias"] < 0.9))
    words = shlex.split(found.command("there"))
    only = [words[i + 1] for i, word in enumerate(words) if word == "--only"]
    cells = make_plan(load_recipe("cmnist", defaults=True), only, 1).cells
    assert {(cell.columns["method"], cell.columns["bias"]) for cell in cells} == {("TRM", 0.85)}


def test_without_a_run_it_asks_for_all(tmp_path):
    found = experiment(tmp_path, rows_of=lambda c: None)
    assert found.command("there") == "trm experiment cmnist --output there"
    assert found.circumstances() == "No run is finished."


def test_a_precision_of_the_recipe_or_of_some_runs_is_no_option(tmp_path):
    assert "--precision" not in experiment(tmp_path, settings={"precision": "bf16"}).command("there")
    mixed = experiment(tmp_path, rows_of=lambda c: run_on(precision="bf16" if c["seed"] else "fp32")(c))
    assert "--precision" not in mixed.command("there")
    assert "--precision" not in experiment(tmp_path, rows_of=lambda c: evaluation(1, 0.5)).command("there")


def test_threads_that_numbers_depend_on_are_asked_for(tmp_path):
    found = experiment(tmp_path, rows_of=lambda c: [{**row, "threads": 1} for row in run_on()(c)])
    assert found.command("there").endswith("--precision bf16 --threads 1 --output there")
    some = experiment(tmp_path, rows_of=lambda c: [{**row, "threads": 1 + c["seed"] % 2} for row in run_on()(c)])
    assert "--threads" not in some.command("there")


def test_the_page_has_each_command_with_seeds_hardware_precision_commit_and_dates(tmp_path, text_of):
    experiment(tmp_path, rows_of=lambda c: run_on(date=f"2026-01-3{c['seed'] % 2}T10:00:00+00:00")(c))
    experiment(tmp_path, "toy-2d", run_on(lambda c: c["seed"] in (0, 2), date=None))
    write_report(tmp_path, command="trm report here")
    page = text_of(tmp_path / "report.html")
    one, other, last = (page.index(f"<code>trm {words}") for words in (
        "experiment cmnist --precision bf16", "experiment toy-2d --precision bf16", "report here"))  # fmt: skip
    assert one < other < last
    assert (
        "Seeds 0 to 2. Run on NVIDIA H200 (bf16) at commit 1a2b3c4. Finished 2026-01-30 to 2026-01-31."
        in page[one:other]
    )
    assert "Seeds 0, 2. Run on NVIDIA H200 (bf16) at commit 1a2b3c4.</p>" in page[other:last]


def test_seeds_of_an_earlier_form_of_the_recipe_are_not_asked_for(tmp_path):
    cells = cells_of(AXES, ["ERM", "TRM"], 1)
    found = load_experiment(write(tmp_path, "cmnist", TABLE, cells, run_on(), {"seeds": [5, 7]}))
    assert "--seeds" not in found.command("there")


def test_labels_with_a_comma_are_asked_for_one_by_one(tmp_path):
    cells = cells_of({}, ["ERM", "TRM, a", "TRM"], 1)
    have = run_on(lambda c: c["method"] != "ERM")
    found = load_experiment(write(tmp_path, "mine", TABLE, cells, have, {"seeds": [0]}))
    assert "--only 'TRM, a' --only TRM " in found.command("there")


def test_the_command_with_hard_labels_asks_for_the_same_cells(tmp_path):
    """Labels with commas, quotes and equal signs, in methods and problems."""
    labels = ["ERM", "TRM, the paper's objective", "ridge=1e-3", 'a "b", $c']
    problems = ["100 % / 90 %, first", "other"]
    text = 'seeds = [0]\n[settings]\ndata = "gaussian"\ntraining = { epochs = 1 }\n[problems]\n'
    text += "".join(f"{json.dumps(label)} = {{ size = {8 + n} }}\n" for n, label in enumerate(problems)) + "[methods]\n"
    text += "".join(f'{json.dumps(label)} = {{ algorithm = "erm", training = {{ lr = 0.{n + 1} }} }}\n'
                    for n, label in enumerate(labels))  # fmt: skip
    (tmp_path / "mine.toml").write_text(text)
    cells = cells_of({"problem": problems}, labels, 1)
    have = run_on(lambda c: c["method"] != "ERM" and c["problem"] == problems[0])
    found = load_experiment(write(tmp_path, "mine", {}, cells, have, {"seeds": [0], "given": ["mine.toml"]}))
    words = shlex.split(found.command("there"))
    only = [words[i + 1] for i, word in enumerate(words) if word == "--only"]
    cells = make_plan(load_recipe(tmp_path / "mine.toml"), only).cells
    assert [(c.columns["problem"], c.columns["method"]) for c in cells] == [(problems[0], one) for one in labels[1:]]
