"""How numbers are printed on a page."""

from __future__ import annotations

import math

from .sections import Unit

NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


def number(value: float | None, digits: int) -> str:
    """With this many decimals, as a power of ten where that would be a dozen digits, or a dash where there is none."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    text = f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.2e}"
    return text.replace("-", MINUS, 1) if float(text) else text.removeprefix("-")


def in_unit(value: float | None, unit: Unit, sign: bool = True) -> str:
    """A share as percent, anything else with three decimals; `sign`: with the sign of percent."""
    if unit == "loss" or value is None:
        return number(value, 3)
    text = number(100 * value, 1)
    return f"{text} %" if sign and text != NOTHING else text


def interval(low: float, high: float, unit: Unit, sign: bool = True) -> str:
    return f"{in_unit(low, unit, sign=False)} to {in_unit(high, unit, sign)}"
