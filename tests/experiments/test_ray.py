"""Sweeps on a Ray cluster of this machine: the same results, whatever dies on the way."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pyarrow.parquet as pq
import pytest
import sweep_tasks
from sockets import listening, processes_of
from sweep_tasks import Shelf, hurry, plan, starts, walk

from transferrisk import extras
from transferrisk.errors import InputError, TransferRiskError
from transferrisk.experiments.executors import LocalExecutor
from transferrisk.experiments.ray_executor import RayExecutor
from transferrisk.experiments.store import Store
from transferrisk.experiments.sweep import Interrupted, run_experiment
from transferrisk.experiments.tasks import PlannedRun, get_task

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'transferrisk[ray]'")

SMALL = {"num_cpus": 2, "num_gpus": 0, "object_store_memory": 80_000_000}
HERE, TWO = (LocalExecutor(workers, ("cpu",), threads=1) for workers in (0, 2))


@pytest.fixture(scope="module")
def workers_find_the_tasks():
    """A cluster inherits the environment of the process that starts it."""
    with pytest.MonkeyPatch.context() as patch:
        here = str(Path(sweep_tasks.__file__).parent)
        patch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield


@pytest.fixture(scope="module")
def cluster(workers_find_the_tasks):
    """Its address; this process is connected to it."""
    context = ray.init("local", **SMALL, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield context.address_info["gcs_address"]
    ray.shutdown()


def rows_of(store, runs):
    return {run.name: store.records(run.name) for run in runs}


def in_the_background(act):
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def first_signalled(folder, number):
    """The first process of a run that pauses is sent a signal; the next one does not pause."""
    while not starts(folder):
        time.sleep(0.02)
    os.kill(starts(folder)[0], number)
    hurry(folder)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc/net/tcp, which Linux has")
def test_a_cluster_that_is_started_is_closed_to_others_and_ended(tmp_path, workers_find_the_tasks, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    run, before, seen = walk(steps=1200, pause=0.1), dict(os.environ), {}
    folder = tmp_path / "runs" / run.name

    def look():
        deadline = time.monotonic() + 120
        while not starts(folder) and time.monotonic() < deadline:
            time.sleep(0.02)
        try:
            names = processes_of(ray._private.worker.global_worker.node.session_name, [os.getpid()])
            seen["worker"] = starts(folder)[0] in names
            seen["listening"] = listening(names)
            seen["environments"] = [
                Path(f"/proc/{pid}/environ").read_text().split("\0")
                for pid, name in names.items()
                if name in ("gcs_server", "raylet")
            ]
        finally:
            hurry(folder)

    looking = in_the_background(look)
    executor = RayExecutor(gpus_per_run=0.5, options={**SMALL, "num_gpus": 1})
    summary = run_experiment(plan(run), Store(tmp_path), executor)
    looking.join()
    assert (summary.done, summary.ran, summary.failed) == (1, 1, {})
    assert not ray.is_initialized()
    assert json.loads(Store(tmp_path).read(f"runs/{run.name}/done.json"))["device"] == "cuda"
    assert seen["worker"]
    assert {"gcs_server", "raylet"} <= {name for name, _ in seen["listening"]}
    assert [(name, str(address)) for name, address in seen["listening"] if not address.is_loopback] == []
    assert {name: os.environ.get(name) for name in before} == before
    assert os.environ.keys() - before.keys() <= {"PYTHONBREAKPOINT"}, "Ray sets that itself"
    assert not (tmp_path / ".ray").exists()
    if hasattr(ray._raylet, "AuthenticationTokenLoader"):
        for environment in seen["environments"]:
            assert "RAY_AUTH_MODE=token" in environment
            assert any(re.fullmatch("RAY_AUTH_TOKEN=[0-9a-f]{64}", variable) for variable in environment)


def old_ray(ended, address="127.0.0.1"):
    """A Ray that knows no tokens, in a stub."""
    return SimpleNamespace(
        __spec__=ray.__spec__,
        __version__="2.30.0",
        _raylet=SimpleNamespace(),
        _private=SimpleNamespace(ray_constants=SimpleNamespace(ENABLE_RAY_CLUSTER=True)),
        is_initialized=lambda: False,
        init=lambda **options: None,
        shutdown=lambda: ended.append(True),
        cluster_resources=lambda: {"CPU": 2.0},
        util=SimpleNamespace(get_node_ip_address=lambda: address),
    )


def test_a_cluster_that_others_would_reach_is_ended():
    ended, before = [], dict(os.environ)
    stub = old_ray(ended, "192.0.2.1")
    with pytest.raises(TransferRiskError, match=r"must be 127\.0\.0\.1, got 192\.0\.2\.1 from Ray 2\.30\.0"):
        RayExecutor().connect(stub)
    assert ended == [True]
    assert dict(os.environ) == before
    assert stub._private.ray_constants.ENABLE_RAY_CLUSTER


def test_more_than_this_machine_has(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setitem(sys.modules, "ray", old_ray(ended))
    with pytest.raises(InputError, match=r"CPUs of a run must be <= 2, .* got 3"):
        run_experiment(plan(walk()), Store(tmp_path), RayExecutor(cpus_per_run=3))
    assert ended == [True]


def test_results_are_those_of_local_to_the_bit(tmp_path, cluster):
    whole = PlannedRun("test-sum", get_task("test-sum").resolve({"seeds": [1, 2]}))
    trained = PlannedRun("test-training", get_task("test-training").resolve({"epochs": 1}))
    runs = [whole, trained, *(walk(seed=seed) for seed in range(4))]
    stores = [Store(tmp_path / "ray"), Store(tmp_path / "local")]
    for store, executor in zip(stores, (RayExecutor(), TWO), strict=True):
        summary = run_experiment(plan(*runs), store, executor)
        assert (summary.total, summary.done, summary.ran, summary.failed) == (6, 6, 6, {})
    assert rows_of(stores[0], runs) == rows_of(stores[1], runs)
    assert {row["threads"] for row in stores[0].records(walk(seed=0).name)} == {1}
    tables = [pq.read_table(tmp_path / name / "trial" / "records.parquet") for name in ("ray", "local")]
    assert tables[0].drop_columns("date").equals(tables[1].drop_columns("date"))
    assert ray.is_initialized()


def test_a_worker_killed_in_the_middle(tmp_path, cluster):
    runs = [walk(seed=1, steps=600, pause=0.1), walk(seed=2)]
    folder = tmp_path / "ray" / "runs" / runs[0].name
    killing = in_the_background(lambda: first_signalled(folder, signal.SIGKILL))
    summary = run_experiment(plan(*runs), Store(tmp_path / "ray"), RayExecutor())
    killing.join()
    assert (summary.done, summary.failed) == (2, {})
    assert len(starts(folder)) == 2
    hurry(tmp_path / "local" / "runs" / runs[0].name)
    run_experiment(plan(*runs), Store(tmp_path / "local"), HERE)
    assert rows_of(Store(tmp_path / "ray"), runs) == rows_of(Store(tmp_path / "local"), runs)


def test_a_run_that_always_kills_its_worker_fails_and_a_mistake_is_not_repeated(tmp_path, cluster):
    deadly, wrong, good = walk(trouble="death"), walk(trouble="mistake"), walk()
    summary = run_experiment(plan(deadly, wrong, good), Store(tmp_path), RayExecutor(retries=1))
    told = "its worker process died (WorkerCrashedError), perhaps because memory ran out, at each of 2 attempts"
    assert summary.failed == {deadly.name: told, wrong.name: "KeyError: 'nothing here'"}
    assert json.loads(Store(tmp_path).read(f"runs/{deadly.name}/failed.json"))["error"] == told
    assert [len(starts(tmp_path / "runs" / run.name)) for run in (deadly, wrong)] == [2, 1]
    assert summary.done == 1


def test_a_training_that_is_interrupted_is_saved(tmp_path, cluster):
    runs = [
        PlannedRun("test-training", get_task("test-training").resolve({"epochs": 1000, "seed": s})) for s in range(4)
    ]
    folders = [tmp_path / "runs" / run.name for run in runs]

    def interrupt():
        while sum(bool(starts(folder)) for folder in folders) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = in_the_background(interrupt)
    with pytest.raises(Interrupted, match="interrupted: 0 of 4 runs are finished"):
        run_experiment(plan(*runs), Store(tmp_path), RayExecutor())
    interrupting.join()
    assert sum((folder / "training" / "last.safetensors").exists() for folder in folders) == 2
    assert not any(Store(tmp_path).taken(run.name) for run in runs)


def test_a_worker_that_is_asked_to_stop_goes_on_elsewhere(tmp_path, cluster):
    run = PlannedRun("test-training", get_task("test-training").resolve({"pause": 0.2}))
    folder = tmp_path / "ray" / "runs" / run.name
    stopping = in_the_background(lambda: first_signalled(folder, signal.SIGTERM))
    summary = run_experiment(plan(run), Store(tmp_path / "ray"), RayExecutor())
    stopping.join()
    assert (summary.done, summary.failed) == (1, {})
    assert len(starts(folder)) == 2
    hurry(tmp_path / "local" / "runs" / run.name)
    run_experiment(plan(run), Store(tmp_path / "local"), HERE)
    assert rows_of(Store(tmp_path / "ray"), [run]) == rows_of(Store(tmp_path / "local"), [run])


def test_a_cluster_that_is_there_and_storage_without_locks(tmp_path, cluster):
    fsspec.register_implementation("shelf", Shelf, clobber=True)
    code = (
        "import fsspec, sys\n"
        "from sweep_tasks import Shelf, plan, walk\n"
        "from transferrisk.experiments.ray_executor import RayExecutor\n"
        "from transferrisk.experiments.sweep import run_experiment\n"
        "from transferrisk.experiments.store import Store\n"
        "fsspec.register_implementation('shelf', Shelf)\n"
        "store, executor = Store(*sys.argv[1:3]), RayExecutor(address=sys.argv[3], cpus_per_run=0.5)\n"
        "print(run_experiment(plan(walk(seed=0), walk(seed=1)), store, executor).ran)\n"
    )
    root, scratch = f"shelf://{tmp_path / 'out'}", str(tmp_path / "scratch")
    command = [sys.executable, "-c", code, root, scratch, cluster]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    assert out.stdout == "2\n"
    run_experiment(plan(walk(seed=0)), Store(tmp_path / "local"), HERE)
    assert Store(root, scratch).records(walk(seed=0).name) == Store(tmp_path / "local").records(walk(seed=0).name)
    assert (tmp_path / "out" / "trial" / "records.parquet").exists()


def test_a_task_that_workers_cannot_import(tmp_path, cluster, monkeypatch):
    monkeypatch.setattr(type(get_task("test-walk")), "__module__", "only_here")
    with pytest.raises(InputError, match=r"^the module only_here, which registers a task, cannot be imported"):
        run_experiment(plan(walk()), Store(tmp_path), RayExecutor())


def test_a_machine_that_lacks_a_package(tmp_path, cluster, monkeypatch):
    (tmp_path / "only_on_this_machine.py").write_text("def job(slot):\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    job = importlib.import_module("only_on_this_machine").job
    with pytest.raises(TransferRiskError, match=r"^a machine of the cluster cannot do runs \(.*only_on_this_machine"):
        list(RayExecutor(retries=0).map([job]))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"gpus_per_run": 1.5}, "gpus_per_run must be a whole number where it is above 1, got 1.5"),
        ({"cpus_per_run": -1}, "cpus_per_run must be .* >= 0, got -1"),
        ({"threads": 0}, "threads must be .* got 0"),
        ({"retries": -1}, "retries must be .* got -1"),
    ],
)
def test_settings_that_make_no_sense(settings, told):
    with pytest.raises(InputError, match=told):
        RayExecutor(**settings)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("nowhere", "address must be auto, HOST:6379 or ray://HOST:10001, got 'nowhere'"),
        ("localhost:100000", "address must be .* got 'localhost:100000'"),
        ("127.0.0.1:{port}", r"no Ray cluster answers at 127.0.0.1:\d+ \(.*\): correct the address, or start one"),
        ("ray://127.0.0.1:{port}", "no Ray cluster answers at ray://127.0.0.1"),
    ],
)
def test_an_address_where_nothing_answers(monkeypatch, address, told):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as bound:  # not listening, and nobody else's while it is bound
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(InputError, match=told):
            RayExecutor(address=address.format(port=bound.getsockname()[1]))


def test_what_ray_writes_while_it_tries_is_not_shown(monkeypatch, capfd):
    def init(**options):
        os.write(2, b"W gcs_client.cc: Failed to get cluster ID\n")
        warnings.warn("Ray Client connection timed out", UserWarning, stacklevel=1)
        raise ConnectionError("nobody there")

    stub = SimpleNamespace(is_initialized=lambda: False, init=init)
    with pytest.raises(InputError, match="no Ray cluster runs on this machine: start one with ray start --head"):
        RayExecutor(address="auto").connect(stub)
    with pytest.raises(TransferRiskError, match="no Ray cluster at local: nobody there"):
        RayExecutor(address="local").connect(stub)
    os.write(2, b"as before")
    assert capfd.readouterr().err == "as before"


def test_ray_is_not_installed(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^ray is not installed: pip install 'transferrisk\[ray\]'$"):
        RayExecutor()
