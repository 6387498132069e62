"""One step of training as a function of a batch, captured in a CUDA graph where that is possible.

A graph repeats the same operations at the same addresses. So batches are copied to where the recorded one was, and a
step whose plan differs (a penalty that is switched on, another environment held out) has a graph of its own. The first
steps of each plan are ordinary ones, which get memory, handles and kernels ready; they count like all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import torch

from ..algorithms import Algorithm, Batch, Logs
from ..errors import StepWarning, warn
from .state import TrainState

WARM_UP = 2  # ordinary steps before a plan is recorded
MOST_PLANS = 24

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
    reason = why_not_captured(state.algorithm)
    if reason is None:
        state.algorithm.capture(state.sampler.batch_size // state.algorithm.team.size)
        if captured:
            return CapturedStep(state)
    elif captured:
        warn(f"steps are not captured in a CUDA graph, which would be faster: {reason}", StepWarning)
    return step


def why_not_captured(algorithm: Algorithm[Any]) -> str | None:
    """Why an algorithm's steps cannot be captured; None where they can."""
    if type(algorithm).step is not Algorithm.step:
        return f"{type(algorithm).__name__} has a step of its own"
    if algorithm.team.size > 1:
        return f"{algorithm.team.size} processes exchange messages within them"
    return None


class CapturedStep:
    """A `Step` of a state on a CUDA device, for batches of one shape, in blocks."""

    def __init__(self, state: TrainState) -> None:
        self.state = state
        self.batch: Batch | None = None
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.logs: dict[Hashable, Logs] = {}
        self.taken: Counter[Hashable] = Counter()
        self.stream = torch.cuda.Stream()

    def __call__(self, batch: Batch) -> Logs:
        algorithm = self.state.algorithm
        plan = algorithm.plan(batch, self.state.epoch)
        held = self._hold(batch)
        if plan in self.graphs:
            self.graphs[plan].replay()
            return self.logs[plan]
        if self.taken[plan] < WARM_UP or len(self.graphs) == MOST_PLANS:
            self.taken[plan] += 1
            with aside(self.stream):
                return self._act(plan, held)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self.logs[plan] = self._act(plan, held)
        self.graphs[plan] = graph
        graph.replay()
        return self.logs[plan]

    def _act(self, plan: Hashable, batch: Batch) -> Logs:
        return self.state.algorithm.act(plan, self.state.model, batch, self.state.optimiser)

    def _hold(self, batch: Batch) -> Batch:
        """The batch at the addresses that are recorded."""
        if self.batch is None:
            inputs, labels, environments = (tensor.clone() for tensor in batch[:3])
            weights = None if batch.weights is None else batch.weights.clone()
            self.batch = Batch(inputs, labels, environments, batch.block, weights)
        for kept, given in zip(self.batch[:3], batch[:3], strict=True):
            kept.copy_(given)
        if self.batch.weights is not None and batch.weights is not None:
            self.batch.weights.copy_(batch.weights)
        return self.batch


class aside:
    """Run the block on another stream, as it will run when it is recorded."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self.inside = torch.cuda.stream(stream)

    def __enter__(self) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        self.inside.__enter__()

    def __exit__(self, *error: object) -> None:
        self.inside.__exit__(*error)
        torch.cuda.current_stream().wait_stream(self.stream)
