"""Trackers are told what the records hold."""

from __future__ import annotations

import os
import sys
import types
from contextlib import nullcontext
from importlib.machinery import ModuleSpec

import pytest
from small import at, small_run

from transferrisk import extras
from transferrisk.errors import DivergedError, InputError, TransferRiskError
from transferrisk.training import RunFolder, Stopped, Watch
from transferrisk.training.trackers import make_trackers, scalars


@pytest.fixture
def mlflow(monkeypatch):
    """A stand-in with the six functions that are used, as mlflow-skinny documents them."""
    fake = types.ModuleType("mlflow")
    fake.__spec__ = ModuleSpec("mlflow", None)
    fake.calls = []
    fake.MlflowException = type("MlflowException", (Exception,), {})
    for name in ("set_tracking_uri", "log_params", "log_metric", "log_metrics", "end_run"):
        setattr(fake, name, lambda *a, _name=name, **k: fake.calls.append((_name, a, k)))

    def start_run(run_id=None, run_name=None):
        fake.calls.append(("start_run", (run_id, run_name), {}))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r17"))

    fake.start_run = start_run
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return fake


def follow(names, folder, *watch):
    return small_run(epochs=40, evaluations=2).train(*make_trackers(names, folder), *watch).history


@pytest.fixture
def real_mlflow(monkeypatch):
    """The client itself, with a store in files."""
    client = pytest.importorskip("mlflow", reason="extra 'tracking'")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return client


class Ends(Watch):
    """Ends a training after so many steps, with an error or without."""

    def __init__(self, error, step):
        self.error, self.step, self.done = error, step, 0

    def after_step(self, step, total, loss):
        self.done = step
        if step == self.step and self.error is not None:
            raise self.error

    def should_stop(self):
        return self.done == self.step


def end(folder, error, names=("mlflow",), step=60):
    """A run in this folder that ends so after 60 steps, one loss and one evaluation; its trackers."""
    trackers = make_trackers(names, folder)
    with pytest.raises(type(error)) if error is not None else nullcontext():
        small_run(epochs=40, evaluations=2).train(*trackers, Ends(error, step))
    return trackers


def run_of(mlflow, folder):
    """The run as the store in its folder has it."""
    return mlflow.MlflowClient((folder / "mlruns").as_uri()).get_run((folder / "mlflow.txt").read_text().strip())


def test_mlflow_gets_all_numbers_and_goes_on_with_its_run(mlflow, tmp_path):
    records = follow(["mlflow"], tmp_path)
    named = [name for name, *_ in mlflow.calls]
    assert named[:3] == ["set_tracking_uri", "start_run", "log_params"]
    assert named.count("log_metric") == 2  # 120 steps, one in fifty
    (first, last) = [(a[0], k["step"]) for name, a, k in mlflow.calls if name == "log_metrics"]
    assert (first[1], last[1]) == (60, 120)
    assert last[0] == scalars([record for record in records if record["step"] == 120])
    assert last[0]["test/east/accuracy"] == at(records, 120, "test")["east"]["accuracy"]
    assert last[0]["step/loss"] == at(records, 120, "batch")[None]["loss"]
    risks = [record["transfer_risk"] for record in at(records, 120, "training_domain").values()]
    assert last[0]["transfer_risk"] == pytest.approx(sum(risks) / 2)
    assert mlflow.calls[-2:] == [("end_run", ("FINISHED",), {}), ("set_tracking_uri", (None,), {})]
    mlflow.calls.clear()
    follow(["mlflow"], tmp_path)
    assert ("start_run", ("r17", None), {}) in mlflow.calls
    assert "log_params" not in [name for name, *_ in mlflow.calls]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "FINISHED"),
        (DivergedError("the loss is nan"), "FAILED"),
        (RuntimeError("shapes differ"), "FAILED"),
        (Stopped(15, 3, 9), "KILLED"),
        (KeyboardInterrupt(), "KILLED"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_mlflow_is_told_how_a_run_ended(real_mlflow, tmp_path, error, status):
    end(tmp_path / "run", error)
    assert run_of(real_mlflow, tmp_path / "run").info.status == status


def test_two_runs_of_one_process_are_two_runs(real_mlflow, tmp_path):
    for name, error in (("a", DivergedError("the loss is nan")), ("b", None)):
        end(tmp_path / name, error)
        assert "MLFLOW_TRACKING_URI" not in os.environ
    for name, status in (("a", "FAILED"), ("b", "FINISHED")):
        run = run_of(real_mlflow, tmp_path / name)
        assert (run.info.run_name, run.info.status) == (name, status)
        assert run.data.metrics["loss"] > 0
        assert run.data.params["spec.training.lr"] == "0.05"
    assert real_mlflow.active_run() is None


def test_a_store_that_is_asked_for_is_the_one_of_both(real_mlflow, tmp_path, monkeypatch):
    address = (tmp_path / "store").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    for name in ("a", "b"):
        end(tmp_path / name, None)
    client = real_mlflow.MlflowClient(address)
    assert {run.info.run_name for run in client.search_runs(["0"])} == {"a", "b"}
    assert os.environ["MLFLOW_TRACKING_URI"] == address


def test_a_run_that_was_killed_is_finished_by_resuming_it(real_mlflow, tmp_path):
    end(tmp_path / "run", Stopped(2, 3, 9))
    end(tmp_path / "run", None)
    assert run_of(real_mlflow, tmp_path / "run").info.status == "FINISHED"


def test_a_training_that_is_refused_leaves_the_run_there_as_it_was(real_mlflow, tmp_path):
    folder = tmp_path / "run"
    small_run().train(RunFolder(folder), *make_trackers(["mlflow"], folder))
    with pytest.raises(InputError, match="seed: 0 there, 1 here"):
        small_run(seed=1).train(RunFolder(folder, resume=True), *make_trackers(["mlflow"], folder))
    assert run_of(real_mlflow, tmp_path / "run").info.status == "FINISHED"


def test_a_start_that_mlflow_refuses_is_ended(mlflow, tmp_path):
    def refuse(*_):
        raise mlflow.MlflowException("no such\nparameter")

    mlflow.log_params = refuse
    with pytest.raises(TransferRiskError, match=r"\(no such parameter\)"):
        follow(["mlflow"], tmp_path)
    assert mlflow.calls[-2:] == [("end_run", ("FAILED",), {}), ("set_tracking_uri", (None,), {})]


def test_what_ended_a_run_is_told_though_mlflow_is_gone_too(mlflow, tmp_path):
    def refuse(*_):
        raise mlflow.MlflowException("connection refused")

    mlflow.end_run = refuse
    end(tmp_path, DivergedError("the loss is nan"))
    with pytest.raises(TransferRiskError, match="connection refused"):
        follow(["mlflow"], tmp_path)


def test_tensorboard_is_closed_when_a_run_fails_and_mlflow_cannot_be(mlflow, tmp_path):
    pytest.importorskip("tensorboard", reason="extra 'tracking'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def refuse(*_):
        raise mlflow.MlflowException("connection refused")

    mlflow.end_run = refuse
    for names in (["tensorboard", "mlflow"], ["mlflow", "tensorboard"]):
        folder = tmp_path / names[0]
        trackers = end(folder, DivergedError("the loss is nan"), names)
        events = EventAccumulator(str(folder / "tensorboard"))
        events.Reload()
        assert [e.step for e in events.Scalars("loss")] == [50]
        assert trackers[names.index("tensorboard")].writer.file_writer is None  # as its close leaves it


def test_tensorboard_holds_what_was_recorded(tmp_path):
    pytest.importorskip("tensorboard", reason="extra 'tracking'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    records = follow(["tensorboard"], tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    seen = events.Scalars("test/east/accuracy")
    assert [e.step for e in seen] == [60, 120]
    accuracies = [at(records, step, "test")["east"]["accuracy"] for step in (60, 120)]
    assert [e.value for e in seen] == pytest.approx(accuracies)


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in with the functions that are used, as wandb documents them."""
    fake = types.ModuleType("wandb")
    fake.__spec__ = ModuleSpec("wandb", None)
    fake.calls = []
    fake.Error = type("Error", (Exception,), {})
    fake.Settings = dict

    def init(**given):
        fake.calls.append(("init", given))
        return types.SimpleNamespace(
            log=lambda values, step: fake.calls.append(("log", (values, step))),
            finish=lambda exit_code: fake.calls.append(("finish", exit_code)),
        )

    fake.init = init
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def test_wandb_gets_all_numbers_and_goes_on_with_its_run(wandb, tmp_path):
    records = follow(["wandb"], tmp_path / "run")
    (_, given), *logged, (_, code) = wandb.calls
    assert (given["name"], given["dir"], given["resume"]) == ("run", str(tmp_path / "run"), "allow")
    assert given["config"]["spec.training.lr"] == 0.05
    losses = [(step, *values) for _, (values, step) in logged if "loss" in values]
    assert losses == [(50, "loss"), (100, "loss")]
    assert [(values, step) for _, (values, step) in logged if "loss" not in values] == [
        (scalars([record for record in records if record["step"] == step]), step) for step in (60, 120)
    ]
    assert code == 0
    wandb.calls.clear()
    end(tmp_path / "run", DivergedError("the loss is nan"), ("wandb",))
    assert wandb.calls[0][1]["id"] == given["id"]
    assert wandb.calls[-1] == ("finish", DivergedError.exit_code)
    end(tmp_path / "other", Stopped(15, 3, 9), ("wandb",))
    assert wandb.calls[-1] == ("finish", 143)
    assert {call[1]["id"] for call in wandb.calls if call[0] == "init"} > {given["id"]}


def test_a_start_that_wandb_refuses(wandb, tmp_path):
    def refuse(**_):
        raise wandb.Error("api_key not configured\n(no-tty)")

    wandb.init = refuse
    with pytest.raises(TransferRiskError, match=r"\(api_key not configured \(no-tty\)\).*WANDB_MODE=offline"):
        follow(["wandb"], tmp_path)


def test_wandb_itself_writes_the_same_run_again_without_a_network(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="extra 'tracking'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    follow(["wandb"], tmp_path)
    end(tmp_path, None, ("wandb",))
    name = (tmp_path / "wandb.txt").read_text().strip()
    logs = sorted((tmp_path / "wandb").glob(f"offline-run-*-{name}/run-{name}.wandb"))
    assert logs
    assert b"test/east/accuracy" in logs[0].read_bytes()


def test_what_is_not_known_or_not_installed(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="tracker must be one of tensorboard, mlflow, wandb, got 'neptune'"):
        make_trackers(["neptune"], tmp_path)
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"tensorboard is not installed: pip install 'transferrisk\[tracking\]'"):
        make_trackers(["tensorboard"], tmp_path)
