"""The engine of a training: its device, its precision, and the processes that share its batches."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from ..algorithms import Team
from ..data import EnvironmentSet
from ..data.environments import Rows
from ..errors import InputError, TransferRiskError
from ..solvers.protocols import wait_for
from .defaults import Precision
from .processes import Followed, start_processes, started_by_torchrun

if TYPE_CHECKING:
    from lightning_fabric import Fabric

ROOM = 0.5  # share of the device's free memory for data
LOOK_EVERY = 50  # steps between two readings of a value from a GPU, which wait for it


@dataclass(frozen=True)
class Engine:
    """Device, precision and processes of a training.

    Parameters
    ----------
    device
        Device of this process.
    precision
        Precision of the featuriser; the head is always in float32.
    team
        Processes that share each batch.
    loaders
        Number of processes that read data ahead if the device's memory does not hold it.
    captured
        Whether steps on a GPU are captured in CUDA graphs where possible.
    compiled
        Whether networks for images on a GPU are compiled. None: in trainings that are long enough for it to pay.

    Examples
    --------
    >>> from transferrisk.training import Engine
    >>> Engine.of("cpu").precision
    'fp32'
    """

    device: torch.device
    precision: Precision
    team: Team
    loaders: int = 0
    captured: bool = True
    compiled: bool | None = None

    @classmethod
    def of(
        cls,
        device: str = "cpu",
        devices: int = 1,
        precision: str | None = None,
        loaders: int = 0,
        captured: bool = True,
        batch_size: int | None = 0,
        compiled: bool | None = None,
    ) -> Engine:
        """Check the arguments, start the processes of a training, and return its engine.

        Parameters
        ----------
        device
            "auto", "cpu", "cuda" or "cuda:1". A CPU, the default, repeats a training bit for bit.
        devices
            Number of devices that share a batch; torchrun's own if it has started this process.
        precision
            "fp32", "tf32" or "bf16". None: bf16 on a GPU, else fp32.
        loaders, captured
            As for `Engine`.
        batch_size
            Number of samples of each environment that the devices share. 0: not known yet.
        compiled
            As for `Engine`.

        Returns
        -------
        Engine
            The engine.
        """
        accelerator, which, nodes = _devices(device, devices)
        size = nodes * (which if isinstance(which, int) else 1)
        chosen = precision or ("bf16" if accelerator == "cuda" else "fp32")
        if chosen not in get_args(Precision):
            raise InputError(f"precision must be one of {', '.join(get_args(Precision))}, got {precision!r}")
        if accelerator == "cpu" and size == 1:  # without Lightning, which takes a second to import
            return cls(torch.device("cpu"), chosen, Team(), loaders, captured)  # type: ignore[arg-type]  # a Precision
        Team(0, size).check(batch_size)
        fabric = _launch(accelerator, which, nodes, several=size > 1)
        team = Team(fabric.global_rank, fabric.world_size)
        return cls(fabric.device, chosen, team, loaders, captured, compiled)  # type: ignore[arg-type]  # is a Precision

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    def arithmetic(self) -> AbstractContextManager[None]:
        """Set torch's rounding of float32 products and convolutions by the precision, for the block."""
        if not self.on_gpu:
            return nullcontext()
        return rounded_products(self.precision != "fp32")  # with bf16, tf32 is accurate enough for the rest

    def place(self, sets: Sequence[EnvironmentSet]) -> list[EnvironmentSet]:
        """Return the sets, moved to the GPU's memory as far as they fit, the first ones first.

        On a CPU all stay as they are, and so do images that are decoded when needed, which may not even fit the host's
        memory.

        Parameters
        ----------
        sets
            Sets of samples.

        Returns
        -------
        list of EnvironmentSet
            The sets in the same order.
        """
        if not self.on_gpu:
            return list(sets)
        room = ROOM * torch.cuda.mem_get_info(self.device)[0]
        placed: dict[int, EnvironmentSet] = {}
        for data in sets:
            if id(data) in placed:
                continue
            fits = is_decoded(data) and stored_bytes(data) <= room
            room -= stored_bytes(data) if fits else 0
            placed[id(data)] = data.to(self.device) if fits else data
        return [placed[id(data)] for data in sets]

    @contextmanager
    def together(self, first_alone: bool = False) -> Iterator[None]:
        """End all processes if one fails in the block: the first raises its error, the others `Followed`.

        Parameters
        ----------
        first_alone
            Whether the first process runs the block before the others.
        """
        if self.team.size == 1:
            yield
            return
        if first_alone and self.team.rank > 0:
            self._agree(None)
        error = None
        try:
            yield
        except Exception as caught:
            error = caught
        self._agree(error)
        if first_alone and self.team.rank == 0:
            self._agree(None)

    def _agree(self, error: Exception | None) -> None:
        """Wait for the other processes; raise if this one or another has failed."""
        messages: list[Any] = [None] * self.team.size
        dist.all_gather_object(messages, "" if error is None else str(error) or type(error).__name__)
        told = next(filter(None, messages), None)
        if told is None:
            return
        if self.team.rank > 0:
            raise Followed(told)
        raise error if error is not None else TransferRiskError(told)

    def agreed_signal(self, signum: int | None) -> int | None:
        """Return the signal that any process has received, so that all stop after the same step.

        Parameters
        ----------
        signum
            Signal that this process has received, None without one.

        Returns
        -------
        int or None
            Signal, None if no process has received one.
        """
        flag = torch.tensor(signum or 0, device=self.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return int(flag) or None

    def wait(self) -> None:
        """Wait until the device has finished the work of this training; others that take turns with it go on."""
        wait_for(self.device)


class Rounding:
    """How torch rounds products and convolutions of float32, which holds for the whole process, at one moment.

    Torch has older and newer settings for this. Setting an older one changes newer ones too, so that these are restored
    last. An older one cannot be read if newer ones contradict it; it has no effect then.
    """

    def __init__(self) -> None:
        backends: Any = torch.backends  # attributes of its submodules exist once these are imported
        self._newer = (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn)
        self._precisions = [backend.fp32_precision for backend in self._newer]
        self._products = self._convolutions = None
        with suppress(RuntimeError):
            self._products = torch.get_float32_matmul_precision()
        with suppress(RuntimeError):
            self._convolutions = backends.cudnn.allow_tf32

    def restore(self) -> None:
        """Put it back."""
        if self._products is not None:
            torch.set_float32_matmul_precision(self._products)
        if self._convolutions is not None:
            torch.backends.cudnn.allow_tf32 = self._convolutions
        for backend, precision in zip(self._newer, self._precisions, strict=True):
            backend.fp32_precision = precision


@contextmanager
def rounded_products(rounded: bool) -> Iterator[None]:
    """Let torch round products and convolutions of float32 to tf32, or not, for the block."""
    before = Rounding()
    torch.set_float32_matmul_precision("high" if rounded else "highest")
    torch.backends.cudnn.allow_tf32 = rounded
    try:
        yield
    finally:
        before.restore()


def is_decoded(data: EnvironmentSet) -> bool:
    """Return whether the inputs are a tensor, in memory or mapped from a file."""
    return isinstance(data.inputs.stored if isinstance(data.inputs, Rows) else data.inputs, Tensor)


def stored_bytes(data: EnvironmentSet) -> int:
    """Return the number of bytes of all inputs of a set, as they are stored."""
    one = data.inputs[:1]
    return len(data) * math.prod(one.shape[1:]) * one.element_size()


def device_of(name: str) -> torch.device:
    """Return the device of a name that `Engine.of` takes."""
    kind, which, _ = _devices(name, 1)
    return torch.device(kind, which[0]) if isinstance(which, list) else torch.device(kind)


def _devices(name: str, count: int) -> tuple[str, int | list[int], int]:
    """Return the kind of the devices, which or how many of them on each machine, and the number of machines."""
    kind, _, number = name.partition(":")
    if kind not in ("auto", "cpu", "cuda") or (number and (kind != "cuda" or not number.isdecimal())):
        raise InputError(f"device must be auto, cpu, cuda or cuda:1, got {name!r}")
    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    kind = "cpu" if kind == "cpu" or (kind == "auto" and not present) else "cuda"
    nodes = 1
    if started_by_torchrun():
        count = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // count
    if kind == "cpu":
        return kind, count, nodes
    if int(number or 0) >= present or count > present:
        have = f"{present} GPU{'s' * (present != 1)}" if present else "no GPU that PyTorch can use"
        option = f"device must exist, got {name!r}" if count <= max(present, 1) else f"devices must exist, got {count}"
        raise InputError(
            f"{option}: this machine has {have}; use --device auto or cpu{', or fewer --devices' * (count > 1)}"
        )
    if count > 1 and number:
        raise InputError(f"device must be cuda for {count} devices, got {name!r}: use --device cuda")
    return kind, [int(number or 0)] if count == 1 and nodes == 1 else count, nodes


def _launch(accelerator: str, devices: int | list[int], nodes: int, several: bool) -> Fabric:
    """Start the processes, or join those that torchrun has started; Fabric itself detects nothing."""
    # Fabric has a package of its own, and is also in Lightning's; either takes a second to import.
    package = "lightning_fabric" if find_spec("lightning_fabric") is not None else "lightning.fabric"
    environments = import_module(f"{package}.plugins.environments")
    logging.getLogger(package).setLevel(logging.WARNING)  # it logs each process that it starts, and advice
    if started_by_torchrun():
        environment = environments.TorchElasticEnvironment()
    else:
        if several and isinstance(devices, int):
            start_processes(devices)
        environment = environments.LightningEnvironment()
    fabric: Fabric = import_module(package).Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if several else "auto",
        plugins=[environment],
    )
    fabric.launch()
    return fabric
