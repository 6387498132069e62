"""Settings that cannot be used are refused where they are given, however they are given."""

from __future__ import annotations

import dataclasses
import math

import pytest

from transferrisk.algorithms import available, configure, create, get, parse_settings
from transferrisk.algorithms.base import Setting
from transferrisk.algorithms.fields import options
from transferrisk.errors import InputError

NUMBERS = [
    (name, field.name)
    for name in available()
    for field in dataclasses.fields(get(name).config_type)
    if field.type in ("float", "float | None")
]
every_number = pytest.mark.parametrize(("name", "key"), NUMBERS)
FROM_ZERO = r"is not a (number from 0 up|positive number)|is not positive"


def test_all_numbers_are_meant():
    assert {name for name, _ in NUMBERS} == set(available()) - {"erm", "reweight"}
    assert {key for _, key in NUMBERS} == {
        "penalty_weight", "start_epoch", "weights_lr", "beta", "inner_lr", "meta_lr", "ridge", "gradient_matching",
        "bound",
    }  # fmt: skip


@every_number
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, -1])
def test_numbers_out_of_range(name, key, value):
    with pytest.raises(InputError, match=f"^{key}={value} ({FROM_ZERO})"):
        get(name).config_type(**{key: value})
    with pytest.raises(InputError, match=f"^{name}: {key}={value} ({FROM_ZERO})"):
        create(name, Setting(2, 3), **{key: value})


@every_number
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1", "1e999"])
def test_numbers_out_of_range_as_text(name, key, text):
    with pytest.raises(InputError, match=f"^{name}: {key}={float(text)} ({FROM_ZERO})"):
        parse_settings(name, [f"{key}={text}"])


@every_number
@pytest.mark.parametrize("value", ["0.1", True, [1.0], {}, 1j])
def test_numbers_of_another_type(name, key, value):
    with pytest.raises(InputError, match=rf"^{key}=.* is not a number: give a float"):
        get(name).config_type(**{key: value})


def test_only_what_may_be_none_is():
    assert configure("trm", bound=None).bound is None
    with pytest.raises(InputError, match="penalty_weight=None is not a number"):
        configure("irm", penalty_weight=None)
    assert options(float | None) == (float, type(None))


def test_numbers_beyond_a_float():
    with pytest.raises(InputError, match="penalty_weight has too many digits for a float"):
        configure("irm", penalty_weight=10**400)


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
        with pytest.raises(InputError, match=f"{key}=0 is not .*positive"):
            configure(name, **{key: 0})


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("irm", {"penalty": "both"}, "penalty='both' is not known: choose from 'scale', 'predictor'"),
        ("mldg", {"order": 3}, "order=3 is not known: choose from 1, 2"),
        ("mldg", {"order": True}, "order=True is not known"),
        ("trm", {"weights": 1}, "weights=1 is not known: choose from 'eg', 'worst', 'uniform'"),
        ("trm", {"solver": "adam"}, "solver='adam' is not known: use one of 'newton'"),
        ("trm-direct", {"implicit": 3}, "implicit=3 is not a solver"),
    ],
)
def test_choices(name, settings, message):
    with pytest.raises(InputError, match=f"^{message}"):
        get(name).config_type(**settings)


def test_a_solver_that_is_not_known_as_text():
    with pytest.raises(InputError, match=r"^trm: solver='adam' is not known: use one of 'newton'"):
        parse_settings("trm", ["solver=adam"])


def test_a_setting_is_given_once():
    with pytest.raises(InputError, match="ridge is set more than once, last to '2': give it once"):
        parse_settings("trm", ["ridge=1", "bound=none", "ridge=2"])


def test_direct_has_no_implicit_gradient_and_no_setting_for_it():
    assert create("trm-direct", Setting(2, 3)).criterion.gradient_matching == 0
    assert create("trm", Setting(2, 3), gradient_matching=0.1).criterion.gradient_matching == 0.1
    assert "gradient_matching" not in {f.name for f in dataclasses.fields(configure("trm-direct"))}
