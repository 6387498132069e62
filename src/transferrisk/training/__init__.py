"""Training: one loop for all algorithms, what it records, and how a model is selected from the records."""

from .evaluate import evaluate, held_out_transfer_matrix
from .loop import OnStep, Run, TrainingConfig, train
from .records import Record, read_records, write_records
from .selection import select

__all__ = [
    "OnStep",
    "Record",
    "Run",
    "TrainingConfig",
    "evaluate",
    "held_out_transfer_matrix",
    "read_records",
    "select",
    "train",
    "write_records",
]
