"""Two processes that share a batch take the steps that one process takes on the whole of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from transferrisk.algorithms import available
from transferrisk.training import RunFolder, TrainSpec, load_checkpoint, run_spec

ALGORITHMS = [*available(), "trm random", "mldg second"]
SETTINGS = {"trm random": {"query": "random"}, "mldg second": {"order": 2}}

CODE = """
import json, sys, torch
torch.set_num_threads(1)
from transferrisk.data import load_splits, Options
from transferrisk.algorithms import create
from transferrisk.models import build_model
from transferrisk.training import Engine, TrainConfig, setting_of
from transferrisk.training.feed import Feed
from transferrisk.training.state import make_step, start_state

settings, devices, target = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
data = load_splits("gaussian", Options(seed=1)).train
engine = Engine.of(devices=devices)
final = {}
for name, (algorithm, options) in settings.items():
    config = TrainConfig(epochs=1, batch_size=32, lr=0.05)
    if algorithm in ("irm", "vrex", "trm", "trm-direct"):
        options = {"start_epoch": 0.0, **options}
    method = create(algorithm, setting_of(data), **options)
    state = start_state(lambda: build_model("mlp:16", 2, (15,)), data, method, config, 3, engine)
    feed = Feed(data, state.sampler, engine.device, None, 0, engine.team)
    step = make_step(state)
    losses = []
    for _ in range(10):
        losses.append(float(step(feed.next())["loss"]))
        state.step += 1
    weights = torch.cat([p.detach().flatten() for p in state.model.parameters()])
    held = {k: v.tolist() for k, v in state.algorithm.state_dict().items()}
    final[name] = {"weights": weights.tolist(), "losses": losses, "algorithm": held}
if engine.team.rank == 0:
    open(target, "w").write(json.dumps(final))
"""


def run(devices, target, command=()):
    settings = {name: (name.split()[0], SETTINGS.get(name, {})) for name in ALGORITHMS}
    code = target.parent / "steps.py"
    code.write_text(CODE)
    arguments = [*(command or [sys.executable]), str(code), json.dumps(settings), str(devices), str(target)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(target.read_text())


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel")
    return run(1, folder / "one.json"), run(2, folder / "two.json")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_processes_agree_with_one_after_ten_steps(results, name):
    one, two = (torch.tensor(result[name]["weights"], dtype=torch.float64) for result in results)
    assert float((one - two).norm() / one.norm()) < 1e-5
    assert results[1][name]["losses"] == pytest.approx(results[0][name]["losses"], rel=1e-4)
    assert results[0][name]["algorithm"].keys() == results[1][name]["algorithm"].keys()
    for key, value in results[0][name]["algorithm"].items():
        torch.testing.assert_close(
            torch.tensor(results[1][name]["algorithm"][key]), torch.tensor(value), rtol=1e-4, atol=1e-6
        )


def trm(folder, *more, start=()):
    command = [
        *(start or [sys.executable, "-m", "transferrisk.cli"]),
        "train", "--data", "gaussian", "--algorithm", "trm", "--backbone", "mlp:8", "--epochs", "2",
        "--device", "cpu", "--output", str(folder), *more,
    ]  # fmt: skip
    return command, os.environ | {"OMP_NUM_THREADS": "1"}


def weights(folder):
    return load_checkpoint(folder / "last.safetensors").part("model")


def close(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-5)


TORCHRUN = (
    sys.executable, "-m", "torch.distributed.run",
    "--standalone",  # on a free port: other tests may use the usual one
    "--nproc-per-node", "2", "-m", "transferrisk.cli",
)  # fmt: skip


def test_the_command_with_two_devices_and_torchrun(tmp_path):
    runs = {
        "one": ((), ()),
        "two": (("--devices", "2"), ()),
        "torchrun": ((), TORCHRUN),
    }  # fmt: skip
    for name, (more, start) in runs.items():
        command, environment = trm(tmp_path / name, *more, start=start)
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=240)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.count("Test accuracy") <= 1
    close(weights(tmp_path / "one"), weights(tmp_path / "two"))
    close(weights(tmp_path / "one"), weights(tmp_path / "torchrun"))
    records = (tmp_path / "two" / "records.jsonl").read_text().splitlines()
    assert len(records) == len((tmp_path / "one" / "records.jsonl").read_text().splitlines())


def test_two_devices_stop_together_and_go_on(tmp_path):
    command, environment = trm(tmp_path / "run", "--devices", "2", "--epochs", "60")
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / "records.jsonl").exists() or not (tmp_path / "run" / "records.jsonl").read_text():
            assert process.poll() is None, process.stderr.read()[-3000:]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors[-2000:]
    assert errors.count("interrupted at step") == 1
    done = subprocess.run(
        [*command, "--resume"], capture_output=True, text=True, env=environment, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("more", "start", "code", "message"),
    [
        (("--devices", "2", "--lr", "0.3"), (), 2, "training.lr: 0.1 there, 0.3 here"),
        (
            ("--batch-size", "5000"),
            TORCHRUN,
            1,
            "has 1600 training samples, fewer than batch_size=5000",
        ),  # its own code
    ],
    ids=["the first alone", "both"],
)
def test_an_error_is_told_once(tmp_path, more, start, code, message):
    """By the first of two processes, whether it alone can notice or both do; no process group is heard of."""
    spec = TrainSpec("gaussian", "trm", backbone="mlp:8", training={"epochs": 2, "evaluations": 1})
    run_spec(spec, device="cpu", watch=[RunFolder(tmp_path, say=print)])
    command, environment = trm(tmp_path, "--resume", "--evaluations", "1", *more, start=start)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=240)
    assert done.returncode == code, done.stderr[-3000:]
    told = [line for line in done.stderr.splitlines() if line.startswith("trm: ")]
    assert len(told) == 1, done.stderr[-3000:]
    assert message in told[0]
    assert "gloo" not in done.stderr
    assert start or done.stderr.count("\n") == 1
