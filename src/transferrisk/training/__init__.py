"""Training: one loop for all algorithms, what it records, and how a model is selected from the records."""

from .checkpoint import Checkpoint, load_model
from .checkpoint import load as load_checkpoint
from .config import Run, TrainingConfig
from .evaluate import evaluate, held_out_transfer_matrix, irm_penalties
from .loop import OnLoss, OnRecord, OnStep, train
from .output import Output
from .records import Record, read_records, worst_group, write_records
from .request import Request
from .selection import leave_one_environment_out, select
from .signals import Stopped

__all__ = [
    "Checkpoint",
    "OnLoss",
    "OnRecord",
    "OnStep",
    "Output",
    "Record",
    "Request",
    "Run",
    "Stopped",
    "TrainingConfig",
    "evaluate",
    "held_out_transfer_matrix",
    "irm_penalties",
    "leave_one_environment_out",
    "load_checkpoint",
    "load_model",
    "read_records",
    "select",
    "train",
    "worst_group",
    "write_records",
]
