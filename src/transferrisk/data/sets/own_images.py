"""folder:PATH and manifest:FILE, the user's own images.

folder     images as <environment>/<class>/*, in a folder or in a tar or zip archive. A folder that wraps all of them is
           looked through. Images elsewhere, and files that seem to be images of a kind that is not decoded, are left
           out with a warning; other files do not count.
manifest   images listed in a table: CSV, Parquet or JSON lines with the columns path, label and environment, or those
           that the options name. Paths are relative to the folder the table lies in, or absolute.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from ...errors import SKIP_BAD, DataWarning, InputError, cause_of, listed, refuse_or_skip, require_name, warn
from ...files import existing_file, expand_home, readable
from ..catalogue import Options, register_own_files
from ..containers import Entry, entries, folders, is_archive
from ..environments import EnvironmentSet
from ..image_set import SIZE, LabelledFile, image_set
from ..images import RELATIVES, is_image
from ..table_files import read_frame, read_header
from ..values import as_name

JSON_LINES = (".jsonl", ".ndjson")
COLUMNS = ("path", "label", "environment")
Row = tuple[str, str, str]


def _set_of(samples: Sequence[LabelledFile], options: Options, where: Path) -> EnvironmentSet:
    environments = sorted({sample.environment for sample in samples})
    classes = sorted({sample.label for sample in samples})
    return image_set(samples, environments, classes, SIZE, options, where)


# ---- folder


def load_folder(name: str, options: Options) -> EnvironmentSet:
    path = expand_home(name)
    files = entries(path)
    images = [entry for entry in files if is_image(entry.name)]
    if not images:
        raise InputError(f"{path} holds no images{_instead(files)}: expected <environment>/<class>/<image>")
    depth = 1 if _wrapped(images) else 0
    placed = [entry for entry in images if len(entry.folders) >= depth + 2]
    if not placed:
        raise InputError(
            f"{path} holds images, but none as <environment>/<class>/<image>: the first is {images[0].name!r}; "
            "move them into such folders"
        )
    if len(placed) < len(images):
        stray = next(entry for entry in images if len(entry.folders) < depth + 2)
        warn(
            f"{path}: {len(images) - len(placed)} images lie outside <environment>/<class>/ and are left out, such as "
            f"{stray.name!r}",
            DataWarning,
        )
    others = _like_images([entry for entry in files if len(entry.folders) >= depth + 2])
    if others:
        warn(f"{path}: files of a kind that is not decoded are left out: {others}", DataWarning)
    samples = [
        LabelledFile(entry, readable(entry.folders[depth + 1]), readable(entry.folders[depth])) for entry in placed
    ]
    if path.is_dir():
        _refuse_empty_classes(path, depth, {sample.label for sample in samples}, options.skip_bad)
    return _set_of(samples, options, path)


def _wrapped(images: Sequence[Entry]) -> bool:
    """Return whether all lie in one folder that is not an environment, because environments are below it."""
    first = {entry.folders[:1] for entry in images}
    return len(first) == 1 and () not in first and all(len(entry.folders) >= 3 for entry in images)


def _like_images(files: Sequence[Entry]) -> str:
    """Return the number of files with each suffix that is not an image but close to one, or with none."""
    suffixes = (PurePosixPath(entry.name).suffix.lower() for entry in files)
    counts = Counter(suffix for suffix in suffixes if suffix in RELATIVES or not suffix)
    return listed(f"{count} {suffix or 'without a suffix'}" for suffix, count in counts.most_common())


def _instead(files: Sequence[Entry]) -> str:
    archive = next((entry.name for entry in files if is_archive(Path(entry.name))), None)
    if archive is not None:
        return f", but archives such as {archive!r}, which have to be unpacked first"
    others = _like_images(files)
    return f" of a kind that is decoded, but {others}" if others else ""


def _refuse_empty_classes(path: Path, depth: int, classes: set[str], skip_bad: bool) -> None:
    below = (parent.relative_to(path).parts for parent, _ in folders(path))
    empty = sorted({readable(names[depth + 1]) for names in below if len(names) == depth + 2} - classes)
    if not empty:
        return
    line = f"{path}: class {', '.join(map(repr, empty))} has a folder and no image in any environment"
    if not skip_bad:
        raise InputError(f"{line}: add images, remove the folder, or go on without it with {SKIP_BAD}")
    warn(f"{line}; it is left out", DataWarning)


register_own_files(
    "folder",
    "your images, as <environment>/<class>/* in a folder or archive",
    load_folder,
    takes="size lazy",
    argument="PATH",
    shape=(3, SIZE, SIZE),
)


# ---- manifest


def load_manifest(file: str, options: Options) -> EnvironmentSet:
    path = existing_file(file)
    columns = (options.path or "path", options.label or "label", options.environment or "environment")
    samples: list[LabelledFile] = []
    bad: list[str] = []
    for number, row in enumerate(_rows(path, columns), start=1):
        try:
            samples.append(LabelledFile(_image(path.parent, row, columns), row[1], row[2]))
        except InputError as error:
            bad.append(f"row {number} ({error})")
    if not samples and not bad:
        raise InputError(f"{path} has no rows: check how it was written")
    refuse_or_skip(bad, len(samples) + len(bad), "row", path, options.skip_bad)
    return _set_of(samples, options, path)


def _image(folder: Path, row: Row, columns: Row) -> Entry:
    """Return the file of a row, if it has one."""
    if not all(row):
        raise InputError(f"it has no {columns[row.index('')]}")
    name = row[0]
    try:
        if not (folder / name).is_file():
            raise InputError(f"{name} does not exist, or is not a file")
        status = (folder / name).stat()
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{name[:100]} cannot be read: {cause_of(error)}") from None
    return Entry(folder, name, status.st_size, status.st_mtime_ns)


def _rows(path: Path, columns: Row) -> Iterator[Row]:
    """Return path, label and environment of each row, "" where one is missing."""
    if path.name.lower().endswith(JSON_LINES):
        yield from _json_rows(path, columns)
        return
    header = read_header(path)
    for option, column in zip(COLUMNS, columns, strict=True):
        require_name(column, header, path, "column", option)
    frame = read_frame(path, columns, texts=columns)
    for values in zip(*(frame[column].astype(object).tolist() for column in columns), strict=True):
        yield _row(path, values)


def _json_rows(path: Path, columns: Row) -> Iterator[Row]:
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({cause_of(error)}): save it as UTF-8") from None
    first = True
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            cause = error.msg if isinstance(error, json.JSONDecodeError) else cause_of(error)
            raise InputError(f"{path}, line {number}, is not JSON ({cause}): write one object a line") from None
        if not isinstance(record, dict):
            raise InputError(f"{path}, line {number}, is not an object: write one object a line")
        if first:
            for option, column in zip(COLUMNS, columns, strict=True):
                require_name(column, tuple(record), path, "key", option)
        first = False
        yield _row(path, [record.get(name) for name in columns])


def _row(manifest: Path, values: Any) -> Row:
    """Return a path as it is written; a label or an environment as its name."""
    path, label, environment = ("" if _missing(value) else value for value in values)
    try:
        return str(path).strip(), as_name(label), as_name(environment)
    except InputError as error:
        raise InputError(f"{manifest}: {error}") from None


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or str(value) in ("<NA>", "NaT")


register_own_files(
    "manifest",
    "your images, listed with path, label and environment in CSV, Parquet or JSON lines",
    load_manifest,
    takes="size lazy label environment path",
    shape=(3, SIZE, SIZE),
)
