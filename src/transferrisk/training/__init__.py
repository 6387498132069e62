"""Training: one loop for all algorithms, watches that follow it, and `TrainSpec`, a training as plain values."""

from ..errors import Stopped
from .defaults import Precision, TrainConfig
from .engine import Engine
from .evaluate import evaluate, held_out_transfer_matrix, irm_penalties
from .loop import Run, Trained, train
from .run_folder import Checkpoint, RunFolder, load_checkpoint
from .spec import TrainSpec, run_spec
from .state import setting_of
from .watches import EarlyStopping, LossCurve, OnStep, Progress, Steps, Watch

__all__ = [
    "Checkpoint",
    "EarlyStopping",
    "Engine",
    "LossCurve",
    "OnStep",
    "Precision",
    "Progress",
    "Run",
    "RunFolder",
    "Steps",
    "Stopped",
    "TrainConfig",
    "TrainSpec",
    "Trained",
    "Watch",
    "evaluate",
    "held_out_transfer_matrix",
    "irm_penalties",
    "load_checkpoint",
    "run_spec",
    "setting_of",
    "train",
]
