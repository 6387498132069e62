"""Two processes that share a batch take the steps that one process takes on the whole of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import parallel_steps
import pytest
import torch
from sockets import listening, processes_of

from transferrisk.algorithms import available
from transferrisk.training import RunFolder, TrainSpec, load_checkpoint, run_spec

ALGORITHMS = [*available(), "trm random", "mldg second", "mldg joint", "fish joint"]
SETTINGS = {"trm random": {"query": "random"}, "mldg second": {"order": 2}}
SETTINGS |= {f"{name} joint": {"statistics": "joint"} for name in ("mldg", "fish")}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    settings = {name: (name.split()[0], SETTINGS.get(name, {})) for name in ALGORITHMS}
    target = tmp_path_factory.mktemp("parallel") / "two.json"
    command = [sys.executable, parallel_steps.__file__, json.dumps(settings), "2", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return parallel_steps.take_steps(settings, 1)[1], json.loads(target.read_text())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_processes_agree_with_one_after_ten_steps(results, name):
    first, second = (result[name] for result in results)
    one, two = (torch.tensor(result["weights"], dtype=torch.float64) for result in (first, second))
    assert float((one - two).norm() / one.norm()) < 1e-5
    assert second["losses"] == pytest.approx(first["losses"], rel=1e-4)
    assert first["algorithm"].keys() == second["algorithm"].keys()
    for key, value in first["algorithm"].items():
        torch.testing.assert_close(torch.tensor(second["algorithm"][key]), torch.tensor(value), rtol=1e-4, atol=1e-6)


TRM = (sys.executable, "-m", "transferrisk.cli")
TORCHRUN = (
    sys.executable, "-m", "torch.distributed.run",
    "--standalone",  # on a free port: other tests may use the usual one
    "--nproc-per-node", "2", "-m", "transferrisk.cli",
)  # fmt: skip


def started(folder, *more, start=TRM):
    command = [
        *start, "train", "--data", "gaussian", "--algorithm", "trm", "--backbone", "mlp:8", "--epochs", "2",
        "--evaluations", "24", "--device", "cpu", "--output", str(folder), *more,
    ]  # fmt: skip
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )


def ended(process, code=0):
    out, errors = process.communicate(timeout=240)
    assert process.returncode == code, errors[-3000:]
    return out, errors


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The run of one process."""
    folder = tmp_path_factory.mktemp("one")
    spec = TrainSpec("gaussian", "trm", backbone="mlp:8", training={"epochs": 2, "evaluations": 24})
    run_spec(spec, device="cpu", watch=[RunFolder(folder)])
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The run of two processes that nothing disturbs, and what it printed."""
    folder = tmp_path_factory.mktemp("two")
    return folder, ended(started(folder, start=TORCHRUN))[0]


def until_saved(process, last, after=0):
    """Wait until the checkpoint of a running training is beyond a step."""
    deadline = time.monotonic() + 120
    while not last.exists() or load_checkpoint(last).values["step"] <= after:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def process_of_rank(process, rank):
    """The process that a running training has started for a rank."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and f"LOCAL_RANK={rank}" in (folder / "environ").read_text().split("\0"):
                return int(folder.name)
    raise AssertionError(f"no process of rank {rank}")


def assert_same_training(one, other):
    weights, others = (load_checkpoint(folder / "last.safetensors").part("model") for folder in (one, other))
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        torch.testing.assert_close(value, others[name], rtol=1e-3, atol=1e-5)
    lines = [len((folder / "records.jsonl").read_text().splitlines()) for folder in (one, other)]
    assert lines[0] == lines[1]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc, which Linux has")
def test_two_devices_that_are_stopped_and_killed_end_together_and_go_on_to_the_same_bits(two, tmp_path):
    last = tmp_path / "last.safetensors"
    process = started(tmp_path, "--devices", "2")  # saves after each of its 24 steps
    until_saved(process, last)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = ended(process, 130)
    assert errors.count("interrupted at step") == 1
    stopped = load_checkpoint(last).values["step"]
    assert 0 < stopped < 24
    process = started(tmp_path, "--devices", "2", "--resume")
    until_saved(process, last, stopped)
    os.kill(process_of_rank(process, 1), signal.SIGKILL)
    _, errors = ended(process, 1)
    told = [line for line in errors.splitlines() if line.startswith("trm: ") and "training trm" not in line]
    saved = load_checkpoint(last).values["step"]
    assert stopped < saved < 24
    assert told[0].endswith(f"going on from step {stopped} of 24")
    assert len(told) == 2, errors
    for word in ("rank 1 ", "SIGKILL", "--resume", f"{last} holds step {saved}"):
        assert word in told[1]
    assert "Traceback" not in errors
    out, _ = ended(started(tmp_path, "--devices", "2", "--resume"))
    assert out.count("Selected model") == 1
    resumed, whole = (load_checkpoint(folder / "last.safetensors") for folder in (tmp_path, two[0]))
    assert resumed.tensors.keys() == whole.tensors.keys()
    assert all(torch.equal(resumed.tensors[name], value) for name, value in whole.tensors.items())
    records = [records_of(folder) for folder in (tmp_path, two[0])]
    assert records[0] == records[1]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc, which Linux has")
def test_processes_listen_on_this_machine_only(tmp_path):
    process = started(tmp_path, "--devices", "2")
    until_saved(process, tmp_path / "last.safetensors")
    found = listening(processes_of("", [process.pid]))
    os.killpg(process.pid, signal.SIGINT)
    ended(process, 130)
    assert found
    assert all(address.is_loopback for _, address in found), found


def records_of(folder):
    lines = (folder / "records.jsonl").read_text().splitlines()
    return [json.loads(line) | {"seconds": 0.0} for line in lines]


def test_torchrun(one, two):
    assert two[1].count("Selected model") == 1
    assert_same_training(one, two[0])


@pytest.mark.parametrize(
    ("more", "start", "code", "message"),
    [
        (("--devices", "2", "--lr", "0.3"), TRM, 2, "training.lr: 0.1 there, 0.3 here"),
        (("--batch-size", "5000"), TORCHRUN, 1, "1600 training samples, fewer than batch_size=5000"),  # its own code
    ],
    ids=["the first alone", "both"],
)
def test_an_error_is_told_once(one, more, start, code, message):
    """By the first of two processes, whether it alone can notice or both do; no process group is heard of."""
    before = {path: path.read_bytes() for path in Path(one).iterdir()}
    _, errors = ended(started(one, "--resume", *more, start=start), code)
    told = [line for line in errors.splitlines() if line.startswith("trm: ")]
    assert len(told) == 1, errors[-3000:]
    assert message in told[0]
    assert "gloo" not in errors
    assert start == TORCHRUN or errors.count("\n") == 1
    assert {path: path.read_bytes() for path in Path(one).iterdir()} == before
