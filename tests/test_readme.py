"""Every Python block of README runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from transferrisk.algorithms import ALGORITHMS, Batch, Setting, create
from transferrisk.models import Classifier

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def block_with(word):
    (found,) = [block for block in BLOCKS if word in block]
    return found


ALONE = [b for b in BLOCKS if "@register" not in b and "worst-environment" not in b]


@pytest.mark.parametrize("code", ALONE, ids=lambda b: b.splitlines()[-1][:30])
def test_block_runs(code, capsys):
    exec(compile(code, str(README), "exec"), {})


@pytest.fixture
def own_algorithms():
    with ALGORITHMS.temporary():
        yield


def test_own_algorithm_in_ten_lines(own_algorithms):
    code = block_with("@register")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    exec(compile(code, str(README), "exec"), {})
    torch.manual_seed(0)
    shown = {}
    exec(compile(block_with('create("worst-environment"'), str(README), "exec"), shown)
    assert shown["algorithm"].name == "worst-environment"
    assert shown["logs"]["loss"] >= shown["logs"]["mean_risk"] > 0
    model = Classifier(nn.Linear(2, 4), 4, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    algorithm = create("worst-environment", Setting(num_environments=2, num_classes=2))
    labels = torch.randint(2, (40,))
    inputs = torch.randn(40, 2) + 3 * labels[:, None]
    batch = Batch(inputs, labels, torch.arange(40) % 2)
    losses = [float(algorithm.step(model, batch, optimiser, epoch=0.0)["loss"]) for _ in range(50)]
    assert losses[-1] < 0.3 * losses[0]


def test_no_number_is_left_to_fill_in():
    assert not re.search(r"COMMIT|GPU_MS|TODO|XXX", README.read_text())
