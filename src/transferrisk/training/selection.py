"""Which of a run's evaluations counts: a function of the records, run afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from .records import Record, mean_accuracy

Selection = Literal["training_domain", "test_domain", "last"]


def select(records: Sequence[Record], by: Selection) -> list[Record]:
    """One record a run: that of the highest accuracy on this validation data, the later one when they tie."""
    chosen: dict[tuple[str, int], Record] = {}
    for record in sorted(records, key=lambda r: r.step):
        run = (record.algorithm, record.seed)
        best = chosen.get(run)
        if best is None or by == "last" or _score(record, by) >= _score(best, by):
            chosen[run] = record
    return list(chosen.values())


def _score(record: Record, by: Selection) -> float:
    return mean_accuracy(record.training_domain if by == "training_domain" else record.test_domain)
