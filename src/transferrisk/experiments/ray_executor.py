"""Executor of a Ray cluster, which places jobs, and tries them again if a worker or a machine dies."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from types import ModuleType
from typing import Annotated, Any

from ..errors import InputError, TransferRiskError
from ..extras import require
from ..settings import Bound, Count, NonNegative, Settings
from ..solvers import threads_set
from ..training import Stopped
from .executors import Job, Message, Messages, OnJobStep, Slot, count_cores

LOOPBACK = "127.0.0.1"
# Ray replaces a loopback address by one that other machines reach, unless this is 0, the default on macOS and Windows.
# With a loopback address, each of its processes listens only there.
LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
REACH = 3.0  # seconds within which the machine at an address must answer
GRACE = 60.0  # seconds that trainings have to finish their step and save when they are asked to stop


class Cut(Exception):
    """Raised by a worker that was asked to stop and has saved its job, which continues elsewhere."""


@dataclass(frozen=True)
class RayExecutor(Settings):
    """Executor of a Ray cluster, which reports the ends of jobs but not their steps.

    It needs the extra `ray`, and on every machine this package, the data, and a store that all machines reach.

    address       address of a cluster, such as auto or host:6379; an existing connection of Ray is used first.
                  Default: a cluster is started on this machine, which only this machine reaches
    gpus_per_run  number of GPUs of a job; four jobs with 0.25 share one. Default: 1 if the cluster has GPUs
    cpus_per_run  number of cores of a job
    threads       number of threads of a job. Default: cpus_per_run
    retries       number of times a job is tried again after its worker died
    options       further arguments of `ray.init`
    """

    address: str | None = None
    gpus_per_run: NonNegative | None = None
    cpus_per_run: NonNegative = 1.0
    threads: Count | None = None
    retries: Annotated[int, Bound(least=0)] = 2
    options: Mapping[str, Any] = field(default_factory=dict)
    _session: ExitStack = field(default_factory=ExitStack, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("gpus_per_run", self.gpus_per_run or 0.0), ("cpus_per_run", self.cpus_per_run)):
            if value > 1 and value != int(value):
                raise InputError(f"{name} must be a whole number where it is above 1, got {value:g}: use 0.5 or 2")
        ray = require("ray", "ray")
        if self.address is not None and not ray.is_initialized():
            _check_reachable(self.address)

    def map(self, jobs: Sequence[Job[Any]], on_step: OnJobStep = lambda position, done, total: None) -> Messages:
        ray = require("ray", "ray")
        ours = not ray.is_initialized() and self.address is None
        self.connect(ray)
        found = ray.cluster_resources()
        gpus = self.gpus_per_run if self.gpus_per_run is not None else float(found.get("GPU", 0) > 0)
        if ours:  # other clusters may grow
            _check_room(found, {"CPU": self.cpus_per_run, "GPU": gpus})
        remote = ray.remote(
            num_cpus=self.cpus_per_run, num_gpus=gpus, max_retries=self.retries, retry_exceptions=[Cut]
        )(_work)
        threads = self.threads or max(1, int(self.cpus_per_run))
        waiting: dict[Any, int] = {}
        try:
            for position, job in enumerate(jobs):
                waiting[remote.remote(job, "cuda" if gpus > 0 else "cpu", threads)] = position
            while waiting:
                (reference, *_), _ = ray.wait(list(waiting))
                yield _message(ray, reference, waiting.pop(reference), self.retries)
        finally:
            _stop(ray, waiting)

    def close(self) -> None:
        """End the cluster, or the connection to it, if this executor started it."""
        self._session.close()

    def connect(self, ray: ModuleType) -> None:
        """Start a cluster on this machine, or connect to the one at the address; `close` undoes it."""
        if ray.is_initialized():
            return
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        here: dict[str, Any] = {"address": self.address}
        with ExitStack() as undo:
            if self.address is None:
                undo.enter_context(_for_this_machine(ray))
                here = {"address": "local", "num_cpus": count_cores(), "include_dashboard": False}
                here["_node_ip_address"] = LOOPBACK
            try:
                with nullcontext() if self.address is None else _silence():
                    ray.init(**{**quiet, **here, **self.options})
            except (ConnectionError, RuntimeError, ValueError) as error:
                if self.address == "auto" and isinstance(error, ConnectionError):
                    raise InputError(
                        "no Ray cluster runs on this machine: start one with ray start --head, or leave --address out "
                        "for one that ends with the experiment"
                    ) from None
                where = f" at {self.address}" if self.address else ""
                why = " ".join(str(error).split()) or type(error).__name__
                raise TransferRiskError(f"no Ray cluster{where}: {why}") from None
            undo.callback(ray.shutdown)
            if self.address is None and "_node_ip_address" not in self.options:
                _check_loopback(ray)
            self._session.callback(undo.pop_all().close)


def _check_room(found: Mapping[str, float], asked: Mapping[str, float]) -> None:
    for what, count in asked.items():
        if count > found.get(what, 0):
            raise InputError(
                f"{what}s of a run must be <= {found.get(what, 0):g}, which this machine has, got {count:g}"
            )


@contextmanager
def _for_this_machine(ray: ModuleType) -> Iterator[None]:
    """Let a cluster that starts within this block be reached only by this machine, with a secret token.

    The token is in the environment, which Ray's processes inherit, and not in the file that Ray would write.
    """
    settings = {"RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0"), LOCAL_ONLY: "0"}
    if hasattr(ray._raylet, "AuthenticationTokenLoader"):  # Ray 2.52 or newer
        settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    before = {name: os.environ.get(name) for name in settings}
    constants = ray._private.ray_constants
    clusters = constants.ENABLE_RAY_CLUSTER
    try:
        os.environ.update(settings)
        constants.ENABLE_RAY_CLUSTER = False  # Ray has read LOCAL_ONLY when it was imported
        _read_authentication(ray)
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = clusters
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _read_authentication(ray)


def _read_authentication(ray: ModuleType) -> None:
    """Let Ray read the environment again: first the mode, which decides whether it looks for a token."""
    if hasattr(ray._raylet, "AuthenticationTokenLoader"):
        ray._raylet.Config.initialize("")
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _check_loopback(ray: ModuleType) -> None:
    """Check that Ray listens only on the loopback address, which no documented setting of Ray guarantees."""
    address = ray.util.get_node_ip_address()
    if not ip_address(address).is_loopback:
        raise TransferRiskError(
            f"the address of a Ray cluster for this machine alone must be {LOOPBACK}, got {address} from Ray "
            f"{ray.__version__}: use another version of Ray, or start a cluster yourself and name it with --address"
        )


@contextmanager
def _silence() -> Iterator[None]:
    """Hide the lines that Ray's compiled code writes about each attempt to connect, at any level of logging."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nothing, warnings.catch_warnings():
            os.dup2(nothing.fileno(), 2)
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _check_reachable(address: str) -> None:
    """Raise InputError for an address that does not answer; Ray would try for long, and write about each attempt."""
    scheme, _, place = address.rpartition("://")
    if address in ("auto", "local") or scheme not in ("", "ray"):
        return
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"address must be auto, HOST:6379 or ray://HOST:10001, got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except OSError as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({error.strerror or error}): correct the address, or start one there "
            "with ray start --head"
        ) from None


def _work(job: Job[Any], device: str, threads: int) -> Any:
    """Do a job on a worker, which sees only the GPU that Ray gives it."""
    try:
        with threads_set(threads):
            return job(Slot(device, threads))
    except Stopped as stopped:
        raise Cut(str(stopped)) from None


def _message(ray: ModuleType, reference: Any, position: int, retries: int) -> Message:
    attempts = f", at each of {retries + 1} attempts" if retries else ""
    try:
        return Message(position, "done", ray.get(reference))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TransferRiskError):
            raise error.cause from None
        if not isinstance(error.cause, Cut):  # jobs return their errors as results: this one could not be called
            first = str(error.cause).partition("\n")[0]
            raise TransferRiskError(
                f"a machine of the cluster cannot do runs ({first}): install the same version of this package there"
            ) from error
        return Message(position, "lost", f"its worker process was asked to stop{attempts}")
    except ray.exceptions.RayError as error:  # its worker or its machine died, each time
        return Message(
            position,
            "lost",
            f"its worker process died ({type(error).__name__}), perhaps because memory ran out{attempts}",
        )


def _stop(ray: ModuleType, waiting: Iterable[Any]) -> None:
    """Cancel jobs that have not started, and let the others finish their step and save."""
    references = list(waiting)
    if not references or not ray.is_initialized():
        return
    for reference in references:
        with suppress(ray.exceptions.RayError):
            ray.cancel(reference)
    ray.wait(references, num_returns=len(references), timeout=GRACE)
