"""Options that several commands share, each declared once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from ..errors import InputError
from ..settings import Seed as SeedKind
from ..settings import whole, within

COLUMNS, IMAGES, SYNTHETIC = "Columns of tables and embeddings", "Images", "Synthetic sets"
MODEL, TRAINING, MACHINE = "Model and algorithm", "Training", "Machine"
"""Panels of the help; options that everybody needs have none and come first."""
column_option = partial(typer.Option, rich_help_panel=COLUMNS)
image_option = partial(typer.Option, rich_help_panel=IMAGES)
synthetic_option = partial(typer.Option, rich_help_panel=SYNTHETIC)
model_option = partial(typer.Option, rich_help_panel=MODEL)
training_option = partial(typer.Option, rich_help_panel=TRAINING)
machine_option = partial(typer.Option, rich_help_panel=MACHINE)


class _PlainFlags:
    """Mixin of a command whose help has no type beside its flags, since they take no value."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for param in self.get_params(ctx):  # type: ignore[attr-defined]  # the command's
            if getattr(param, "is_flag", False):
                param.metavar = ""
        super().format_help(ctx, formatter)  # type: ignore[misc]


class Command(_PlainFlags, TyperCommand):
    """A command of trm."""


class Group(_PlainFlags, TyperGroup):
    """Commands under one name."""


@dataclass(frozen=True)
class JsonTarget:
    """Target of --json: a file, or standard output (None)."""

    path: Path | None

    def write(self, value: Any) -> bool:
        """Write the value; return True if it went to standard output, where nothing else may then be printed."""
        from ..files import standard_output, write_atomically
        from ..settings import dumps

        text = dumps(value, indent=2)
        if self.path is None:
            print(text, file=standard_output())
        else:
            if self.path.is_file() and self.path.read_bytes()[:1] not in (b"", b"{", b"["):
                raise InputError(f"--json {self.path} exists and is not JSON, and is not replaced: choose another file")
            write_atomically(self.path, text + "\n")
        return self.path is None


def _json_target(text: str) -> JsonTarget:
    from ..files import check_target, standard_output

    if text == "-":
        standard_output()  # before hours of work
        return JsonTarget(None)
    check_target(Path(text))
    return JsonTarget(Path(text))


Json = Annotated[
    JsonTarget | None,
    typer.Option(
        "--json",
        parser=_json_target,
        metavar="[FILE]",
        help="Print JSON, for a program to read, or write it to FILE, such as out.json.",
    ),
]
"""`cli.main` writes --json without a FILE as --json=-."""

DataName = Annotated[
    str, typer.Argument(metavar="NAME", help="A data set, as in trm data list, such as pacs or folder:PATH.")
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        metavar="FOLDER",
        help="Folder of the data sets. Default: $TRANSFERRISK_DATA, else a cache folder.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", metavar="SEED", callback=within(SeedKind), help="Random seed, a whole number >= 0.")
]
Device = Annotated[str, machine_option("--device", metavar="DEVICE", help="Device: auto, cpu, cuda or cuda:1.")]
Precision = Annotated[
    str | None,
    machine_option(
        "--precision", metavar="PRECISION", help="Precision: fp32, tf32 or bf16. Default: bf16 on a GPU, else fp32."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print no progress.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
Label = Annotated[str | None, column_option(metavar="COLUMN", help="Column or array with the labels.")]
Environment = Annotated[str | None, column_option(metavar="COLUMN", help="Column or array with the environments.")]
Features = Annotated[
    str | None, column_option(metavar="COLUMNS", help="Array, or columns separated by commas, with the features.")
]
Categorical = Annotated[
    str | None, column_option(metavar="COLUMNS", help="Columns of a table to take as categories, separated by commas.")
]
Numeric = Annotated[
    str | None, column_option(metavar="COLUMNS", help="Columns of a table to take as numbers, separated by commas.")
]
Drop = Annotated[
    str | None, column_option(metavar="COLUMNS", help="Columns of a table to leave out, separated by commas.")
]
Missing = Annotated[
    str | None,
    column_option(
        "--missing",
        metavar="VALUES",
        help="Values of a table's features that mean missing, besides empty cells, separated by commas, such as "
        "unknown,-999; age=-999 is for the column age alone.",
    ),
]
Dates = Annotated[
    str | None,
    column_option(
        "--dates",
        metavar="ORDER",
        help="Order of day and month in a table's dates such as 05/06/2024: day-first or month-first. Default: by a "
        "day after the twelfth in the column.",
    ),
]
Schema = Annotated[
    Path | None,
    column_option(
        metavar="FILE", help="JSON file that declares a table's columns, such as the schema.json of a model."
    ),
]
MissingIndicators = Annotated[
    str,
    column_option(
        metavar="WHEN",
        help="Add features that tell where a table's values are missing: always, never, or auto (if they help in "
        "held-out environments).",
    ),
]
PathColumn = Annotated[
    str | None, image_option("--path", metavar="COLUMN", help="Column of a manifest with the paths of images.")
]
Size = Annotated[
    int | None,
    image_option(metavar="PIXELS", callback=whole(1, 4096), help="Height and width of images, at most 4096."),
]
Lazy = Annotated[bool, image_option("--lazy", help="Decode images when they are needed; keep no cache.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out rows and images that cannot be used, and list them.")
]
DropSmall = Annotated[bool, typer.Option("--drop-small", help="Leave out environments with fewer than 10 rows.")]
ShiftKind = Annotated[
    str | None,
    synthetic_option(
        "--shift", metavar="SHIFT", help="Shift between environments: label-correlated, label-uncorrelated or combined."
    ),
]
Biases = Annotated[
    str | None, synthetic_option(metavar="SHARES", help="Bias degree of each training environment, such as 1.0,0.9.")
]
Oracle = Annotated[bool, synthetic_option("--oracle", help="Train on data like the test environment's.")]


def parse_biases(text: str) -> tuple[float, ...]:
    """Return the bias degrees in a text such as 1.0,0.9."""
    try:
        return tuple(map(float, text.split(",")))
    except ValueError:
        raise InputError(f"--biases must be shares such as 1.0,0.9, got {text!r}") from None
