"""Results: the format in which evaluations are recorded, and the rules by which they are selected."""

from .leave_one_out import leave_one_environment_out
from .records import (
    PARTS,
    Record,
    append_records,
    keep_records,
    read_records,
    read_table,
    records_table,
    table_bytes,
)
from .selection import (
    VALUES,
    Rule,
    best_point,
    mean_score,
    select,
    selected_steps,
    value_by_evaluation,
    values_at_selected,
)

__all__ = [
    "PARTS",
    "VALUES",
    "Record",
    "Rule",
    "append_records",
    "best_point",
    "keep_records",
    "leave_one_environment_out",
    "mean_score",
    "read_records",
    "read_table",
    "records_table",
    "select",
    "selected_steps",
    "table_bytes",
    "value_by_evaluation",
    "values_at_selected",
]
