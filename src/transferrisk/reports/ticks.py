"""Where the axes of a drawing have ticks, and what stands at them."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Sequence

from .numbers import MINUS, number

LETTER = 8.0  # width of one, in the font of the labels
FEW = 8
"""So many different x or fewer are ticks themselves."""


def x_ticks(values: Iterable[float], low: float, high: float, most: float, log: bool) -> dict[float, str]:
    """For lines with points at these x, logarithms where `log`: the x themselves where they are few, else round numbers
    and both ends of the data, of which those are left out that take more than four digits.
    """
    at = sorted(set(values))
    texts = {x: _short_text(10.0**x if log else x) for x in (at if len(at) <= FEW else (at[0], at[-1]))}
    known = {x: text for x, text in texts.items() if text}
    if len(known) == len(at):
        return known
    found = (log_ticks if log else round_ticks)(low, high, most)
    return dict(sorted({**found, **known}.items()))


def _short_text(value: float) -> str:
    """ "" where it takes more than four digits, or a power of ten."""
    text = f"{value:.4g}"
    is_short = "e" not in text and math.isclose(float(text), value, rel_tol=1e-9)
    return text.replace("-", MINUS) if is_short else ""


def thinned(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """The same without texts that would touch one that is kept; the first and the last are, if they can be."""
    kept = list(ticks[:1])
    last = [tick for tick in ticks[1:][-1:] if _clear(kept[0], tick)]
    for tick in ticks[1:-1]:
        if _clear(kept[-1], tick) and all(_clear(tick, end) for end in last):
            kept.append(tick)
    return kept + last


def _clear(left: tuple[float, str], right: tuple[float, str]) -> bool:
    """Whether a letter fits between the texts of two ticks."""
    return right[0] - left[0] >= LETTER * (1 + (cells(left[1]) + cells(right[1])) / 2)


def cells(text: str) -> int:
    """Widths of a letter; wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def log_ticks(low: float, high: float, most: float) -> dict[float, str]:
    """Powers of ten, or 1, 2 and 5 times them where they are few, as their logarithms; they embrace low..high."""
    every = max(1, math.ceil((high - low) / max(1.0, most - 1)))
    first, last = (every * round_(end / every) for round_, end in ((math.floor, low + 1e-9), (math.ceil, high - 1e-9)))
    digits = (1, 2, 5) if 3 * (high - low) <= most else (1,)
    found = [power + math.log10(digit) for power in range(first, last + 1, every) for digit in digits]
    start = max(i for i, at in enumerate(found) if at <= low + 1e-9)
    end = min(i for i, at in enumerate(found) if at >= high - 1e-9)
    return {at: _power_text(at, every > 1) for at in found[start : max(end, start + 1) + 1]}


def _power_text(at: float, raised: bool) -> str:
    power = math.floor(at + 1e-9)
    digit = round(10 ** (at - power))
    if at == 0 or (-4 < power < 5 and not raised):
        return f"{digit * 10**power}" if power >= 0 else f"{digit * 10.0**power:.{-power}f}"
    exponent = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{exponent}" if digit == 1 else f"{digit}·10{exponent}"


def round_ticks(low: float, high: float, most: float) -> dict[float, str]:
    at = ticks(low, high, most)
    return dict(zip(at, tick_texts(at), strict=True))


def ticks(low: float, high: float, most: float) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart, at most `most` + 1 of them, that embrace low..high."""
    rough = (high - low) / max(1.0, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def tick_texts(values: Sequence[float]) -> list[str]:
    """With as many digits as tell neighbours apart."""
    step, largest = values[1] - values[0], max(map(abs, values))
    if largest >= 1e6 or step < 1e-5:
        return [f"{value:.{1 + math.ceil(math.log10(largest / step))}g}" for value in values]
    return [number(value, max(0, -math.floor(math.log10(step) + 1e-9))) for value in values]
