"""table:FILE, the user's own table in CSV, TSV or Parquet: a row for each sample, columns for label and environment.

All other columns become features as `infer` and `schema` say, unless the option `features` names some of them. Missing
values of features are filled in; rows without a label or an environment, or with an infinite number, are errors, or are
left out with `skip_bad`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...errors import DataWarning, InputError, listed, require_name, warn
from ...files import expand_home
from ..catalogue import Options, register_own_files
from ..environments import EnvironmentSet, review_vectors
from ..infer import Declared, Kind, infer_schema, read_declared
from ..schema import Numeric, Schema
from ..table_files import read_frame, read_header
from ..values import (
    DAY_MONTH_YEAR,
    Codes,
    Floats,
    Order,
    as_codes,
    as_days,
    as_iso_dates,
    as_numbers,
    classes_of,
    is_blank,
    kind_of,
    orders_of_dates,
    usable_rows,
)

if TYPE_CHECKING:
    import pandas as pd

FEW_CODES, ROWS_PER_CODE = range(3, 11), 10  # whole numbers that may be codes: so many different ones, in so many rows
MISSING_CODES = (-1, -9, -99, -999, -9999, 9, 99, 999, 9999)  # numbers that mean missing where they lie far from others
OFTEN, RARELY = 0.1, 0.01  # shares of rows with a code of missing values: in some environments, and in the others
SURE = 99  # from this size on, a code that is far from all other numbers is worth a question wherever it is
FEWEST_ROWS = 5  # of an environment, with such a code
MOST_LINES = 3  # warnings about such codes; for more columns they share one

TAKES = "label environment features categorical numeric drop missing dates schema missing_indicators"


@dataclass(frozen=True)
class Table:
    """The usable rows of a table, read once. Schema and features are those of these rows, computed once when needed.

    frame      the columns of features, label and environment
    positions  positions of the rows in the file; None: all are used
    declared   declarations about the columns
    """

    file: Path | str
    frame: pd.DataFrame
    label: str
    environment: str
    labels: Codes  # (n,) index into class_names
    environments: Codes  # (n,) index into environment_names
    class_names: tuple[str, ...]
    environment_names: tuple[str, ...]
    positions: Codes | None
    declared: Declared

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def schema(self) -> Schema:
        """The encoding that is inferred from these rows and no others."""
        try:
            return infer_schema(self.frame, self.label, self.environment, self.declared)
        except InputError as error:
            raise InputError(f"{self.file}: {error}") from None

    @cached_property
    def data(self) -> EnvironmentSet:
        """The rows, encoded by their own schema."""
        return self.encode(self.schema)

    def encode(self, schema: Schema) -> EnvironmentSet:
        """Return the rows, encoded by a schema."""
        features = schema.encode(self.frame).features
        labels, environments = torch.from_numpy(self.labels), torch.from_numpy(self.environments)
        return EnvironmentSet(features, labels, environments, self.environment_names, self.class_names)

    @cached_property
    def suspects(self) -> dict[str, dict[float, str]]:
        """Numeric column -> values that may mean missing -> where they are."""
        found: dict[str, dict[float, str]] = {}
        for column in self.schema.columns:
            if isinstance(column, Numeric):
                codes = _suspects(self, as_numbers(self.frame[column.name], column.name))
                found |= {column.name: codes} if codes else {}
        return found

    def without_suspects(self) -> Table:
        """Return the table with `suspects` missing."""
        columns = {}
        for name, codes in self.suspects.items():
            series = self.frame[name]
            columns[name] = series.mask(np.isin(as_numbers(series, name), list(codes)))
        return replace(self, frame=self.frame.assign(**columns))

    @property
    def sizes(self) -> dict[str, int]:
        """Number of rows of each environment."""
        counts = np.bincount(self.environments, minlength=len(self.environment_names))
        return dict(zip(self.environment_names, counts.tolist(), strict=True))

    def only(self, names: Sequence[str]) -> Table:
        """Return the rows of some environments, numbered anew in the order given."""
        number = np.full(len(self.environment_names), -1)
        number[list(map(self.environment_names.index, names))] = np.arange(len(names))
        environments = number[self.environments]
        chosen = self.select(torch.from_numpy(np.flatnonzero(environments >= 0)))
        return replace(chosen, environments=environments[environments >= 0], environment_names=tuple(names))

    def select(self, rows: Tensor) -> Table:
        """Return the table of these rows, by position; the same table if these are all of them, in their order."""
        if torch.equal(rows, torch.arange(len(self))):
            return self
        chosen = rows.numpy()
        return replace(
            self,
            frame=self.frame.iloc[chosen],
            labels=self.labels[chosen],
            environments=self.environments[chosen],
            positions=chosen if self.positions is None else self.positions[chosen],
        )


def read_table(file: Path | str, options: Options) -> Table:
    """Read the table in a file, without encoding it; options that tables do not take are refused."""
    options.refuse_all_but(frozenset(TAKES.split()), f"table:{file}")
    file = expand_home(file)
    header = read_header(file)
    label, environment, features = _columns(file, header, options)
    declared = _declared(file, header, features, label, options)
    texts, asked = [label, environment], set[str]()
    if options.missing is not None:
        asked = asked.union(*_missing_codes(features, options).values())
    for name, kind in declared.kinds.items():
        if kind in ("categorical", "date"):
            texts.append(name)
    frame = read_frame(file, [*features, label, environment], texts, declared.missing, asked)
    problems = {}
    for name in (label, environment):
        problems[f"column {name!r} is empty; NA, NaN, null and None count as empty too"] = is_blank(frame[name])
    for name in features:
        if declared.kinds.get(name, kind_of(frame[name])) == "numeric":
            try:
                problems[f"column {name!r} is infinite"] = np.isinf(as_numbers(frame[name], name))
            except InputError as error:  # of a column that is declared to hold numbers
                raise InputError(f"{file}: {error}") from None
        elif declared.kinds.get(name, "date") == "date" and kind_of(frame[name]) == "text":
            written = as_codes(frame[name])[1]
            if written and all(map(DAY_MONTH_YEAR.fullmatch, written)):
                order = _order_of(file, frame[name], written, declared, options)
                if order:
                    frame = frame.assign(**{name: as_iso_dates(frame[name], order)})
                    declared = replace(declared, orders={**declared.orders, name: order})
    rows = usable_rows(problems, file, options.skip_bad)
    if rows is not None:
        frame = frame.iloc[rows]
    labels, class_names = classes_of(
        frame[label], label, file, "label", label in declared.kinds, f"--categorical {label}"
    )
    environments, environment_names = classes_of(frame[environment], environment, file, "environment")
    names = class_names, environment_names
    return Table(file, frame, label, environment, labels, environments, *names, rows, declared)


def _order_of(file: Path | str, series: pd.Series, texts: Sequence[str], declared: Declared, options: Options) -> Order:
    """Return the order of day and month in a column of dates; "" if it is not known, or they cannot be read."""
    name, allowed = str(series.name), orders_of_dates(texts)
    order: Order = declared.orders.get(name) or (allowed[0] if len(allowed) == 1 else "")
    if len(allowed) == 2:
        order = order or options.dates or ""
    try:
        if order:
            as_days(series, name, order)
        elif name in declared.kinds:
            got = f"{texts[0]!r} and none that tells day from month" if allowed else "both"
            way_out = "add --dates day-first or --dates month-first" if allowed else "write 2024-05-31"
            raise InputError(f"column {name!r} must have dates in one order of day and month, got {got}: {way_out}")
    except InputError as error:
        if name in declared.kinds or name in declared.orders:
            raise InputError(f"{file}: {error}") from None
        return ""
    return order


def load_table(file: str, options: Options) -> EnvironmentSet:
    """Read and encode the table in a file."""
    return review_table(read_table(file, options))


def review_table(table: Table, schema: Schema | None = None) -> EnvironmentSet:
    """Return the rows, encoded by a schema, after warnings about columns that are not used or are worth a look.

    The table's own schema is taken where none is given.
    """
    schema = schema or table.schema
    unused = dict(schema.dropped)
    for name, kind in table.declared.kinds.items():
        if kind == "drop":
            unused.pop(name, None)
    for what, found in (("columns not used", unused), ("columns to look at", schema.remarks)):
        if found:
            names = listed(f"{name!r} ({why})" for name, why in found.items())
            warn(f"{table.file}: {what}: {names}", DataWarning)
    ask_about_columns(table)
    data = table.data if schema == table.schema else table.encode(schema)
    return review_vectors(data, table.file, table.positions)


def _columns(file: Path | str, header: Sequence[str], options: Options) -> tuple[str, str, list[str]]:
    """Return the names of label, environment and features, all of which the file has."""
    there = f"{file} has the columns {listed(map(repr, header), 30)}"
    if len(header) < 3:
        raise InputError(
            f"{there}: a label, an environment and a feature are needed, separated by commas in .csv files"
        )
    if options.label is None or options.environment is None:
        option = "label" if options.label is None else "environment"
        raise InputError(f"{there}: say which holds the {option}, with --{option}")
    label = require_name(options.label, header, file, "column", "label")
    environment = require_name(options.environment, header, file, "column", "environment")
    if label == environment:
        raise InputError(f"{file}: column {label!r} cannot be both label and environment: name two columns")
    features = list(header)
    if options.features is None:
        features.remove(label)
        features.remove(environment)
        return label, environment, features
    features = _names_in(options.features, header)
    for name in features:
        require_name(name, header, file, "column", "features")
        if name in (label, environment) or features.count(name) > 1:
            raise InputError(
                f"{file}: column {name!r} is named twice: a column is a feature, the label or the environment"
            )
    return label, environment, features


def _names_in(given: str | Sequence[str] | None, header: Sequence[str]) -> list[str]:
    """Return the columns that an option names: commas separate them, unless the whole text is the name of a column."""
    if not isinstance(given, str):
        return list(given or ())
    return [given] if given in header else list(map(str.strip, given.split(",")))


def _declared(
    file: Path | str, header: Sequence[str], features: Sequence[str], label: str, options: Options
) -> Declared:
    """Return the declarations about the features, in the options and in a file; options win."""
    in_file = Declared() if options.schema is None else read_declared(options.schema)
    for name in (*in_file.kinds, *in_file.indicators, *in_file.missing, *in_file.orders):
        require_name(name, header, file, "column", "schema")
    kinds: dict[str, Kind] = {}
    asked: Mapping[Kind, Any] = {
        "categorical": options.categorical, "numeric": options.numeric, "drop": options.drop
    }  # fmt: skip
    for kind, given in asked.items():
        for name in _names_in(given, header):
            require_name(name, header, file, "column", kind)
            if name in kinds:
                raise InputError(
                    f"{file}: column {name!r} is named twice, with --{kinds[name]} and --{kind}: name it once"
                )
            if name not in features and not (name == label and kind == "categorical"):
                raise InputError(f"{file}: column {name!r} must be a feature for --{kind}, got one that is not used")
            kinds[name] = kind
    for name, kind in in_file.kinds.items():
        if name in features or (name == label and kind == "categorical"):
            kinds.setdefault(name, kind)
    missing = dict(in_file.missing)
    missing |= _missing_codes(features, options) if options.missing is not None else {}
    return Declared(kinds, in_file.indicators, options.missing_indicators, missing, in_file.orders)


def _missing_codes(features: Sequence[str], options: Options) -> dict[str, tuple[str, ...]]:
    """Return column -> texts that mean missing in it, as the option says: VALUE for all features, or COLUMN=VALUE."""
    given = options.missing.split(",") if isinstance(options.missing, str) else options.missing or ()
    found: dict[str, tuple[str, ...]] = {}
    for text in map(str.strip, given):
        named = [name for name in features if text.startswith(f"{name}=")]
        columns = [max(named, key=len)] if named else features
        code = text.removeprefix(f"{columns[0]}=") if named else text
        if not code:
            raise InputError(f"--missing must be values such as unknown,-999 or age=-999, got {options.missing!r}")
        for name in columns:
            found[name] = (*found.get(name, ()), code)
    return found


# ---- columns that may not be what they seem


def ask_about_columns(table: Table) -> None:
    """Warn about columns to look at: the label under another name, codes of categories, and codes of missing values."""
    copies = list(filter(partial(_is_label, table), map(attrgetter("name"), table.schema.columns)))
    if copies:
        warn(
            f"{table.file}: each value of {listed(map(repr, copies))} stands for one value of the label "
            f"{table.label!r}: where it is not known before the label is, leave it out with --drop {','.join(copies)}",
            DataWarning,
        )
    codes: dict[str, str] = {}
    missing: list[str] = []
    lines: list[str] = []
    for column in table.schema.columns:
        if not isinstance(column, Numeric):
            continue
        values = as_numbers(table.frame[column.name], column.name)
        given = ~np.isnan(values)
        different = np.unique(values[given])
        whole = len(different) in FEW_CODES and bool((different % 1 == 0).all())
        if whole and given.sum() >= ROWS_PER_CODE * len(different) and column.name not in table.declared.kinds:
            codes[column.name] = f"{different[0]:g} to {different[-1]:g}"
        for value, places in table.suspects.get(column.name, {}).items():
            missing.append(f"{column.name}={value:g}")
            lines.append(f"column {column.name!r} is {value:g} in {places}: does {value:g} mean missing?")
    if codes:
        names = listed(map(repr, codes))
        which = ",".join(codes) if len(codes) == 1 else "COLUMNS"
        ranges = listed(dict.fromkeys(codes.values()))
        found = f"column {names} has" if len(codes) == 1 else f"columns {names} have few values,"
        warn(
            f"{table.file}: {found} the whole numbers {ranges}: --categorical {which} takes them as codes, --numeric "
            f"{which} keeps them as numbers without this remark",
            DataWarning,
        )
    if len(lines) > MOST_LINES:
        warn(
            f"{table.file}: {len(lines)} columns have a value that may mean missing, since it is far from all others "
            f"or only some environments have it: if it does, add --missing {','.join(missing)}",
            DataWarning,
        )
        return
    for line, code in zip(lines, missing, strict=True):
        warn(f"{table.file}: {line} Then add --missing {code}", DataWarning)


def _is_label(table: Table, name: str) -> bool:
    """Return whether each value of a column comes with one class and each class with one value, in enough rows."""
    codes, texts = as_codes(table.frame[name])
    given = codes >= 0
    if len(texts) != len(table.class_names) or given.sum() < ROWS_PER_CODE * len(texts):
        return False
    pairs = np.unique(codes[given] * len(texts) + table.labels[given])
    return len(pairs) == len(np.unique(pairs % len(texts))) == len(texts)


def _suspects(table: Table, values: Floats) -> dict[float, str]:
    """Return the values of a column that may mean missing -> where they are, in ascending order of values.

    Candidates are 0 below all others, and a code far away or below numbers that are all positive. A candidate is
    suspect if it is frequent in some environments and rare in all others, or if it has two digits or more.
    """
    different = np.unique(values[~np.isnan(values)])
    if len(different) < 3:
        return {}
    candidates = [0.0] if different[0] == 0 else []
    for value, others in ((different[0], different[1:]), (different[-1], different[:-1])):
        with np.errstate(over="ignore"):
            far = np.abs(others - value).min() > others[-1] - others[0]
        if value in MISSING_CODES and (far or value < 0 <= others[0]):
            candidates.append(float(value))
    found = {}
    rows = np.bincount(table.environments[~np.isnan(values)], minlength=len(table.environment_names))
    for value in candidates:
        counts = np.bincount(table.environments[values == value], minlength=len(rows))
        often = counts >= np.maximum(OFTEN * rows, FEWEST_ROWS)
        rare = ~often & (rows > 0)
        differs = often.any() and rare.any() and (counts[rare] <= RARELY * rows[rare]).all()
        if differs:
            places = [f"{counts[e]} of {rows[e]} rows at {table.environment_names[e]!r}" for e in np.flatnonzero(often)]
            rest = f"{counts[rare].sum()} of {rows[rare].sum()} rows" if counts[rare].any() else "nowhere"
            found[value] = f"{listed(places, 3)} and {rest} else"
        elif abs(value) >= SURE:
            found[value] = f"{counts.sum()} of {rows.sum()} rows"
    return found


register_own_files(
    "table",
    "your table, CSV, TSV or Parquet: a row a sample, columns for label and environment",
    load_table,
    takes=TAKES,
)
