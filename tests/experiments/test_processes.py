"""Worker processes that break, die and are left."""

from __future__ import annotations

import os
from collections import deque
from contextlib import closing

import pytest

from transferrisk.experiments.processes import Last, in_processes


def work(item, on_step):
    on_step(1, 1)
    if item == "death":
        os._exit(9)
    return Last(os.getpid()) if item == "broken" else os.getpid()


def test_a_worker_whose_result_is_its_last_is_replaced():
    items = deque(["broken", "next", "after it"])
    with closing(in_processes(items, [work], threads=1)) as all_told:
        pids = {told.item: told.content for told in all_told if told.what == "done"}
    assert pids["broken"] != pids["next"] == pids["after it"]


def test_an_item_whose_worker_died_is_left_unless_it_is_put_back():
    with closing(in_processes(deque(["death", "next"]), [work], threads=1)) as all_told:
        told = [(told.item, told.what) for told in all_told if told.what != "step"]
    assert told == [("death", "died"), ("next", "done")]


def test_workers_are_gone_when_the_iteration_is_left():
    left = in_processes(deque(["one", "two", "three"]), [work, work], threads=1)
    pid = next(told.content for told in left if told.what == "done")
    left.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
