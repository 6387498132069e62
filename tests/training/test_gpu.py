"""Training on a GPU: every algorithm in every precision, resuming, and data that is streamed to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from small import Killed, SmallRun, kill_at, small_run, steps_of, without_time
from torch import Tensor

from transferrisk.algorithms import ERM, available, setting_names
from transferrisk.data import EnvironmentSet
from transferrisk.errors import StepWarning
from transferrisk.models import build_model
from transferrisk.training import Engine, RunFolder, TrainConfig, Watch, load_checkpoint
from transferrisk.training.captured import CapturedStep, make_step
from transferrisk.training.feed import Feed

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fabric")]


@dataclass(frozen=True)
class Undecoded:
    content: Tensor

    def __len__(self):
        return len(self.content)

    def __getitem__(self, index):
        return self.content[torch.arange(len(self))[index]]


def pictures(seed, names, n=96):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(2, (n,), generator=generator)
    noise = torch.randint(120, (n, 3, 12, 12), generator=generator)
    return EnvironmentSet(
        (noise + 100 * labels[:, None, None, None]).to(torch.uint8),
        labels,
        torch.arange(n) % len(names),
        names,
        ("x", "y"),
    )


def image_run(algorithm="erm", settings=None, **engine):
    return SmallRun(
        algorithm,
        settings=settings or {},
        config=TrainConfig(epochs=12, batch_size=8, lr=0.02, evaluations=2),
        sets={
            "train": pictures(0, ("a", "b")),
            "training_domain": pictures(1, ("a", "b")),
            "test_domain": pictures(2, ("c",)),
            "test": pictures(3, ("c",)),
        },
        build=lambda: build_model("cnn:4", 2, (3, 12, 12)),
        engine={"device": "cuda", **engine},
    )


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("name", available())
def test_every_algorithm_learns_in_every_precision(name, precision):
    history = image_run(name, precision=precision).train().history
    assert [record["accuracy"] for record in history if record["part"] == "test"][-1] > 0.9


def test_bf16_is_the_default_and_channels_are_last():
    run = image_run()
    engine = Engine.of(**run.engine)
    state = run.start(engine)
    assert engine.precision == "bf16"
    (placed,) = engine.place([run.sets["train"]])
    assert placed.inputs.is_cuda
    inputs = Feed(placed, state.sampler, engine.device).next().inputs
    assert inputs.is_contiguous(memory_format=torch.channels_last)
    assert state.optimiser.param_groups[0]["fused"]
    assert state.model.featurise(inputs).dtype == torch.float32


@pytest.mark.parametrize("loaders", [0, 2])
def test_streamed_batches_are_the_resident_ones(loaders):
    run = image_run()
    engine = Engine.of(**run.engine)
    data = run.sets["train"]
    lazy = replace(data, inputs=Undecoded(data.inputs))
    resident = Feed(engine.place([data])[0], run.start(engine).sampler, engine.device)
    streaming = Feed(lazy, run.start(engine).sampler, engine.device, loaders=loaders)
    for _ in range(10):
        for a, b in zip(resident.next()[:3], streaming.next()[:3], strict=True):
            assert torch.equal(a, b)
    streaming.close()


def test_a_cut_run_goes_on_also_on_a_cpu(tmp_path):
    run = replace(small_run("trm"), engine={"device": "cuda", "precision": "fp32"})
    with pytest.raises(Killed):
        run.train(RunFolder(tmp_path / "a", every=2, say=print), kill_at(5))
    assert load_checkpoint(tmp_path / "a" / "last.safetensors").values["step"] == 4
    (tmp_path / "b").mkdir()
    for path in (tmp_path / "a").iterdir():
        (tmp_path / "b" / path.name).write_bytes(path.read_bytes())
    gpu = run.train(RunFolder(tmp_path / "a", resume=True)).history
    cpu = replace(run, engine={"precision": "fp32"}).train(RunFolder(tmp_path / "b", resume=True)).history
    assert steps_of(gpu) == steps_of(cpu) == [3, 6, 9]
    assert without_time(gpu)[0] == without_time(cpu)[0]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_the_precision_of_products_is_set_and_set_back(precision):
    before, within = torch.get_float32_matmul_precision(), []

    class Look(Watch):
        def after_evaluation(self, records):
            within.append(torch.get_float32_matmul_precision())

    image_run(precision=precision).train(Look())
    assert within == ["highest" if precision == "fp32" else "high"] * 2
    assert torch.get_float32_matmul_precision() == before


def weights_after(run, captured, steps=12):
    engine = Engine.of(**run.engine)
    state = run.start(engine)
    feed = Feed(engine.place([run.sets["train"]])[0], state.sampler, engine.device)
    step = make_step(state, captured)
    state.model.train()
    losses = []
    with engine.arithmetic():
        for _ in range(steps):
            losses.append(float(step(feed.next())["loss"]))
            state.step += 1
    return state, losses, step


# Mixup draws on the device, where a graph's draws need not be those of the same operations without it.
@pytest.mark.parametrize("name", [*(n for n in available() if n != "mixup"), "mldg joint", "fish joint"])
def test_captured_steps_are_the_same_steps(name, monkeypatch):
    """With penalties that are switched on in between, and another plan at random steps."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    name, _, statistics = name.partition(" ")
    settings = {"start_epoch": 0.5} if "start_epoch" in setting_names(name) else {}
    settings |= {"statistics": statistics} if statistics else {}
    run = image_run(name, settings, precision="fp32")
    one, eager, _ = weights_after(run, captured=False)
    two, losses, step = weights_after(run, captured=True)
    assert isinstance(step, CapturedStep)
    assert step.graphs
    assert losses == pytest.approx(eager, rel=2e-3)
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=5e-3, atol=1e-4)


class Worst(ERM):
    """The example of docs/algorithms.md: its index depends on values."""

    def objective(self, out, penalised):
        risks, present = out.environment_risks(self.setting.num_environments)
        return {"loss": risks[present].max(), "mean_risk": out.empirical_risk}


class Item(ERM):
    def objective(self, out, penalised):
        self.last = out.empirical_risk.item()
        return {"loss": out.empirical_risk}


@pytest.mark.parametrize(("algorithm", "line"), [(Worst, r"risks\[present\]"), (Item, r"\.item\(\)")])
def test_a_step_that_reads_values_goes_on_without_a_graph(algorithm, line, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    run = replace(image_run(precision="fp32"), algorithm=algorithm)
    _, eager, _ = weights_after(run, captured=False)
    with pytest.warns(StepWarning, match=rf"test_gpu\.py:\d+, in objective .*{line}"):
        _, losses, step = weights_after(run, captured=True)
    assert not step.graphs
    assert losses == pytest.approx(eager, rel=2e-3)
    torch.randn(3, device="cuda")  # torch's generator is not left recording


@pytest.mark.parametrize("optimiser", ["adam", "adamw"])
def test_captured_steps_of_adam(optimiser):
    config = TrainConfig(epochs=12, batch_size=8, optimiser=optimiser, lr=0.02, dropout=0.1)
    run = replace(image_run(precision="fp32"), config=config)
    state, losses, step = weights_after(run, captured=True)
    assert step.graphs
    assert losses[-1] < losses[0]
    assert {float(held["step"]) for held in state.optimiser.state.values()} == {12.0}


def test_what_cannot_be_captured_says_why():
    class Own(ERM):
        def step(self, model, batch, optimiser, epoch):
            return super().step(model, batch, optimiser, epoch)

    state = image_run().start()
    state.algorithm = Own(state.algorithm.setting).to("cuda")
    with pytest.warns(
        StepWarning, match="not captured in a CUDA graph, which would be faster: Own has a step of its own"
    ):
        make_step(state)
