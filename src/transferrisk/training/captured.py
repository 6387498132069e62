"""Steps captured in CUDA graphs: a training step on a GPU without the cost of launching its kernels one by one.

Invariant: a captured step leaves the model, the optimiser, the algorithm and the generators as the ordinary step
`TrainState.take` would. A graph repeats the same operations at the same addresses. So batches are copied to where the
recorded one was, and a step whose plan differs (a penalty that is switched on, another environment held out) has a
graph of its own. The first steps of each plan are ordinary ones, which get memory, handles and kernels ready; they
count like all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from pathlib import Path
from traceback import extract_tb, walk_tb
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..algorithms import Algorithm, Batch, Logs
from ..errors import StepWarning, TransferRiskError, cause_of, full_memory, warn

if TYPE_CHECKING:
    from .feed import Feed
    from .state import TrainState

WARM_UP = 2  # ordinary steps before a plan is recorded
MOST_PLANS = 24

Step = Callable[[Batch], Logs]
"""Updates the state's model, optimiser and algorithm; its logs may still be on their way from the device."""


def make_step(state: TrainState, captured: bool = True) -> Step:
    """Return the step of a state: captured in CUDA graphs where possible, else `TrainState.take`.

    On a GPU, a StepWarning tells why a step is not captured. `captured=False` asks for ordinary steps.
    """
    if state.model.head.weight.device.type != "cuda":
        return state.take
    if state.sampler.batch_size is None:
        return state.take  # one batch, of environments of any sizes: nothing is in blocks
    reason = why_not_captured(state.algorithm)
    if reason is None:
        state.algorithm.capture(state.sampler.batch_size // state.algorithm.team.size)
        if captured:
            return CapturedStep(state)
    elif captured:
        warn(f"steps are not captured in a CUDA graph, which would be faster: {reason}", StepWarning)
    return state.take


def why_not_captured(algorithm: Algorithm[Any]) -> str | None:
    """Return the reason why the steps of an algorithm cannot be captured; None: they can."""
    if type(algorithm).step is not Algorithm.step:
        return f"{type(algorithm).__name__} has a step of its own"
    if algorithm.team.size > 1:
        return f"{algorithm.team.size} processes exchange messages within them"
    return None


class CapturedStep:
    """Step of a state on a CUDA device, for batches of one shape, in blocks.

    If a graph cannot hold a step, because the algorithm reads a value from the device, for example, a StepWarning names
    the line and steps go on operation by operation.
    """

    def __init__(self, state: TrainState) -> None:
        self.state = state
        self.batch: Batch | None = None
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.logs: dict[Hashable, Logs] = {}
        self.taken: Counter[Hashable] = Counter()
        self.stream = torch.cuda.Stream()
        self.refused = False  # a graph cannot hold a step
        self.index: Tensor | None = None  # positions of the samples of a batch that the graph gathers

    def __call__(self, batch: Batch) -> Logs:
        plan = self.state.algorithm.plan(batch, self.state.epoch)
        if self.refused:
            with on_stream(self.stream):  # where the gradients were accumulated so far
                return self._act(plan, batch)
        held = self._hold(batch)
        return self._take(plan, lambda: held)

    def on_next(self, feed: Feed) -> Logs:
        """Take a step on the next batch of a feed; a graph gathers the batch, too, if the device holds the data."""
        ours = type(self.state.algorithm).plan.__module__.partition(".")[0] == __name__.partition(".")[0]
        if self.refused or not feed.resident or not ours:  # plans of others may look at the samples
            return self(feed.next())
        drawn = feed.draw()
        if self.index is None:
            self.index = drawn.to(feed.device)
            self.batch = feed.at(self.index)
        else:
            self.index.copy_(drawn, non_blocking=True)
        assert self.batch is not None
        index, plan = self.index, self.state.algorithm.plan(self.batch, self.state.epoch)
        return self._take(plan, lambda: feed.at(index))

    def _take(self, plan: Hashable, batch: Callable[[], Batch]) -> Logs:
        if plan in self.graphs:
            self.graphs[plan].replay()
            return self.logs[plan]
        if self.taken[plan] < WARM_UP or len(self.graphs) == MOST_PLANS:
            self.taken[plan] += 1
            with on_stream(self.stream):
                return self._act(plan, batch())
        graph = torch.cuda.CUDAGraph()
        undo = _undoing(self.state)
        try:
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
                self.logs[plan] = self._act(plan, batch())
        except (RuntimeError, TransferRiskError) as error:
            undo()
            first = _first_of(error)
            if isinstance(first, TransferRiskError) or not is_capture_error(error):
                raise first from None
            where = line_of(first)
            warn(
                f"steps are not captured in a CUDA graph, which would be faster: {where} cannot be recorded "
                f"({cause_of(first)}); use no values of tensors there, as .item() and boolean indices do",
                StepWarning,
            )
            self.refused = True
            self.graphs.clear()
            self.logs.clear()
            with on_stream(self.stream):
                return self._act(plan, batch())
        self.graphs[plan] = graph
        graph.replay()
        return self.logs[plan]

    def _act(self, plan: Hashable, batch: Batch) -> Logs:
        return self.state.algorithm.act(plan, self.state.model, batch, self.state.optimiser)

    def _hold(self, batch: Batch) -> Batch:
        """Return the batch at the addresses that are recorded."""
        if self.batch is None:
            inputs, labels, environments = (tensor.clone() for tensor in batch[:3])
            weights = None if batch.weights is None else batch.weights.clone()
            self.batch = Batch(inputs, labels, environments, batch.block, weights)
        for kept, given in zip(self.batch[:3], batch[:3], strict=True):
            kept.copy_(given)
        if self.batch.weights is not None and batch.weights is not None:
            self.batch.weights.copy_(batch.weights)
        return self.batch


def _undoing(state: TrainState) -> Callable[[], None]:
    """Return a function that restores everything that a failed recording leaves changed.

    Nothing that is recorded is executed, so that weights stay as they are. But torch stays on the stream of the
    recording, its generator in the state of being recorded, and an algorithm may hold tensors of the graph's memory.
    """
    stream, device = torch.cuda.current_stream(), state.model.head.weight.device
    generator = torch.cuda.default_generators[device.index or 0]
    drawn, draws = torch.get_rng_state(), generator.clone_state()
    modules = list(state.algorithm.modules())
    kept = [(dict(vars(module)), dict(module._buffers)) for module in modules]

    def undo() -> None:
        torch.cuda.set_stream(stream)
        torch.set_rng_state(drawn)
        generator.graphsafe_set_state(draws)
        for module, (attributes, buffers) in zip(modules, kept, strict=True):
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)
        state.optimiser.zero_grad(set_to_none=True)

    return undo


def _first_of(error: BaseException) -> BaseException:
    """Return the error that came first; leaving a recording that has failed raises another."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def is_capture_error(error: BaseException) -> bool:
    """Return whether torch raised an error because an operation cannot be recorded in a CUDA graph."""
    chain: BaseException | None = error
    while chain is not None:
        if isinstance(chain, RuntimeError) and "captur" in str(chain).lower() and not full_memory(chain):
            return True
        chain = chain.__context__
    return False


def line_of(error: BaseException) -> str:
    """Return the innermost line outside torch and this package that an error came from, else outside torch."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    names = [frame.f_globals.get("__name__", "").partition(".")[0] for frame in frames]
    for ours in (("torch", "transferrisk"), ("torch",)):
        if outside := [place for place, name in enumerate(names) if name not in ours]:
            found = extract_tb(error.__traceback__)[outside[-1]]
            return f"{Path(found.filename).name}:{found.lineno}, in {found.name} ({found.line}),"
    return "an operation"


class on_stream:
    """Run the block on another stream, as a recording does."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream
        self.inside = torch.cuda.stream(stream)

    def __enter__(self) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        self.inside.__enter__()

    def __exit__(self, *error: object) -> None:
        self.inside.__exit__(*error)
        torch.cuda.current_stream().wait_stream(self.stream)
