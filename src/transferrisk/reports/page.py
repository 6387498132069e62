"""The report page: one HTML file that asks nothing of any network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from importlib import resources
from pathlib import Path

import numpy as np
from jinja2 import Environment, StrictUndefined
from numpy.typing import NDArray

from ..files import write_atomically
from ..training.records import Record
from ..training.selection import Selection
from .figures import accuracy_bars, heat_cells, picture_strip
from .tables import SELECTION_NAMES, caption, summarise, verdict


def write_page(
    path: Path,
    title: str,
    records: Sequence[Record],
    pictures: Mapping[str, NDArray[np.uint8]],
    settings: Mapping[str, str | Sequence[str]],
    command: str,
    by: Selection = "training_domain",
) -> None:
    """Write the page for these records; `pictures` are named sample images, `settings` what is listed at the end.

    A setting that is a sequence is shown as a list.
    """
    rows = summarise(records, by)
    largest = max(loss for row in rows for losses in row.transfer_matrix for loss in losses)
    template = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(resources.files(__package__).joinpath("templates/page.html").read_text())
    page = template.render(
        title=title,
        verdict=verdict(rows),
        rows=rows,
        train_environments=list(rows[0].train),
        bars=accuracy_bars(rows),
        matrices=[(row, heat_cells(row, largest)) for row in rows],
        pictures={name: picture_strip(images) for name, images in pictures.items()},
        selection=SELECTION_NAMES[by],
        caption=caption(rows),
        seeds=len(rows[0].test.values),
        settings=settings,
        command=command,
        date=date.today().isoformat(),
    )
    write_atomically(path, page)
