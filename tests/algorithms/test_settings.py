"""Settings that cannot be used are refused where they are given, however they are given."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from transferrisk.algorithms import Setting, available, configure, create, get_algorithm, parse_settings
from transferrisk.errors import InputError

NUMBERS = [
    (name, field.name)
    for name in available()
    for field in dataclasses.fields(get_algorithm(name).config_type)
    if field.type in ("Positive", "NonNegative", "NonNegative | None")
]
every_number = pytest.mark.parametrize(("name", "key"), NUMBERS)


def test_every_algorithm_with_settings_is_tested():
    assert {name for name, _ in NUMBERS} == set(available()) - {"erm", "reweight", "dfr"}


@every_number
@pytest.mark.parametrize("value", [math.nan, -math.inf, -1, "0.1", True, [1.0], 10**400])
def test_values_that_are_refused(name, key, value):
    told = f"{key} must be a finite number >=? 0( or None)?, got {re.escape(repr(value)[:90])}"
    with pytest.raises(InputError, match=f"^{told}"):
        get_algorithm(name).config_type(**{key: value})
    with pytest.raises(InputError, match=f"^algorithm {name}: {told}"):
        create(name, Setting(2, 3), **{key: value})


@every_number
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1", "1e999"])
def test_numbers_out_of_range_as_text(name, key, text):
    with pytest.raises(InputError, match=f"^algorithm {name}: {key} must be .*, got '{text}'"):
        parse_settings(name, [f"{key}={text}"])


def test_only_bound_may_be_none():
    assert configure("trm", bound=None).bound is None
    with pytest.raises(InputError, match=r"penalty_weight must be .*, got None"):
        configure("irm", penalty_weight=None)


@pytest.mark.parametrize(
    ("name", "key", "zero_is_allowed"),
    [
        ("irm", "penalty_weight", True), ("vrex", "start_epoch", True), ("groupdro", "weights_lr", True),
        ("mldg", "inner_lr", True), ("trm", "gradient_matching", True), ("trm", "bound", True),
        ("fish", "meta_lr", False), ("trm", "ridge", False),
    ],
)  # fmt: skip
def test_zero(name, key, zero_is_allowed):
    if zero_is_allowed:
        assert getattr(configure(name, **{key: 0}), key) == 0
    else:
        with pytest.raises(InputError, match=f"{key} must be .*> 0, got 0"):
            configure(name, **{key: 0})


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("irm", {"penalty": "both"}, "penalty must be one of 'halves', 'scale', 'predictor', got 'both'"),
        ("mldg", {"order": 3}, "order must be one of 1, 2, got 3"),
        ("mldg", {"order": True}, "order must be one of 1, 2, got True"),
        ("trm", {"weights": 1}, "weights must be one of 'eg', 'worst', 'uniform', got 1"),
        ("trm", {"solver": "adam"}, "solver.*'adam'.*newton"),
        ("trm-direct", {"implicit": 3}, "implicit.*3"),
    ],
)
def test_choices(name, settings, message):
    with pytest.raises(InputError, match=f"^{message}"):
        get_algorithm(name).config_type(**settings)


def test_settings_as_text_are_refused_in_the_same_way():
    with pytest.raises(InputError, match=r"^algorithm trm: solver.*'adam'.*newton"):
        parse_settings("trm", ["solver=adam"])
    with pytest.raises(InputError, match="ridge is given twice, last as '2'"):
        parse_settings("trm", ["ridge=1", "bound=none", "ridge=2"])


def test_direct_has_no_implicit_gradient_and_no_setting_for_it():
    assert create("trm-direct", Setting(2, 3)).criterion.gradient_matching == 0
    assert create("trm", Setting(2, 3), gradient_matching=0.1).criterion.gradient_matching == 0.1
    assert "gradient_matching" not in {f.name for f in dataclasses.fields(configure("trm-direct"))}
