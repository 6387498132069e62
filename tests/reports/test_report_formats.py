"""How tables are written in each format, and what their captions say."""

from __future__ import annotations

import csv
import json
import re

import pytest
from pacs_table import AXES, PUBLISHED, TABLE, bold, part_of, rows, table, written
from results_folder import cells_of, evaluation, write

from transferrisk.errors import one_line
from transferrisk.reports.elements import MINUS, NOTHING
from transferrisk.reports.render import csv_text, latex_text, markdown_text
from transferrisk.reports.report import write_report
from transferrisk.reports.tables import Part
from transferrisk.reports.terminal import print_values
from transferrisk.settings import dumps


def against_caption(grid):
    return grid.against_table().note


def test_the_caption_says_over_how_many_seeds(tmp_path):
    assert table(tmp_path).caption().startswith("Mean ± standard deviation over 3 seeds.")
    some = table(tmp_path, lambda c: rows(c) if c["method"] == "ERM" or c["seed"] else None)
    assert some.caption().startswith("Mean ± standard deviation over 2 to 3 seeds.")
    assert table(tmp_path, lambda c: None if c["seed"] else rows(c)).caption().startswith("One of 3 seeds so far")
    assert table(tmp_path, lambda c: None).caption().startswith("No run is finished.")


def test_an_interval_is_promised_where_there_is_one(tmp_path):
    interval = "with the 95 % interval of Student's t."
    assert interval in against_caption(table(tmp_path))
    one = table(tmp_path, lambda c: None if c["seed"] else rows(c))
    assert "no interval" in against_caption(one)
    assert interval not in against_caption(one)
    some = table(tmp_path, lambda c: None if c["seed"] and c["test_env"] == "art" else rows(c))
    assert interval in against_caption(some)
    assert "no interval" in against_caption(some)
    found = written(tmp_path, lambda c: None if c["seed"] else rows(c))
    assert all("no interval" in text and "Student" not in text for text in found.values())


@pytest.mark.parametrize(("seeds", "said"), [(2, True), (3, False)])
def test_an_interval_of_two_seeds_is_said_to_say_little(tmp_path, seeds, said):
    folder = write(tmp_path, "a", TABLE, cells_of(AXES, ["ERM", "TRM"], seeds), rows)
    (grid,) = part_of(folder).grids
    assert ("two seeds is very wide" in against_caption(grid)) is said


def test_the_best_mean_of_each_column_is_bold(tmp_path):
    def rows_of(columns):  # TRM is better in art by 2.0, 1.8 and 2.2, and equal in photo
        seed, better = columns["seed"], columns["method"] == "TRM" and columns["test_env"] == "art"
        return evaluation(1, 0.5 + 0.1 * seed + better * (0.02, 0.018, 0.022)[seed])

    assert bold(table(tmp_path, rows_of).table()) == {("TRM", 0), ("ERM", 1), ("TRM", 1), ("TRM", 2)}
    found = written(tmp_path, rows_of)
    assert "| ERM | 60.0 ± 10.0 | **60.0 ± 10.0** | 60.0 ± 10.0 |" in found[".md"]
    assert r"ERM & 60.0 $\pm$ 10.0 & \textbf{60.0 $\pm$ 10.0} &" in found[".tex"]
    assert found[".html"].count("<b>60.0 ± ") == 2
    assert 'class="ours"' not in found[".html"]


def test_what_is_not_separated_from_the_best_is_bold_too(tmp_path, capsys):
    """In art the difference is 10, 20, 0: its interval contains 0."""
    assert {("TRM", 0), ("ERM", 0)} <= bold(table(tmp_path).table())
    assert "separated" in table(tmp_path).caption()
    found = written(tmp_path, rows)
    assert "| TRM | **70.0 ± 10.0** |" in found[".md"]
    assert "| ERM | **60.0 ± 10.0** |" in found[".md"]
    assert r"ERM & \textbf{60.0 $\pm$ 10.0} &" in found[".tex"]
    assert {"<b>60.0 ± 10.0</b>", "<b>70.0 ± 10.0</b>"} <= set(re.findall("<b>.*?</b>", found[".html"]))
    print_values(table(tmp_path).table())
    printed = capsys.readouterr().out
    assert printed.count("60.0 ± 10.0*") == printed.count("70.0 ± 10.0*") == 1
    assert "Starred: " in printed


def test_every_rule_has_its_own_files_and_says_so_in_them(tmp_path):
    cells = cells_of(AXES, ["ERM", "TRM"], 3)
    write(tmp_path, "pacs", TABLE, cells, rows, {"select": ["training_domain", "test_domain"]})
    write_report(tmp_path)
    for rule, words in (("training_domain", "training-domain validation"), ("test_domain", "test-domain validation")):
        assert words in (tmp_path / "pacs" / f"{rule}.md").read_text()
        assert words in (tmp_path / "pacs" / f"{rule}.tex").read_text()
        with (tmp_path / "pacs" / f"{rule}.csv").open() as file:
            assert {line["selection"] for line in csv.DictReader(file)} == {rule}
        assert words in (tmp_path / "report.html").read_text()


def test_the_three_formats_hold_the_same_numbers(tmp_path):
    write(tmp_path, "pacs", TABLE, cells_of(AXES, ["ERM", "TRM"], 3), rows, {"published": PUBLISHED})
    write_report(tmp_path)
    markdown = (tmp_path / "pacs" / "training_domain.md").read_text()
    assert (
        f"| ERM | **60.0 ± 10.0** | **90.0 ± 0.0** | **75.0 ± 5.0** |\n| &emsp;paper | 58.0 ± 1.5 | {NOTHING} | 74.0 |"
        in markdown
    )
    assert f"| TRM | +10.0 ? ({MINUS}14.8 to 34.8) |" in markdown
    latex = (tmp_path / "pacs" / "training_domain.tex").read_text()
    assert r"ERM & \textbf{60.0 $\pm$ 10.0} & \textbf{90.0 $\pm$ 0.0} & \textbf{75.0 $\pm$ 5.0} \\" in latex
    assert r"\quad difference & +2.0 & -- & +1.0 \\" in latex
    assert all(rule in latex for rule in (r"\toprule", r"\midrule", r"\bottomrule"))
    assert latex.count(r"\begin{table}") == latex.count(r"\end{table}") == 2
    with (tmp_path / "pacs" / "training_domain.csv").open() as file:
        lines = {(line["line"], line["column"]): line for line in csv.DictReader(file)}
    assert float(lines["TRM", "art"]["mean"]) == pytest.approx(70)
    assert float(lines["TRM", "art"]["against_erm"]) == pytest.approx(10)
    assert float(lines["ERM", "average"]["difference"]) == pytest.approx(1)
    assert lines["ERM", "photo"]["paper_mean"] == ""


def test_text_is_text_in_every_format():
    assert latex_text(r"50% & a_b \x {y} $z ^~#") == (
        r"50\% \& a\_b \textbackslash{}x \{y\} \$z \textasciicircum{}\textasciitilde{}\#"
    )
    assert [latex_text(text) for text in ("[ours] TRM", "* TRM", "a[b]")] == ["{}[ours] TRM", "{}* TRM", "a[b]"]
    assert markdown_text("a|b *c* _d_ `e` <b> [f](g)") == r"a\|b \*c\* \_d\_ \`e\` &lt;b&gt; \[f\](g)"
    assert [markdown_text(text) for text in ("# a", "- a", "1. a", "0.85", "V-REx")] == [
        r"\# a", r"\- a", r"1\. a", "0.85", "V-REx",
    ]  # fmt: skip
    assert [csv_text(v) for v in ("=1+1", "+1", "-a", "@a", "a", 1.5, None)] == [
        "'=1+1", "'+1", "'-a", "'@a", "a", 1.5, None,
    ]  # fmt: skip
    assert one_line("a\x1b[31m\nb\u202e\udce9") == r"a\x1b[31m b\u202e\udce9"


HOSTILE = ("<script>alert(1)</script>", "a|b&c_$x$", "=cmd|' /C calc'!A0", "\x1b[31mred\x1b[0m")


def test_hostile_names_stay_names_everywhere(tmp_path):
    cells = list(cells_of({HOSTILE[0]: list(HOSTILE)}, ["ERM", *HOSTILE], 2))
    methods = {name: {"algorithm": "erm"} for name in ("ERM", *HOSTILE)}
    show = {"kind": "lines", "x": HOSTILE[0], "value": "accuracy", "title": HOSTILE[1]}
    write(tmp_path, "e", show, cells, lambda c: evaluation(1, 0.5),
          {"methods": methods, "title": HOSTILE[0], "paper": HOSTILE[3]})  # fmt: skip
    write_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<script") == 1
    svg = (tmp_path / "e" / "training_domain.svg").read_text()
    assert "<script" not in svg
    markdown = (tmp_path / "e" / "training_domain.md").read_text()
    assert "<script" not in markdown
    assert "\x1b" not in markdown
    widths = {line.replace(r"\|", "").count("|") for line in markdown.splitlines() if line.startswith("|")}
    assert widths == {6, 5}  # methods, and the best against the runner-up
    latex = (tmp_path / "e" / "training_domain.tex").read_text()
    assert "$x$" not in latex
    assert {len(line.replace(r"\&", "").split("&")) for line in latex.splitlines() if line.endswith(r"\\")} == {5, 4}
    with (tmp_path / "e" / "training_domain.csv").open() as file:
        cells = [cell for line in csv.reader(file) for cell in line]
    assert not [cell for cell in cells if cell[:1] in ("=", "@", "+")]


def test_as_json(tmp_path):
    write(tmp_path, "pacs", TABLE, cells_of(AXES, ["ERM", "TRM"], 3), rows, {"published": PUBLISHED})
    found = write_report(tmp_path).to_json()["experiments"]["pacs"]
    assert json.loads(dumps(found))["missing_runs"] == 0
    assert found["numbers"][0]["mean"] == pytest.approx(60)
    assert json.loads(dumps(found["origins"])) == [
        {"precision": "", "hardware": "", "version": "", "commit": "", "threads": ""}
    ]


def test_on_the_page_the_papers_number_and_the_difference_say_what_they_are(tmp_path):
    table(tmp_path)
    write_report(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "<small>paper 58.0 ± 1.5</small><small>difference +2.0</small>" in page


@pytest.mark.parametrize("rule", ["training_domain", "test_domain", "last"])
def test_words_about_grids_are_there_where_grids_are(rule):
    without, chosen = (Part("", rule, choices=choices).selection for choices in (False, True))
    assert "grid" not in without
    assert "From each grid: the point" in chosen
    assert chosen.endswith("the points with the most seeds.")
    assert "{" not in without + chosen
    assert without.startswith("Selected")
