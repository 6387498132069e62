"""The numbers of the tables, worked out by hand, and how they are written."""

from __future__ import annotations

import csv
import html
import json
import math
import statistics

import pytest
from results_folder import cells_of, evaluation, write

from transferrisk.errors import InputError
from transferrisk.reports.experiments import report
from transferrisk.reports.experiments.formats import (
    about,
    against_caption,
    caption,
    csv_text,
    data,
    latex_text,
    markdown_text,
    plain,
)
from transferrisk.reports.experiments.grids import Paired
from transferrisk.reports.experiments.load import load
from transferrisk.reports.experiments.made import Made, mixed, told
from transferrisk.reports.experiments.report import parts_of
from transferrisk.reports.numbers import MINUS, NOTHING

TABLE = {"kind": "table", "columns": "test_env", "average": True, "value": "accuracy"}
AXES = {"test_env": ["art", "photo"]}
ACCURACY = {
    ("ERM", "art"): (0.50, 0.60, 0.70), ("ERM", "photo"): (0.90, 0.90, 0.90),
    ("TRM", "art"): (0.60, 0.80, 0.70), ("TRM", "photo"): (0.80, 0.90, 1.00),
}  # fmt: skip
PUBLISHED = {"training_domain": {"ERM": {"art": [58.0, 1.5], "average": [74.0]}}}


def rows(columns):
    return evaluation(1, ACCURACY[columns["method"], columns["test_env"]][columns["seed"]])


def table(tmp_path, rows_of=rows, recipe=None, show=TABLE, axes=AXES):
    cells = cells_of(axes, ["ERM", "TRM"], 3)
    folder = write(tmp_path, "pacs", show, cells, rows_of, {"published": PUBLISHED} | (recipe or {}))
    (part,) = parts_of(load(folder))
    return part.grids[0]


def test_mean_and_sample_deviation_over_seeds_in_percent(tmp_path):
    grid = table(tmp_path)
    assert grid.columns == ["art", "photo", "average"]
    assert [entry.ours for entry in grid.lines["ERM"]] == ["60.0 ± 10.0", "90.0 ± 0.0", "75.0 ± 5.0"]
    assert [entry.ours for entry in grid.lines["TRM"]] == ["70.0 ± 10.0", "90.0 ± 10.0", "80.0 ± 8.7"]
    assert grid.lines["TRM"][2].summary.std == pytest.approx(statistics.stdev([70, 85, 85]))


def test_the_papers_numbers_and_the_difference(tmp_path):
    erm, trm = table(tmp_path).lines.values()
    assert [entry.paper for entry in erm] == ["58.0 ± 1.5", NOTHING, "74.0"]
    assert [entry.difference_text for entry in erm] == ["+2.0", NOTHING, "+1.0"]
    assert {entry.paper for entry in trm} == {NOTHING}


def test_differences_to_erm_are_paired_by_seed_with_a_t_interval(tmp_path):
    trm = table(tmp_path).lines["TRM"]
    # Differences 10, 20, 0: mean 10, standard error 10 / sqrt(3); t of 2 degrees of freedom at 97.5 % is 4.3027.
    half = 4.302652729911275 * 10 / math.sqrt(3)
    paired = trm[0].against
    assert (paired.mean, paired.low, paired.high) == pytest.approx((10, 10 - half, 10 + half))
    assert trm[0].against_text == f"+10.0 ({MINUS}14.8 to 34.8)"
    assert trm[2].against.mean == pytest.approx(statistics.mean([0, 10, 5]))
    assert table(tmp_path).lines["ERM"][0].against is None


def test_only_seeds_that_both_have_are_compared():
    assert Paired.of({0: 3.0, 1: 5.0}, {1: 4.0, 2: 0.0}) == pytest.approx(
        Paired(1.0, math.nan, math.nan, 1), nan_ok=True
    )
    assert Paired.of({0: 3.0}, {1: 4.0}) is None


def test_missing_seeds_and_methods_are_told(tmp_path):
    def some(columns):
        if columns["method"] == "TRM" and columns["test_env"] == "photo":
            return None
        return None if (columns["method"], columns["seed"]) == ("ERM", 1) else rows(columns)

    grid = table(tmp_path, some)
    assert [e.ours for e in grid.lines["ERM"]] == [
        "60.0 ± 14.1 (2 of 3 seeds)", "90.0 ± 0.0 (2 of 3 seeds)", "75.0 ± 7.1 (2 of 3 seeds)",
    ]  # fmt: skip
    assert [e.ours for e in grid.lines["TRM"]] == ["70.0 ± 10.0", "missing", "missing"]
    assert [e.against_text for e in grid.lines["TRM"]] == [f"+5.0 ({MINUS}58.5 to 68.5)", NOTHING, NOTHING]


def test_a_seed_without_a_number_is_missing_and_one_seed_has_no_deviation(tmp_path):
    def rows_of(columns):
        if columns["method"] == "TRM":
            return evaluation(1, math.nan)
        return evaluation(1, 0.5 if columns["seed"] == 0 else None)

    grid = table(tmp_path, rows_of)
    assert [e.ours for e in grid.lines["ERM"]] == ["50.0 (1 of 3 seeds)"] * 3
    assert [e.ours for e in grid.lines["TRM"]] == ["no value"] * 3


def test_the_caption_says_over_how_many_seeds(tmp_path):
    assert caption(table(tmp_path)).startswith("Mean ± standard deviation over 3 seeds.")
    some = table(tmp_path, lambda c: rows(c) if c["method"] == "ERM" or c["seed"] else None)
    assert caption(some).startswith("Mean ± standard deviation over 2 to 3 seeds.")
    assert caption(table(tmp_path, lambda c: None if c["seed"] else rows(c))).startswith("One seed")
    assert caption(table(tmp_path, lambda c: None)).startswith("No run is done.")


def test_an_interval_is_promised_where_there_is_one(tmp_path):
    interval = "with the 95 % interval of Student's t."
    assert against_caption(table(tmp_path)).endswith(interval)
    one = table(tmp_path, lambda c: None if c["seed"] else rows(c))
    assert against_caption(one) == "Difference to ERM on the same seed. One seed: no interval."
    some = table(tmp_path, lambda c: None if c["seed"] and c["test_env"] == "art" else rows(c))
    assert against_caption(some).endswith(f"{interval} Where they share one seed: no interval.")
    found = written(tmp_path, lambda c: None if c["seed"] else rows(c))
    assert all("One seed: no interval." in text and "Student" not in text for text in found.values())


def test_the_best_mean_of_each_column_is_bold(tmp_path):
    best = table(tmp_path).best
    assert best == {("TRM", 0), ("ERM", 1), ("TRM", 1), ("TRM", 2)}
    assert "Bold: the best mean of each column." in caption(table(tmp_path))
    found = written(tmp_path, rows)
    assert "| TRM | **70.0 ± 10.0** | **90.0 ± 10.0** | **80.0 ± 8.7** |" in found[".md"]
    assert r"ERM & 60.0 $\pm$ 10.0 & \textbf{90.0 $\pm$ 0.0} &" in found[".tex"]
    assert found[".html"].count("<b>90.0 ± ") == 2
    assert 'class="ours"' not in found[".html"]


def test_what_is_best_depends_on_the_value_and_on_who_is_compared(tmp_path):
    def rows_of(columns):
        return [{**row, "loss": 0.1 if columns["method"] == "ERM" else 0.2} for row in rows(columns)]

    show = {"kind": "table", "value": ["accuracy", "loss"]}
    assert table(tmp_path, rows_of, show=show, axes={"test_env": ["art"]}).best == {("TRM", 0), ("ERM", 1)}
    alone = table(tmp_path, lambda c: rows(c) if c["method"] == "TRM" else None)
    assert alone.best == set()
    assert "Bold" not in caption(alone)
    oracle = {"methods": {"ERM": {"algorithm": "erm"}, "TRM": {"algorithm": "erm", "oracle": True}, "IRM": {}}}
    cells = cells_of(AXES, ["ERM", "TRM", "IRM"], 3)
    folder = write(
        tmp_path, "pacs", TABLE, cells, lambda c: rows(c | {"method": c["method"].replace("I", "E")}), oracle
    )
    (grid,) = next(parts_of(load(folder))).grids
    assert grid.best == {(name, column) for name in ("ERM", "IRM") for column in range(3)}
    assert "Bold: the best mean of each column, TRM apart." in caption(grid)


def test_nothing_has_run_and_the_papers_numbers_are_there(tmp_path):
    grid = table(tmp_path, lambda columns: None)
    assert {entry.ours for entries in grid.lines.values() for entry in entries} == {"missing"}
    assert grid.lines["ERM"][0].paper == "58.0 ± 1.5"


def test_values_as_columns_with_one_value_of_every_axis(tmp_path):
    published = {"training_domain": {"TRM": {"worst_group": [50.0], "accuracy": [60.0, 1.0]}}}
    show = {"kind": "table", "value": ["worst_group", "accuracy"]}
    grid = table(tmp_path, recipe={"published": published}, show=show, axes={"test_env": ["art"]})
    assert grid.columns == ["worst-group accuracy, %", "accuracy, %"]
    assert [entry.paper for entry in grid.lines["TRM"]] == ["50.0", "60.0 ± 1.0"]


def test_an_axis_that_the_show_does_not_name_has_tables_of_its_own(tmp_path):
    cells = cells_of({"bias": [0.8, 0.9], **AXES}, ["ERM", "TRM"], 3)
    published = {"training_domain": {"ERM": {"0.9, art": [1.0]}}}
    folder = write(tmp_path, "pacs", TABLE, cells, rows, {"published": published})
    (part,) = parts_of(load(folder))
    assert [grid.title for grid in part.grids] == ["bias degree 0.8", "bias degree 0.9"]
    assert [grid.lines["ERM"][0].paper for grid in part.grids] == [NOTHING, "1.0"]


def test_every_rule_has_its_own_files_and_says_so_in_them(tmp_path):
    cells = cells_of(AXES, ["ERM", "TRM"], 3)
    write(tmp_path, "pacs", TABLE, cells, rows, {"select": ["training_domain", "test_domain"]})
    report(tmp_path)
    for rule, words in (("training_domain", "training-domain validation"), ("test_domain", "test-domain validation")):
        assert words in (tmp_path / "pacs" / f"{rule}.md").read_text()
        assert words in (tmp_path / "pacs" / f"{rule}.tex").read_text()
        with (tmp_path / "pacs" / f"{rule}.csv").open() as file:
            assert {line["selection"] for line in csv.DictReader(file)} == {rule}
        assert words in (tmp_path / "report.html").read_text()


def test_the_three_formats_hold_the_same_numbers(tmp_path):
    write(tmp_path, "pacs", TABLE, cells_of(AXES, ["ERM", "TRM"], 3), rows, {"published": PUBLISHED})
    report(tmp_path)
    markdown = (tmp_path / "pacs" / "training_domain.md").read_text()
    assert (
        f"| ERM | 60.0 ± 10.0 | **90.0 ± 0.0** | 75.0 ± 5.0 |\n| &emsp;paper | 58.0 ± 1.5 | {NOTHING} | 74.0 |"
        in markdown
    )
    assert f"| TRM | +10.0 ({MINUS}14.8 to 34.8) |" in markdown
    latex = (tmp_path / "pacs" / "training_domain.tex").read_text()
    assert r"ERM & 60.0 $\pm$ 10.0 & \textbf{90.0 $\pm$ 0.0} & 75.0 $\pm$ 5.0 \\" in latex
    assert r"\quad difference & +2.0 & -- & +1.0 \\" in latex
    assert all(rule in latex for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 2
    with (tmp_path / "pacs" / "training_domain.csv").open() as file:
        lines = {(line["line"], line["column"]): line for line in csv.DictReader(file)}
    assert float(lines["TRM", "art"]["mean"]) == pytest.approx(70)
    assert float(lines["TRM", "art"]["against_erm"]) == pytest.approx(10)
    assert float(lines["ERM", "average"]["difference"]) == pytest.approx(1)
    assert lines["ERM", "photo"]["paper_mean"] == ""


def test_the_chosen_points_are_told(tmp_path):
    cells = cells_of({"bias": [0.8, 0.9]}, ["ERM", "TRM"], 1, {"TRM": ["w=1", "w=2"]})

    def rows_of(columns):
        return evaluation(1, 0.5, training=0.9 if (columns["bias"] == 0.9) == (columns["point"] == "w=1") else 0.1)

    folder = write(tmp_path, "e", {"kind": "table", "columns": "bias"}, cells, rows_of)
    (part,) = parts_of(load(folder))
    assert part.grids[0].notes == ["TRM, best of 2 points: w=2 at 0.8; w=1 at 0.9."]


def test_rows_have_the_papers_numbers_under_any_rule(tmp_path):
    show = {"kind": "rows", "row": "algorithm", "values": ["seconds_per_epoch", "ratio"]}
    published = {"last": {"erm": {"seconds_per_epoch": [5.81]}, "trm": {"seconds_per_epoch": [8.69]}}}
    times = [{"algorithm": a, "seconds_per_epoch": s, "ratio": s / 5} for a, s in (("erm", 5.0), ("trm", 8.0))]
    folder = write(tmp_path, "time", show, [{"seed": 0}], lambda c: times, {"published": published, "select": ["last"]})
    (grid,) = next(parts_of(load(folder))).grids
    assert [(name, [e.ours for e in es], es[0].paper) for name, es in grid.lines.items()] == [
        ("ERM", ["5.00", "1.00"], "5.81"), ("TRM", ["8.00", "1.60"], "8.69"),
    ]  # fmt: skip
    folder = write(tmp_path, "missing", show, [{"seed": 0}], lambda c: None, {"published": published})
    (grid,) = next(parts_of(load(folder))).grids
    assert [entry.ours for entry in grid.lines["TRM"]] == ["missing", "missing"]


def test_rows_are_filtered_named_by_several_columns_and_averaged_over_seeds(tmp_path):
    show = {"kind": "rows", "row": ["offset", "objective"], "values": "angle", "where": {"what": "best"}, "digits": 1}

    def rows_of(columns):
        return [{"what": what, "offset": 0.5, "objective": "sup", "angle": angle + columns["seed"]}
                for what, angle in (("best", 10.0), ("curve", 99.0))]  # fmt: skip

    folder = write(tmp_path, "toy", show, [{"seed": 0}, {"seed": 1}], rows_of)
    (grid,) = next(parts_of(load(folder))).grids
    assert [(name, entry.ours) for name, (entry,) in grid.lines.items()] == [("0.5, sup", "10.5 ± 0.7")]


def test_columns_of_whole_numbers_have_no_decimals(tmp_path):
    show = {"kind": "rows", "row": "dimension", "values": ["samples", "outside", "loss"], "digits": 4}

    def rows_of(columns):
        return [{"dimension": d, "samples": 1000 * d, "outside": d + columns["seed"], "loss": d / 2} for d in (2, 3)]

    folder = write(tmp_path, "theory", show, [{"seed": 0}, {"seed": 1}], rows_of)
    (grid,) = next(parts_of(load(folder))).grids
    assert [entry.ours for entry in grid.lines["2"]] == ["2000 ± 0", "2.5000 ± 0.7071", "1.0000 ± 0.0000"]


def test_text_is_text_in_every_format():
    assert latex_text(r"50% & a_b \x {y} $z ^~#") == (
        r"50\% \& a\_b \textbackslash{}x \{y\} \$z \textasciicircum{}\textasciitilde{}\#"
    )
    assert markdown_text("a|b *c* _d_ `e` <b> [f](g)") == r"a\|b \*c\* \_d\_ \`e\` &lt;b&gt; \[f\](g)"
    assert [markdown_text(text) for text in ("# a", "- a", "1. a", "0.85", "V-REx")] == [
        r"\# a", r"\- a", r"1\. a", "0.85", "V-REx",
    ]  # fmt: skip
    assert [csv_text(v) for v in ("=1+1", "+1", "-a", "@a", "a", 1.5, None)] == [
        "'=1+1", "'+1", "'-a", "'@a", "a", 1.5, None,
    ]  # fmt: skip
    assert plain("a\x1b[31m\nb\u202e\udce9") == "a[31m b"


HOSTILE = ("<script>alert(1)</script>", "a|b&c_$x$", "=cmd|' /C calc'!A0", "\x1b[31mred\x1b[0m")


def test_hostile_names_stay_names_everywhere(tmp_path):
    cells = list(cells_of({HOSTILE[0]: list(HOSTILE)}, ["ERM", *HOSTILE], 2))
    methods = {name: {"algorithm": "erm"} for name in ("ERM", *HOSTILE)}
    show = {"kind": "lines", "x": HOSTILE[0], "value": "accuracy", "title": HOSTILE[1]}
    write(tmp_path, "e", show, cells, lambda c: evaluation(1, 0.5),
          {"methods": methods, "title": HOSTILE[0], "paper": HOSTILE[3]})  # fmt: skip
    report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<script") == 1
    svg = (tmp_path / "e" / "training_domain.svg").read_text()
    assert "<script" not in svg
    markdown = (tmp_path / "e" / "training_domain.md").read_text()
    assert "<script" not in markdown
    assert "\x1b" not in markdown
    widths = {line.replace(r"\|", "").count("|") for line in markdown.splitlines() if line.startswith("|")}
    assert widths == {6}
    latex = (tmp_path / "e" / "training_domain.tex").read_text()
    assert "$x$" not in latex
    assert {len(line.replace(r"\&", "").split("&")) for line in latex.splitlines() if line.endswith(r"\\")} == {5}
    with (tmp_path / "e" / "training_domain.csv").open() as file:
        cells = [cell for line in csv.reader(file) for cell in line]
    assert not [cell for cell in cells if cell[:1] in ("=", "@", "+")]


@pytest.mark.parametrize("given", [[1, 2, 3], "x", [], [True]])
def test_a_published_number_that_is_none_is_told(tmp_path, given):
    with pytest.raises(InputError, match=r"published.training_domain.ERM.art = .* is neither \[mean\]"):
        table(tmp_path, recipe={"published": {"training_domain": {"ERM": {"art": given}}}})


def test_as_json(tmp_path):
    write(tmp_path, "pacs", TABLE, cells_of(AXES, ["ERM", "TRM"], 3), rows, {"published": PUBLISHED})
    found = report(tmp_path).to_json()["experiments"]["pacs"]
    assert json.loads(json.dumps(found, allow_nan=False))["missing_runs"] == 0
    assert found["numbers"][0]["mean"] == pytest.approx(60)
    assert found["made"] == [{"precision": "", "hardware": "", "version": "", "commit": ""}]


GPU, CPU = "NVIDIA H200", "2 CPU cores, x86_64, Linux"


def made(columns, precision="bf16", hardware=GPU, commit="1a2b3c4"):
    return [{"precision": precision, "hardware": hardware, "version": "1.0", "commit": commit, **row}
            for row in rows(columns)]  # fmt: skip


def written(tmp_path, rows_of, show=TABLE):
    """Page, Markdown and LaTeX of an experiment."""
    write(tmp_path, "pacs", show, cells_of(AXES, ["ERM", "TRM"], 3), rows_of)
    paths = report(tmp_path).files
    return {path.suffix: html.unescape(path.read_text()) for path in paths if path.suffix in (".html", ".md", ".tex")}


def test_every_format_says_on_what_it_was_made(tmp_path):
    found = written(tmp_path, made)
    assert f"Made on {GPU} (bf16) at commit 1a2b3c4." in found[".html"]
    assert f"\nMade on {GPU} (bf16) at commit 1a2b3c4.\n" in found[".md"]
    assert f"\n% Made on {GPU} (bf16) at commit 1a2b3c4.\n" in found[".tex"]
    assert not any("Mixes" in text for text in found.values())


def test_every_format_says_on_which_data(tmp_path):
    recipe = {"settings": {"data": "10c-digits", "backbone": "cnn:16"}}
    lines = {"kind": "lines", "x": "test_env"}
    folder = write(tmp_path, "cmnist-fast", lines, cells_of(AXES, ["ERM", "TRM"], 3), rows, recipe)
    told = "Data: 10c-digits, cnn:16. The small version of the experiment."
    assert about(load(folder))[1] == told
    found = {path.suffix: path.read_text() for path in report(tmp_path).files if path.suffix not in (".csv", ".png")}
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
    assert data(load(write(tmp_path, "e", TABLE, cells_of(axes, ["ERM"], 1), lambda c: None, recipe))) == said


def test_several_machines_or_precisions_are_told_at_the_table_and_its_differences(tmp_path):
    found = written(tmp_path, lambda c: made(c) if c["method"] == "TRM" else made(c, "fp32", CPU, "0d0d0d0"))
    mixes = f"Mixes fp32 on {CPU} and bf16 on {GPU}: differences to ERM may be the machine's."
    assert f"\n{mixes}\n".replace("_", r"\_") in found[".md"]
    assert found[".tex"].count(mixes.replace("_", r"\_")) == 2
    assert found[".html"].count(mixes) == 2
    assert f"Made on {CPU} (fp32) and on {GPU} (bf16) at commits 0d0d0d0, 1a2b3c4." in found[".html"]


def test_only_runs_that_are_shown_can_be_mixed(tmp_path):
    """The point that is not chosen was made elsewhere."""

    def rows_of(columns):
        rows = evaluation(1, 0.5, training=0.1 if columns["point"] == "w=2" else 0.9)
        return [{**row, "precision": "fp32" if columns["point"] == "w=2" else "bf16", "hardware": GPU} for row in rows]

    folder = write(tmp_path, "e", {}, cells_of({}, ["ERM", "TRM"], 1, {"TRM": ["w=1", "w=2"]}), rows_of)
    experiment = load(folder)
    assert next(parts_of(experiment)).mixed == ""
    assert told(experiment.made) == f"Made on {GPU} (bf16) and on {GPU} (fp32)."


def test_rows_of_several_machines_are_told(tmp_path):
    show = {"kind": "rows", "row": "algorithm", "values": "ms"}
    times = {0: {"algorithm": "erm", "ms": 5.0, "hardware": GPU}, 1: {"algorithm": "erm", "ms": 50.0, "hardware": CPU}}
    folder = write(tmp_path, "time", show, [{"seed": 0}, {"seed": 1}], lambda c: [times[c["seed"]]])
    (part,) = parts_of(load(folder))
    assert part.mixed == f"Mixes {GPU} and {CPU}: differences between rows may be the machine's."


def test_what_earlier_records_do_not_say_is_not_told(tmp_path):
    found = written(tmp_path, rows)
    assert not any("Made " in text or "Mixes" in text for text in found.values())
    some = {"a": Made("bf16", GPU, "1.0"), "b": Made()}
    assert told(some) == f"Made on {GPU} (bf16) by version 1.0; 1 of 2 runs do not say."
    assert mixed(some, some, "differences") == ""
    many = {name: Made(commit=name) for name in "abcde"}
    assert told(many) == "Made at commits a, b, c and 2 more."
    null = write(tmp_path, "null", {}, cells_of({}, ["ERM"], 2), lambda c: [
        {**row, "hardware": None if c["seed"] else GPU, "commit": None} for row in evaluation(1, 0.5)
    ])  # fmt: skip
    assert told(load(null).made) == f"Made on {GPU}; 1 of 2 runs do not say."
