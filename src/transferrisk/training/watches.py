"""Watches follow a training: they are called after steps and evaluations, and may end it.

    begin(run)                       before the first step; `run` holds the whole training
    after_step(step, total, loss)    loss is None where it was not read, as in most steps on a GPU
    after_evaluation(records)        one record for each part of the data and environment
    should_stop()                    after each step: whether to end the training
    end(error)                       in any case; error is None if the training came to its end

Watches are called in the order in which they are given, and ended in reverse order.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..errors import InputError, one_line
from ..results import Record, mean_score
from ..settings import as_json

if TYPE_CHECKING:
    from .loop import Run

OnStep = Callable[[int, int], None]
"""A function of the number of steps taken and of all steps."""


class Watch:
    """Base class of watches, whose methods do nothing; a watch overrides those it needs.

    Attributes
    ----------
    in_every_process
        Whether the watch is called in every process that shares a training, or only in the first.

    Examples
    --------
    >>> from transferrisk.training import TrainSpec, Watch, run_spec
    >>> class Count(Watch):
    ...     steps = 0
    ...     def after_step(self, step, total, loss):
    ...         self.steps = step
    >>> count = Count()
    >>> spec = TrainSpec(data="gaussian", algorithm="erm", training={"steps": 2, "evaluations": 1})
    >>> trained = run_spec(spec, device="cpu", watch=[count])
    >>> count.steps
    2
    """

    in_every_process = False

    def begin(self, run: Run) -> None:
        """Prepare for a training; called before the first step.

        Parameters
        ----------
        run
            The training.
        """

    def after_step(self, step: int, total: int, loss: float | None) -> None:
        """Follow a step.

        Parameters
        ----------
        step
            Number of steps done.
        total
            Number of steps in all.
        loss
            Loss of the step, None if it has not been read from the device.
        """

    def after_evaluation(self, records: Sequence[Record]) -> None:
        """Follow an evaluation; called before `after_step` of the same step.

        Parameters
        ----------
        records
            Records of the evaluation, one for each part of the data and environment.
        """

    def should_stop(self) -> bool:
        """Return whether the training ends after this step."""
        return False

    def end(self, error: BaseException | None) -> None:
        """Clean up; called when the training has ended, with an error or without.

        Parameters
        ----------
        error
            Error that ended the training, None without one.
        """


class Steps(Watch):
    """Call a function after each step.

    Parameters
    ----------
    on_step
        Function to call with the number of steps taken and of all steps.

    Examples
    --------
    >>> from transferrisk.training import Steps, TrainSpec, run_spec
    >>> spec = TrainSpec(data="gaussian", algorithm="erm", training={"steps": 2, "evaluations": 1})
    >>> trained = run_spec(spec, device="cpu", watch=[Steps(lambda done, total: print(done, "of", total))])
    1 of 2
    2 of 2
    """

    def __init__(self, on_step: OnStep) -> None:
        self.on_step = on_step

    def after_step(self, step: int, total: int, loss: float | None) -> None:
        self.on_step(step, total)


class LossCurve(Watch):
    """Keep the losses of the steps, as they are read: of every step on a CPU, of every fiftieth on a GPU.

    Examples
    --------
    >>> from transferrisk.training import LossCurve, TrainSpec, run_spec
    >>> curve = LossCurve()
    >>> spec = TrainSpec(data="gaussian", algorithm="erm", training={"steps": 3, "evaluations": 1})
    >>> trained = run_spec(spec, device="cpu", watch=[curve])
    >>> len(curve.losses)
    3
    """

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.losses: list[float] = []

    def after_step(self, step: int, total: int, loss: float | None) -> None:
        if loss is not None:
            self.steps.append(step)
            self.losses.append(loss)


class EarlyStopping(Watch):
    """End a training when evaluations no longer improve, and restore the weights of the best one.

    An evaluation is better than another if its accuracy, the mean over environments, is higher, or the same at a lower
    loss.

    Parameters
    ----------
    part
        Part of the data that decides. It must be among those evaluated.
    patience
        Number of evaluations without improvement after which training ends.
    after
        Epoch from which these evaluations count. A penalty takes a while to show its effect.

    Examples
    --------
    >>> from transferrisk.training import EarlyStopping, TrainSpec, run_spec
    >>> spec = TrainSpec(data="gaussian", algorithm="erm", training={"steps": 4, "evaluations": 4})
    >>> trained = run_spec(spec, device="cpu", watch=[EarlyStopping(patience=2)])
    """

    in_every_process = True

    def __init__(self, part: str = "training_domain", patience: int = 5, after: float = 0.0) -> None:
        self.part, self.patience, self.after = part, patience, after
        self.scores: list[float] = []  # accuracy at each evaluation
        self._best, self._waited = (-1.0, 0.0), 0
        self._weights: dict[str, Tensor] = {}

    def begin(self, run: Run) -> None:
        if run.history:
            raise InputError(
                "EarlyStopping must see a training from its beginning, got one that is resumed: leave it out, or train "
                "again"
            )
        self._run = run

    def after_evaluation(self, records: Sequence[Record]) -> None:
        accuracy = mean_score(records, self.part)
        if math.isnan(accuracy):
            raise InputError(f"part must be one that is evaluated, got {self.part!r}: add it to evaluate=")
        self.scores.append(accuracy)
        reached = (accuracy, -mean_score(records, self.part, "loss"))
        if reached > self._best:
            self._best, self._waited = reached, 0
            self._weights = copy.deepcopy(self._run.state.evaluated.state_dict())
        elif self._run.state.epoch >= self.after:
            self._waited += 1

    def should_stop(self) -> bool:
        return self._waited >= self.patience

    def end(self, error: BaseException | None) -> None:
        if error is None and self._weights:
            self._run.state.evaluated.load_state_dict(self._weights)


class Progress(Watch):
    """Show a progress bar if stderr is a terminal, else print a line for each evaluation.

    The settings are printed after the first step, which shows that they work.

    Parameters
    ----------
    on_step
        Function to call after each step if stderr is not a terminal, with the number of steps taken and of all steps.

    Examples
    --------
    >>> from transferrisk.training import Progress, TrainSpec, run_spec
    >>> spec = TrainSpec(data="gaussian", algorithm="erm", training={"steps": 3, "evaluations": 1})
    >>> trained = run_spec(spec, device="cpu", watch=[Progress()])
    """

    def __init__(self, on_step: OnStep | None = None) -> None:
        self._on_step = on_step

    def begin(self, run: Run) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bars

        self._run, self._console = run, Console(stderr=True)
        self._told, self._loss, self._scores = False, "", ""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bars: Any = Bars(*columns, console=self._console, disable=not self._console.is_terminal)
        self._bars.start()
        self._task = self._bars.add_task(one_line(run.name), total=run.total, completed=run.state.step)

    def after_step(self, step: int, total: int, loss: float | None) -> None:
        self._print_settings()
        if loss is not None:
            self._loss = f"loss {loss:.3f}"
        self._bars.update(
            self._task, completed=step, description=f"{one_line(self._run.name)}  {self._loss}{self._scores}"
        )
        if self._on_step is not None and not self._console.is_terminal:
            self._on_step(step, total)

    def after_evaluation(self, records: Sequence[Record]) -> None:
        self._print_settings()
        self._loss, self._scores = f"loss {mean_score(records, 'batch', 'loss'):.3f}", ""
        for name, part in (("validation", "training_domain"), ("test", "test")):
            if not math.isnan(accuracy := mean_score(records, part)):
                self._scores += f"  {name} {100 * accuracy:.1f} %"
        if not self._console.is_terminal:
            state = self._run.state
            print(f"step {state.step}, epoch {state.epoch:.3g}: {self._loss}{self._scores}", file=sys.stderr)

    def end(self, error: BaseException | None) -> None:
        self._bars.stop()

    def _print_settings(self) -> None:
        """Print the settings of the algorithm and of the training in one line, the first time."""
        if self._told:
            return
        self._told, run = True, self._run
        shown = as_json(run.state.algorithm.config) | {"backbone": run.about.get("backbone")}
        for name in (
            "epochs" if run.config.steps is None else "steps",
            "optimiser",
            "lr",
            "momentum",
            "weight_decay",
            "decay_at",
            "batch_size",
            *(["dropout"] if run.config.dropout else []),
            *(["average"] if run.config.average else []),
        ):
            shown[name] = getattr(run.config, name)
        words = []
        for name, value in shown.items():
            words.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
        smallest = int(run.data.environments.bincount(minlength=len(run.data.environment_names)).min())
        line = one_line(f"trm: training {run.name}: {', '.join(words)} (the smallest environment has {smallest})")
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)
