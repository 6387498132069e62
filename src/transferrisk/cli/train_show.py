"""What `trm train` prints: the accuracies at the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data import SPLITS
from ..models.saved import WEIGHTS
from ..reports import Table, percent
from ..reports.values import Entry
from ..results import Record, mean_score, select
from ..results.records import RECORDS
from ..training.run_folder import LAST, selection_rule

BY = {
    "training_domain": "training-domain validation",
    "test_domain": "validation data of the test environment",
    "last": "the end of training",
}


def accuracies(history: Sequence[Record]) -> Table:
    """One row an environment of each part, at the selected evaluation and at the last."""
    rule = selection_rule(history)
    chosen, last = select(history, rule), select(history, "last")
    final = {(r["part"], r.get("environment")): r.get("accuracy") for r in last}
    rows: list[list[Entry]] = []
    for part, title in SPLITS.items():
        for place, record in enumerate(r for r in chosen if r["part"] == part):
            name = record["environment"]
            scores = (record["accuracy"], record["worst_group"], final.get((part, name)))
            rows.append([title if place == 0 else "", name, *("" if x is None else percent(x) for x in scores)])
    return Table(
        f"Accuracy, %; selected by {BY[rule]}: step {chosen[0]['step']} of {last[0]['step']}",
        ["Part", "Environment", "Selected", "Worst class", "Last"],
        rows,
    )


def summary(history: Sequence[Record], folder: Path) -> dict[str, Any]:
    """The same for a program, with where everything lies."""
    rule = selection_rule(history)
    chosen = select(history, rule)
    worst = [r["worst_group"] for r in chosen if r["part"] == "test" and r["worst_group"] is not None]
    return {
        "selection": rule,
        "step": chosen[0]["step"],
        "test_accuracy": mean_score(chosen, "test"),
        "test_worst_group": min(worst, default=None),
        "selected": chosen,
        "last": select(history, "last"),
        "model": str(folder / WEIGHTS),
        "last_checkpoint": str(folder / LAST),
        "records": str(folder / RECORDS),
    }
