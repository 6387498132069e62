"""Runs as tasks of a Ray cluster, which places them, and tries them again when a worker or a machine dies."""

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
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import InputError, TransferRiskError
from ..extras import require
from ..training import Stopped
from .execute import OnEvent, Outcome, execute, in_a_line
from .executors import cores
from .local import known_task
from .store import Store
from .tasks import PlannedRun, get

LOOPBACK = "127.0.0.1"
# Ray replaces a loopback address by one that other machines reach, unless this is 0, as it is by default on macOS and
# Windows. With a loopback address, each of its processes listens on that only.
LOCAL_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
REACH = 3.0  # seconds in which the machine at an address answers
GRACE = 60.0  # seconds in which trainings that are asked to stop finish their step and save


class Cut(Exception):
    """A worker was asked to stop and has saved its run, which goes on elsewhere."""


@dataclass
class RayExecutor:
    """Needs the extra `ray`, and on every machine this package, the data, and a store that all of them reach.

    address       of a cluster, such as auto or host:6379; None: one on this machine, started for the purpose, which
                  only this machine reaches. Where Ray is connected already, that is used
    gpus_per_run  0.25: four runs share one; None: one each where the cluster has any
    cpus_per_run  a run is given as many threads
    threads       of a run, where they are not as many
    retries       how often a run is tried again after its worker died
    data_root     where data sets are on each machine; None: the usual place
    options       more for `ray.init`

    Only outcomes are told, no steps.
    """

    address: str | None = None
    gpus_per_run: float | None = None
    cpus_per_run: float = 1.0
    threads: int | None = None
    retries: int = 2
    data_root: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    _started: bool = field(default=False, init=False, repr=False)
    _undo: ExitStack = field(default_factory=ExitStack, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, value in (("gpus_per_run", self.gpus_per_run or 0.0), ("cpus_per_run", self.cpus_per_run)):
            if not (0 <= value < float("inf")) or (value > 1 and value != int(value)):
                raise InputError(f"{name}={value:g} is no share of one and no whole number of them: use 0.5 or 2")
        if self.threads is not None and self.threads < 1:
            raise InputError(f"threads={self.threads} is no number of threads: use 1 or more")
        if self.retries < 0:
            raise InputError(f"retries={self.retries} is no number of attempts: use 0 or more")
        ray = require("ray", "ray")
        if self.address is not None and not ray.is_initialized():
            _check_reachable(self.address)

    def map(self, runs: Sequence[PlannedRun], store: Store, on_event: OnEvent) -> Iterator[Outcome]:
        """Outcomes as they come. When the iteration is ended early, runs have saved what they had."""
        ray = require("ray", "ray")
        self._connect(ray)
        there = ray.cluster_resources()
        gpus = self.gpus_per_run if self.gpus_per_run is not None else float(there.get("GPU", 0) > 0)
        self._check(there, gpus)
        remote = ray.remote(
            num_cpus=self.cpus_per_run, num_gpus=gpus, max_retries=self.retries, retry_exceptions=[Cut]
        )(_execute)
        threads = self.threads or max(1, int(self.cpus_per_run))
        data_root = None if self.data_root is None else self.data_root.absolute()
        waiting = {}
        try:
            for run in runs:
                module = type(get(run.task)).__module__
                waiting[remote.remote(run, module, store, gpus > 0, threads, data_root)] = run
            while waiting:
                (done, *_), _ = ray.wait(list(waiting))
                yield _outcome(ray, done, waiting.pop(done), store, self.retries)
        finally:
            _stop(ray, waiting)

    def close(self) -> None:
        """End the cluster, or the connection to it, if this began it."""
        if self._started:
            self._undo.close()
            self._started = False

    def _connect(self, ray: ModuleType) -> None:
        if ray.is_initialized():
            return
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        here: dict[str, Any] = {"address": self.address}
        with ExitStack() as undo:
            if self.address is None:
                undo.enter_context(_for_this_machine(ray))
                here = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
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
                raise TransferRiskError(f"no Ray cluster{where}: {in_a_line(error)}") from None
            undo.callback(ray.shutdown)
            if self.address is None and "_node_ip_address" not in self.options:
                _check_loopback(ray)
            self._undo = undo.pop_all()
        self._started = True

    def _check(self, there: Mapping[str, float], gpus: float) -> None:
        """A cluster of others may grow; one of ours has what it has."""
        for what, asked in (("CPU", self.cpus_per_run), ("GPU", gpus)):
            if self._started and self.address is None and asked > there.get(what, 0):
                raise InputError(
                    f"a run is to have {asked:g} {what}s, and this machine has {there.get(what, 0):g}: use fewer"
                )


@contextmanager
def _for_this_machine(ray: ModuleType) -> Iterator[None]:
    """A cluster that is started within is reached from this machine only, and with a token that nobody else has.

    The token is in the environment, which Ray's processes inherit, and not in the file that Ray would write for it.
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
    """Ray keeps what it has read of the environment. The mode is first: a token is looked for where it asks for one."""
    if hasattr(ray._raylet, "AuthenticationTokenLoader"):
        ray._raylet.Config.initialize("")
        ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _check_loopback(ray: ModuleType) -> None:
    """What makes Ray listen there is no documented part of it."""
    address = ray.util.get_node_ip_address()
    if not ip_address(address).is_loopback:
        raise TransferRiskError(
            f"the address of a Ray cluster for this machine alone must be {LOOPBACK}, got {address} from Ray "
            f"{ray.__version__}: use another version of Ray, or start a cluster yourself and name it with --address"
        )


@contextmanager
def _silence() -> Iterator[None]:
    """Of what Ray's compiled parts write about each attempt to connect, whatever its levels of logging."""
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
    """Ray itself would try for long, and write about each attempt."""
    scheme, _, place = address.rpartition("://")
    if address in ("auto", "local") or scheme not in ("", "ray"):
        return
    host, _, port = place.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"address {address!r} is none of a Ray cluster: use auto, HOST:6379 or ray://HOST:10001")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except OSError as error:
        raise InputError(
            f"no Ray cluster at {address} ({error.strerror or error}): correct the address, or start one there with "
            "ray start --head"
        ) from None


def _execute(run: PlannedRun, module: str, store: Store, gpu: bool, threads: int, data_root: Path | None) -> Outcome:
    """On a worker, to which Ray shows the GPU it may use as the only one."""
    known_task(module)
    try:
        return execute(run, store, "cuda" if gpu else "cpu", threads, data_root)
    except Stopped as stopped:
        raise Cut(str(stopped)) from None


def _outcome(ray: ModuleType, reference: Any, run: PlannedRun, store: Store, retries: int) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
        return outcome
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, TransferRiskError):
            raise error.cause from None
        if not isinstance(error.cause, Cut):  # `execute` raises nothing: it could not be called
            first = str(error.cause).partition("\n")[0]
            raise TransferRiskError(
                f"a machine of the cluster cannot do runs ({first}): install the same version of this package there"
            ) from error
        lost: Exception = error.cause
    except ray.exceptions.RayError as error:  # its worker or its machine died, each time
        lost = error
    how = (
        "was asked to stop" if isinstance(lost, Cut) else f"died ({type(lost).__name__}), perhaps of too little memory"
    )
    message = f"its worker {how}" + f", at each of {retries + 1} attempts" * bool(retries)
    with suppress(TransferRiskError), store.claim(run.name) as folder:
        if folder is not None and not store.done(run.name):
            store.fail(run.name, message, str(lost))
    return Outcome(run.name, "failed", error=message)


def _stop(ray: ModuleType, waiting: Iterable[Any]) -> None:
    """Take back what has not begun, and let what has finish its step and save."""
    references = list(waiting)
    if not references or not ray.is_initialized():
        return
    for reference in references:
        with suppress(ray.exceptions.RayError):
            ray.cancel(reference)
    ray.wait(references, num_returns=len(references), timeout=GRACE)
