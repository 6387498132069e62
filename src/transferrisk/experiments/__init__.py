"""Experiments: which runs make up a comparison, and running them.

- `recipe`, `points`: an experiment as data, in TOML, and the points of its grids
- `studies`, `plan`: the runs that a recipe asks for
- `tasks`, `execute`: what a run does, from its settings to its records
- `executors`: processes of this machine; `ray_executor` and `submitit_executor` are those of clusters
- `store`: where runs are kept, a folder or storage that fsspec reaches
- `sweep`, `learn`: carrying out a plan; with optuna, one that is found on the way
- `experiment_table`: the folder of an experiment with the records of its finished runs
- `bench`, `estimate`: seconds of training steps, and from these the duration of a plan
- `demo`: the job of `trm demo`

Names are imported when they are first used, so that recipes are read without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .executors import LocalExecutor
    from .plan import make_plan
    from .recipe import load_recipe
    from .store import Store
    from .sweep import run_experiment
    from .tasks import Task, register

__all__ = ["LocalExecutor", "Store", "Task", "load_recipe", "make_plan", "register", "run_experiment"]

_HOME = {
    "LocalExecutor": "executors",
    "Store": "store",
    "Task": "tasks",
    "load_recipe": "recipe",
    "make_plan": "plan",
    "register": "tasks",
    "run_experiment": "sweep",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
