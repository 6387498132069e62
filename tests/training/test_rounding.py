"""What a training sets of torch's precision is set back."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from small import small_run
from torch import backends

from transferrisk.training import train
from transferrisk.training.rounding import Rounding


def older(products, convolutions):
    torch.set_float32_matmul_precision(products)
    backends.cudnn.allow_tf32 = convolutions


def newer(products, convolutions):
    backends.cuda.matmul.fp32_precision = products
    backends.cudnn.conv.fp32_precision = convolutions


def same(found, before):
    """An older setting that could not be read, because a newer one contradicts it, has no effect either."""
    older = [name for name in ("products", "convolutions") if getattr(before, name) is not None]
    return all(getattr(found, name) == getattr(before, name) for name in (*older, "parts"))


@pytest.fixture(autouse=True)
def _as_it_was():
    start = Rounding.now()
    yield
    start.set()
    assert Rounding.now() == start


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "user",
    [
        lambda: None,
        lambda: older("highest", True),
        lambda: older("high", False),
        lambda: newer("tf32", "ieee"),
        lambda: newer("ieee", "tf32"),
    ],
)
@pytest.mark.parametrize("chosen", [("high", True), ("highest", False)])
def test_torch_rounds_afterwards_as_before(user, chosen, fails):
    """On a CPU, where nothing is set, by hand in the midst of training: as an engine on a GPU does it."""
    user()
    before, within = Rounding.now(), []

    def on_record(_):
        older(*chosen)
        within.append(Rounding.now())
        if fails:
            raise KeyError

    with pytest.raises(KeyError) if fails else nullcontext():
        train(replace(small_run(evaluations=1, record=()), device="cpu"), on_record=on_record)
    assert within != [before]
    assert same(Rounding.now(), before)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("user", [lambda: older("highest", True), lambda: newer("tf32", "ieee")])
def test_and_on_a_gpu(user, precision):
    user()
    before, within = Rounding.now(), []
    run = replace(small_run(evaluations=1), device="cuda", precision=precision)
    train(run, on_record=lambda _: within.append(Rounding.now()))
    assert within != [before]
    assert same(Rounding.now(), before)
