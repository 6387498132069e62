"""Tables, figures and pages, from plain values and from records alone.

elements            what a report consists of: `Table`, `Curves`, `Text`, `Page`, ...
terminal            prints elements, and progress
render              writes elements as HTML, Markdown, LaTeX and CSV; `charts` and `pictures` draw the figures
experiment          the results of an experiment, as read from its folder
tables              scores over seeds, and paired differences between methods
comparison_views    views that compare methods: table, lines, curves
record_views        views of records as they are: rows, xy, pictures
report              the report on a folder of results
demo_page           the page of `trm demo`
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
