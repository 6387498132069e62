"""Settings are checked and converted in one place; names are looked up in one kind of registry."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest

from transferrisk.errors import InputError
from transferrisk.registry import Registry
from transferrisk.settings import (
    Bound,
    Count,
    NonNegative,
    Positive,
    Settings,
    Share,
    as_json,
    checked_fields,
    convert,
    dumps,
    from_text,
)


@dataclass(frozen=True)
class Example(Settings):
    ridge: Positive = 1e-3
    share: Share = 0.5
    weights: Literal["eg", "worst"] = "eg"
    bound: NonNegative | None = None
    batch: Count | Literal["auto"] = "auto"
    rates: tuple[float, ...] = ()
    pair: tuple[int, str] = (1, "a")
    table: Mapping[str, Any] = field(default_factory=dict)
    flag: bool = False
    name: str | None = None


def test_values_of_other_libraries_become_plain():
    made = Example(ridge=np.float32(2), batch=np.int64(3), rates=[1, 2.5], flag=np.bool_(True), pair=[2, "b"])
    assert (made.ridge, made.batch, made.rates, made.flag, made.pair) == (2.0, 3, (1.0, 2.5), True, (2, "b"))
    assert [type(v) for v in (made.ridge, made.batch, made.flag, made.rates[0])] == [float, int, bool, float]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"ridge": 0}, ["ridge", "> 0", "0"]),
        ({"ridge": math.nan}, ["ridge", "finite", "nan"]),
        ({"ridge": True}, ["ridge", "True"]),
        ({"ridge": 10**400}, ["ridge", "finite"]),
        ({"share": 1.5}, ["share", "<= 1", "1.5"]),
        ({"weights": "x"}, ["weights", "'eg'", "'worst'", "'x'"]),
        ({"batch": 0}, ["batch", ">= 1", "'auto'"]),
        ({"flag": 1}, ["flag", "True or False"]),
        ({"rates": 3}, ["rates", "list"]),
        ({"rates": ["a"]}, ["rates"]),
        ({"pair": [1]}, ["pair"]),
        ({"table": [1]}, ["table"]),
        ({"name": 3}, ["name", "text"]),
        ({"rigde": 1}, ["rigde", "ridge"]),
    ],
)
def test_what_does_not_fit_is_named_with_its_value_and_what_would(values, said):
    with pytest.raises(InputError) as caught, checked_fields(Example, values, "trm"):
        Example(**values)
    assert all(part in str(caught.value) for part in ["trm", *said])
    assert "\n" not in str(caught.value)


def test_text_is_typed_by_its_field():
    pairs = ["ridge=1e-2", "bound=none", "batch=auto", "rates=[1, 2]", "flag=true", "weights=worst", "name=None"]
    assert from_text(Example, pairs) == {
        "ridge": 0.01,
        "bound": None,
        "batch": "auto",
        "rates": (1.0, 2.0),
        "flag": True,
        "weights": "worst",
        "name": None,
    }
    assert from_text(Example, ["name=3"]) == {"name": "3"}


@pytest.mark.parametrize("pair", ["ridge", "=1", "ridge=abc", "batch=0", "flag=1", "rates=[", "weights=x", "unknown=1"])
def test_text_that_does_not_fit(pair):
    with pytest.raises(InputError):
        from_text(Example, [pair])


def test_json_has_no_number_that_is_not_finite():
    value = {"a": math.nan, "b": [np.float64(1.5), math.inf], "c": Example(), 4: np.int64(2)}
    read = json.loads(dumps(value))
    assert read["a"] is None
    assert read["b"] == [1.5, None]
    assert read["4"] == 2
    assert Example(**read["c"]) == Example()
    assert as_json((1, 2)) == [1, 2]


def number(name: str, value: object) -> int:
    if not isinstance(value, int):
        raise InputError(f"{name} must be a number")
    return value


def test_registry_proposes_the_nearest_name_and_keeps_what_it_has():
    numbers = Registry("number", "transferrisk.none-such", number)
    numbers.add("four", 4)
    numbers.add("four", 4)
    numbers.add("three", 3)
    assert numbers.get("three") == 3
    assert numbers.names() == ["four", "three"]
    assert "five" not in numbers
    assert numbers.find("five") is None
    with pytest.raises(InputError, match=r"'thre'.*'three'"):
        numbers.get("thre")
    with pytest.raises(InputError, match="four"):
        numbers.add("four", 5)
    with pytest.raises(InputError, match="number"):
        numbers.register("text")("text")


def test_limits_of_a_union_hold():
    assert convert("x", None, Annotated[int | None, Bound(least=2)] | None) is None
    with pytest.raises(InputError, match="x"):
        convert("x", 1, Annotated[int | float, Bound(least=2)])
    assert type(convert("x", 2, float | int)) is int
