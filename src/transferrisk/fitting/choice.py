"""Which algorithm is taken, and why."""

from __future__ import annotations

from dataclasses import dataclass

from ..algorithms import available
from .compare import Comparison

ORDER = ("erm", "reweight", "groupdro", "vrex", "irm", "fish", "mldg", "trm-direct", "trm")
"""From the simplest to the one with the most parts; others, the user's own, come last."""


@dataclass(frozen=True)
class Choice:
    algorithm: str
    why: str


def choose(comparison: Comparison) -> Choice:
    """The simplest of those whose mean accuracy is within one standard error of the best one's.

    Where no environment could be held out, TRM if it took part: it is the one that looks at transfer while training.
    """
    names = list(comparison.accuracy)
    best = comparison.best
    if comparison.held == "rows":
        if "trm" in names:
            return Choice(
                "trm",
                "with two environments none can be held out, so how well a model transfers cannot be compared; trm is "
                "taken because it minimises the risk of transfer between the two",
            )
        return Choice(
            best,
            f"with two environments none can be held out; {best} is the most accurate on held-out rows, which says "
            "nothing about new environments",
        )
    close = [n for n in names if comparison.mean(best) - comparison.mean(n) <= comparison.noise[n]]
    simplest = min(
        close, key=lambda name: (ORDER.index(name) if name in ORDER else len(available()), names.index(name))
    )
    reached = f"mean accuracy of {100 * comparison.mean(simplest):.1f} % in environments it was not trained on"
    if len(names) == 1:
        return Choice(simplest, f"no other was compared; {reached}")
    if simplest == best:
        return Choice(best, f"highest {reached}")
    gap = 100 * (comparison.mean(best) - comparison.mean(simplest))
    return Choice(
        simplest,
        f"{reached}; {best} has {gap:.2f} points more, within its standard error of "
        f"{100 * comparison.noise[simplest]:.2f}, so the simpler one is taken",
    )
