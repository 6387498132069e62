"""One file holds a whole state, and a damaged one is told from a whole one."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from small import small_run
from torch import nn

from transferrisk import __version__
from transferrisk.errors import InputError
from transferrisk.models import Classifier
from transferrisk.training import Output, load_checkpoint, load_model, loop, train
from transferrisk.training.checkpoint import difference, encode
from transferrisk.training.output import claim
from transferrisk.training.state import start


@pytest.fixture
def folder(tmp_path):
    train(small_run("groupdro"), output=Output(tmp_path / "run", say=print))
    return tmp_path / "run"


def test_what_is_in_the_file(folder):
    checkpoint = load_checkpoint(folder / "last.safetensors")
    about = json.loads((folder / "run.json").read_text())
    assert checkpoint.configuration == about["configuration"]
    assert checkpoint.versions == about["versions"]
    assert checkpoint.versions["transferrisk"] == __version__
    assert checkpoint.configuration["settings.weights_lr"] == 0.01
    assert checkpoint.values["step"] == 9
    assert set(checkpoint.part("algorithm")) == {"weights"}
    assert not torch.equal(checkpoint.part("algorithm")["weights"], torch.tensor([0.5, 0.5]))
    with safe_open(folder / "last.safetensors", "pt") as file:  # any reader of safetensors can take the weights
        assert file.get_tensor("model.head.weight").shape == (3, 6)


def test_every_part_comes_back(tmp_path):
    """A state that differs in everything is the saved one afterwards."""
    states = [start(small_run("groupdro", seed=seed)) for seed in (0, 1)]
    for state in states:
        for _ in range(2):
            state.optimiser.zero_grad()
            state.model(torch.randn(5, 4)).square().sum().backward()
            state.optimiser.step()
            state.sampler.next()
        torch.rand(1, generator=state.augmentation)
        state.step = 2
    states[0].set_rate(0.5)
    (tmp_path / "one.safetensors").write_bytes(encode(states[0].snapshot(), {}))
    states[1].restore(load_checkpoint(tmp_path / "one.safetensors"))
    a, b = (state.snapshot() for state in states)
    assert a.tensors.keys() == b.tensors.keys()
    assert {key.split(".")[0] for key in a.tensors} == {"model", "optimiser", "algorithm", "sampler", "random"}
    for key, tensor in a.tensors.items():
        assert torch.equal(tensor, b.tensors[key]), key
    assert a.values == b.values
    assert states[1].optimiser.param_groups[0]["lr"] == 0.5


def test_restoring_keeps_tensors_that_were_captured():
    state = start(small_run())
    state.model(torch.randn(5, 4)).sum().backward()
    state.optimiser.step()
    first = next(iter(state.optimiser.state.values()))["momentum_buffer"]
    rate = torch.tensor(0.1)
    state.optimiser.param_groups[0]["lr"] = rate
    saved = state.snapshot()
    expected = first.clone()
    first.zero_()
    rate.zero_()
    state.restore(saved)
    assert next(iter(state.optimiser.state.values()))["momentum_buffer"] is first
    assert torch.equal(first, expected)
    assert state.optimiser.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.1)


def flip(content):
    return content[:-100] + bytes([content[-100] ^ 1]) + content[-99:]


@pytest.mark.parametrize(
    "damage",
    [lambda c: b"", lambda c: c[: len(c) // 2], lambda c: c[:-1], flip, lambda c: b"x" * 200],
    ids=["empty", "half", "a byte short", "one bit", "something else"],
)
def test_a_damaged_file_is_told_in_a_line_with_a_way_out(folder, damage):
    last, best = folder / "last.safetensors", folder / "best.safetensors"
    content = last.read_bytes()
    step = load_checkpoint(best).values["step"]
    last.write_bytes(damage(content))
    with pytest.raises(InputError, match=rf"{last} is damaged.* or copy {best}.* go on from step {step}") as told:
        train(small_run("groupdro"), output=Output(folder, resume=True))
    assert "\n" not in str(told.value)
    last.write_bytes(best.read_bytes())
    assert train(small_run("groupdro"), output=Output(folder, resume=True))[-1].step == 9
    best.write_bytes(damage(content))
    last.write_bytes(damage(content))
    with pytest.raises(InputError, match=rf"{last} is damaged.*use an older copy, or another$"):
        train(small_run("groupdro"), output=Output(folder, resume=True))


@pytest.mark.parametrize("damage", [None, b"", b"junk"], ids=["gone", "empty", "junk"])
def test_a_selected_model_that_is_lost_is_not_passed_over(tmp_path, monkeypatch, damage):
    """Not in a finished run, and not on the way."""
    monkeypatch.setattr(loop, "note_best", lambda state, record: note_first(state))
    train(small_run("erm"), output=Output(tmp_path, say=lambda _: None))
    best = tmp_path / "best.safetensors"
    best.unlink() if damage is None else best.write_bytes(damage)
    how = "gone" if damage is None else "damaged"
    with pytest.raises(InputError, match=rf"{best} is {how}, which held step 3: bring it back, or copy last") as told:
        train(small_run("erm"), output=Output(tmp_path, resume=True, say=lambda _: None))
    assert "\n" not in str(told.value)
    best.write_bytes((tmp_path / "last.safetensors").read_bytes())
    assert len(train(small_run("erm"), output=Output(tmp_path, resume=True, say=lambda _: None))) == 3


def note_first(state):
    state.records += 1
    state.best, state.best_step = 1.0, 3


def test_a_description_that_is_gone_is_written_again(folder):
    before = (folder / "run.json").read_text()
    (folder / "run.json").unlink()
    train(small_run("groupdro"), output=Output(folder, resume=True))
    assert (folder / "run.json").read_text() == before


def test_no_folder_is_left_where_a_run_did_not_begin(tmp_path):
    with pytest.raises(InputError, match="lower the batch size"):
        train(small_run("erm", batch_size=1000), output=Output(tmp_path / "deep" / "run"))
    with pytest.raises(InputError, match="precision 'fp8' is not known"):
        train(replace(small_run("erm"), precision="fp8"), output=Output(tmp_path / "deep" / "run"))
    assert list(tmp_path.iterdir()) == []


def test_a_header_holds_no_numbers_that_json_has_not(tmp_path):
    state = start(small_run("erm"))
    state.best = float("nan")
    (tmp_path / "one.safetensors").write_bytes(encode(state.snapshot(), {"scale": float("inf")}))
    with safe_open(tmp_path / "one.safetensors", "pt") as file:
        entry = file.metadata()["transferrisk"]
    assert "NaN" not in entry
    assert "Infinity" not in entry
    checkpoint = load_checkpoint(str(tmp_path / "one.safetensors"))
    assert math.isnan(checkpoint.values["best"])
    assert difference(checkpoint.configuration, {"scale": float("inf")}) == ""


def test_records_that_are_gone(folder):
    (folder / "records.jsonl").write_text("")
    with pytest.raises(InputError, match="holds 0 of the 3 records of the checkpoint"):
        train(small_run("groupdro"), output=Output(folder, resume=True))


def test_other_files(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_checkpoint(tmp_path / "none.safetensors")
    save_file({"w": torch.zeros(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match="is no checkpoint of a training"):
        load_checkpoint(tmp_path / "weights.safetensors")


def test_a_model_of_another_shape(folder):
    path = folder / "last.safetensors"
    with pytest.raises(InputError, match=r"does not fit this model \(.*\): .* use the same backbone") as told:
        load_model(Classifier(nn.Linear(4, 7), 7, 3), load_checkpoint(path), path)
    assert "\n" not in str(told.value)


def test_difference_is_empty_for_what_json_cannot_tell_apart():
    assert difference({"a": [1, 2], "b": None}, {"a": (1, 2), "b": None}) == ""
    assert difference({"a": 1}, {"a": 2, "c": 3}) == "a: 1 there, 2 here; c: None there, 3 here"
    assert difference({"digest.test.labels": "1f"}, {"digest.test.labels": "2e"}) == "test.labels: changed since"
    earlier = difference({"a": 1}, {"a": 1, "digest.test.labels": "2e", "digest.test.names": "5d"})
    assert earlier == "digests: not all there, as in an earlier version"


def test_a_folder_in_use_is_refused(tmp_path):
    first = claim(tmp_path)
    with pytest.raises(InputError, match="another process is training in"):
        claim(tmp_path)
    os.close(first)
    os.close(claim(tmp_path))


def test_a_run_without_its_checkpoint_is_not_begun_anew(tmp_path):
    train(small_run("erm"), output=Output(tmp_path, say=lambda _: None))
    (tmp_path / "last.safetensors").unlink()
    before = (tmp_path / "records.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"holds records.jsonl and best.safetensors but no last.safetensors"):
        train(small_run("erm"), output=Output(tmp_path, resume=True, say=lambda _: None))
    assert (tmp_path / "records.jsonl").read_bytes() == before
    (tmp_path / "records.jsonl").unlink()
    with pytest.raises(InputError, match=r"holds a run already \(best.safetensors\)"):
        Output(tmp_path)


def test_a_changed_header_is_noticed(tmp_path):
    train(small_run("erm"), output=Output(tmp_path, say=lambda _: None))
    last = tmp_path / "last.safetensors"
    content = last.read_bytes()
    place = content.index(rb"\"step\": ") + len(rb"\"step\": ")
    last.write_bytes(content[:place] + b"7" + content[place + 1 :])
    with pytest.raises(InputError, match="is damaged"):
        load_checkpoint(last)
