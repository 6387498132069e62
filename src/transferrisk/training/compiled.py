"""Compiled networks: torch fuses the operations between convolutions into few kernels.

Compiling takes 10 to 40 s and saves 0.4 to 2 ms of a step, so a single training has to be long. The trainings of a
process share what is compiled: one for each kind of network, precision and number of images, and for training and
evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import StepWarning, cause_of, warn

PAYS_FROM = 30_000  # steps of one kind of network in a process
KINDS = 64  # of networks and images that are compiled in a process

_failed = False  # torch cannot compile on this machine


def run_compiled(network: nn.Module, inputs: Tensor) -> Tensor:
    """Apply a network to inputs, compiled; as it is, after a StepWarning, where torch cannot compile it."""
    global _failed
    if not _failed:
        apply, errors, config = _compiler()
        config.recompile_limit = max(config.recompile_limit, KINDS)  # holds for a thread
        try:
            return apply(network, inputs)
        except errors as error:
            _failed = True
            warn(f"networks are not compiled, which would be faster: {cause_of(error)}", StepWarning)
    unchanged: Tensor = network(inputs)
    return unchanged


@cache
def _compiler() -> tuple[Callable[[nn.Module, Tensor], Tensor], tuple[type[Exception], ...], Any]:
    """Return the compiled function, the errors of the compiler, which takes a second to import, and its settings."""
    from torch._dynamo import config
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import InductorError

    def apply(network: nn.Module, inputs: Tensor) -> Tensor:
        outputs: Tensor = network(inputs)
        return outputs

    compiled: Any = torch.compile(apply, dynamic=False)
    return compiled, (TorchDynamoException, InductorError), config
