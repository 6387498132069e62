"""What one run of an experiment can be: a training, a fine-tuning, a computation; by name."""

from . import finetune, pictures, theory, time, train  # noqa: F401  # they register themselves
from .base import Cost, Place, PlannedRun, Row, Task, available, get, register

__all__ = ["Cost", "Place", "PlannedRun", "Row", "Task", "available", "get", "register"]
