"""Every public name is documented as numpydoc has it, and its example runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from dataclasses import fields

import pytest

import transferrisk
from transferrisk.algorithms import Algorithm

MODULES = (
    "algorithms", "auditing", "data", "experiments", "fitting", "functional", "models", "results", "sklearn", "solvers",
    "training",
)  # fmt: skip
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def documented():
    """Each public class and function once: name -> object."""
    found = {}
    for module in ("transferrisk", *(f"transferrisk.{name}" for name in MODULES)):
        home = importlib.import_module(module)
        for name in home.__all__:
            thing = getattr(home, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                found.setdefault(id(thing), (f"{module}.{name}", thing))
    return dict(found.values())


PUBLIC = documented()


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_documented(name):
    thing = PUBLIC[name]
    text = inspect.cleandoc(thing.__doc__ or "")
    summary = text.partition("\n\n")[0]
    assert "\n" not in summary
    assert summary.endswith((".", ":")), summary
    if inspect.isclass(thing) and issubclass(thing, Algorithm) and thing is not Algorithm:
        settings = {field.name for field in fields(thing.config_type)}
        assert settings <= {*re.findall(r"(?m)^(\w+) : default", text)}
        return  # `create` builds it from its settings
    if getattr(thing, "_is_protocol", False):
        return
    described = {
        word
        for line in re.findall(r"(?m)^([*\w, ]+)(?: : .*|\n    .*)$", text)
        for word in line.replace("*", "").split(", ")
    }
    parameters = inspect.signature(thing).parameters if has_parameters(thing) else {}
    assert not {*parameters} - described - {"args", "kwargs"}
    if inspect.isfunction(thing) and thing.__annotations__["return"] != "None":
        assert "\nReturns\n-------\n" in text
    assert ">>> " in text


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_has_sections_and_no_table_of_words(name):
    """The site would run the lines of such a table together."""
    thing = PUBLIC[name]
    members = {word: value for word, value in vars(thing).items() if word[0] != "_"} if inspect.isclass(thing) else {}
    methods = [value for value in members.values() if not inspect.isclass(value)]
    for text in (value.__doc__ for value in (thing, *methods)):
        assert not re.findall(r"(?m)^\w+(?:, \w+)* {2,}\w.*$", inspect.cleandoc(text or ""))


def has_parameters(thing):
    return not (inspect.isclass(thing) and thing.__init__ is object.__init__ and thing.__new__ is object.__new__)


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    case = doctest.DocTestParser().get_doctest(inspect.cleandoc(PUBLIC[name].__doc__ or ""), {}, name, None, 0)
    told = []
    doctest.DocTestRunner(optionflags=OPTIONS, verbose=False).run(case, out=told.append)
    assert not told, "".join(told)


def test_help_shows_the_public_names_alone():
    assert {*dir(transferrisk)} == {*transferrisk.__all__}
