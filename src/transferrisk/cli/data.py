"""`trm data`: which data sets there are, and getting their files."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .asking import AsJson, Root

if TYPE_CHECKING:
    from rich.table import Table

    from ..data.facts import Facts

data_app = typer.Typer(help="The data sets: list them, get their files, check them, look at them.")


@data_app.callback(invoke_without_command=True)
def help_(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@data_app.command("list")
def list_(data_root: Root = None, as_json: AsJson = False) -> None:
    """The data sets, what they are built from, and whether the files they need are there.

    Example: trm data list
    """
    from ..data import root
    from ..data.catalogue import available, sources
    from .show import console

    sets = {s.usage: s.facts for s in available().values()}
    if as_json:
        described = {
            "root": str(root.data_root(data_root)),
            "sets": [_described(usage, facts, data_root) for usage, facts in sets.items()],
            "sources": [_described(name, facts, data_root) for name, facts in sources().items()],
        }
        print(json.dumps(described, indent=2))
        return
    wide = console.width >= 110
    console.print(_table("Data sets", sets, data_root, wide))
    console.print(_table("What they are built from", sources(), data_root, wide))
    console.print(f"Data root: {root.data_root(data_root)}", highlight=False, markup=False, soft_wrap=True)


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A data set or source, as in trm data list.")],
    given: Annotated[
        Path | None, typer.Option("--from", help="A folder, an archive or a file that you have got already.")
    ] = None,
    data_root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Get the files of a data set; what is there already is left alone, what was interrupted goes on.

    Example: trm data fetch mnist
    """
    from rich.markup import escape

    from ..data import root
    from ..data.fetch import fetch as fetch_files
    from ..data.fetch import verify
    from .show import byte_progress

    with byte_progress(quiet=as_json) as advance:
        came = fetch_files(name, data_root, given, lambda what, *done: advance(escape(what), *done))
    place = root.data_root(data_root)
    states = verify(name, place, digests=False)
    if as_json:
        files = [{"path": str(s.path), "state": s.state} for s in states]
        print(json.dumps({"name": name, "root": str(place), "fetched": [str(p) for p in came], "files": files}))
        return
    for path in came:
        print(f"fetched {path}")
    if not states:
        print(f"{name} needs no files: there is nothing to fetch")
    elif not came:
        print(f"have it already: all that {name} needs is in {place}")
    for state in states:
        if state.state != "there":
            print(f"still to come: {state}")


def _table(title: str, sets: dict[str, Facts], root: Path | None, wide: bool) -> Table:
    """One row a set, without the columns that would be empty.

    A narrow table has the licence and what a set is built from below its name.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    all_facts = list(sets.values())
    columns = {
        "Envs": [str(len(facts.environments) or "") for facts in all_facts],
        "Classes": [str(len(facts.classes) or "") for facts in all_facts],
        "Samples": [str(facts.samples or "") for facts in all_facts],
        "Shape": ["x".join(map(str, facts.shape)) for facts in all_facts],
        "To fetch": [_size(facts.name) for facts in all_facts],
        "There": [_there(facts.name, root) for facts in all_facts],
    }
    built = [", ".join(facts.needs) for facts in all_facts]
    licences = [facts.licence for facts in all_facts]
    names = [Text(usage) for usage in sets]
    if not wide:
        for name, licence, parts in zip(names, licences, built, strict=True):
            name.append(f"\n{licence}{f'; built from {parts}' if parts else ''}", "dim")
    elif any(built):
        columns["Built from"] = built
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), leading=0 if wide else 1)
    table.title_justify, table.title_style = "left", "bold"
    table.add_column("Name", no_wrap=wide)
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}
    for heading in shown:
        table.add_column(heading, justify="left" if heading in ("There", "Built from") else "right", no_wrap=True)
    if wide:
        table.add_column("Licence")
    for row in zip(names, *shown.values(), *([licences] if wide else []), strict=True):
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _described(usage: str, facts: Facts, root: Path | None) -> dict[str, Any]:
    from ..data.fetch import verify

    states = [{"path": str(s.path), "state": s.state} for s in verify(facts.name, root, digests=False)]
    return {"usage": usage, **asdict(facts), "there": _there(facts.name, root), "present": states}


def _size(name: str) -> str:
    """Of all there is to fetch for a name."""
    from rich.filesize import decimal

    from ..data.fetch import needed

    parts = needed(name)
    if _own(name):
        return ""
    if any(not facts.files for facts in parts):
        return "by hand"
    return decimal(sum(facts.bytes for facts in parts)) if parts else "nothing"


def _there(name: str, root: Path | None) -> str:
    from ..data.fetch import verify

    if _own(name):
        return ""
    states = {state.state for state in verify(name, root, digests=False)}
    return "yes" if states <= {"there"} else "no" if states == {"missing"} else "in part"


def _own(name: str) -> bool:
    """The user's files, of which nothing is known beforehand."""
    from ..data.catalogue import look_up

    data_set = look_up(name)
    return data_set is not None and not data_set.facts.environments
