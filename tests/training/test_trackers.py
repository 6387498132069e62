"""Trackers are told what the records hold."""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec

import pytest
from small import small_run

from transferrisk import extras
from transferrisk.errors import InputError, TransferRiskError
from transferrisk.training import train
from transferrisk.training.trackers import check_trackers, followed, scalars


class Nobody:
    def loss(self, step, value):
        pass

    def record(self, record):
        pass


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


def follow(names, folder):
    with followed(Nobody(), names, folder, {"lr": 0.1}) as all_:
        return train(small_run(epochs=40, evaluations=2), on_loss=all_.loss, on_record=all_.record)


def test_mlflow_gets_all_numbers_and_goes_on_with_its_run(mlflow, tmp_path):
    check_trackers(["mlflow"])
    records = follow(["mlflow"], tmp_path)
    named = [name for name, *_ in mlflow.calls]
    assert named[:3] == ["set_tracking_uri", "start_run", "log_params"]
    assert named.count("log_metric") == 2  # 120 steps, one in fifty
    (first, last) = [(a[0], k["step"]) for name, a, k in mlflow.calls if name == "log_metrics"]
    assert (first[1], last[1]) == (60, 120)
    assert last[0] == scalars(records[-1])
    assert last[0]["test/east/accuracy"] == records[-1].test["east"].accuracy
    assert last[0]["transfer_risk"] == records[-1].transfer_risk
    assert named[-1] == "end_run"
    mlflow.calls.clear()
    follow(["mlflow"], tmp_path)
    assert ("start_run", ("r17", None), {}) in mlflow.calls
    assert "log_params" not in [name for name, *_ in mlflow.calls]


def test_what_mlflow_refuses_is_a_line(mlflow, tmp_path):
    def refuse(*_, **__):
        raise mlflow.MlflowException("API request failed:\nconnection refused")

    mlflow.log_metrics = refuse
    with pytest.raises(TransferRiskError, match=r"did not take .*\(API request failed: connection refused\): mend"):
        follow(["mlflow"], tmp_path)


def test_tensorboard_holds_what_was_recorded(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    records = follow(["tensorboard"], tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    seen = events.Scalars("test/east/accuracy")
    assert [e.step for e in seen] == [60, 120]
    assert [e.value for e in seen] == pytest.approx([r.test["east"].accuracy for r in records])


def test_what_is_not_known_or_not_installed(monkeypatch):
    with pytest.raises(InputError, match="tracker 'wandb' is not known: choose from tensorboard, mlflow"):
        check_trackers(["wandb"])
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"tensorboard is not installed: pip install 'transferrisk\[tracking\]'"):
        check_trackers(["tensorboard"])
