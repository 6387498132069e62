"""Tables and pages, made from records alone."""

from .demo_page import demo_page
from .page import Page, render, write_page
from .sections import Bar, Bars, Chapter, Curves, Group, Heatmap, Mark, Pictures, Section, Sentences, Shown, Table
from .tables import Row, Summary, caption, summarise, verdict

__all__ = [
    "Bar", "Bars", "Chapter", "Curves", "Group", "Heatmap", "Mark", "Page", "Pictures", "Row", "Section", "Sentences",
    "Shown", "Summary", "Table", "caption", "demo_page", "render", "summarise", "verdict", "write_page",
]  # fmt: skip
