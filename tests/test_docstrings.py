"""Every public name is documented as numpydoc has it, and its example runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from dataclasses import fields

import pytest

import transferrisk
from transferrisk import errors
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


def methods_of(name, thing):
    """Each method that the reference shows, which is one with a docstring: name -> function."""
    members = vars(thing).items() if inspect.isclass(thing) else ()
    functions = {word: getattr(value, "__func__", value) for word, value in members if word[0] != "_"}
    return {f"{name}.{word}": value for word, value in functions.items() if inspect.isfunction(value) and value.__doc__}


PUBLIC = documented()
METHODS = {word: method for name, thing in PUBLIC.items() for word, method in methods_of(name, thing).items()}
ERRORS = {
    name: thing for name, thing in vars(errors).items() if inspect.isclass(thing) and issubclass(thing, Exception)
}
EXAMPLES = PUBLIC | ERRORS | {name: method for name, method in METHODS.items() if ">>> " in method.__doc__}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_is_documented(name):
    thing = PUBLIC[name]
    text = inspect.cleandoc(thing.__doc__ or "")
    summary = text.partition("\n\n")[0]
    assert "\n" not in summary
    assert summary.endswith((".", ":")), summary
    if inspect.isclass(thing) and issubclass(thing, Algorithm) and thing is not Algorithm:
        settings = {field.name for field in fields(thing.config_type)}
        text, _, examples = text.partition("\n\nExamples\n--------\n")
        assert settings <= {*re.findall(r"(?m)^(\w+) : default", text)}
        assert f'"{thing.name}"' in examples
        return  # `create` builds it from its settings
    if getattr(thing, "_is_protocol", False):
        return
    parameters = inspect.signature(thing).parameters if has_parameters(thing) else {}
    assert not {*parameters} - described(text) - {"args", "kwargs"}
    if inspect.isfunction(thing) and thing.__annotations__["return"] != "None":
        assert "\nReturns\n-------\n" in text
    assert ">>> " in text


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_or_warning_has_a_summary_and_an_example(name):
    text, _, example = inspect.cleandoc(ERRORS[name].__doc__).partition("\n\nExamples\n--------\n")
    summary = text.partition("\n\n")[0]
    assert "\n" not in summary
    assert summary.endswith(".")
    assert name in example


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_documented(name):
    owner, text = PUBLIC[name.rpartition(".")[0]], inspect.cleandoc(METHODS[name].__doc__)
    assert not re.findall(r"(?m)^\w+(?:, \w+)* {2,}\w.*$", text)  # a table, whose lines the site would run together
    if not issubclass(owner, Algorithm) or owner is Algorithm:  # others override it
        assert not {*inspect.signature(METHODS[name]).parameters} - described(text) - {"self", "cls"}


def described(text):
    """The words that sections of a docstring describe."""
    lines = re.findall(r"(?m)^([*\w, ]+)(?: : .*|\n    .*)$", text)
    return {word for line in lines for word in line.replace("*", "").split(", ")}


def has_parameters(thing):
    return not (inspect.isclass(thing) and thing.__init__ is object.__init__ and thing.__new__ is object.__new__)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_public_name_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    case = doctest.DocTestParser().get_doctest(inspect.cleandoc(EXAMPLES[name].__doc__ or ""), {}, name, None, 0)
    told = []
    doctest.DocTestRunner(optionflags=OPTIONS, verbose=False).run(case, out=told.append)
    assert not told, "".join(told)


def test_help_shows_the_public_names_alone():
    assert {*dir(transferrisk)} == {*transferrisk.__all__}
