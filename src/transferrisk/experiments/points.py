"""Points: the settings at which a method is tried, all of its grid or some that are drawn from it.

A grid names settings of the algorithm, of training or of the run, each with a list of values or a distribution:

    lr = [0.1, 0.2]                        one of these values
    dropout = { uniform = [0.0, 0.5] }     a number between these
    lr = { log_uniform = [1e-5, 1e-3] }    a number whose logarithm is uniform

A setting of type int gets whole numbers. Numbers that are drawn have four digits, so that the text of a point
determines it.
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

DIGITS = 4  # of numbers that are drawn


@dataclass(frozen=True)
class Search(Settings):
    """How the points of a recipe are found.

    kind      grid: all points of each grid; random: points drawn at random; optuna: points chosen from the results of
              earlier ones (needs the extra `search`)
    points    number of points for each method if they are drawn; a smaller grid is tried completely
    seed      random seed of the draw
    by_seed   whether each seed of the recipe has its own points, chosen seed by seed as in DomainBed, so that
              deviations over seeds include the luck of the search; always true with optuna
    defaults  whether the first point is the method with its own settings, without the grid
    at_once   optuna: number of points of one study that are tried at the same time
    prune     optuna: whether to end a training whose validation is below the median of earlier ones at the same step
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
    """Uniform distribution from low to high, of numbers or (`log`) their logarithms; `whole` rounds to integers."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, share: float) -> float | int:
        """Return the quantile of a share in [0, 1]."""
        if self.log:
            return self.rounded(self.low * (self.high / self.low) ** share)
        return self.rounded(self.low + (self.high - self.low) * share)

    def rounded(self, value: float) -> float | int:
        """Return the value as a whole number, or with four digits within the bounds."""
        if self.whole:
            return round(value)
        return min(self.high, max(self.low, float(f"{value:.{DIGITS}g}")))


Grid = Mapping[str, Sequence[Any] | Distribution]
Point = dict[str, Any]


def read_grid(grid: Mapping[str, Any], kinds: Mapping[str, Any], owner: str) -> dict[str, Sequence[Any] | Distribution]:
    """Return the grid of a recipe with distributions as values; `kinds` are annotations of settings by name."""
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
        least = "two numbers > 0" if how == "log_uniform" else "two numbers"
        raise InputError(f"{owner}: {how} must be {least}, the smaller one first, got {list(bounds)}")
    return Distribution(low, high, how == "log_uniform", whole=not _takes_fractions(kind))


def _takes_fractions(kind: Any) -> bool:
    """Return True if an annotation allows numbers other than integers, or if it is None."""
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    bare = [get_args(option)[0] if get_origin(option) is Annotated else option for option in options]
    return kind is None or float in bare


def count_points(grid: Grid, search: Search) -> float:
    """Return the number of points of a grid that are tried."""
    size = math.prod([math.inf if isinstance(one, Distribution) else len(one) for one in grid.values()])
    return size if search.kind == "grid" else min(size + (search.defaults and bool(grid)), search.points)


def find_points(grid: Grid, search: Search, seed: int) -> Iterator[Point]:
    """Yield the points that are tried; `seed` is the run's, which matters if each seed has its own points.

    A setting that several methods have is drawn with the same values for all of them.
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
    """Return the point of this number in an infinite sequence of random points."""
    point: Point = {}
    for name, values in grid.items():
        share = int(digest([search.seed, seed if search.by_seed else None, number, name]), 16) / 16**16
        point[name] = values.at(share) if isinstance(values, Distribution) else values[int(share * len(values))]
    return point


def point_text(point: Point) -> str:
    """Return the text of a point, such as "lr=0.1 momentum=0.9"."""
    return " ".join(f"{name}={value_text(value)}" for name, value in point.items())


def value_text(value: Any) -> str:
    """Return the text of a value in labels and points."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _listed(grid: Grid) -> Iterator[Sequence[Any]]:
    for name, values in grid.items():
        if isinstance(values, Distribution):
            raise InputError(
                f'{name} must be a list unless search = "random", got a distribution: add search, or list values'
            )
        yield values
