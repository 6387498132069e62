"""Which algorithm is taken, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import listed
from .compare import Comparison

ORDER = ("erm", "reweight", "groupdro", "vrex", "irm", "fish", "mldg", "trm-direct", "trm")
"""From the simplest to the one with the most parts; others, the user's own, come last."""
EXACT = 1e-9  # difference below which means tie, but for rounding


@dataclass(frozen=True)
class Choice:
    algorithm: str
    why: str


def choose(comparison: Comparison) -> Choice:
    """See `_chosen`; where a guess without a look at the sample does as well, the sentence says so."""
    choice = _chosen(comparison)
    return replace(choice, why=choice.why + beside_a_guess(comparison, choice.algorithm))


def beside_a_guess(comparison: Comparison, algorithm: str) -> str:
    """A clause where the mean accuracy is no better than that of the most frequent class; "" where it is."""
    if not comparison.frequent:
        return ""
    guess = sum(comparison.frequent.values()) / len(comparison.frequent)
    if comparison.mean(algorithm) > guess + EXACT:
        return ""
    return (
        "; its mean is no better than always saying the most frequent class of the rows trained on, which reaches "
        f"{100 * guess:.1f} %"
    )


def _chosen(comparison: Comparison) -> Choice:
    """The simplest of those within one standard error of the best, in mean accuracy and in the worst environment.

    Where no environment could be held out, TRM if it took part: it is the one that looks at transfer while training.
    """
    names = list(comparison.accuracy)
    simpler = sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), names.index(name)))
    best = comparison.best
    if comparison.held == "rows":
        if "trm" in names:
            return Choice(
                "trm",
                "with two environments none can be held out, so how well a model transfers cannot be compared; trm is "
                "taken because it minimises the risk of transfer between the two",
            )
        first, *tied = [name for name in simpler if _gap(comparison, name) < EXACT]
        tie = f", tied with {listed(tied)}; the simpler one is taken" if tied else ""
        return Choice(
            first,
            f"with two environments none can be held out; {first} is the most accurate on held-out rows, which says "
            f"nothing about new environments{tie}",
        )
    near = [name for name in simpler if _gap(comparison, name) <= comparison.noise[name]]
    taken = next(name for name in near if _worst_gap(comparison, name) <= comparison.worst_noise[name])
    reached = f"mean accuracy of {100 * comparison.mean(taken):.1f} % in environments it was not trained on"
    if len(names) == 1:
        return Choice(taken, f"no other was compared; {reached}")
    top = [name for name in names if _gap(comparison, name) < EXACT]
    tied = [name for name in top if name != taken] if taken in top else []
    if taken != best and tied:
        worst = f"; {best} has {_worst(comparison, taken)}, within {100 * comparison.worst_noise[taken]:.2f}"
        differs = abs(_worst_gap(comparison, taken)) >= EXACT
        return Choice(taken, f"{reached}, {_tied(tied)}{worst if differs else ''}; the simpler one is taken")
    if taken != best:
        return Choice(
            taken,
            f"{reached}; {best} has {100 * _gap(comparison, taken):.2f} points more, within the standard error of "
            f"{100 * comparison.noise[taken]:.2f}, and {_worst(comparison, taken)}, within "
            f"{100 * comparison.worst_noise[taken]:.2f}, so the simpler one is taken",
        )
    if near[0] == best:
        return Choice(best, f"{reached}, {_tied(tied)}; the simpler one is taken" if tied else f"highest {reached}")
    start = f"{reached}, {_tied(tied)}" if tied else f"highest {reached}"
    return Choice(
        best,
        f"{start}; {near[0]} is simpler and within the standard error of it, but {best} has "
        f"{_worst(comparison, near[0])}, beyond the standard error of {100 * comparison.worst_noise[near[0]]:.2f}",
    )


def _tied(names: list[str]) -> str:
    return f"tied with {listed(names)}"


def _gap(comparison: Comparison, name: str) -> float:
    return comparison.mean(comparison.best) - comparison.mean(name)


def _worst_gap(comparison: Comparison, name: str) -> float:
    return comparison.worst(comparison.best) - comparison.worst(name)


def _worst(comparison: Comparison, name: str) -> str:
    """By how much the best one's worst environment is ahead of this one's."""
    gap = _worst_gap(comparison, name)
    return f"{100 * abs(gap):.2f} points {'more' if gap >= 0 else 'less'} in the worst environment"
