"""What [show] may say, and what is said when it says something else."""

from __future__ import annotations

import pytest

from transferrisk.errors import InputError
from transferrisk.experiments.recipe import load_recipe as load
from transferrisk.experiments.recipe import recipe_names as names
from transferrisk.reports import Mark
from transferrisk.reports.comparison_views import CurvesView, LinesView, TableView
from transferrisk.reports.record_views import PicturesView, RowsView, XyView
from transferrisk.reports.report import read_views


def read(show):
    return read_views(show, "recipe r")


@pytest.mark.parametrize("name", names())
def test_every_recipe_of_the_package_can_be_shown(name):
    shows = read(load(name).show)
    assert shows
    for view in shows.values():
        assert view.caption or not isinstance(view, RowsView | XyView | PicturesView), "columns need words"


def test_one_show_several_and_none():
    assert read({}) == {"": TableView()}
    assert read({"kind": "lines", "x": "bias"}) == {"": LinesView(x="bias")}
    shows = read({"a": {"kind": "curves", "values": "irm"}, "b": {"kind": "rows", "row": "k", "values": ["v"]}})
    assert shows == {"a": CurvesView(values=("irm",)), "b": RowsView(row=("k",), values=("v",))}


def test_a_caption_is_one_paragraph_under_every_kind():
    shows = read({"a": {"kind": "pictures", "caption": "one\n  two"}, "b": {"kind": "table"}})
    assert [view.caption for view in shows.values()] == ["one two", ""]
    with pytest.raises(InputError, match="caption must be text, got 3"):
        read({"kind": "table", "caption": 3})


def test_one_name_or_several():
    (view,) = read({"kind": "xy", "x": "n", "y": "e", "panels": ["p"], "where": {"what": "run", "n": [1, 2]},
                    "marks": [{"x": 1, "text": "here"}]}).values()  # fmt: skip
    assert isinstance(view, XyView)
    assert (view.y, view.panels, view.where) == (("e",), ("p",), {"what": "run", "n": [1, 2]})
    assert view.marks == (Mark("here", x=1.0),)


@pytest.mark.parametrize(
    ("show", "said"),
    [
        ({"kind": "tabel"}, r"recipe r, \[show\]: kind .*'tabel'.*'table'"),
        ({"knd": "table"}, "kind .*None"),
        ({"kind": "table", "colums": "x"}, "'colums'.*'columns'"),
        ({"kind": "lines"}, r"\[show\]: x is missing"),
        ({"kind": "table", "value": "acuracy"}, "value .*'acuracy'.*'accuracy'"),
        ({"kind": "lines", "x": "bias", "scale": "lin"}, "scale .*'linear', 'log', got 'lin'"),
        ({"kind": "table", "average": "yes"}, "average .*'yes'"),
        ({"kind": "curves", "x": "time"}, "x .*'step', 'epoch', got 'time'"),
        ({"kind": "rows", "row": [], "values": "v"}, "row .*none"),
        ({"kind": "rows", "row": "k", "values": "v", "digits": -1}, "digits .*-1"),
        ({"kind": "xy", "x": "n", "y": "e", "where": "what"}, "where .*'what'"),
        ({"kind": "xy", "x": "n", "y": "e", "marks": {"z": 1}}, "marks .*'z'"),
        ({"kind": "xy", "x": "n", "y": "e", "marks": {"y": "up"}}, "marks: y .*'up'"),
        ({"a": {"kind": "xyz"}}, r"\[show.a\]: kind .*'xyz'.*'xy'"),
    ],
)
def test_what_is_not_known_is_told_with_the_nearest(show, said):
    with pytest.raises(InputError, match=said):
        read(show)


def test_two_shows_that_would_be_one_file():
    shows = {name: {"kind": "table"} for name in ("a b", "a_b")}
    with pytest.raises(InputError, match="'a b' and 'a_b'"):
        read(shows)
