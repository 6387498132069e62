"""On a CUDA device: the same numbers, no waiting, and a whole training step in a graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from problems import random_batch, relative
from torch import nn

from transferrisk import TransferRisk
from transferrisk.data import EnvironmentSet
from transferrisk.functional import optimal_predictor
from transferrisk.models import Classifier, SmallCNN, build_model, features_of
from transferrisk.solvers import CG, Newton
from transferrisk.training import Engine

pytestmark = pytest.mark.gpu

SHAPES = [([128, 128], 10, 128), ([32, 32, 32], 7, 512), ([32, 32, 32], 65, 512), ([300, 40], 5, 20)]


@pytest.mark.parametrize(("sizes", "classes", "width"), SHAPES)
@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0])
def test_float32_on_cuda_is_close_to_float64_on_cpu(sizes, classes, width, scale):
    exact = random_batch(0, sizes, classes, width)
    for tf32 in (False, True):
        torch.backends.cuda.matmul.fp32_precision = "tf32" if tf32 else "ieee"
        single = random_batch(0, sizes, classes, width, torch.float32, "cuda")
        a, b = (scale * exact.features).requires_grad_(), (scale * single.features).requires_grad_()
        reference, risk = exact.risk(a, 1e-3), single.risk(b, 1e-3)
        reference.backward()
        risk.backward()
        assert torch.backends.cuda.matmul.fp32_precision == ("tf32" if tf32 else "ieee")  # left as it was
        assert risk.item() == pytest.approx(reference.item(), rel=1e-3)
        assert relative(b.grad.cpu(), a.grad) < 1e-3
        own = exact.index == 0
        W = optimal_predictor(scale * exact.features[own], exact.labels[own], classes, 1e-3)
        V = optimal_predictor(scale * single.features[own.cuda()], single.labels[own.cuda()], classes, 1e-3)
        assert relative(V.cpu(), W) < 1e-3
    torch.backends.cuda.matmul.fp32_precision = "ieee"


def test_float64_on_cuda_equals_cpu():
    cpu, cuda = random_batch(1, [40, 30], 6, 50), random_batch(1, [40, 30], 6, 50, device="cuda")
    assert relative(cuda.gradient(1e-3).cpu(), cpu.gradient(1e-3)) < 1e-9


def captured(classes=10, environments=2, capacity=None, **options):
    return TransferRisk(num_classes=classes, environments=environments, captured=True, capacity=capacity, **options).to(
        "cuda"
    )


@pytest.mark.parametrize("query", ["all", "random"])
@pytest.mark.parametrize("weights", ["eg", "worst", "uniform"])
def test_captured_setting_never_waits_for_the_device(query, weights, without_waiting):
    batch = random_batch(2, [128, 128], 10, 128, torch.float32, "cuda")
    criterion = captured(query=query, weights=weights, capacity=128)
    features = batch.features.clone().requires_grad_()
    criterion(features, batch.labels, batch.index).risk.backward()  # warm up handles
    with without_waiting():
        criterion(features, batch.labels, batch.index).risk.backward()


def test_whole_training_step_in_a_cuda_graph():
    """Replays of a captured step equal the same steps taken eagerly, batch after batch."""

    def build_model():
        torch.manual_seed(0)
        cnn = SmallCNN(width=16)
        model = Classifier(cnn, cnn.num_features, 10).cuda()
        criterion = captured(capacity=64, solver=Newton.captured(10, 30), implicit=CG(max_iterations=40, fixed=True))
        return model, criterion, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(model, criterion, optimiser, images, labels, index):
        optimiser.zero_grad(set_to_none=True)
        features = model.featurise(images)
        out = criterion(features, labels, index)
        loss = F.cross_entropy(model.head(features), labels) + out.risk
        loss.backward()
        optimiser.step()
        return loss.detach()

    generator = torch.Generator().manual_seed(3)
    batches = [
        (
            torch.rand(128, 3, 28, 28, generator=generator).cuda(),
            torch.randint(10, (128,), generator=generator).cuda(),
            (torch.randperm(128, generator=generator) % 2).cuda(),
        )
        for _ in range(8)
    ]
    torch.backends.cudnn.deterministic = True
    eager = build_model()
    eager_losses = [step(*eager, *batch).item() for batch in batches]

    model, criterion, optimiser = build_model()
    static = [tensor.clone() for tensor in batches[0]]
    saved = [{k: v.clone() for k, v in part.state_dict().items()} for part in (model, criterion)]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(model, criterion, optimiser, *static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(model, criterion, optimiser, *static)
    with torch.no_grad():  # back to the start: the warm-up has moved everything
        for part, state in zip((model, criterion), saved, strict=True):
            for name, tensor in part.state_dict().items():
                tensor.copy_(state[name])
        for group in optimiser.state.values():
            group["momentum_buffer"].zero_()
    losses = []
    for batch in batches:
        for target, source in zip(static, batch, strict=True):
            target.copy_(source)
        graph.replay()
        losses.append(loss.item())
    assert losses == pytest.approx(eager_losses, rel=1e-3)
    assert relative(criterion.alpha.cpu(), eager[1].alpha.cpu()) < 1e-3


def test_module_follows_its_features():
    batch = random_batch(4, [20, 20], 3, 8, torch.float32, "cuda")
    criterion = TransferRisk(num_classes=3, environments=2)  # built on the CPU, as a loss usually is
    out = criterion(batch.features, batch.labels, batch.index)
    assert out.risk.device.type == criterion.alpha.device.type == "cuda"


def test_autocast_features():
    batch = random_batch(5, [64, 64], 10, 96, torch.float32, "cuda")
    layer = nn.Linear(96, 96).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        features = layer(batch.features)
        assert features.dtype == torch.bfloat16
        out = TransferRisk()(features, batch.labels, batch.index)
    out.risk.backward()
    assert out.risk.dtype == torch.float32
    assert layer.weight.grad.isfinite().all()


@pytest.mark.usefixtures("fabric")
def test_features_of_a_frozen_backbone_are_those_of_the_cpu():
    torch.manual_seed(0)
    nothing = torch.zeros(40, dtype=torch.int64)
    images = torch.randint(256, (40, 3, 32, 32), dtype=torch.uint8)
    data = EnvironmentSet(images, nothing, nothing, ("a",), ("x", "y"))
    backbone, before = build_model("wrn-16-2", 2, (3, 32, 32)), torch.backends.cudnn.allow_tf32
    found = []
    for kind in ("cpu", "cuda"):
        engine = Engine.of(kind, precision="fp32")
        with engine.arithmetic():
            found.append(features_of(backbone.to(engine.device), data.batch, len(data)).cpu())
    assert relative(found[1], found[0]) < 1e-5
    assert torch.backends.cudnn.allow_tf32 == before
