"""The options by which a user says which data is meant, the same in every command that reads data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from ..data import Options, Shift

Name = Annotated[str, typer.Argument(help="A data set, as in trm data list, such as pacs or folder:PATH.")]
Root = Annotated[
    Path | None, typer.Option("--data-root", help="Where data is kept; else $TRANSFERRISK_DATA, else a cache folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for a program to read.")]


def _shared(
    data_root: Root = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything drawn at random.")] = 0,
    size: Annotated[int | None, typer.Option(min=1, help="Height and width of images, pixels.")] = None,
    lazy: Annotated[bool, typer.Option("--lazy", help="Decode images when needed; keep no cache of them.")] = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out what cannot be read, and list it.")] = False,
    shift: Annotated[
        str | None, typer.Option(help="Of synthetic sets: label-correlated, label-uncorrelated or combined.")
    ] = None,
    biases: Annotated[
        str | None, typer.Option(help="Bias degree of each training environment, such as 1.0,0.9.")
    ] = None,
    oracle: Annotated[bool, typer.Option("--oracle", help="Train on data like the test environment's.")] = False,
    label: Annotated[str | None, typer.Option(help="Column or array with the labels.")] = None,
    environment: Annotated[str | None, typer.Option(help="Column or array with the environments.")] = None,
    features: Annotated[str | None, typer.Option(help="Array or columns with the features.")] = None,
    path: Annotated[str | None, typer.Option(help="Column of a manifest with the images' paths.")] = None,
) -> None:
    """The options themselves; `reads_data` gives them to a command."""


def reads_data(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all the options above, and hand them to it as one `Options` under the name `options`.

    The command's own parameters come first; among them is `name`, the data set.
    """
    own, shared = (
        {
            parameter.name: parameter.replace(annotation=get_type_hints(function, include_extras=True)[parameter.name])
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name != "options"
        }
        for function in (command, _shared)
    )

    @wraps(command)
    def with_options(**given: Any) -> None:
        command(options=_options(given["name"], **{key: given.pop(key) for key in shared}), **given)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (own | shared).values()]
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_options


def _options(
    name: str, *, data_root: Path | None, lazy: bool, shift: str | None, biases: str | None, **rest: Any
) -> Options:
    from ..data import Options

    return Options(root=data_root, lazy=lazy or None, shift=_shift(name, shift, biases), **rest)


def _shift(name: str, kind: str | None, biases: str | None) -> Shift | None:
    """What is not stated of a shift is the set's own."""
    from ..data import Shift
    from ..data.catalogue import find
    from ..errors import InputError

    if kind is None and biases is None:
        return None
    shift = find(name)[0].shift or Shift()
    if kind is not None:
        shift = replace(shift, kind=kind)  # type: ignore[arg-type]  # Shift checks it
    if biases is None:
        return shift
    try:
        shares = tuple(float(bias) for bias in biases.split(","))
    except ValueError:
        raise InputError(f"--biases {biases!r} are not numbers: write shares such as 1.0,0.9") from None
    return replace(shift, biases=shares)
