"""`trm data check` and `trm data show`: is it all there, and what does it look like?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..data import EnvironmentSet, Options, Splits
from .asking import AsJson, Name, reads_data

if TYPE_CHECKING:
    from rich.table import Table


@reads_data
def check(name: Name, options: Options, as_json: AsJson = False) -> None:
    """Read all of a data set, compare it with what was published, and count its samples.

    Example: trm data check pacs
    """
    from ..data import load
    from ..data.catalogue import sources
    from ..data.fetch import verify
    from ..errors import InputError
    from .show import console, task_progress

    with task_progress() as advance:
        states = verify(name, options.root, advance)
        is_source = name in sources()
        faults = [s for s in states if s.state == "wrong" or (is_source and s.state == "missing")]
        if faults:
            raise InputError(f"{faults[0]}: get it again with trm data fetch {name}")
        if is_source:
            print(json.dumps([str(state.path) for state in states]) if as_json else "\n".join(map(str, states)))
            return
        data = load(name, replace(options, verify=True, progress=advance))
    parts = parts_of(data)
    if as_json:
        print(json.dumps({"name": name, "parts": {part: _described(members) for part, members in parts.items()}}))
        return
    console.print(counts_table(name, parts, console.width))
    shape = " x ".join(map(str, next(iter(parts.values())).inputs[:1].shape[1:]))
    console.print(f"{distinct(data)} samples of shape {shape}: all there, and all can be read", highlight=False)


@reads_data
def show(
    name: Name,
    options: Options,
    output: Annotated[Path | None, typer.Option(help="The picture to write, .png; NAME.png when not given.")] = None,
    per_class: Annotated[int, typer.Option(min=1, max=50, help="Samples of each class.")] = 3,
) -> None:
    """Write a picture of samples from each environment: images by class, or vectors by principal components.

    Example: trm data show 10c-digits --shift combined --output digits.png
    """
    from ..data import Splits, load
    from ..data.gallery import environments_of, pictures_by_class, principal_components
    from ..data.root import expanded
    from ..errors import InputError
    from ..files import check_target, readable, write_atomically
    from ..reports.gallery import MOST_ENVIRONMENTS, picture_grid, scatter_grid
    from .show import task_progress

    target = expanded(output) if output else Path(f"{_file_name(name)}.png")
    if target.suffix.lower() != ".png":
        raise InputError(f"{target} does not end in .png, which is the one kind of picture written: name it so")
    check_target(target)
    with task_progress() as advance:
        data = load(name, replace(options, progress=advance))
    some = data.train if isinstance(data, Splits) else data
    every = dict(environments_of(data))
    shown = dict(list(every.items())[:MOST_ENVIRONMENTS])
    if some.inputs[:1].dim() == 4:
        pictures = {where: pictures_by_class(members, per_class, options.seed) for where, members in shown.items()}
        content = picture_grid(pictures, some.class_names, len(every))
    else:
        content = scatter_grid(principal_components(shown, seed=options.seed), some.class_names, len(every))
    try:
        write_atomically(target, content)
    except OSError as error:
        raise InputError(f"{target} cannot be written ({error.strerror}): choose another with --output") from None
    print(readable(target))


def parts_of(data: EnvironmentSet | Splits) -> dict[str, EnvironmentSet]:
    from ..data import SPLITS, EnvironmentSet

    if isinstance(data, EnvironmentSet):
        return {"": data}
    return {title: getattr(data, name) for name, title in SPLITS.items()}


def distinct(data: EnvironmentSet | Splits) -> int:
    """Samples; those that validate both ways, such as digits painted twice, count once."""
    import torch

    from ..data import EnvironmentSet

    if isinstance(data, EnvironmentSet):
        return len(data)
    total = sum(map(len, parts_of(data).values()))
    one, other = data.training_domain, data.test_domain
    if one.inputs is other.inputs:
        return total - len(other)
    if one.sources is None or other.sources is None:
        return total
    return total - int(torch.isin(other.sources, one.sources).sum())


def counts_table(name: str, parts: dict[str, EnvironmentSet], width: int) -> Table:
    """Samples of each environment, and of each class where there is room for that."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ..files import readable

    classes = next(iter(parts.values())).class_names
    named = max(len(where) for members in parts.values() for where in members.environment_names)
    needed = max(map(len, parts)) + named + 14 + sum(max(len(label), 5) + 1 for label in classes)
    shown = classes if needed <= width else ()
    table = Table(title=Text(readable(name), "bold"), box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0))
    if len(parts) > 1:
        table.add_column("Part")
    table.add_column("Environment")
    for heading in ("Samples", *shown):
        table.add_column(Text(heading), justify="right")
    for part, members in parts.items():
        for place, (where, counts) in enumerate(
            zip(members.environment_names, members.group_counts().tolist(), strict=True)
        ):
            first = [part if place == 0 else ""] if len(parts) > 1 else []
            table.add_row(*first, Text(where), str(sum(counts)), *(map(str, counts) if shown else ()))
    return table


def _described(data: EnvironmentSet) -> dict[str, Any]:
    counts = data.group_counts().tolist()
    return {
        where: dict(zip(data.class_names, row, strict=True))
        for where, row in zip(data.environment_names, counts, strict=True)
    }


def _file_name(name: str) -> str:
    base, _, argument = name.partition(":")
    return f"{base}-{Path(argument).stem}"[:100] if argument else base
