"""On which data and machines runs were made, as every format says it."""

from __future__ import annotations

import html

import pandas as pd
import pytest
from pacs_table import AXES, TABLE, part_of, rows, written
from results_folder import cells_of, evaluation, write

from transferrisk.reports.experiment import load_experiment, mixed_words, origin_words
from transferrisk.reports.report import write_report

GPU, CPU = "NVIDIA H200", "2 CPU cores, x86_64, Linux"


def origins(*runs):
    columns = ["precision", "hardware", "threads", "version", "commit"]
    return pd.DataFrame(runs, columns=columns, dtype=object).fillna("")


def run_on(columns, precision="bf16", hardware=GPU, commit="1a2b3c4"):
    return [{"precision": precision, "hardware": hardware, "version": "1.0", "commit": commit, **row}
            for row in rows(columns)]  # fmt: skip


def test_every_format_says_on_what_it_was_made(tmp_path):
    found = written(tmp_path, run_on)
    assert f"Run on {GPU} (bf16) at commit 1a2b3c4." in found[".html"]
    assert f"\nRun on {GPU} (bf16) at commit 1a2b3c4.\n" in found[".md"]
    assert f"\n% Run on {GPU} (bf16) at commit 1a2b3c4.\n" in found[".tex"]
    assert not any("Runs mix" in text for text in found.values())


def test_every_format_says_on_which_data(tmp_path):
    recipe = {"settings": {"data": "10c-digits", "backbone": "cnn:16"}, "given": ["cmnist", "--fast"]}
    lines = {"kind": "lines", "x": "test_env"}
    folder = write(tmp_path, "cmnist-fast", lines, cells_of(AXES, ["ERM", "TRM"], 3), rows, recipe)
    told = "Data: 10c-digits, cnn:16."
    assert load_experiment(folder).about()[1] == told
    assert load_experiment(folder).title == "About cmnist-fast (small version)"
    found = {
        path.suffix: path.read_text() for path in write_report(tmp_path).files if path.suffix not in (".csv", ".png")
    }
    assert set(found) == {".html", ".md", ".tex", ".svg"}
    assert [suffix for suffix, text in found.items() if told not in html.unescape(text)] == []


@pytest.mark.parametrize(
    ("recipe", "axes", "said"),
    [
        ({}, {}, ""),
        ({"settings": {"data": "pacs"}}, {}, "Data: pacs."),
        ({"settings": {"data": "pacs", "backbone": "cnn"},
          "problems": {"A": {"data": "celeba"}, "B": {"backbone": "mlp"}}},
         {"problem": ["A", "B"]}, "Data: celeba, cnn; pacs, mlp."),
        ({"settings": {"data": "pacs"}, "problems": {"A": {}, "B": {"data": "celeba"}}}, {"problem": ["A"]},
         "Data: pacs."),
        ({"settings": {"data": "pacs", "backbone": "cnn"}}, {"backbone": ["a", "b"]}, "Data: pacs, a; pacs, b."),
        ({"settings": {"setting": "cmnist"}}, {}, "Setting: cmnist."),
    ],
)  # fmt: skip
def test_the_data_are_those_of_the_cells(tmp_path, recipe, axes, said):
    assert (
        load_experiment(write(tmp_path, "e", TABLE, cells_of(axes, ["ERM"], 1), lambda c: None, recipe)).data() == said
    )


def test_several_machines_or_precisions_are_told_at_the_table_and_its_differences(tmp_path):
    found = written(tmp_path, lambda c: run_on(c) if c["method"] == "TRM" else run_on(c, "fp32", CPU, "0d0d0d0"))
    mixes = f"Runs mix fp32 on {CPU} and bf16 on {GPU}: differences to ERM may come from the machines."
    assert f"\n{mixes}\n".replace("_", r"\_") in found[".md"]
    assert found[".tex"].count(mixes.replace("_", r"\_")) == 2
    assert found[".html"].count(mixes) == 2
    assert f"Run on {CPU} (fp32) and on {GPU} (bf16) at commits 0d0d0d0, 1a2b3c4." in found[".html"]


def test_only_runs_that_are_shown_can_be_mixed(tmp_path):
    """The point that is not chosen was made elsewhere."""

    def rows_of(columns):
        rows = evaluation(1, 0.5, training=0.1 if columns["point"] == "w=2" else 0.9)
        return [{**row, "precision": "fp32" if columns["point"] == "w=2" else "bf16", "hardware": GPU} for row in rows]

    folder = write(tmp_path, "e", {}, cells_of({}, ["ERM", "TRM"], 1, {"TRM": ["w=1", "w=2"]}), rows_of)
    assert part_of(folder).mixed == ""
    assert origin_words(load_experiment(folder).origins) == f"Run on {GPU} (bf16) and on {GPU} (fp32)."


def test_rows_of_several_machines_are_told(tmp_path):
    show = {"kind": "rows", "row": "algorithm", "values": "ms"}
    times = {0: {"algorithm": "erm", "ms": 5.0, "hardware": GPU}, 1: {"algorithm": "erm", "ms": 50.0, "hardware": CPU}}
    folder = write(tmp_path, "time", show, [{"seed": 0}, {"seed": 1}], lambda c: [times[c["seed"]]])
    assert part_of(folder).mixed.startswith(f"Runs mix {GPU} and {CPU}: differences between rows")


def test_what_earlier_records_do_not_say_is_not_told(tmp_path):
    found = written(tmp_path, rows)
    assert not any("Run on" in text or "Runs mix" in text for text in found.values())
    some = origins({"precision": "bf16", "hardware": GPU, "version": "1.0"}, {})
    assert origin_words(some) == f"Run on {GPU} (bf16) by version 1.0; 1 of 2 runs do not record it."
    assert mixed_words(some, some.index, "differences") == ""
    cpu = {"precision": "fp32", "hardware": CPU}
    threads = origins(cpu | {"threads": "1"}, cpu | {"threads": "2"})
    assert mixed_words(threads, threads.index, "differences").startswith(
        f"Runs mix fp32, 1 thread a run on {CPU} and fp32, 2 threads a run on {CPU}: differences"
    )
    assert origin_words(origins(*({"commit": name} for name in "abcde"))) == "Run at commits a, b, c and 2 more."
    null = write(tmp_path, "null", {}, cells_of({}, ["ERM"], 2), lambda c: [
        {**row, "hardware": None if c["seed"] else GPU, "commit": None} for row in evaluation(1, 0.5)
    ])  # fmt: skip
    assert origin_words(load_experiment(null).origins) == f"Run on {GPU}; 1 of 2 runs do not record it."
