"""Jobs that take turns in one process, here on the CPU."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from transferrisk.errors import TransferRiskError
from transferrisk.experiments.beside import SideBySide
from transferrisk.experiments.turns import Turns
from transferrisk.solvers.protocols import GIVE_WAY
from transferrisk.training import RunFolder, Steps, TrainSpec, run_spec


def history(algorithm, *watches):
    """The records of a short training, without times."""
    brief = {"steps": 12, "evaluations": 3, "batch_size": 16}
    trained = run_spec(TrainSpec(data="gaussian", algorithm=algorithm, training=brief), device="cpu", watch=watches)
    return [{**record, "seconds": 0} for record in trained.history]


@pytest.mark.parametrize("together", [("mldg", "mldg"), ("erm", "trm", "fish", "mldg")])
def test_trainings_that_take_turns_have_the_numbers_that_they_have_alone(together):
    """MLDG and Fish draw from torch's generator in every step, which all trainings share."""
    alone = [history(name) for name in together]
    turns, found, order = Turns("cpu"), {}, []

    def train(position):
        def on_step(done, total):
            order.append(position)
            turns.pass_on()

        with turns.taking_part():
            found[position] = history(together[position], Steps(on_step))

    with turns.taking_part():  # so that all begin together
        threads = [threading.Thread(target=train, args=(position,)) for position in range(len(together))]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert [found[position] for position in range(len(together))] == alone
    middle = order[len(together) : 2 * len(together)]
    assert sorted(middle) == list(range(len(together)))


def test_a_thread_that_fails_passes_its_turn_on_and_rounding_is_of_one_training():
    turns, seen, gone_on = Turns("cpu"), [], []
    before = torch.get_float32_matmul_precision()

    def fail():
        with suppress(ZeroDivisionError), turns.taking_part():
            torch.set_float32_matmul_precision("high" if before == "highest" else "highest")
            turns.pass_on()
            raise ZeroDivisionError
        gone_on.append(GIVE_WAY.get())

    def look():
        with turns.taking_part():
            seen.append(torch.get_float32_matmul_precision())
            turns.pass_on()  # comes back only if the thread that fails gives its turn away
            seen.append(torch.get_float32_matmul_precision())

    with turns.taking_part():
        threads = [threading.Thread(target=act) for act in (fail, look)]
        for thread in threads:
            thread.start()
            time.sleep(0.1)
    for thread in threads:
        thread.join(timeout=30)
    assert seen == [before, before]
    assert gone_on == [None]
    torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class Job:
    """A job that waits until as many as `beside` have begun, reporting steps; then it is done, or fails as on a GPU."""

    number: int
    folder: Path
    fails: bool = False
    beside: int = 1

    def __call__(self, slot):
        (self.folder / f"begun-{self.number}").touch()
        began = time.monotonic()
        while len(list(self.folder.glob("begun-*"))) < self.beside:
            assert time.monotonic() < began + 60
            slot.on_step(60, 100)
        slot.broken = self.fails
        return f"{'failed' if self.fails else 'done'} {self.number}"


@pytest.fixture
def worker():
    """worker(room) -> a connection to a process that does jobs side by side, and that process."""
    context, processes = get_context("spawn"), []

    def start(room):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(theirs, room)))
        processes[-1].start()
        theirs.close()
        return ours, processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.join()


def serve(connection, room):
    SideBySide(connection, "cpu", 1, room).work()


def received(connection):
    assert connection.poll(60), "the worker is silent"
    return connection.recv()


def answers(connection, jobs):
    """What a worker answers to jobs, each of which it gets when it asks for one, until it ends or has no more to do."""
    found, open_jobs, asked = [], 0, False
    jobs = deque(enumerate(jobs))
    while jobs or open_jobs:
        try:
            kind, position, content = received(connection)
        except EOFError:
            break
        asked = asked or kind == "free"
        if kind not in ("free", "begun", "step"):
            found.append((position, kind, content))
            open_jobs -= 1
        if asked and jobs:
            connection.send(jobs.popleft())
            open_jobs += 1
            asked = False
    return sorted(found, key=lambda one: one[0])


def test_jobs_are_done_at_once_and_the_worker_ends_with_the_connection(worker, tmp_path):
    connection, process = worker(3)
    found = answers(connection, [Job(number, tmp_path, beside=3) for number in range(3)])
    assert found == [(number, "done", f"done {number}") for number in range(3)]
    connection.close()
    process.join(timeout=60)
    assert process.exitcode == 0


def test_a_job_that_fails_beside_others_is_tried_again_and_the_worker_takes_no_more(worker, tmp_path):
    connection, process = worker(2)
    found = answers(connection, [Job(0, tmp_path, beside=2), Job(1, tmp_path, fails=True, beside=2), Job(2, tmp_path)])
    assert found[1] in ((1, "again", "failed 1"), (1, "last", "failed 1"))  # last: the other has just ended
    assert found[0] == (0, "last" if found[1][1] == "again" else "done", "done 0")
    process.join(timeout=60)
    assert process.exitcode == 0
    assert not (tmp_path / "begun-2").exists()


def test_a_job_that_fails_by_itself_has_failed(worker, tmp_path):
    connection, _ = worker(2)
    assert answers(connection, [Job(0, tmp_path, fails=True)]) == [(0, "last", "failed 0")]


@pytest.mark.parametrize(
    ("job", "message"), [("fail", "the reason"), ("leave", "SystemExit"), ("odd", "cannot be sent to another process")]
)
def test_a_job_without_a_result_tells_why(worker, job, message):
    connection, _ = worker(2)
    ((_, kind, error),) = answers(connection, [globals()[job]])
    assert kind == "raised"
    assert isinstance(error, TransferRiskError)
    assert message in str(error)


def fail(slot):
    raise TransferRiskError("the reason")


def leave(slot):
    raise SystemExit(3)


def odd(slot):
    return lambda: None


@dataclass(frozen=True)
class Training:
    folder: Path

    def __call__(self, slot):
        def on_step(done, total):
            slot.on_step(done, total)
            (self.folder / "begun").touch()
            time.sleep(0.05)

        return history("mldg", RunFolder(self.folder / "run", resume=True, say=None), Steps(on_step))


def test_a_signal_lets_trainings_in_threads_save_and_the_next_process_goes_on(worker, tmp_path):
    connection, process = worker(2)
    assert received(connection)[0] == "free"
    connection.send((0, Training(tmp_path)))
    while not (tmp_path / "begun").exists():
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    process.join(timeout=60)
    assert process.exitcode == 0
    assert (tmp_path / "run" / "last.safetensors").exists()
    steps = []
    resumed = history(
        "mldg", RunFolder(tmp_path / "run", resume=True, say=None), Steps(lambda done, total: steps.append(done))
    )
    assert steps[0] > 1
    assert resumed == history("mldg")


@dataclass(frozen=True)
class Slow:
    """Like a training that reads its data for some time, beside another one."""

    folder: Path

    def __call__(self, slot):
        (self.folder / "reading").touch()
        while not (self.folder / "stopped").exists():
            slot.on_step(60, 100)  # passes the turn on
        (self.folder / "late").mkdir()
        return Training(self.folder / "late")(slot)


def test_a_signal_also_reaches_a_training_that_begins_after_it(worker, tmp_path):
    connection, process = worker(2)
    (tmp_path / "first").mkdir()
    for position, job in enumerate((Slow(tmp_path), Training(tmp_path / "first"))):
        while received(connection)[0] != "free":
            pass
        connection.send((position, job))
    while not ((tmp_path / "first" / "begun").exists() and (tmp_path / "reading").exists()):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    (tmp_path / "stopped").touch()
    process.join(timeout=60)
    assert process.exitcode == 0
    for folder in ("first", "late"):
        records = tmp_path / folder / "run" / "records.jsonl"
        assert '"step": 12' not in (records.read_text() if records.exists() else "")  # its last step
