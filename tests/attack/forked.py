"""A command in a process of its own: forked, so that it need not read torch again, or started as a user starts it."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

GUARD = 8 << 30  # bytes that a case may take from the machine, whatever is found wrong with it
TRM = (sys.executable, "-m", "transferrisk")


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    code     None: it did not end in time
    seconds  of the processor
    mib      memory that it took at most, beyond what the forking process had
    """

    code: int | None
    out: str
    err: str
    seconds: float
    mib: float


def run(arguments: Sequence[str], folder: Path, seconds: float, real: bool = False) -> Ended:
    """Run `trm` with these arguments in a folder until it ends; a process of it that goes on is killed."""
    logs = folder.parent / f"{folder.name}.out", folder.parent / f"{folder.name}.err"
    before = 0 if real else resident()
    child = start(arguments, folder, logs, real)
    ready = select.select([watched := os.pidfd_open(child)], [], [], seconds)[0]
    os.close(watched)
    kill(child)
    _, status, usage = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status) if ready else None
    texts = [log.read_bytes().decode(errors="backslashreplace") for log in logs]
    return Ended(code, *texts, usage.ru_utime + usage.ru_stime, max(0.0, usage.ru_maxrss / 1024 - before))


def start(arguments: Sequence[str], folder: Path, logs: tuple[Path, Path], real: bool = False) -> int:
    """Start `trm` in a group of its own; the number of its process."""
    if real:
        with logs[0].open("wb") as out, logs[1].open("wb") as err:
            settings = {"cwd": folder, "stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
            process = subprocess.Popen([*TRM, *arguments], start_new_session=True, **settings)
        process.returncode = 0  # it is waited for by its number
        return process.pid
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_DATA, (GUARD, GUARD))
        for number, log in enumerate(logs, start=1):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.argv = ["trm", *arguments]
        from transferrisk.cli import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def kill(child: int) -> None:
    """Kill what is left of a group."""
    for act in (lambda: os.killpg(child, signal.SIGKILL), lambda: os.kill(child, signal.SIGKILL)):
        try:
            act()
        except (ProcessLookupError, PermissionError):
            continue


def resident() -> float:
    """MiB that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
