"""Jobs that take turns in one process, here on the CPU."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from transferrisk.errors import TransferRiskError
from transferrisk.experiments.beside import SideBySide
from transferrisk.experiments.turns import Turns
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
    turns, seen = Turns("cpu"), []
    before = torch.get_float32_matmul_precision()

    def fail():
        with suppress(ZeroDivisionError), turns.taking_part():
            torch.set_float32_matmul_precision("high" if before == "highest" else "highest")
            turns.pass_on()
            raise ZeroDivisionError

    def look():
        with turns.taking_part():
            seen.append(torch.get_float32_matmul_precision())

    with turns.taking_part():
        threads = [threading.Thread(target=act) for act in (fail, look)]
        for thread in threads:
            thread.start()
            time.sleep(0.1)
    for thread in threads:
        thread.join(timeout=30)
    assert seen == [before]
    torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class Job:
    """A job that waits until as many as `beside` have begun, or reports steps, or fails as on a GPU."""

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
    """worker(room) -> a connection to a process that does jobs side by side."""
    context, processes = get_context("spawn"), []

    def start(room):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(theirs, room)))
        processes[-1].start()
        theirs.close()
        assert ours.recv() == ("begun", -1, None)
        return ours, processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.join()


def serve(connection, room):
    SideBySide(connection, "cpu", 1, room).work()


def answers(connection, count):
    """The next messages that are not about steps, in any order."""
    found = []
    while len(found) < count:
        kind, position, content = connection.recv()
        if kind != "step":
            found.append((position, kind, content))
    return sorted(found)


def test_jobs_are_done_at_once_and_the_worker_ends_with_the_connection(worker, tmp_path):
    connection, process = worker(3)
    for number in range(3):
        connection.send((number, Job(number, tmp_path, beside=3), False))
    assert answers(connection, 3) == [(number, "done", f"done {number}") for number in range(3)]
    connection.close()
    process.join(timeout=60)
    assert process.exitcode == 0


def test_a_job_that_fails_beside_others_is_tried_again_and_the_worker_takes_no_more(worker, tmp_path):
    connection, process = worker(2)
    for number in range(3):
        connection.send((number, Job(number, tmp_path, fails=number == 1, beside=2 if number < 2 else 1), False))
    found = answers(connection, 3)
    assert (1, "again", "failed 1") in found
    assert (2, "again", None) in found
    assert found[0][:1] == (0,)
    process.join(timeout=60)
    assert process.exitcode == 0


def test_a_job_that_has_to_be_alone_is(worker, tmp_path):
    connection, _ = worker(2)
    connection.send((0, Job(0, tmp_path, fails=True), True))
    connection.send((1, Job(1, tmp_path), False))
    found = answers(connection, 2)
    assert found[0] == (0, "last", "failed 0")  # no other can be to blame
    assert found[1][1] == "again"


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
    connection.send((0, Training(tmp_path), False))
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


def test_an_error_of_a_job_is_sent(worker, tmp_path):
    connection, _ = worker(2)
    connection.send((0, raising, False))
    ((position, kind, error),) = answers(connection, 1)
    assert (position, kind) == (0, "raised")
    assert isinstance(error, TransferRiskError)


def raising(slot):
    raise TransferRiskError("the reason")
