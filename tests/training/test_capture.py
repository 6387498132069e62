"""Steps that a CUDA graph cannot hold: what happens then, with a recording that fails as torch's does."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from small import small_run

from transferrisk.algorithms import Algorithm
from transferrisk.errors import InputError, StepWarning
from transferrisk.training.captured import CapturedStep
from transferrisk.training.feed import Feed


class Recording:
    """In place of torch's: knows whether it records, and refuses to end well once something was not allowed."""

    def __init__(self, monkeypatch):
        self.active = self.failed = False
        self.streams, self.restored = [], []
        generator = SimpleNamespace(clone_state=lambda: "before", graphsafe_set_state=self.restored.append)
        fakes = {
            "Stream": lambda: "side",
            "current_stream": lambda: SimpleNamespace(wait_stream=lambda other: None),
            "set_stream": self.streams.append,
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
            "graph": self.record,
            "default_generators": [generator],
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        monkeypatch.setattr("transferrisk.training.captured.on_stream", lambda stream: nullcontext())

    @contextmanager
    def record(self, graph, stream, capture_error_mode):
        self.active, self.failed = True, False
        try:
            yield
        finally:
            self.active = False
            if self.failed:
                raise torch.AcceleratorError("CUDA error: operation failed due to a previous error during capture")

    def read(self, value):
        """A value of a tensor, which a recording does not know."""
        if self.active:
            self.failed = True
            raise torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing\nmore lines")
        return value.item()


@pytest.fixture
def recording(monkeypatch):
    return Recording(monkeypatch)


class Reads(Algorithm):
    """Looks at the worst risk in Python, and holds a tensor of each step."""

    def objective(self, out, penalised):
        self.last = out.features.detach()
        risks, _ = out.environment_risks(self.setting.num_environments)
        worst = max(range(len(risks)), key=lambda e: self.recording.read(risks[e]))
        return {"loss": risks[worst]}


def steps(run, make, count=6):
    state = run.start()
    feed = Feed(run.sets["train"], state.sampler, torch.device("cpu"))
    state.model.train()
    step = make(state)
    losses = []
    for _ in range(count):
        losses.append(float(step(feed.next())["loss"].detach()))
        state.step += 1
    return state, losses


def eager(state):
    return lambda batch: state.algorithm.step(state.model, batch, state.optimiser, state.epoch)


def test_a_step_that_reads_values_goes_on_without_a_graph_and_says_which_line_it_is(recording, recwarn):
    run = small_run(type("ReadsHere", (Reads,), {"recording": recording}))
    state, losses = steps(run, CapturedStep)
    expected, by_hand = steps(run, eager)
    assert losses == by_hand
    for one, other in zip(state.model.parameters(), expected.model.parameters(), strict=True):
        assert torch.equal(one, other)
    (told,) = [str(warning.message) for warning in recwarn if warning.category is StepWarning]
    assert "test_capture.py:" in told
    assert "return value.item()" in told or "read(" in told or "raise torch" in told
    assert "operation not permitted when stream is capturing" in told
    assert "\n" not in told
    assert len(recording.streams) == 1  # torch is back on the stream of before
    assert recording.restored == ["before"]


def test_what_an_algorithm_holds_is_not_of_the_graph_that_failed(recording):
    run = small_run(type("ReadsHere", (Reads,), {"recording": recording}))
    held = []

    class Looks(CapturedStep):
        def _act(self, plan, batch):
            held.append(self.state.algorithm.__dict__.get("last"))
            return super()._act(plan, batch)

    with pytest.warns(StepWarning):
        steps(run, Looks, count=3)
    before_recording, again = held[2], held[3]  # two ordinary steps, the recording, and the step itself
    assert again is before_recording


@pytest.mark.parametrize(
    ("error", "told"),
    [(RuntimeError("shapes differ"), "shapes differ"), (InputError("not that"), "not that")],
)
def test_other_errors_while_recording_are_raised_as_they_are(recording, error, told):
    class Fails(Algorithm):
        def objective(self, out, penalised):
            if recording.active:
                raise error
            return {"loss": out.empirical_risk}

    with pytest.raises(type(error), match=told) as raised:
        steps(small_run(Fails), CapturedStep)
    assert raised.value is error
