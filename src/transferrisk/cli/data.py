"""`trm data`: list the data sets, get their files, check them, look at them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..settings import whole
from .options import (
    Biases,
    Command,
    DataName,
    DataRoot,
    Dates,
    Environment,
    Features,
    Group,
    Json,
    Label,
    Lazy,
    Missing,
    Oracle,
    PathColumn,
    Seed,
    ShiftKind,
    Size,
    SkipBad,
    parse_biases,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..data import EnvironmentSet, Options
    from ..data.summary import Listing
    from ..reports import Cell, Table

Picture = Annotated[Path | None, typer.Option(metavar="FILE", help="Picture to write, .png. Default: NAME.png.")]
PerClass = Annotated[
    int, typer.Option(metavar="N", callback=whole(1, 50), help="Number of images of each class, at most 50.")
]

data_app = typer.Typer(cls=Group, help="List data sets, fetch their files, check them and draw samples of them.")


@data_app.callback(invoke_without_command=True)
def help_(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


@data_app.command("list", cls=Command)
def list_(data_root: DataRoot = None, as_json: Json = None) -> None:
    """List the data sets, what they are built from, and whether the files they need are there.

    Example: trm data list
    """
    from ..data.roots import data_root as root_of
    from ..data.summary import list_sets, list_sources
    from ..reports.terminal import print_line, print_values, width

    sets, sources, root = list_sets(data_root), list_sources(data_root), root_of(data_root)
    found = {"root": str(root), "sets": [*map(_described, sets)], "sources": [*map(_described, sources)]}
    if as_json and as_json.write(found):
        return
    wide = width() >= 110
    print_values(_sets_table("Data sets", sets, wide), _sets_table("What they are built from", sources, wide))
    print_line(f"Data root: {root}")


@data_app.command(cls=Command)
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set or source, as in trm data list.")],
    given: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="A folder, an archive or a file that you already have."),
    ] = None,
    data_root: DataRoot = None,
    as_json: Json = None,
) -> None:
    """Fetch the files of a data set. Complete files are kept, and interrupted downloads go on.

    Example: trm data fetch mnist
    """
    from ..data.fetch import fetch as fetch_files
    from ..data.fetch import verify
    from ..data.roots import data_root as root_of
    from ..reports.terminal import print_line, task_progress

    with task_progress(quiet=as_json is not None, in_bytes=True) as advance:
        came = fetch_files(name, data_root, given, advance)
    root = root_of(data_root)
    states = verify(name, root, digests=False)
    files = [{"path": str(state.path), "state": state.state} for state in states]
    if as_json and as_json.write({"name": name, "root": str(root), "fetched": list(map(str, came)), "files": files}):
        return
    for path in came:
        print_line(f"fetched {path}")
    if not states:
        print_line(f"{name} needs no files: there is nothing to fetch")
    elif not came:
        print_line(f"nothing to do: all that {name} needs is in {root}")
    for state in states:
        if state.state != "there":
            print_line(f"still to come: {state}")


@data_app.command(cls=Command)
def check(
    name: DataName,
    as_json: Json = None,
    data_root: DataRoot = None,
    seed: Seed = 0,
    label: Label = None,
    environment: Environment = None,
    features: Features = None,
    missing: Missing = None,
    dates: Dates = None,
    path: PathColumn = None,
    size: Size = None,
    lazy: Lazy = False,
    skip_bad: SkipBad = False,
    shift: ShiftKind = None,
    biases: Biases = None,
    oracle: Oracle = False,
) -> None:
    """Read all of a data set, compare it with its published facts, and count its samples.

    Example: trm data check pacs
    """
    from ..data.summary import check_data, count_by_class, count_distinct, sets_by_title
    from ..errors import counted
    from ..reports.terminal import print_line, print_values, task_progress, width

    name = _with_kind(name, path, features)
    options = _options(
        name, shift, biases, root=data_root, seed=seed, label=label, environment=environment, features=features,
        missing=missing, dates=dates, path=path, size=size, lazy=lazy or None, skip_bad=skip_bad, oracle=oracle,
    )  # fmt: skip
    with task_progress() as advance:
        files, data = check_data(name, replace(options, progress=advance))
    if data is None:
        if not (as_json and as_json.write([str(file.path) for file in files])):
            for file in files:
                print_line(str(file))
        return
    sets = sets_by_title(data)
    counts = {title: count_by_class(members) for title, members in sets.items()}
    if as_json and as_json.write({"name": name, "parts": counts}):
        return
    print_values(_counts_table(name, sets, width()))
    shape = next(iter(sets.values())).inputs[:1].shape[1:]
    each = f"of shape {' x '.join(map(str, shape))}" if len(shape) > 1 else f"with {counted(shape[0], 'feature')}"
    print_values(f"{count_distinct(data)} samples {each}: all are there and can be read.")


@data_app.command(cls=Command)
def show(
    name: DataName,
    output: Picture = None,
    per_class: PerClass = 3,
    data_root: DataRoot = None,
    seed: Seed = 0,
    label: Label = None,
    environment: Environment = None,
    features: Features = None,
    path: PathColumn = None,
    size: Size = None,
    lazy: Lazy = False,
    skip_bad: SkipBad = False,
    shift: ShiftKind = None,
    biases: Biases = None,
    oracle: Oracle = False,
) -> None:
    """Write a picture of samples from each environment: images by class, or vectors by principal components.

    Example: trm data show 10c-digits --shift combined --output digits.png
    """
    from ..data import load_data
    from ..data.summary import environments_of, pictures_by_class, principal_components, sets_by_title
    from ..errors import InputError, cause_of
    from ..files import check_target, expand_home, readable, write_atomically
    from ..reports.pictures import MOST_CLASSES, MOST_ENVIRONMENTS, left_out_words, picture_grid, scatter_grid
    from ..reports.terminal import print_line, print_values, task_progress

    name = _with_kind(name, path, features)
    options = _options(
        name, shift, biases, root=data_root, seed=seed, label=label, environment=environment, features=features,
        path=path, size=size, lazy=lazy or None, skip_bad=skip_bad, oracle=oracle,
    )  # fmt: skip
    target = expand_home(output) if output else Path(f"{_file_name(name)}.png")
    if target.suffix.lower() != ".png":
        raise InputError(f"--output must end in .png, got {target}")
    check_target(target)
    with task_progress() as advance:
        data = load_data(name, replace(options, progress=advance))
    first = next(iter(sets_by_title(data).values()))
    every = dict(environments_of(data))
    drawn = dict(list(every.items())[:MOST_ENVIRONMENTS])
    if first.inputs[:1].dim() == 4:
        pictures = {where: pictures_by_class(members, per_class, seed) for where, members in drawn.items()}
        content = picture_grid(pictures, first.class_names, len(every))
        shown = f"{per_class} images of each class in each environment"
    else:
        content = scatter_grid(principal_components(drawn, seed=seed), first.class_names, len(every))
        shown = "the vectors of each environment by their first two principal components, with a colour for each class"
    classes = len(first.class_names)
    left_out = left_out_words(min(classes, MOST_CLASSES), classes, len(drawn), len(every))
    try:
        write_atomically(target, content)
    except OSError as error:
        raise InputError(f"{target} cannot be written ({cause_of(error)}): choose another with --output") from None
    print_line(f"Picture: {readable(target)}")
    print_values(f"It shows {shown}{f' ({left_out})' if left_out else ''}.")


def _with_kind(name: str, path: str | None, features: str | None) -> str:
    """Return the name of a data set, also for the path of a file or folder."""
    from ..data.catalogue import Options, set_name
    from ..files import expand_home

    return set_name(name, Options(path=path, features=features)) if expand_home(name).exists() else name


def _options(name: str, shift: str | None, biases: str | None, **given: Any) -> Options:
    """The options of a data set; values of its shift that are not given are the set's own."""
    from ..data import Options, Shift
    from ..data.catalogue import find_set
    from ..data.shifts import Kind
    from ..settings import convert

    if shift is not None or biases is not None:
        own = find_set(name)[0].shift or Shift()
        kind = own.kind if shift is None else convert("--shift", shift, Kind)
        given["shift"] = replace(own, kind=kind, biases=own.biases if biases is None else parse_biases(biases))
    return Options(**given)


def _described(listing: Listing) -> dict[str, Any]:
    states = [{"path": str(file.path), "state": file.state} for file in listing.files]
    facts = asdict(listing.facts) | {"needs": listing.built_from}
    return {"usage": listing.usage, **facts, "there": listing.there, "present": states}


def _sets_table(title: str, listings: Sequence[Listing], wide: bool) -> Table:
    """One row for each set, without the columns that would be empty.

    A narrow table has the licence and what a set is built from below its name.
    """
    from ..reports import Cell, Table

    columns: dict[str, list[Cell | str]] = {
        "Envs": [_count(len(one.facts.environments)) for one in listings],
        "Classes": [_count(len(one.facts.classes)) for one in listings],
        "Samples": [_count(one.facts.samples) for one in listings],
        "Shape": ["x".join(map(str, one.facts.shape)) for one in listings],
        "Download": [_size(one) for one in listings],
        "On disk": [one.there for one in listings],
    }
    names: list[Cell | str] = [one.usage for one in listings]
    if wide:
        columns |= {"Built from": [", ".join(one.built_from) for one in listings]}
        columns |= {"Licence": [one.facts.licence for one in listings]}
    else:
        for place, one in enumerate(listings):
            sources = f"; built from {', '.join(one.built_from)}" if one.built_from else ""
            names[place] = Cell(one.usage, below={"": f"{one.facts.licence}{sources}"})
    filled = {heading: cells for heading, cells in columns.items() if any(getattr(c, "text", c) for c in cells)}
    return Table(title, ["Name", *filled], list(zip(names, *filled.values(), strict=True)))


def _count(number: int | None) -> Cell | str:
    from ..reports import Cell

    return Cell(str(number), float(number)) if number else ""


def _size(listing: Listing) -> str:
    from rich.filesize import decimal

    if listing.to_fetch is None:
        return "by hand" if listing.there else ""
    return decimal(listing.to_fetch) if listing.to_fetch else "nothing"


def _counts_table(name: str, sets: dict[str, EnvironmentSet], width: int) -> Table:
    """Samples of each environment, and of each class where there is room for that."""
    from ..data.summary import count_by_class
    from ..files import readable
    from ..reports import Table

    classes = next(iter(sets.values())).class_names
    named = max(len(where) for members in sets.values() for where in members.environment_names)
    needed = max(map(len, sets)) + named + 14 + sum(max(len(label), 5) + 1 for label in classes)
    headings = classes if needed <= width else ()
    several = len(sets) > 1
    rows = []
    for part, members in sets.items():
        for place, (where, counts) in enumerate(count_by_class(members).items()):
            first = [part if place == 0 else ""] if several else []
            rows.append([*first, where, sum(counts.values()), *(counts.values() if headings else ())])
    return Table(readable(name), [*(["Part"] if several else []), "Environment", "Samples", *headings], rows)


def _file_name(name: str) -> str:
    base, _, argument = name.partition(":")
    return f"{base}-{Path(argument).stem}"[:100] if argument else base
