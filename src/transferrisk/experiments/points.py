"""Points: the settings at which a method is tried, all of its grid or some that are drawn from it.

A grid names settings of the algorithm, of training or of the run, each with a list of values or a distribution:

    lr = [0.1, 0.2]                        one of these
    dropout = { uniform = [0.0, 0.5] }     any number between
    lr = { log_uniform = [1e-5, 1e-3] }    likewise, every order of magnitude as likely as another

A setting that takes whole numbers alone gets whole numbers. Numbers that are drawn have four digits, so that the text
of a point is the point.
"""

from __future__ import annotations

import itertools
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from ..errors import InputError, choices
from ..settings import Bound, Count, Seed, Settings, convert, digest

DIGITS = 4  # of a number that is drawn


@dataclass(frozen=True)
class Search(Settings):
    """How the points of a recipe are found.

    kind      grid: all points of each grid; random: some, drawn at random; optuna: each drawn in view of how the ones
              before it did (needs the extra `search`)
    points    how many are tried of each method, where they are drawn; a grid that has fewer is tried whole
    seed      of the draw
    by_seed   points of its own for each seed of the recipe, chosen seed by seed, as in DomainBed, so that deviations
              over seeds include the luck of the search; always so with optuna
    defaults  the first point is the method as it is, without any of its grid
    at_once   optuna: points of one study that are tried at the same time
    prune     optuna: end a training whose validation is below the median of earlier ones at the same step
    """

    kind: Literal["grid", "random", "optuna"] = "grid"
    points: Annotated[int, Bound(least=1, most=10_000)] = 20
    seed: Seed = 0
    by_seed: bool = False
    defaults: bool = False
    at_once: Count = 1
    prune: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "by_seed", self.by_seed or self.kind == "optuna")


@dataclass(frozen=True)
class Distribution:
    """Numbers from low to high, evenly or evenly in their logarithm, whole ones perhaps."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, share: float) -> float | int:
        """The number that this share of the distribution, 0 to 1, lies below."""
        if self.log:
            return self.rounded(self.low * (self.high / self.low) ** share)
        return self.rounded(self.low + (self.high - self.low) * share)

    def rounded(self, value: float) -> float | int:
        if self.whole:
            return round(value)
        return min(self.high, max(self.low, float(f"{value:.{DIGITS}g}")))


Grid = Mapping[str, Sequence[Any] | Distribution]
Point = dict[str, Any]


def read_grid(grid: Mapping[str, Any], kinds: Mapping[str, Any], owner: str) -> dict[str, Sequence[Any] | Distribution]:
    """The grid of a recipe, its distributions as values; `kinds` are the annotations of settings, where they exist."""
    return {name: _read_values(values, kinds.get(name), f"{owner}, {name}") for name, values in grid.items()}


def _read_values(values: Any, kind: Any, owner: str) -> Sequence[Any] | Distribution:
    if isinstance(values, list | tuple) and values:
        return values
    if not isinstance(values, Mapping) or len(values) != 1:
        raise InputError(
            f"{owner} must be a list, or a distribution such as {{ log_uniform = [1e-5, 1e-3] }}, got {values!r}"
        )
    ((how, bounds),) = values.items()
    if how not in ("uniform", "log_uniform"):
        raise InputError(f"{owner}: unknown distribution {how!r}{choices(how, ('uniform', 'log_uniform'))}")
    low, high = convert(f"{owner}: {how}", bounds, tuple[float, float])
    if not (0 if how == "log_uniform" else -math.inf) < low < high:
        least = "two numbers above 0" if how == "log_uniform" else "two numbers"
        raise InputError(f"{owner}: {how} must be {least}, the lower one first, got {list(bounds)}")
    return Distribution(low, high, how == "log_uniform", whole=not _takes_fractions(kind))


def _takes_fractions(kind: Any) -> bool:
    """Whether an annotation allows a number that is not whole; so does one that is not known."""
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    bare = [get_args(option)[0] if get_origin(option) is Annotated else option for option in options]
    return kind is None or float in bare


def count_points(grid: Grid, search: Search) -> float:
    """How many points are tried of a grid."""
    size = math.prod([math.inf if isinstance(one, Distribution) else len(one) for one in grid.values()])
    return size if search.kind == "grid" else min(size + (search.defaults and bool(grid)), search.points)


def find_points(grid: Grid, search: Search, seed: int) -> Iterator[Point]:
    """The points that are tried; `seed` is the run's, and decides where points are drawn for each on its own.

    A setting that several methods have is drawn alike for all of them, so that their points differ in nothing else.
    """
    if search.kind == "grid" or not grid:
        for values in itertools.product(*_listed(grid)):
            yield dict(zip(grid, values, strict=True))
        return
    wanted, found = count_points(grid, search), dict[str, None]()
    if search.defaults:
        found[""] = None
        yield {}
    for number in itertools.count():
        if len(found) >= wanted:
            return
        point = draw_point(grid, search, seed, number)
        if (text := point_text(point)) not in found:
            found[text] = None
            yield point


def draw_point(grid: Grid, search: Search, seed: int, number: int) -> Point:
    """The point of this number in an endless row of random ones."""
    point: Point = {}
    for name, values in grid.items():
        share = int(digest([search.seed, seed if search.by_seed else None, number, name]), 16) / 16**16
        point[name] = values.at(share) if isinstance(values, Distribution) else values[int(share * len(values))]
    return point


def point_text(point: Point) -> str:
    """ "lr=0.1 momentum=0.9"."""
    return " ".join(f"{name}={value_text(value)}" for name, value in point.items())


def value_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _listed(grid: Grid) -> Iterator[Sequence[Any]]:
    for name, values in grid.items():
        if isinstance(values, Distribution):
            raise InputError(f'{name} is a distribution, which has no end: add search = "random", or list its values')
        yield values
