"""Colours of a page, in light and in dark.

A method has the colour of `figures.COLOURS`, in the dark mixed with white, and a dash and a marker of its own. Heat
maps have one sequential scale, from near the page's colour to far from it, whose luminance changes in one direction.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from .figures import COLOURS
from .gallery import PALETTE
from .tables import NAMES

T = TypeVar("T")
KEYS = {shown: key for key, shown in NAMES.items()}
"""Methods by what tables call them."""
MORE = ("#0f766e", "#be185d", "#6d4c41", "#5e8c00", "#9333ea", "#b45309")
"""For what is no method, where methods have taken the others."""
LOOKS = ("trm", "erm", "irm", "vrex", "groupdro", "mldg", "fish", "reweight", "trm-direct", "oracle")
"""Those that have a dash and a marker of their own, in the order of these."""

LIGHT = {
    "ink": "#1b1f24", "soft": "#55606c", "line": "#d0d7de", "page": "#ffffff", "card": "#f1f4f7", "accent": "#1f4fd8",
    "shade": "#00000044",
}  # fmt: skip
DARK = {
    "ink": "#e6e9ed", "soft": "#a3aeba", "line": "#3d4650", "page": "#14171b", "card": "#20262d", "accent": "#8eadff",
    "shade": "#ffffff44",
}  # fmt: skip
LEVELS = 13  # odd, so that the middle has a shade of its own
HEAT = {"light": ("#eef3fd", "#7ba0ee", "#0d2c86"), "dark": ("#1f2633", "#3f68cf", "#d3dfff")}
DASHES = ("none", "7 3", "2 3", "10 3 2 3", "14 4")
MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",  # circle
    "M-3.6-3.6h7.2v7.2h-7.2z",  # square
    "M0-4.8L4.6 3.4H-4.6z",  # triangle
    "M0-5L5 0L0 5L-5 0z",  # diamond
    "M0 4.8L4.6-3.4H-4.6z",  # triangle, upside down
    "M-4-4L4 4M-4 4L4-4",  # cross
    "M0-5V5M-5 0H5",  # plus
)


@dataclass(frozen=True)
class Style:
    """How one series looks everywhere on a page; `number` is that of its colour in the style sheet."""

    number: int
    dash: str
    marker: str


def mix(first: str, second: str, share: float) -> str:
    """`share` of the second colour in the first, both #rrggbb."""
    pairs = zip(_channels(first), _channels(second), strict=True)
    return "#" + "".join(f"{round(255 * (a + share * (b - a))):02x}" for a, b in pairs)


def contrast(first: str, second: str) -> float:
    """WCAG 2's ratio, 1..21."""
    dark, light = sorted((_luminance(first), _luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def readable_on(background: str) -> str:
    """Black or white, whichever stands out more: at least 4.5 to 1 on any colour."""
    return max("#000000", "#ffffff", key=lambda text: contrast(text, background))


def heat_colours(theme: str) -> list[tuple[str, str]]:
    """(background, text) of each level."""
    weak, middle, strong = HEAT[theme]
    found = []
    for level in range(LEVELS):
        at = 2 * level / (LEVELS - 1)
        background = mix(weak, middle, at) if at <= 1 else mix(middle, strong, at - 1)
        found.append((background, readable_on(background)))
    return found


def styles(*groups: Iterable[str]) -> dict[str, Style]:
    """One for each name, numbered in the order in which they first appear: a method's own look, else one of no method.

    groups  names that are drawn together, which all look different; what is free in one does not depend on the others
    """
    own = {name: i for i, name in enumerate(LOOKS)}
    looks = _assigned(groups, own, lambda used: (look for look in itertools.count(len(LOOKS)) if look not in used))
    return {
        name: Style(i, DASHES[look % len(DASHES)], MARKERS[look % len(MARKERS)])
        for i, (name, look) in enumerate(looks.items())
    }


def series_colours(*groups: Iterable[str]) -> list[str]:
    """The colour of each different name: a method's own, else the next of those that no method has."""
    free = [colour for colour in (*PALETTE, *MORE) if colour not in COLOURS.values()]

    def left(used: Container[str]) -> Iterator[str]:
        return itertools.chain((colour for colour in free if colour not in used), itertools.cycle(free))

    return list(_assigned(groups, COLOURS, left).values())


def _assigned(
    groups: Iterable[Iterable[str]], own: Mapping[str, T], left: Callable[[Container[T]], Iterator[T]]
) -> dict[str, T]:
    """Name -> a method's own, else in each group the next that is left besides those its names have already."""
    found: dict[str, T] = {}
    for names in map(list, groups):
        free = left([found[name] for name in names if name in found])
        for name in dict.fromkeys(names):
            if name not in found:
                key = KEYS.get(name, name)
                found[name] = own[key] if key in own else next(free)
    return found


def themes(*groups: Iterable[str]) -> Mapping[str, dict[str, str]]:
    """The custom properties of the style sheet by theme: named colours, heat levels, series."""
    series = series_colours(*groups)
    found = {}
    for theme, named in (("light", LIGHT), ("dark", DARK)):
        heat = {f"heat-{i}": background for i, (background, _) in enumerate(heat_colours(theme))}
        text = {f"text-{i}": colour for i, (_, colour) in enumerate(heat_colours(theme))}
        own = {f"series-{i}": colour if theme == "light" else lifted(colour) for i, colour in enumerate(series)}
        found[theme] = named | heat | text | own
    return found


def lifted(colour: str) -> str:
    """Mixed with white until it stands out on the dark page."""
    share = 0.0
    while contrast(mix(colour, "#ffffff", share), DARK["page"]) < 5:
        share += 0.05
    return mix(colour, "#ffffff", share)


def _channels(colour: str) -> tuple[float, float, float]:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def _luminance(colour: str) -> float:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in _channels(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
