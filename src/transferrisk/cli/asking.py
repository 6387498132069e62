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
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of everything drawn at random.")] = 0,
    size: Annotated[int | None, typer.Option(min=1, max=4096, help="Height and width of images, pixels.")] = None,
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

    The command's own parameters come first; among them is `name`, the data set. typer learns which options there are
    from the function's signature and annotations, so these are put together from both.
    """
    own, shared = _parameters(command), _parameters(_shared)
    del own["options"]

    @wraps(command)
    def with_options(**given: Any) -> None:
        asked = {key: given.pop(key) for key in shared}
        command(options=_options(given["name"], **asked), **given)

    parameters = list((own | shared).values())
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options


def _parameters(function: Callable[..., None]) -> dict[str, inspect.Parameter]:
    """By name, with annotations that are types and not texts, and to be given by name, so that any order will do."""
    types = get_type_hints(function, include_extras=True)
    return {
        name: parameter.replace(annotation=types[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(function).parameters.items()
    }


def _options(
    name: str, *, data_root: Path | None, lazy: bool, shift: str | None, biases: str | None, **rest: Any
) -> Options:
    from ..data import Options

    return Options(root=data_root, lazy=lazy or None, shift=_shift(name, shift, biases), **rest)


def _shift(name: str, kind: str | None, biases: str | None) -> Shift | None:
    """What is not stated of a shift is the set's own."""
    from ..data import Shift
    from ..data.catalogue import find_set
    from ..errors import InputError

    if kind is None and biases is None:
        return None
    shift = find_set(name)[0].shift or Shift()
    if kind is not None:
        shift = replace(shift, kind=kind)  # type: ignore[arg-type]  # Shift checks it
    if biases is None:
        return shift
    try:
        shares = tuple(float(bias) for bias in biases.split(","))
    except ValueError:
        raise InputError(f"--biases {biases!r} are not numbers: write shares such as 1.0,0.9") from None
    return replace(shift, biases=shares)
