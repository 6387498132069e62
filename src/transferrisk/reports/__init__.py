"""Tables, figures and pages, from plain values and from records alone.

A report consists of `elements`; `terminal` prints and `render` writes them, and `charts` draws their figures.
`demo_page` summarises runs over seeds; `report` reports on the results of experiments.
"""

from .elements import (
    Bar,
    Bars,
    Cell,
    Chapter,
    Curves,
    Forest,
    Group,
    Heatmap,
    Mark,
    Page,
    Pictures,
    Section,
    Spread,
    Table,
    Text,
    percent,
)
from .render import render_page, write_page

__all__ = [
    "Bar", "Bars", "Cell", "Chapter", "Curves", "Forest", "Group", "Heatmap", "Mark", "Page", "Pictures", "Section",
    "Spread", "Table", "Text", "percent", "render_page", "write_page",
]  # fmt: skip
