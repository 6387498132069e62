"""Devices, precisions, and what is measured on request."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
import torch.nn.functional as F
from small import model, small_run, splits

from transferrisk.errors import InputError
from transferrisk.training import evaluate, irm_penalties, read_records, train
from transferrisk.training.engine import Engine, stored_bytes
from transferrisk.training.state import start


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:1", "cuda:99"])
def test_devices_that_are_not_there(device):
    with pytest.raises(InputError, match=f"device '{device}' is not"):
        Engine.of(replace(small_run(), device=device))


def test_unknown_precision():
    with pytest.raises(InputError, match="precision 'fp8' is not known: choose from fp32, tf32, bf16"):
        Engine.of(replace(small_run(), precision="fp8"))


def test_a_cpu_computes_in_full_precision_and_leaves_data_where_it_is():
    run = replace(small_run(), device="cpu")
    engine = Engine.of(run)
    assert (engine.device.type, engine.precision, engine.team.size) == ("cpu", "fp32", 1)
    assert engine.place(run.splits) is run.splits
    assert stored_bytes(run.splits.train) == 60 * 4 * 4


@pytest.mark.parametrize("name", ["erm", "trm", "mldg", "fish"])
def test_bf16_is_for_the_featuriser_only(name):
    run = replace(small_run(name), precision="bf16")
    state = start(run)
    seen = []
    state.model.featuriser[0].register_forward_hook(lambda *a: seen.append(a[2].dtype))
    features = state.model.featurise(torch.randn(5, 4))
    assert seen == [torch.bfloat16]
    assert features.dtype == torch.float32
    assert state.model.head(features).dtype == torch.float32
    records = train(run)
    assert records[-1].logs["loss"] == pytest.approx(train(small_run(name))[-1].logs["loss"], rel=0.2)
    assert all(p.dtype == torch.float32 for p in state.model.parameters())


def test_worst_group_and_irm_penalty_are_those_of_the_samples():
    data, classifier = splits().train, model().eval()
    scores, penalties = evaluate(classifier, data), irm_penalties(classifier, data)
    for e, name in enumerate(data.environment_names):
        inside = data.environments == e
        with torch.no_grad():
            logits = classifier(data.inputs[inside])
        labels = data.labels[inside]
        right = logits.argmax(1) == labels
        assert scores[name].worst_group == pytest.approx(
            min(float(right[labels == c].float().mean()) for c in range(3))
        )
        scale = torch.ones((), requires_grad=True)
        (slope,) = torch.autograd.grad(F.cross_entropy(scale * logits, labels), scale)
        assert penalties[name] == pytest.approx(float(slope) ** 2, rel=1e-3)


def test_only_what_is_asked_for_is_measured():
    plain, full = train(small_run(record=()))[-1], train(small_run())[-1]
    assert plain.transfer_matrix == []
    assert plain.irm == {}
    assert plain.transfer_risk != plain.transfer_risk  # nan
    assert set(full.irm) == {"north", "south"}
    assert full.transfer_risk > 0
    assert plain.test == full.test


def test_records_of_earlier_versions_can_be_read(tmp_path):
    record = asdict(train(small_run(evaluations=1))[-1])
    for name in ("irm", "settings", "held_out"):
        del record[name]
    for part in ("train", "training_domain", "test_domain", "test"):
        for scores in record[part].values():
            del scores["worst_group"]
    (tmp_path / "old.jsonl").write_text(json.dumps(record) + "\n")
    (old,) = read_records(tmp_path / "old.jsonl")
    assert (old.settings, old.held_out, old.irm, old.test["east"].worst_group) == ({}, None, {}, None)
