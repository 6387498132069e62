"""On what runs were made, and what has to be known where they were not all made on the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

NAMED = 3
"""So many commits are named, the rest is counted."""


@dataclass(frozen=True)
class Made:
    """Of one run; "" where its rows do not say. Threads count on a CPU only."""

    precision: str = ""
    hardware: str = ""
    version: str = ""
    commit: str = ""
    threads: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        """What its numbers may depend on."""
        each = f"{self.threads} thread{'s' if self.threads != '1' else ''} a run" if self.threads else ""
        return ", ".join(filter(None, [self.precision, each])), self.hardware


def made_by_run(rows: pd.DataFrame) -> dict[str, Made]:
    """Run -> on what it was made; records of earlier versions have none of the columns."""
    columns = [field.name for field in fields(Made) if field.name in rows]
    firsts = rows.drop_duplicates("run")
    return {
        run: Made(**{name: _text(value) for name, value in zip(columns, values, strict=True)})
        for run, *values in zip(firsts["run"], *(firsts[name] for name in columns), strict=True)
    }


def _text(value: Any) -> str:
    """A whole number as its digits, which pandas may have as a float; "" for what is none and no text."""
    is_whole = isinstance(value, int | float) and math.isfinite(value)
    return value if isinstance(value, str) else f"{value:.0f}" if is_whole else ""


def told(made: Mapping[str, Made]) -> str:
    """ "Made on NVIDIA H200 (bf16) at commit 1a2b3c4." """
    kinds = [
        f"on {hardware or 'unknown hardware'}" + (f" ({precision})" if precision else "")
        for precision, hardware in _kinds(made.values())
    ]
    found = " ".join(filter(None, [" and ".join(kinds), _source(made.values())]))
    unknown = sum(one == Made() for one in made.values())
    without = f"; {unknown} of {len(made)} runs do not say" if unknown else ""
    return f"Made {found}{without}." if found else ""


def mixed(made: Mapping[str, Made], runs: Iterable[str], differences: str) -> str:
    """What to know of the numbers of these runs, "" where all were made alike; `differences`: which are doubtful."""
    kinds = [" on ".join(filter(None, kind)) for kind in _kinds(made[run] for run in runs if run in made)]
    if len(kinds) < 2:
        return ""
    return f"Mixes {', '.join(kinds[:-1])} and {kinds[-1]}: {differences} may be the machine's."


def _kinds(made: Iterable[Made]) -> list[tuple[str, str]]:
    """Those that are known, in the order in which they come."""
    return list(dict.fromkeys(one.kind for one in made if any(one.kind)))


def _source(made: Iterable[Made]) -> str:
    """The commits, and where there is none, the versions."""
    made = list(made)
    for name, before in (("commit", "at"), ("version", "by")):
        found = list(dict.fromkeys(getattr(one, name) for one in made if getattr(one, name)))
        if found:
            more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
            return f"{before} {name}{'s' if len(found) > 1 else ''} {', '.join(found[:NAMED])}{more}"
    return ""
