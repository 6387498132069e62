"""What is drawn on a page: shades, lengths, lines, texts, against what they stand for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whole_page import HOSTILE, whole_page

from transferrisk.errors import InputError
from transferrisk.reports import (
    Bar,
    Bars,
    Chapter,
    Curves,
    Group,
    Heatmap,
    Mark,
    Page,
    Sentences,
    Shown,
    Table,
    render,
    write_page,
)  # fmt: skip
from transferrisk.reports.curves import LINE, plot
from transferrisk.reports.drawing import bar_scale, drawn_bars, drawn_rows, heat_cells, heat_key, shared_key
from transferrisk.reports.figures import COLOURS
from transferrisk.reports.numbers import MINUS, NOTHING, in_unit, number
from transferrisk.reports.palette import DARK, LEVELS, LIGHT, contrast, heat_colours, series_colours, styles, themes
from transferrisk.reports.tables import NAMES
from transferrisk.reports.ticks import log_ticks, thinned, tick_texts, ticks


def test_contrast_is_that_of_the_guidelines():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)  # the well-known grey that just fails
    assert contrast("#1f4fd8", "#1f4fd8") == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_can_be_read_and_heat_has_one_direction(theme):
    named = {"light": LIGHT, "dark": DARK}[theme]
    assert contrast(named["ink"], named["page"]) > 10
    assert min(contrast(named[text], named[on]) for text in ("soft", "accent") for on in ("page", "card")) >= 4.5
    heat = heat_colours(theme)
    assert min(contrast(background, text) for background, text in heat) >= 4.5
    away = [contrast(background, named["page"]) for background, _ in heat]
    assert away == sorted(away)
    assert len(set(away)) == LEVELS


def test_a_method_has_its_own_colour_by_key_and_by_name_and_others_have_none_of_them():
    for key, colour in COLOURS.items():
        assert series_colours([key]) == series_colours([NAMES[key]]) == [colour]
    given = series_colours(["TRM", "mine", "ERM", "TRM", "other"])
    assert given[0] == COLOURS["trm"]
    assert given[2] == COLOURS["erm"]
    assert len(set(given)) == 4
    dark = themes(COLOURS)["dark"]
    assert min(contrast(dark[f"series-{i}"], DARK["page"]) for i in range(len(COLOURS))) >= 4.5


def test_a_method_has_its_own_dash_and_marker():
    def look(name, among):
        style = styles(among)[name]
        return style.dash, style.marker

    among = ["mine", "ERM", "Oracle", "trm-direct", "other", "TRM"]
    assert look("TRM", among) == look("TRM", ["TRM"]) == look("trm", ["trm"])
    assert look("TRM without GM", ["TRM without GM"]) == look("trm-direct", among)
    assert len({look(name, among) for name in among}) == len(among)


def test_lines_differ_by_dash_and_marker():
    looks = {(style.dash, style.marker) for style in styles(map(str, range(35))).values()}
    assert len(looks) == 35


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
    key = heat_key(section)
    assert (key.weak, key.strong) == ("25.0 %", "50.0 %")


def test_maps_on_one_scale_share_their_key():
    def maps(*largest):
        return Group("group", [Heatmap("map", ["a"], ["a", "b"], np.array([[0.0, v]])) for v in largest])

    assert shared_key(maps(1.0, 1.0)).strong == "1.000"
    assert shared_key(maps(1.0, 2.0)) is None
    assert shared_key(maps(1.0)) is None
    assert heat_key(Heatmap("map", ["a"], ["a"], np.array([[np.nan]]))) is None


def test_bars_are_as_long_as_their_values():
    section = Bars("bars", {"": [Bar("a", 0.25, 0.2, 0.5), Bar("b", math.nan, 0.1, 0.2)], "env": [Bar("a", 1.0)]})
    a, b = drawn_bars(section)[""]
    assert (a.left, a.width, a.interval) == (0, pytest.approx(25), pytest.approx((20, 30)))
    assert (a.text, a.around) == ("25.0 %", "20.0 to 50.0 %")
    assert (b.text, b.width, b.interval) == (NOTHING, 0, None)
    assert drawn_bars(section)["env"][0].width == pytest.approx(100)
    assert bar_scale(section) == "The whole width is 100 %."
    negative = Bars("bars", {"": [Bar("a", -1.0), Bar("b", 3.0)]}, unit="loss")
    a, b = drawn_bars(negative)[""]
    assert (a.left, a.width, b.left, b.width) == pytest.approx((0, 25, 25, 75))
    assert bar_scale(negative) == f"The width is from {MINUS}1.000 to 3.000."


def test_entries_keep_what_they_are_sorted_by():
    (row,) = drawn_rows(Table("t", list("abcdef"), [["x", 3, 2.25, None, Shown(0.5, "50 ± 1"), np.float64(np.nan)]]))
    assert [entry.text for entry in row] == ["x", "3", "2.2", NOTHING, "50 ± 1", NOTHING]
    assert [entry.value for entry in row] == ["", "3.0", "2.25", "", "0.5", ""]
    assert [entry.missing for entry in row] == [False, False, False, True, False, True]
    (row,) = drawn_rows(Table("t", ["a", "b"], [[-12345678, np.int64(9)]]))
    assert [entry.text for entry in row] == [f"{MINUS}12345678", "9"]
    (row,) = drawn_rows(Table("t", ["a", "b"], [[math.inf, -math.inf]]))
    assert [entry.value for entry in row] == ["Infinity", "-Infinity"]  # as the script reads them


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e7), st.integers(2, 10))
def test_ticks_are_round_even_and_embrace_the_range(low, width, most):
    at = ticks(low, low + width, most)
    steps = np.diff(at)
    slack = 1e-6 * width
    assert at[0] <= low + slack
    assert at[-1] >= low + width - slack
    assert len(at) <= most + 1
    assert steps == pytest.approx(steps[0])
    leading = steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-9)
    assert min(abs(leading - digit) for digit in (1, 2, 5)) < 1e-6
    assert len(set(tick_texts(at))) == len(at)


def drawn(series, width=500.0, **options):
    section = Curves("curves", series, "x", "y", **options)
    return plot(section, styles(series), width)


def places(line):
    return [tuple(map(float, point.split(","))) for path in line.paths for point in path.split()]


def test_lines_are_where_their_points_are():
    drawing = drawn({"a": ([0, 5, 10], [0, 50, 100]), "b": ([0, 10], [100, 0])})
    x, y = {text: x for x, text in drawing.x_ticks}, {text: y for y, text in drawing.y_ticks}
    assert (x["0"], x["10"]) == (drawing.left, drawing.right)
    a, b = drawing.lines
    assert places(a)[0] == pytest.approx((x["0"], y["0"]), abs=0.06)
    assert places(a)[1] == pytest.approx(((x["0"] + x["10"]) / 2, (y["0"] + y["100"]) / 2), abs=0.06)
    assert places(b) == [pytest.approx((x["0"], y["100"]), abs=0.06), pytest.approx((x["10"], y["0"]), abs=0.06)]
    assert (a.last, b.last) == ("100", "0")


def test_a_line_has_a_gap_where_it_is_not_finite():
    (line,) = drawn({"a": (range(7), [1, 2, math.nan, 3, 4, math.inf, 5])}).lines
    assert [len(path.split()) for path in line.paths] == [2, 2]
    assert len(line.markers) == 5
    assert drawn({"a": ([0, 1], [math.nan, math.inf]), "b": ([], [])}) is None


def test_names_at_the_ends_do_not_overlap_and_stay_inside():
    drawing = drawn({str(i): ([0, 1], [0, 1 + i / 1000]) for i in range(40)})
    heights = sorted(line.label.y for line in drawing.lines)
    assert np.diff(heights).min() >= LINE - 1e-9
    assert heights[0] >= 0
    assert heights[-1] <= drawing.bottom + 1e-9


def test_thinning_keeps_ends_and_extremes():
    y = np.zeros(100_000)
    y[54_321], y[77_777] = 5.0, -3.0
    drawing = drawn({"a": (np.arange(len(y)), y)})
    heights = [height for _, height in places(drawing.lines[0])]
    assert len(heights) <= 400
    at = {text: y for y, text in drawing.y_ticks}
    # Ticks are even, so two of them give the height of any value.
    zero, one = at["0"], (at["4"] - at["0"]) / 4
    assert min(heights) == pytest.approx(zero + 5 * one, abs=0.1)
    assert max(heights) == pytest.approx(zero - 3 * one, abs=0.1)
    assert places(drawing.lines[0])[-1][0] == pytest.approx(drawing.right, abs=0.1)


@pytest.mark.parametrize("y", [[0, 0], [5, 5], [1e-310, 2e-310], [1e150, -1e150], [1e9, 1e9 + 1], [1e300, 1]])
def test_odd_ranges_are_drawn(y):
    drawing = drawn({"a": ([0, 1], y)})
    assert len(drawing.y_ticks) >= 2
    assert all(math.isfinite(place) for _, place in drawing.lines[0].markers)


def test_a_logarithmic_axis_has_equal_steps_for_equal_ratios_and_no_place_for_what_is_not_positive():
    drawing = drawn({"a": ([1, 10, 100, 1000], [1e-3, 1e-2, 0.0, 1.0])}, x_log=True, y_log=True)
    x, y = {text: x for x, text in drawing.x_ticks}, {text: y for y, text in drawing.y_ticks}
    assert x["10"] - x["1"] == pytest.approx(x["1000"] - x["100"])
    assert y["0.001"] - y["0.01"] == pytest.approx(y["0.1"] - y["1"])
    assert [len(path.split()) for path in drawing.lines[0].paths] == [2]
    assert len(drawing.lines[0].markers) == 3
    assert drawing.lines[0].last == "1"
    assert drawn({"a": ([1, 2], [0.0, -1.0])}, y_log=True) is None


@given(st.floats(-80, 80), st.floats(1e-3, 100), st.integers(2, 12))
def test_logarithmic_ticks_embrace_the_range_and_differ(low, width, most):
    at = log_ticks(low, low + width, most)
    places = list(at)
    assert places == sorted(places)
    assert places[0] <= low + 1e-6
    assert places[-1] >= low + width - 1e-6
    assert 2 <= len(at) <= most + 3
    assert len(set(at.values())) == len(at)


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (1, 2.69, ["10", "20", "50", "100", "200", "500"]),
        (-2, 1, ["0.01", "0.1", "1", "10"]),
        (-9, -7, ["10⁻⁹", "2·10⁻⁹", "5·10⁻⁹", "10⁻⁸", "2·10⁻⁸", "5·10⁻⁸", "10⁻⁷"]),
        (-30, 0, ["10⁻³⁰", "10⁻²⁴", "10⁻¹⁸", "10⁻¹²", "10⁻⁶", "1"]),
    ],
)
def test_texts_of_logarithmic_ticks(low, high, texts):
    assert list(log_ticks(low, high, 6).values()) == texts


def test_a_band_follows_its_line_and_is_inside():
    section = {"a": ([0, 1, 2], [1.0, 2.0, math.nan])}
    drawing = drawn(section, bands={"a": ([0.5, 1.5, 0], [1.5, 8.0, 1])})
    (line,) = drawing.lines
    (band,) = ([tuple(map(float, point.split(","))) for point in band.split()] for band in line.bands[:1])
    y = {text: y for y, text in drawing.y_ticks}
    assert max(y.values()) >= band[0][1] > band[-1][1]
    assert min(place for _, place in band) == pytest.approx(y["8"], abs=0.1)


def test_marks_are_where_they_say_and_on_the_axes():
    drawing = drawn({"a": ([0, 4], [0, 1])}, marks=[Mark("high", y=5), Mark("here", x=2)])
    (x1, y1, x2, y2, high), (x3, y3, x4, y4, here) = drawing.marks
    y = {text: y for y, text in drawing.y_ticks}
    assert (high, here) == ("high", "here")
    assert y1 == y2 == pytest.approx(y["5"])
    assert (x1, x2) == (drawing.left, drawing.right)
    assert x3 == x4 == pytest.approx((drawing.left + drawing.right) / 2)
    assert y4 > y3


def test_given_ticks_are_shown_without_touching_and_points_may_stand_alone():
    at = {i / 10: f"value {i}" for i in range(11)}
    drawing = drawn({"a": (list(at), list(at))}, x_ticks=at, joined=False)
    places = [x for x, _ in drawing.x_ticks]
    assert 2 <= len(places) < 11
    assert np.diff(places).min() > 7 * len("value 1")
    assert drawing.lines[0].paths == []
    assert len(drawing.lines[0].markers) == 11


def test_the_ends_of_the_data_have_ticks_and_few_values_are_ticks_themselves():
    def texts(x, width=500.0, **options):
        return [text for _, text in drawn({"a": (x, x)}, width, **options).x_ticks]

    assert texts([16, 64, 512], x_log=True) == ["16", "64", "512"]
    assert texts(range(-90, 91, 6), 300) == [f"{MINUS}90", f"{MINUS}50", "0", "50", "90"]
    assert texts(np.linspace(0.12345678, 7.7654321, 20)) == ["1", "2", "3", "4", "5", "6", "7"]
    given = {x: f"{100 * x:g} %" for x in (0.85, 0.875, 0.9, 0.925, 0.95)}
    for width in (430, 320, 200):
        shown = texts(list(given), width, x_ticks=given)
        assert (shown[0], shown[-1]) == ("85 %", "95 %")
    assert thinned([]) == []
    assert thinned([(0.0, "a"), (1.0, "b")]) == [(0.0, "a")]


def test_a_line_that_ends_early_has_its_name_at_its_own_end():
    drawing = drawn({"early": ([0, 1], [0, 1]), "also": ([0, 1], [0, 1]), "whole": ([0, 1, 4], [1, 1, 1])})
    early, also, whole = (line.label for line in drawing.lines)
    assert 0 < early.x - early.end[0] <= 15
    assert early.x == also.x
    assert abs(early.y - also.y) >= LINE
    assert whole.x > drawing.right > early.x + 8 * len("early")
    (near, _) = (line.label for line in drawn({"a long name": ([0, 3], [0, 1]), "b": ([0, 4], [1, 1])}).lines)
    assert near.x > drawing.right / 2  # no room for it inside


def test_small_differences_look_small():
    drawing = drawn({"a": ([0, 1], [50.0, 50.1])}, span=10.0)
    heights = [height for _, height in drawing.lines[0].markers]
    assert abs(heights[0] - heights[1]) <= 0.011 * drawing.bottom


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Heatmap("m", ["a"], ["a", "b"], np.zeros((2, 2))), r"'m': values are \(2, 2\), .* ask for \(1, 2\)"),
        (lambda: Heatmap("m", ["a"], ["a"], np.zeros((1, 1)), low=np.zeros((1, 1))), "one bound"),
        (lambda: Curves("c", {"a": ([1, 2], [1])}, "x", "y"), "2 values of x and 1 of y"),
        (lambda: Curves("c", {"a": ([1], [1])}, "x", "y", bands={"a": ([1], [1, 2])}), "1 points, its band 2"),
        (lambda: Table("t", ["a", "b"], [["x", 1], ["y"]]), "row 1 has 1 of 2 entries"),
    ],
)
def test_sizes_that_do_not_fit_are_told(make, said):
    with pytest.raises(InputError, match=said):
        make()


def test_a_chapter_has_its_sections_and_what_is_folded_can_be_opened():
    table = Table("Table", ["a", "b"], [["x", Shown(math.nan, "", below="why", instead="missing")],
                                        ["y", Shown(1.0, "1", below="small <b>")]])  # fmt: skip
    curves = Curves("", {"IRM": ([0, 1], [1, 2])}, "x", "y")
    chapter = Chapter(
        "Chapter", [table, Group("G", [curves], "said"), Sentences("Fold", ["inside"], folded=True)], ["l"]
    )
    html = render(Page("t", (), (chapter,), {}, ""))
    assert html.count("<h3>Table</h3>") == html.count("<summary>Fold</summary>") == 1
    assert "<h3>Fold</h3>" not in html
    assert "missing<small>why</small>" in html
    assert "1<small>small &lt;b&gt;</small>" in html
    assert f"--series-0: {COLOURS['irm']};" in html


def test_one_style_for_a_name_on_the_whole_page():
    html = render(
        Page("t", (), (Curves("c", {"IRM": ([0], [1]), "mine": ([0], [1])}, "x", "y"),
                       Bars("b", {"": [Bar("mine", 0.5), Bar("IRM", 0.5)]})), {}, "")
    )  # fmt: skip
    assert f"--series-0: {COLOURS['irm']};" in html
    assert html.count('class="bar c1"') == html.count('class="bar c0"') == 1
    assert html.index('class="bar c1"') < html.index('class="bar c0"')


def test_empty_sections_and_names_that_are_no_text_are_written(tmp_path):
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    sections = (
        Bars("none", {}), Curves("nothing", {}, "x", "y"), Table("empty", ["a"], []), Sentences(odd, []),
        Heatmap("void", [], [], np.zeros((0, 0))), Group("group", []),
    )  # fmt: skip
    write_page(tmp_path / "page.html", Page(odd, (), sections, {}, ""))
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h1>caf\\udce9</h1>" in html
    assert "No values to draw." in html


def test_names_are_escaped_before_any_browser_sees_them():
    html = render(whole_page())
    assert html.count("<script") == 1
    assert html.count("</style>") == 1
    assert 'onerror="' not in html
    assert "onfocus='" not in html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 10
    assert HOSTILE[4] in html  # braces are text
