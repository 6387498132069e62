"""`trm bench` on a CPU, with settings small enough for a test."""

from __future__ import annotations

import json

import pytest

from transferrisk.errors import InputError
from transferrisk.experiments import bench


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bench, "SETTINGS", {"cmnist": bench.Workload(2, 8, (3, 8, 8), "cnn:4", 3)})
    monkeypatch.setattr(bench, "STEPS", {"cpu": 3})


def test_ratios_are_to_erm_in_the_same_run(small):
    told = []
    found = bench.measure("cmnist", ["trm", "fish"], "cpu", progress=lambda *step: told.append(step))
    assert [m.algorithm for m in found] == ["erm", "trm", "fish"]
    assert found[0].ratio == 1
    assert all(m.ms > 0 and m.ratio > 0 and m.peak_mib is None for m in found)
    assert {(m.setting, m.device, m.precision) for m in found} == {("cmnist", "cpu", "fp32")}
    assert told[-1][1:] == (15, 15)
    with pytest.raises(InputError, match="unknown setting 'mnist'"):
        bench.measure("mnist", ["erm"])


def test_head_costs(small):
    found = bench.head_costs("cpu")
    assert {c.environments for c in found} == {2, 3, 5, 8}
    assert all(c.ms > 0 for c in found)


def test_the_command_writes_what_it_measured(small, tmp_path, trm):
    code, out, err = trm(
        "bench", "--setting", "all", "--algorithms", "erm,trm", "--device", "cpu", "--json", tmp_path / "b.json"
    )
    assert (code, err) == (0, "")
    rows = json.loads((tmp_path / "b.json").read_text())
    assert [row["algorithm"] for row in rows] == ["erm", "trm"]
    assert set(rows[0]) == {"setting", "algorithm", "device", "precision", "ms", "ratio", "peak_mib"}
    assert "of ERM" in out


def test_what_is_no_number_is_null_in_json(small, tmp_path, trm, monkeypatch):
    found = [bench.HeadCost(2, 8, 4, 3, ms) for ms in (1.5, float("nan"), float("inf"))]
    monkeypatch.setattr(bench, "head_costs", lambda *_: found)
    code, _, err = trm("bench", "--head", "--device", "cpu", "--json", tmp_path / "b.json")
    assert (code, err) == (0, "")
    text = (tmp_path / "b.json").read_text()
    rows = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert [row["ms"] for row in rows] == [1.5, None, None]


def test_what_is_refused_leaves_no_folder(small, tmp_path, trm):
    code, _, _ = trm("bench", "--head", "--eager", "--json", tmp_path / "new" / "b.json")
    assert code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--setting", "mnist"), "unknown setting 'mnist': did you mean 'cmnist'?"),
        (("--algorithms", "erm,trn"), "algorithm 'trn': did you mean 'trm'?"),
        (("--device", "tpu"), "device must be auto, cpu, cuda or cuda:1, got 'tpu'"),
        (("--precision", "fp8"), "precision must be one of"),
        (("--json", "."), "is a folder"),
        (
            ("--head", "--setting", "all"),
            "--head must be given without --setting: ",
        ),
        (
            ("--head", "--algorithms", "trm", "--precision", "bf16"),
            "--head must be given without --algorithms, --precision: ",
        ),
        (("--head", "--eager"), "--head must be given without --eager: "),
    ],
)
def test_bad_input(small, trm, arguments, line):
    code, out, err = trm("bench", *arguments)
    assert (code, out) == (2, "")
    assert line in err
    assert err.count("\n") == 1
