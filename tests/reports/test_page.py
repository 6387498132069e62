"""What values say and how they are drawn: shades, lines, bars, texts, against what they stand for."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from whole_page import HOSTILE, whole_page

from transferrisk.errors import InputError
from transferrisk.reports import (
    Bar,
    Bars,
    Cell,
    Chapter,
    Curves,
    Forest,
    Group,
    Heatmap,
    Mark,
    Page,
    Spread,
    Table,
    Text,
    percent,
    render_page,
    write_page,
)
from transferrisk.reports.charts import looks, page_svg
from transferrisk.reports.elements import METHODS, MINUS, NOTHING, in_unit, number
from transferrisk.reports.render import LEVELS, heat_cells, heat_key, shared_key
from transferrisk.reports.terminal import print_values


def test_numbers_as_printed():
    assert [number(v, 1) for v in (None, math.nan, math.inf, -0.04, -2.0, 2.5e9)] == [
        NOTHING, NOTHING, "∞", "0.0", f"{MINUS}2.0", "2.50e+09",
    ]  # fmt: skip
    assert (in_unit(0.1234, "percent"), in_unit(0.1234, "loss"), in_unit(None, "percent")) == (
        "12.3 %",
        "0.123",
        NOTHING,
    )


def levels(*args, **options):
    section = Heatmap("map", ["a", "b"], ["a", "c"], np.array([[0.0, 1.0], [2.0, np.nan]]), *args, **options)
    return [[cell.level for cell in row] for row in heat_cells(section)]


def test_shades_go_from_the_best_to_the_worst():
    top, middle = LEVELS - 1, (LEVELS - 1) // 2
    assert levels() == [[0, middle], [top, None]]
    assert levels(high_is_bad=False) == [[top, middle], [0, None]]
    assert levels(scale=(0.0, 20.0)) == [[0, 1], [1, None]]
    assert levels(scale=(1.0, 1.5)) == [[0, 0], [top, None]]


def test_heat_cells_tell_their_value_interval_and_whose_they_are():
    values = np.array([[0.5, np.inf], [np.nan, 0.25]])
    section = Heatmap("map", ["a", "b"], ["a", "c"], values, unit="percent", low=values - 0.1, high=values + 0.1)
    (own, endless), (nothing, last) = heat_cells(section)
    assert (own.text, own.own, own.interval) == ("50.0", True, "40.0 to 60.0")
    assert own.title == "\u2068a\u2069, \u2068a\u2069: 50.0 % (40.0 to 60.0)"
    assert (endless.text, endless.level, endless.own) == ("∞", LEVELS - 1, False)
    assert (nothing.text, nothing.level, nothing.interval) == (NOTHING, None, "")
    assert "no value" in nothing.title
    assert last.level == 0
    assert heat_key(section)[:2] == ("25.0 %", "50.0 %")


def test_maps_on_one_scale_share_their_key():
    def maps(*largest):
        return Group("group", [Heatmap("map", ["a"], ["a", "b"], np.array([[0.0, v]])) for v in largest])

    assert shared_key(maps(1.0, 1.0))[1] == "1.000"
    assert not any(shared_key(maps(1.0, 2.0)))
    assert not any(shared_key(maps(1.0)))
    assert not any(heat_key(Heatmap("map", ["a"], ["a"], np.array([[np.nan]]))))


def test_cells_keep_what_they_are_sorted_by():
    entries = ["x", 3, 2.25, None, Cell("50 ± 1", 0.5), np.float64(np.nan), "", percent(0.123)]
    ((row,), _) = Table("t", list("abcdefgh"), [entries]).cells()
    assert [cell.text for cell in row] == ["x", "3", "2.2", NOTHING, "50 ± 1", NOTHING, "", "12.3"]
    values = [None, 3.0, 2.25, math.nan, 0.5, math.nan, None, 12.3]
    assert [cell.value for cell in row] == [value and pytest.approx(value, nan_ok=True) for value in values]
    html = render_page(Page("t", (), [Table("t", list("abcdefgh"), [entries])], {}, ""))
    assert html.count(" data-missing") == 3
    (((negative, whole),), _) = Table("t", ["a", "b"], [[-12345678, np.int64(9)]]).cells()
    assert (negative.text, whole.text) == (f"{MINUS}12345678", "9")
    html = render_page(Page("t", (), [Table("t", ["a", "b"], [[math.inf, -math.inf]])], {}, ""))
    assert 'data-value="Infinity"' in html  # as the script reads them
    assert 'data-value="-Infinity"' in html


def test_columns_of_numbers_are_aligned_to_the_right():
    table = Table("t", ["a", "b", "c", "d"], [["x", 1, None, ""], ["y", "", 2.0, ""]])
    assert table.cells()[1] == [False, True, True, False]


def drawn(section):
    """The drawing of a page, read as XML."""
    names = (
        section.series if isinstance(section, Curves) else [b.name for bars in section.groups.values() for b in bars]
    )
    svg = page_svg(section, looks(names))
    return svg, ElementTree.fromstring(svg) if svg else None


def curves(series, **options):
    return drawn(Curves("curves", series, "x", "y", **options))


def words(svg):
    return [element.text for element in svg.iter() if element.tag.endswith("text")]


def test_a_drawing_names_its_axes_ticks_and_lines():
    svg, root = curves({"a": ([1, 2], [10, 20]), "b": ([1, 2], [30, 40])}, x_ticks={1: "one", 2: "two"})
    said = words(root)
    assert {"x", "y", "one", "two"} <= set(said)
    assert said.index("b") < said.index("a")  # in the order of the ends of the lines
    assert root.get("role") == "img"
    assert root.get("aria-label") == "y against x; at the end a 20; b 40"
    assert root.get("width") is None
    assert not re.search(r' id="\w+_\d+"', svg)


def test_names_in_a_drawing_are_text():
    _, root = curves({name: ([0, 1], [0, i]) for i, name in enumerate(("_hidden", "$x$", "<b>", "a" * 100))})
    said = words(root)
    assert {"_hidden", "$x$", "<b>"} <= set(said)
    assert any(text.startswith("aaaa") and text.endswith("…") for text in said)


def test_colours_of_a_drawing_follow_the_theme():
    svg, _ = curves({"TRM": ([0, 1], [0, 1]), "mine": ([0, 1], [1, 1])})
    assert f"light-dark({METHODS['trm'][1]}, " in svg
    assert not re.search(r"(?<!\()(?<!, )#[0-9a-f]{6}", svg)


def test_what_is_not_finite_is_a_gap_and_what_is_not_positive_has_no_place_on_a_logarithmic_axis():
    assert curves({"a": ([0, 1], [math.nan, math.inf]), "b": ([], [])})[0] == ""
    assert "at the end a 5" in curves({"a": (range(4), [1, math.nan, 5, math.inf])})[0]
    assert "at the end a 0.1;" in curves({"a": ([1, 2, 3], [1.0, 0.1, -1.0]), "b": ([1], [1])}, y_log=True)[0]


@pytest.mark.parametrize("y", [[0, 0], [5, 5], [1e-310, 2e-310], [1e150, -1e150], [1e9, 1e9 + 1], [1e300, 1]])
@pytest.mark.parametrize("log", [False, True])
def test_odd_ranges_are_drawn(y, log):
    svg, root = curves({"a": ([1, 2], y)}, y_log=log)
    assert svg == "" or len(words(root)) >= 4
    assert "nan" not in svg


def test_logarithmic_ticks_are_powers_of_ten():
    _, root = curves({"a": ([1, 1e6], [1e-9, 1e3])}, x_log=True, y_log=True)
    assert {"10⁻⁸", "0.01", "1"} & set(words(root))


def test_small_differences_look_small_and_marks_bands_and_points_are_drawn():
    series = {"a": ([0, 1], [50.0, 50.1])}
    ticks = [float(text) for text in words(curves(series, span=10.0)[1]) if re.fullmatch(r"[0-9.]+", text)]
    assert max(ticks) - min(ticks) > 5
    _, root = curves(
        series, marks=[Mark("high", y=51), Mark("here", x=0.5)], bands={"a": ([49, 49], [51, 51])}, joined=False
    )
    assert {"high", "here"} <= set(words(root))


def test_bars_name_what_they_are_and_how_far_they_reach():
    bars = Bars("bars", {"": [Bar("a", 0.25, 0.2, 0.5), Bar("b", math.nan, 0.1, 0.2)], "env": [Bar("a", 1.0)]})
    _, root = drawn(bars)
    assert {"a", "b", "env", "25.0 % (20.0 to 50.0)", "100.0 %", "100 %"} <= set(words(root))
    assert root.get("aria-label") == f"a 25.0 %; b {NOTHING}; env, a 100.0 %"
    assert "3.000" in words(drawn(Bars("bars", {"": [Bar("a", -1.0), Bar("b", 3.0)]}, unit="loss"))[1])
    assert drawn(Bars("none", {}))[0] == ""


def test_a_terminal_gets_tables_stars_for_bold_and_no_control_characters(capsys):
    table = Table(
        "T\x1b[31m", ["Name", "Value"], [["a", Cell("1.0", 1.0, bold=True, below={"paper": "2.0"})], ["b", None]],
        note="Bold: the best.",
    )  # fmt: skip
    heat = Heatmap("H", ["r"], ["c"], np.array([[0.5]]), unit="percent")
    print_values(Chapter("C", [table, Text("X", ["line"]), heat], ["first"]), "last")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    for said in ("C", "first", "1.0*", "paper 2.0", "Starred: the best.", "line", "50.0", "last", NOTHING):
        assert said in out


@pytest.mark.parametrize(
    ("create", "said"),
    [
        (lambda: Heatmap("m", ["a"], ["a", "b"], np.zeros((2, 2))), r"'m': values .*\(1, 2\).*\(2, 2\)"),
        (lambda: Heatmap("m", ["a"], ["a"], np.zeros((1, 1)), low=np.zeros((1, 1))), "'m'.*low and high"),
        (lambda: Curves("c", {"a": ([1, 2], [1])}, "x", "y"), "'a' .*2 values.*got 1"),
        (lambda: Curves("c", {"a": ([1], [1])}, "x", "y", bands={"a": ([1], [1, 2])}), "'a' .*1 values.*got 2"),
        (lambda: Table("t", ["a", "b"], [["x", 1], ["y"]]).cells(), "row 1 .*2 entries, got 1"),
    ],
)
def test_sizes_that_do_not_fit_are_told(create, said):
    with pytest.raises(InputError, match=said):
        create()


def test_a_chapter_has_its_sections_and_what_is_folded_can_be_opened():
    rows = [["x", Cell("missing", math.nan, below={"": "why"})], ["y", Cell("1", 1.0, below={"paper": "2 <b>"})]]
    table = Table("Table", ["a", "b"], rows)
    curves = Curves("", {"IRM": ([0, 1], [1, 2])}, "x", "y")
    chapter = Chapter("Chapter", [table, Group("G", [curves], "said"), Text("Fold", ["inside"], folded=True)], ["l"])
    html = render_page(Page("t", (), [chapter], {}, ""))
    assert html.count("<h3>Table</h3>") == html.count("<summary>Fold</summary>") == 1
    assert "<h3>Fold</h3>" not in html
    assert "missing<small>why</small>" in html
    assert "1<small>paper 2 &lt;b&gt;</small>" in html
    assert METHODS["irm"][1] in html


def test_empty_sections_and_names_that_are_no_text_are_written(tmp_path):
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    sections = (
        Bars("none", {}), Curves("nothing", {}, "x", "y"), Table("empty", ["a"], []), Text(odd, []),
        Heatmap("void", [], [], np.zeros((0, 0))), Group("group", []),
    )  # fmt: skip
    write_page(tmp_path / "page.html", Page(odd, (), sections, {}, ""))
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>caf\\udce9</h1>" in html
    assert "No values to draw." in html


def test_names_are_escaped_before_any_browser_sees_them():
    html = render_page(whole_page())
    assert html.count("<script") == 1
    assert html.count("</style>") == 1
    assert "<img src=x" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 10
    assert HOSTILE[4] in html  # braces are text


def test_long_tables_show_both_ends_and_files_have_all(capsys):
    table = Table("Long", ["name", "value"], [[f"row{i}", float(i)] for i in range(30)], fold=3)
    assert table.folded == range(3, 27)
    print_values(table)
    shown = re.findall(r"row\d+", printed := capsys.readouterr().out)
    assert shown == ["row0", "row1", "row2", "row27", "row28", "row29"]
    assert "24 more" in printed
    page = render_page(Page("Title", [], [table], {}, ""))
    assert all(f"row{i}<" in page for i in range(30))
    assert 'data-fold="3"' in page
    assert not Table("Short", ["name"], [["a"]] * 7, fold=3).folded


@pytest.mark.parametrize("wide", [30, 40, 60, 62, 72, 200])
def test_no_word_and_no_number_is_broken_at_any_width(capsys, monkeypatch, wide):
    """Where the columns do not fit beside each other, each cell has a line with its heading."""
    monkeypatch.setenv("COLUMNS", str(wide))
    columns = ["Environment", "Most frequent class, %", "Calibration error", "Remark"]
    remark = "a remark of a dozen words or so, to be broken"
    print_values(Table("", columns, [["hospital 17", 51.25, 12.5, remark], ["", 3.0, None, ""]]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= wide
    words = " ".join(lines).replace(":", " ").split()
    assert {*" ".join(columns).split(), *remark.split(), "hospital", "17", "51.2", "12.5", "3.0", NOTHING} <= {*words}
    assert words.count("17") == (2 if wide < 60 else 1), "an empty first cell is that of the row above"


def test_a_forest_of_many_environments_is_not_taller_than_one_of_some():
    """The values of a hundred lie closer together; each of them is drawn."""
    heights = []
    for count in (60, 120):
        points = {f"site {i}": (0.01 * i, 0.01 * i - 0.2, 0.01 * i + 0.2) for i in range(count)}
        svg = page_svg(Forest("F", {"x": Spread(points, 0.5, 0.1, (0.0, 1.0))}, "effect"), {})
        heights.append(float(re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', svg)[1]))
        assert len(re.findall(r"<use ", svg)) >= count
    assert heights[0] == heights[1]
