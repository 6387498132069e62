"""Memory that is full is told in a line with a way out; errors of the program stay what they are."""

from __future__ import annotations

import pytest
import torch

from transferrisk.errors import InputError, TransferRiskError
from transferrisk.training.troubles import in_one_line

GPU = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.00 GiB"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError(GPU), "the GPU's memory is full (tried to allocate 2.00 GiB): "),
        (
            RuntimeError("not enough memory: you tried to allocate 8 bytes."),
            "memory is full (tried to allocate 8 bytes): ",
        ),
        (MemoryError("Unable to allocate 3 TiB"), "memory is full: "),
    ],
)
def test_full_memory(error, said):
    with pytest.raises(TransferRiskError) as told, in_one_line("nothing is lost", 64):
        raise error
    way_out = "use a lower --batch-size (now 64), a smaller --backbone or --lazy; nothing is lost"
    assert str(told.value) == said + way_out
    assert told.value.exit_code == 2


def test_a_real_allocation():
    message = r"^memory is full \(tried to allocate 4000000000000000 bytes\)"
    with pytest.raises(TransferRiskError, match=message), in_one_line(lambda: ""):
        torch.empty(10**15)


def test_another_process_that_is_gone(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    message = "^another process of this run has ended: see what it says, then use --resume; step 3$"
    with pytest.raises(TransferRiskError, match=message), in_one_line("step 3"):
        raise RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3712")


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), InputError("not that"), RuntimeError("gloo")])
def test_everything_else_stays_what_it_is(error):
    with pytest.raises(type(error)) as raised, in_one_line("", 1):
        raise error
    assert raised.value is error
