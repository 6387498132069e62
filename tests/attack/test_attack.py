"""The attack itself works: a few of its cases find nothing; and what is wrong would be found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import cases
import pytest
from forked import Ended

import attack

needs_linux = pytest.mark.skipif(not hasattr(os, "pidfd_open") or not Path("/proc").exists(), reason="needs Linux")


@needs_linux
def test_a_few_cases_find_nothing(tmp_path):
    settings = {"ATTACK_CASES": "20", "ATTACK_KILLS": "0", "ATTACK_SOCKETS": "0", "ATTACK_SEED": "11"}
    command = [sys.executable, Path(attack.__file__)]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | settings, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "cases                                20" in ended.stdout


@pytest.mark.parametrize(
    ("ended", "kind"),
    [
        (Ended(None, "", "", 60, 0), "hang"),
        (Ended(1, "", "Traceback (most recent call last):\nKeyError: 1", 1, 0), "traceback"),
        (Ended(139, "", "", 1, 0), "exit code"),
        (Ended(2, "", "", 1, 0), "message"),
        (Ended(2, "", f"trm: {'x' * 300}\n", 1, 0), "message"),
        (Ended(2, "", "trm: one\ntrm: two\n", 1, 0), "message"),
        (Ended(0, "\x1b[31m", "", 1, 0), "escape"),
        (Ended(0, "", "", 1, 1027), "memory"),
        (Ended(2, "", "trm: warning: w\ntrm: x must be y, got z\n", 1, 1025), None),
    ],
)
def test_what_is_wrong_is_found(tmp_path, ended, kind):
    case = cases.Case("", ("fit",), input_mib=1)
    assert [found for found, _ in attack.faults(case, ended, tmp_path)] == [kind] * (kind is not None)


def test_what_is_left_unfinished_is_found(tmp_path):
    names = {"a.part", ".a.csv.0123abcd-12-34.89abcdef", ".train.lock"}
    for name in names | {"a.csv", ".gitignore", ".lock"}:
        (tmp_path / name).touch()
    assert set(attack.leftovers(tmp_path)) == names
