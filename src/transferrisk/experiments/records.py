"""All rows of an experiment's finished runs as one Parquet file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..training.plain import dumps
from .plan import Plan
from .store import Store
from .tasks import Row

if TYPE_CHECKING:
    import pyarrow as pa

RECORDS = "records.parquet"
RUN_COLUMN = "run"


@dataclass
class Records:
    """The file, and what has been read for it so far: a finished run does not change."""

    plan: Plan
    store: Store
    _rows: dict[str, list[Row]] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> str:
        return f"{self.plan.recipe.name}/{RECORDS}"

    def write(self) -> None:
        """With what is done now; of two writers, neither takes rows of the other away. Without a row, no file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self.store.alone(self.plan.recipe.name):
            done = self.store.finished()
            for cell in self.plan.cells:
                if cell.run.name in done and cell.run.name not in self._rows:
                    self._rows[cell.run.name] = self.store.rows(cell.run.name)
            cells = [
                ({**cell.columns, RUN_COLUMN: cell.run.name}, self._rows[cell.run.name])
                for cell in self.plan.cells
                if cell.run.name in self._rows
            ]
            whole = table(cells)
            if whole.num_rows:
                sink = pa.BufferOutputStream()
                pq.write_table(whole, sink)
                self.store.write(self.path, sink.getvalue().to_pybytes())


def table(cells: Sequence[tuple[Mapping[str, Any], Sequence[Row]]]) -> pa.Table:
    """One line a row, the cell's columns before its own; a name that both have is the cell's."""
    import pyarrow as pa

    of_cells = dict.fromkeys(name for columns, _ in cells for name in columns)
    of_rows = dict.fromkeys(name for _, rows in cells for row in rows for name in row)
    columns: dict[str, list[Any]] = {name: [] for name in (*of_cells, *of_rows)}
    for about, rows in cells:
        for row in rows:
            for name, values in columns.items():
                values.append(about[name] if name in about else row.get(name))
    return pa.table({name: column(values) for name, values in columns.items()})


def column(values: Iterable[Any]) -> pa.Array:
    """Of the one type that holds all values; where only text does, what is none is written as JSON."""
    import pyarrow as pa

    values = list(values)
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {int, float} and float in kinds:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if len(kinds) <= 1 and kinds <= {bool, int, str}:
        try:
            return pa.array(values)
        except OverflowError:  # more than 64 bits
            pass
    return pa.array([v if v is None or isinstance(v, str) else dumps(v) for v in values], pa.string())
