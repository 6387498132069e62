"""The report page: one HTML file that asks nothing of any network and is whole without its script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from importlib import resources
from pathlib import Path

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from ..files import write_atomically
from .curves import plot
from .drawing import bar_scale, drawn_bars, drawn_rows, heat_cells, heat_key, is_long, numeric_columns, shared_key
from .figures import picture_strip
from .palette import LEVELS, styles, themes
from .sections import Bars, Chapter, Curves, Group, Section

WIDE, HALF, NARROW = 880, 430, 320
"""Room for a drawing on a desk, alone and beside another, and on a phone, in CSS pixels."""


@dataclass(frozen=True, eq=False)
class Page:
    """Plain sentences, sections, and how to make it again; a setting that is a sequence is shown as a list.

    before  commands that come before `command` -> what is known of how they were run
    """

    title: str
    lead: tuple[str, ...]
    sections: tuple[Section, ...]
    settings: Mapping[str, str | Sequence[str]]
    command: str
    before: Mapping[str, str] = field(default_factory=dict)


def write_page(path: Path, page: Page) -> None:
    """Write the page; a file that is there is replaced when the new one is whole."""
    write_atomically(path, render(page))


def render(page: Page) -> str:
    """The page as HTML. Bytes of a name that are no text are shown as \\xNN, or \\udcNN where Python has them so."""
    chapters = [[section] for section in page.sections if isinstance(section, Chapter)]
    others: list[Section] = [section for section in page.sections if not isinstance(section, Chapter)]
    groups = [list(_series(others)), *(list(_series(chapter)) for chapter in chapters)]
    script = _template("page.js")
    html = (
        _templates()
        .get_template("page.html")
        .render(
            page=page,
            styles=styles(*groups),
            themes=themes(*groups),
            levels=range(LEVELS),
            script=Markup(script),
            script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            date=date.today().isoformat(),
        )
    )
    return html.encode(errors="backslashreplace").decode()


def _series(sections: Iterable[Section]) -> Iterator[str]:
    """Names of what has a colour, in order, with repetitions."""
    for section in sections:
        if isinstance(section, Group | Chapter):
            yield from _series(section.sections)
        elif isinstance(section, Bars):
            yield from (bar.name for bars in section.groups.values() for bar in bars)
        elif isinstance(section, Curves):
            yield from section.series


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=FunctionLoader(_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals.update(
        bar_scale=bar_scale, drawn_bars=drawn_bars, drawn_rows=drawn_rows, heat_cells=heat_cells, heat_key=heat_key,
        shared_key=shared_key, is_long=is_long,
        numeric_columns=numeric_columns, picture_strip=picture_strip, plot=plot,
        widths={"wide": WIDE, "narrow": NARROW}, halves={"wide": HALF, "narrow": NARROW},
        kind=lambda section: type(section).__name__,
    )  # fmt: skip
    return templates


def _template(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")
