"""The device a run is on, its precision, and its place among the processes that share the work."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from ..algorithms import Team
from ..data import EnvironmentSet, Splits
from ..data.environments import Rows
from ..errors import InputError, TransferRiskError
from ..models import Classifier
from .config import Precision, Run
from .world import Followed, by_torchrun, environment

if TYPE_CHECKING:
    from lightning_fabric import Fabric

S = TypeVar("S", bound=EnvironmentSet)

ROOM = 0.5  # share of the device's free memory that data may take
_LONGEST = 4096  # bytes of a message between processes


@dataclass(frozen=True)
class Engine:
    fabric: Fabric
    precision: Precision
    team: Team

    @classmethod
    def of(cls, run: Run) -> Engine:
        """All that can be said against it is said before a process is started."""
        accelerator, devices, nodes = _devices(run.device, run.devices)
        size = nodes * (devices if isinstance(devices, int) else 1)
        on_gpu = accelerator == "cuda"
        precision = run.precision or ("bf16" if on_gpu else "fp32")
        if precision not in get_args(Precision):
            raise InputError(f"precision {precision!r} is not known: choose from {', '.join(get_args(Precision))}")
        Team(0, size).check(run.config.batch_size)
        Fabric = fabric_class()
        fabric = Fabric(
            accelerator=accelerator,
            devices=devices,
            num_nodes=nodes,
            strategy="ddp" if size > 1 else "auto",
            plugins=[environment(Fabric.__module__.rpartition(".")[0], size > 1)],
        )
        fabric.launch()
        if on_gpu:
            rounded = precision != "fp32"  # beside bf16, what is left in float32 need not be better than tf32
            torch.set_float32_matmul_precision("high" if rounded else "highest")
            torch.backends.cudnn.allow_tf32 = rounded
        return cls(fabric, precision, Team(fabric.global_rank, fabric.world_size))

    @property
    def device(self) -> torch.device:
        return self.fabric.device

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def prepare(self, model: Classifier, images: bool) -> Classifier:
        """The model on the device: images with channels last on a GPU, where its convolutions are faster so."""
        model.autocast = torch.bfloat16 if self.precision == "bf16" else None
        if self.on_gpu and self.team.size > 1:
            model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model.to(self.device)
        if images and self.on_gpu:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's types lack it
        return model

    def place(self, splits: Splits) -> Splits:
        """Those sets in the GPU's memory that fit it, the training set first; on a CPU all stay where they are.

        Images that are decoded when asked for stay so: all at once they may not even fit the host's memory.
        """
        if not self.on_gpu:
            return splits
        room = ROOM * torch.cuda.mem_get_info(self.device)[0]

        def placed(data: S) -> S:
            nonlocal room
            if not decoded(data) or stored_bytes(data) > room:
                return data
            room -= stored_bytes(data)
            return data.to(self.device)

        return replace(
            splits,
            train=placed(splits.train),
            training_domain=placed(splits.training_domain),
            test_domain=placed(splits.test_domain),
            test=placed(splits.test),
        )

    @contextmanager
    def together(self) -> Iterator[None]:
        """What fails in one process ends all: the first raises why, the others `Followed`."""
        error = None
        try:
            yield
        except Exception as caught:
            if self.team.size == 1:
                raise
            error = caught
        self._agree(error)

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """The first process goes through before the others; what fails ends all, as in `together`."""
        if self.team.rank > 0:
            self._agree(None)
        with self.together():
            yield
        if self.team.rank == 0:
            self._agree(None)

    def _agree(self, error: Exception | None) -> None:
        """Wait for the others; raise if here or in one of them there was an error."""
        if self.team.size == 1:
            return
        said = b"" if error is None else (str(error) or type(error).__name__).encode()[:_LONGEST]
        message = torch.tensor([*said.ljust(_LONGEST, b"\0")], dtype=torch.uint8, device=self.device)
        messages = [torch.empty_like(message) for _ in range(self.team.size)]
        dist.all_gather(messages, message)
        told = [bytes(one.tolist()).rstrip(b"\0").decode(errors="replace") for one in messages]
        if not any(told):
            return
        if self.team.rank > 0:
            raise Followed(next(filter(None, told)))
        raise error if error is not None else TransferRiskError(next(filter(None, told)))

    def agreed(self, signum: int | None) -> int | None:
        """What some process was asked to stop by: all must stop after the same step."""
        if self.team.size == 1:
            return signum
        flag = torch.tensor(signum or 0, device=self.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return int(flag) or None

    def wait(self) -> None:
        """Until the device has done all it was given."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


def decoded(data: EnvironmentSet) -> bool:
    """Whether the inputs are a tensor, in memory or mapped from a file."""
    return isinstance(data.inputs.stored if isinstance(data.inputs, Rows) else data.inputs, Tensor)


def fabric_class() -> type[Fabric]:
    """From its own package, or from Lightning's, which carries it; either takes a second to import."""
    name = "lightning_fabric" if find_spec("lightning_fabric") is not None else "lightning.fabric"
    found: type[Fabric] = import_module(name).Fabric
    logging.getLogger(name).setLevel(logging.WARNING)  # it tells of every process it starts, and gives advice
    return found


def stored_bytes(data: EnvironmentSet) -> int:
    """Of all inputs of a set, as they are stored."""
    one = data.inputs[:1]
    return len(data) * math.prod(one.shape[1:]) * one.element_size()


def device_of(name: str) -> torch.device:
    """The one device that a name, as in `Run`, means."""
    kind, which, _ = _devices(name, 1)
    return torch.device(kind, which[0]) if isinstance(which, list) else torch.device(kind)


def _devices(name: str, count: int) -> tuple[str, int | list[int], int]:
    """Fabric's words for devices: their kind, which or how many of them on this machine, and how many machines."""
    kind, _, number = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and (kind != "cuda" or not number.isdecimal())):
        raise InputError(f"device {name!r} is not known: use auto, cpu, cuda or cuda:1")
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind = "cpu" if kind == "cpu" or (kind == "auto" and not there) else "cuda"
    nodes = 1
    if by_torchrun():
        count = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // count
    if kind == "cpu":
        return kind, count, nodes
    if int(number or 0) >= there or count > there:
        have = f"{there} such device{'s' * (there != 1)}" if there else "no GPU that PyTorch can use"
        what = f"device {name!r} is not there" if count <= max(there, 1) else f"{count} devices are not there"
        raise InputError(
            f"{what}: this machine has {have}; use --device auto or cpu{', or fewer --devices' * (count > 1)}"
        )
    if count > 1 and number:
        raise InputError(f"device {name!r} is one, and {count} are asked for: use --device cuda")
    return kind, [int(number or 0)] if count == 1 and nodes == 1 else count, nodes
