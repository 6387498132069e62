"""Devices and precisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import at, sets, small_run

from transferrisk.errors import InputError
from transferrisk.training import Engine
from transferrisk.training.engine import stored_bytes


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:1", "cuda:99"])
def test_devices_that_are_not_there(device):
    with pytest.raises(InputError, match=f"device.*'{device}'"):
        Engine.of(device)


def test_unknown_precision():
    with pytest.raises(InputError, match="precision must be one of fp32, tf32, bf16, got 'fp8'"):
        Engine.of(precision="fp8")


def test_a_cpu_computes_in_full_precision_and_leaves_data_where_it_is():
    engine = Engine.of()
    assert (engine.device.type, engine.precision, engine.team.size) == ("cpu", "fp32", 1)
    data = sets()
    assert all(a is b for a, b in zip(engine.place(list(data.values())), data.values(), strict=True))
    assert stored_bytes(data["train"]) == 60 * 4 * 4


@pytest.mark.parametrize("name", ["erm", "trm", "mldg", "fish"])
def test_bf16_is_for_the_featuriser_only(name):
    run = replace(small_run(name), engine={"precision": "bf16"})
    state = run.start()
    seen = []
    state.model.featuriser[0].register_forward_hook(lambda *a: seen.append(a[2].dtype))
    features = state.model.featurise(torch.randn(5, 4))
    assert seen == [torch.bfloat16]
    assert features.dtype == torch.float32
    assert state.model.head(features).dtype == torch.float32
    rounded, full = (at(one.train().history, 9, "batch")[None]["loss"] for one in (run, small_run(name)))
    assert rounded == pytest.approx(full, rel=0.2)
    assert all(p.dtype == torch.float32 for p in state.model.parameters())
