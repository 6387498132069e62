"""Jobs in one process and in several."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from transferrisk.errors import InputError, TransferRiskError
from transferrisk.experiments.demo import Demo
from transferrisk.experiments.executors import LocalExecutor, in_processes, run_jobs


@dataclass(frozen=True)
class Square:
    """Takes the longer the earlier it stands, so that jobs finish out of order."""

    number: int

    def __call__(self, slot):
        slot.on_step(1, 2)
        time.sleep(0.3 if self.number == 0 else 0.0)
        slot.on_step(2, 2)
        return self.number**2, torch.get_num_threads(), os.getpid()


@dataclass(frozen=True)
class Fails:
    how: str

    def __call__(self, slot):
        if self.how == "error":
            raise InputError("the reason")
        os._exit(9)


@pytest.mark.parametrize("workers", [1, 9])
def test_every_job_is_done_once_with_one_thread(workers):
    steps = []
    results = dict(run_jobs([Square(i) for i in range(3)], workers, lambda *step: steps.append(step)))
    assert {i: result[0] for i, result in results.items()} == {0: 0, 1: 1, 2: 4}
    assert {result[1] for result in results.values()} == {1}
    assert sorted(steps) == [(i, done, 2) for i in range(3) for done in (1, 2)]
    here = {result[2] for result in results.values()} == {os.getpid()}
    assert here == (workers == 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_raised_here(workers):
    with pytest.raises(InputError, match="the reason"):
        list(run_jobs([Fails("error"), Square(1)], workers, lambda *_: None))


def test_a_worker_that_dies_is_noticed():
    with pytest.raises(TransferRiskError, match="worker process ended with exit code 9: use fewer workers"):
        list(run_jobs([Fails("death"), Square(0)], 2, lambda *_: None))


def test_no_workers():
    with pytest.raises(InputError, match="workers must be an integer >= 1, got 0"):
        next(run_jobs([Square(1)], 0, lambda *_: None))


def test_threads_of_the_caller_are_given_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (((_, threads, _)),) = dict(run_jobs([Square(1)], 1, lambda *_: None)).values()
        assert (threads, torch.get_num_threads()) == (1, 2)
    finally:
        torch.set_num_threads(before)


def work(word, slot):
    slot.on_step(1, 1)
    if word == "death":
        os._exit(9)
    slot.broken = word == "broken"
    return os.getpid()


def messages(*words, workers=1, **settings):
    return LocalExecutor(workers, ("cpu",), 1, **settings).map([partial(work, word) for word in words])


def test_a_worker_that_is_broken_is_replaced_and_a_job_whose_worker_died_is_tried_again_and_then_lost():
    told = [one for one in messages("death", "broken", "next", "after it", retries=1) if one.kind != "step"]
    kinds = [(0, "retried"), (0, "lost"), (1, "done"), (2, "done"), (3, "done")]
    assert [(one.position, one.kind) for one in told] == kinds
    assert told[2].content != told[3].content == told[4].content


@dataclass(frozen=True)
class Together:
    """A job that begins beside as many others as it says, and then is done or ends as its word says."""

    word: str
    folder: Path
    beside: int = 1

    def __call__(self, slot):
        (self.folder / f"{os.getpid()}-{id(slot)}").touch()
        end = time.monotonic() + 60
        while len(list(self.folder.iterdir())) < self.beside and time.monotonic() < end:
            slot.on_step(60, 100)
        if self.word == "error":
            raise InputError("the reason")
        return work(self.word, slot)


def answered(jobs, room, retries):
    """Position of a job -> the kinds of all messages about it but steps."""
    found = {position: [] for position in range(len(jobs))}
    for message in in_processes(jobs, [("cpu", room)], 1, retries):
        if message.kind != "step":
            found[message.position].append(message.kind)
            assert message.kind != "done" or message.content is not None
    return found


def test_a_job_that_kills_its_worker_takes_no_other_with_it(tmp_path):
    found = answered([Together("death", tmp_path, 3), *(Together("ok", tmp_path) for _ in range(3))], 3, 1)
    assert found[0] == ["retried", "lost"]
    for position in (1, 2, 3):
        assert found[position] in (["done"], ["retried", "done"])  # once beside the one that died, then alone


@pytest.mark.parametrize("retries", [0, 1])
def test_jobs_that_break_their_worker_are_answered_once_and_others_are_done(retries, tmp_path):
    words = ["broken", "ok", "broken", "ok"]
    found = answered([Together(word, tmp_path, 2 - position % 2) for position, word in enumerate(words)], 2, retries)
    for position in range(len(words)):
        assert found[position][-1] == "done"
        assert found[position][:-1] in ([], ["retried"][:retries])


def test_an_error_beside_others_is_raised_here(tmp_path):
    with pytest.raises(InputError, match="the reason"):
        answered([Together("ok", tmp_path, 2), Together("error", tmp_path, 2)], 2, 1)


def test_workers_are_gone_when_the_iteration_is_left():
    left = messages("one", "two", "three", workers=2)
    pid = next(message.content for message in left if message.kind == "done")
    left.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_numbers_of_the_demo_do_not_depend_on_the_number_of_processes(tmp_path):
    lines = []
    for workers in (1, 2):
        plan = Demo(("trm", "erm"), (1, 0), "cnn:4", {"epochs": 1, "evaluations": 1}, workers)
        runs = [about for about, _ in plan.run(tmp_path / str(workers))]
        assert runs == [{"algorithm": name, "seed": seed} for seed in (1, 0) for name in ("trm", "erm")]
        written = (tmp_path / str(workers) / "records.jsonl").read_text().splitlines()
        lines.append([{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in written])
    assert lines[0] == lines[1]
    assert sum(line["part"] == "batch" for line in lines[0]) == 4


def test_a_finished_demo_replaces_the_records_and_takes_the_old_report_away(tmp_path):
    for name in ("records.jsonl", "records.unfinished.jsonl", "report.html"):
        (tmp_path / name).write_text("of an earlier demo")
    Demo(("erm",), (0,), "cnn:4", training={"epochs": 1, "evaluations": 1}).run(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["records.jsonl", "samples.npz"]
    assert '"algorithm": "erm"' in (tmp_path / "records.jsonl").read_text()
