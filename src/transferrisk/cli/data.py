"""`trm data`: list the data sets, get their files, check them, look at them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..data import Options
from .asking import AsJson, Name, Root, reads_data

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from ..data import EnvironmentSet
    from ..data.summary import Listing

data_app = typer.Typer(help="The data sets: list them, get their files, check them, look at them.")


@data_app.callback(invoke_without_command=True)
def help_(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@data_app.command("list")
def list_(data_root: Root = None, as_json: AsJson = False) -> None:
    """List the data sets, what they are built from, and whether the files they need are there.

    Example: trm data list
    """
    from ..data.catalogue import data_root as root_of
    from ..data.summary import list_sets, list_sources
    from ..settings import dumps
    from .show import console

    sets, sources, root = list_sets(data_root), list_sources(data_root), root_of(data_root)
    if as_json:
        found = {"root": str(root), "sets": [*map(_described, sets)], "sources": [*map(_described, sources)]}
        print(dumps(found, indent=2))
        return
    console.print(_sets_table("Data sets", sets, console.width >= 110))
    console.print(_sets_table("What they are built from", sources, console.width >= 110))
    console.print(f"Data root: {root}", highlight=False, markup=False, soft_wrap=True)


@data_app.command()
def fetch(
    name: Annotated[str, typer.Argument(help="A data set or source, as in trm data list.")],
    given: Annotated[
        Path | None, typer.Option("--from", help="A folder, an archive or a file that you have already got.")
    ] = None,
    data_root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Get the files of a data set. Files that are there are left alone, interrupted downloads go on.

    Example: trm data fetch mnist
    """
    from rich.markup import escape

    from ..data import catalogue
    from ..data.fetch import fetch as fetch_files
    from ..data.fetch import verify
    from ..settings import dumps
    from .show import byte_progress

    with byte_progress(quiet=as_json) as advance:
        came = fetch_files(name, data_root, given, lambda what, *done: advance(escape(what), *done))
    root = catalogue.data_root(data_root)
    states = verify(name, root, digests=False)
    if as_json:
        files = [{"path": str(state.path), "state": state.state} for state in states]
        print(dumps({"name": name, "root": str(root), "fetched": [str(path) for path in came], "files": files}))
        return
    for path in came:
        print(f"fetched {path}")
    if not states:
        print(f"{name} needs no files: there is nothing to fetch")
    elif not came:
        print(f"nothing to do: all that {name} needs is in {root}")
    for state in states:
        if state.state != "there":
            print(f"still to come: {state}")


@data_app.command()
@reads_data
def check(name: Name, options: Options, as_json: AsJson = False) -> None:
    """Read all of a data set, compare it with its published facts, and count its samples.

    Example: trm data check pacs
    """
    from ..data.summary import check_data, count_by_class, count_distinct, parts_of
    from ..settings import dumps
    from .show import console, task_progress

    with task_progress() as advance:
        files, data = check_data(name, replace(options, progress=advance))
    if data is None:
        print(dumps([str(file.path) for file in files]) if as_json else "\n".join(map(str, files)))
        return
    parts = parts_of(data)
    if as_json:
        counts = {title: count_by_class(members) for title, members in parts.items()}
        print(dumps({"name": name, "parts": counts}))
        return
    console.print(_counts_table(name, parts, console.width))
    shape = " x ".join(map(str, next(iter(parts.values())).inputs[:1].shape[1:]))
    console.print(f"{count_distinct(data)} samples of shape {shape}: all there, and all can be read", highlight=False)


@data_app.command()
@reads_data
def show(
    name: Name,
    options: Options,
    output: Annotated[Path | None, typer.Option(help="Picture to write, .png. Default: NAME.png.")] = None,
    per_class: Annotated[int, typer.Option(min=1, max=50, help="Samples of each class.")] = 3,
) -> None:
    """Write a picture of samples from each environment: images by class, or vectors by principal components.

    Example: trm data show 10c-digits --shift combined --output digits.png
    """
    from ..data import load_data
    from ..data.summary import environments_of, parts_of, pictures_by_class, principal_components
    from ..errors import InputError, cause_of
    from ..files import check_target, expand_home, readable, write_atomically
    from ..reports.gallery import MOST_ENVIRONMENTS, picture_grid, scatter_grid
    from .show import task_progress

    target = expand_home(output) if output else Path(f"{_file_name(name)}.png")
    if target.suffix.lower() != ".png":
        raise InputError(f"--output must end in .png, got {target}")
    check_target(target)
    with task_progress() as advance:
        data = load_data(name, replace(options, progress=advance))
    first = next(iter(parts_of(data).values()))
    every = dict(environments_of(data))
    drawn = dict(list(every.items())[:MOST_ENVIRONMENTS])
    if first.inputs[:1].dim() == 4:
        pictures = {where: pictures_by_class(members, per_class, options.seed) for where, members in drawn.items()}
        content = picture_grid(pictures, first.class_names, len(every))
    else:
        content = scatter_grid(principal_components(drawn, seed=options.seed), first.class_names, len(every))
    try:
        write_atomically(target, content)
    except OSError as error:
        raise InputError(f"{target} cannot be written ({cause_of(error)}): choose another with --output") from None
    print(readable(target))


def _described(listing: Listing) -> dict[str, Any]:
    states = [{"path": str(file.path), "state": file.state} for file in listing.files]
    facts = asdict(listing.facts) | {"needs": listing.built_from}
    return {"usage": listing.usage, **facts, "there": listing.there, "present": states}


def _sets_table(title: str, listings: Sequence[Listing], wide: bool) -> Table:
    """One row a set, without the columns that would be empty.

    A narrow table has the licence and what a set is built from below its name.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns = {
        "Envs": [str(len(one.facts.environments) or "") for one in listings],
        "Classes": [str(len(one.facts.classes) or "") for one in listings],
        "Samples": [str(one.facts.samples or "") for one in listings],
        "Shape": ["x".join(map(str, one.facts.shape)) for one in listings],
        "To fetch": [_size(one) for one in listings],
        "There": [one.there for one in listings],
    }
    built = [", ".join(one.built_from) for one in listings]
    names = [Text(one.usage) for one in listings]
    if not wide:
        for name, one, sources in zip(names, listings, built, strict=True):
            name.append(f"\n{one.facts.licence}{f'; built from {sources}' if sources else ''}", "dim")
    elif any(built):
        columns["Built from"] = built
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), leading=0 if wide else 1)
    table.title_justify, table.title_style = "left", "bold"
    table.add_column("Name", no_wrap=wide)
    filled = {heading: cells for heading, cells in columns.items() if any(cells)}
    for heading in filled:
        table.add_column(heading, justify="left" if heading in ("There", "Built from") else "right", no_wrap=True)
    if wide:
        table.add_column("Licence")
    licences = [[one.facts.licence for one in listings]] if wide else []
    for row in zip(names, *filled.values(), *licences, strict=True):
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _size(listing: Listing) -> str:
    from rich.filesize import decimal

    if listing.to_fetch is None:
        return "by hand" if listing.there else ""
    return decimal(listing.to_fetch) if listing.to_fetch else "nothing"


def _counts_table(name: str, parts: dict[str, EnvironmentSet], width: int) -> Table:
    """Samples of each environment, and of each class where there is room for that."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ..data.summary import count_by_class
    from ..files import readable

    classes = next(iter(parts.values())).class_names
    named = max(len(where) for members in parts.values() for where in members.environment_names)
    needed = max(map(len, parts)) + named + 14 + sum(max(len(label), 5) + 1 for label in classes)
    headings = classes if needed <= width else ()
    table = Table(title=Text(readable(name), "bold"), box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    if len(parts) > 1:
        table.add_column("Part")
    table.add_column("Environment")
    for heading in ("Samples", *headings):
        table.add_column(Text(heading), justify="right")
    for part, members in parts.items():
        for place, (where, counts) in enumerate(count_by_class(members).items()):
            first = [part if place == 0 else ""] if len(parts) > 1 else []
            cells = map(str, counts.values()) if headings else ()
            table.add_row(*first, Text(where), str(sum(counts.values())), *cells)
    return table


def _file_name(name: str) -> str:
    base, _, argument = name.partition(":")
    return f"{base}-{Path(argument).stem}"[:100] if argument else base
