"""One step of training as a function of a batch: the one place where it is decided how a step is run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..algorithms import Algorithm, Batch, Logs
from ..errors import StepWarning, warn
from .captured import CapturedStep
from .state import TrainState

Step = Callable[[Batch], Logs]
"""Updates the state's model, optimiser and algorithm; its logs may still be on their way from the device."""


def make_step(state: TrainState, captured: bool = True) -> Step:
    """Steps as CUDA graphs where that is possible, else the algorithm's own, operation by operation.

    A warning says why not, on a GPU, where the difference is felt.
    """

    def step(batch: Batch) -> Logs:
        return state.algorithm.step(state.model, batch, state.optimiser, state.epoch)

    if state.device.type != "cuda":
        return step
    if state.sampler.batch_size is None:
        return step  # one batch, of environments of any sizes: nothing is in blocks
    reason = why_not(state.algorithm)
    if reason is None:
        state.algorithm.capture(state.sampler.batch_size // state.algorithm.team.size)
        if captured:
            return CapturedStep(state)
    elif captured:
        warn(f"steps are not captured in a CUDA graph, which would be faster: {reason}", StepWarning)
    return step


def why_not(algorithm: Algorithm[Any]) -> str | None:
    """Why an algorithm's steps cannot be captured; None where they can."""
    if type(algorithm).step is not Algorithm.step:
        return f"{type(algorithm).__name__} has a step of its own"
    if algorithm.team.size > 1:
        return f"{algorithm.team.size} processes exchange messages within them"
    return None
