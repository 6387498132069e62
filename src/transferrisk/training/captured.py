"""Steps as CUDA graphs: the operations of a step are recorded once and then launched as one.

A graph repeats the same operations at the same addresses. So batches are copied to where the recorded one was, and a
step whose plan differs (a penalty that is switched on, another environment held out) has a graph of its own. The first
steps of each plan are ordinary ones, which get memory, handles and kernels ready; they count like all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import torch

from ..algorithms import Batch, Logs
from .state import TrainState

WARM_UP = 2  # ordinary steps before a plan is recorded
MOST_PLANS = 24


class CapturedStep:
    """A `step.Step` of a state on a CUDA device, for batches of one shape, in blocks."""

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
    """What is done inside runs on another stream, as it will when it is recorded."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self.inside = torch.cuda.stream(stream)

    def __enter__(self) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        self.inside.__enter__()

    def __exit__(self, *error: object) -> None:
        self.inside.__exit__(*error)
        torch.cuda.current_stream().wait_stream(self.stream)
