"""A fit as a folder: the model, and what its owner wants to read about it."""

from __future__ import annotations

import json
from pathlib import Path

from ..files import write_atomically
from .card import card
from .fitted import Fitted
from .folder import CARD, COMPARISON, REPORT, write_folder
from .page import write_report


def save(fitted: Fitted, folder: Path | str, command: str = "", force: bool = False) -> None:
    """Write the folder; `command` is what the card and the page say made it."""
    compared = None if fitted.comparison is None else fitted.comparison.to_dict()
    content = {"chosen": fitted.choice.algorithm, "why": fitted.choice.why, "comparison": compared}

    def write_rest(place: Path) -> None:
        write_atomically(place / COMPARISON, json.dumps(content, indent=2) + "\n")
        write_atomically(place / CARD, card(fitted, command))
        write_report(place / REPORT, fitted, command)

    write_folder(Path(folder), fitted.model, write_rest, force)
