"""What [show] may say, and what is said when it says something else."""

from __future__ import annotations

import pytest

from transferrisk.errors import InputError
from transferrisk.experiments.recipe import load, names
from transferrisk.reports.experiments.shows import (
    CurvesShow,
    LinesShow,
    PicturesShow,
    RowsShow,
    TableShow,
    XyShow,
    read,
)
from transferrisk.reports.sections import Mark


@pytest.mark.parametrize("name", names())
def test_every_recipe_of_the_package_can_be_shown(name):
    shows = read(load(name).show, name)
    assert shows
    for show in shows:
        assert show.caption or not isinstance(show, RowsShow | XyShow | PicturesShow), "columns need words"


def test_one_show_several_and_none():
    assert read({}, "r") == (TableShow(),)
    assert read({"kind": "lines", "x": "bias"}, "r") == (LinesShow(x="bias"),)
    shows = read({"a": {"kind": "curves", "values": "irm"}, "b": {"kind": "rows", "row": "k", "values": ["v"]}}, "r")
    assert shows == (CurvesShow(name="a", values=("irm",)), RowsShow(name="b", row=("k",), values=("v",)))


def test_a_caption_is_one_paragraph_under_every_kind():
    shows = read({"a": {"kind": "pictures", "caption": "one\n  two"}, "b": {"kind": "table"}}, "r")
    assert [show.caption for show in shows] == ["one two", ""]
    with pytest.raises(InputError, match="caption = 3 is no name"):
        read({"kind": "table", "caption": 3}, "r")


def test_one_name_or_several():
    (show,) = read({"kind": "xy", "x": "n", "y": "e", "panels": ["p"], "where": {"what": "run", "n": [1, 2]},
                    "marks": [{"x": 1, "text": "here"}]}, "r")  # fmt: skip
    assert isinstance(show, XyShow)
    assert (show.y, show.panels, show.where) == (("e",), ("p",), {"what": ("run",), "n": (1, 2)})
    assert show.marks == (Mark("here", x=1.0),)


@pytest.mark.parametrize(
    ("show", "said"),
    [
        ({"kind": "tabel"}, r"recipe r, \[show\]: kind = 'tabel' is not known: did you mean 'table'\?"),
        ({"knd": "table"}, r"kind = None is not known"),
        ({"kind": "table", "colums": "x"}, r"unknown key 'colums': did you mean 'columns'\?"),
        ({"kind": "lines"}, r"of the kind 'lines' needs x: add it"),
        ({"kind": "table", "value": "acuracy"}, r"'acuracy' is not known: did you mean 'accuracy'\?"),
        ({"kind": "lines", "x": "bias", "scale": "lin"}, r"scale = 'lin' is not known: .*choose from linear, log"),
        ({"kind": "table", "average": "yes"}, "neither true nor false"),
        ({"kind": "curves", "x": "time"}, "choose from step, epoch"),
        ({"kind": "rows", "row": [], "values": "v"}, "neither a name nor a list of names"),
        ({"kind": "rows", "row": "k", "values": "v", "digits": -1}, "no number of decimals"),
        ({"kind": "xy", "x": "n", "y": "e", "where": "what"}, "no table of columns and values"),
        ({"kind": "xy", "x": "n", "y": "e", "marks": {"z": 1}}, "is no mark: write"),
        ({"kind": "xy", "x": "n", "y": "e", "marks": {"y": "up"}}, "no number to mark"),
        ({"a": {"kind": "xyz"}}, r"\[show.a\]: kind = 'xyz' is not known: did you mean 'xy'\?"),
    ],
)
def test_what_is_not_known_is_told_with_the_nearest(show, said):
    with pytest.raises(InputError, match=said):
        read(show, "r")


def test_two_shows_that_would_be_one_file():
    shows = {name: {"kind": "table"} for name in ("a b", "a_b")}
    with pytest.raises(InputError, match="'a b' and 'a_b' would be files of one name: rename one"):
        read(shows, "mine")
