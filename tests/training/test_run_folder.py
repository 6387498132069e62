"""The folder of a run: a training that was killed goes on to the weights it would have had, bit for bit."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from small import STEPS, Killed, SmallRun, small_run, steps_of, without_time
from torch import nn

from transferrisk import __version__
from transferrisk.algorithms import ERM, available
from transferrisk.errors import DivergedError, InputError, TransferRiskError
from transferrisk.models import Classifier, load_model_folder
from transferrisk.models.saved import encode_tensors, read_tensors
from transferrisk.results import read_records
from transferrisk.training import RunFolder, Steps, Stopped, Watch, load_checkpoint

CASES = [(name, {}) for name in available()] + [("trm", {"query": "random"})]
CASES += [(name, {"statistics": "joint"}) for name in ("mldg", "fish")]
TRAININGS = [
    ("erm", {"optimiser": "adamw", "lr": 0.01, "dropout": 0.2, "average": "ema", "ema_decay": 0.9}),
    ("trm", {"average": "swad", "epochs": 4, "evaluations": 6, "swad_patience": 2, "swad_tolerance": 2}),
    ("dfr", {"average": "ema"}),
]
FILES = {"run.json", "records.jsonl", "last.safetensors", "model.safetensors", "model.json"}


@pytest.fixture(autouse=True)
def signals():
    """Whatever the one who runs the tests has set."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def silent(folder, **options):
    return RunFolder(folder, say=None, **options)


def assert_same_run(one, other):
    """All tensors of both checkpoints and models, and all records but the clock."""
    for name in ("last.safetensors", "model.safetensors"):
        (a, about), (b, _) = (read_tensors(folder / name) for folder in (one, other))
        assert a.keys() == b.keys()
        for key, tensor in a.items():
            assert torch.equal(tensor, b[key]), (name, key)
        assert about["versions"]["transferrisk"] == __version__
    a, b = (load_checkpoint(folder / "last.safetensors") for folder in (one, other))
    assert a.values | {"seconds": 0} == b.values | {"seconds": 0}
    a, b = (without_time(read_records(folder / "records.jsonl")) for folder in (one, other))
    assert a == b


# ---- going on


CASES = [(name, settings, {}) for name, settings in CASES] + [(name, {}, config) for name, config in TRAININGS]


@pytest.mark.parametrize(("name", "settings", "config"), CASES, ids=lambda v: "-".join(v) if isinstance(v, dict) else v)
def test_killed_anywhere_it_ends_as_if_it_had_not_been(tmp_path, monkeypatch, name, settings, config):
    """Every event that leaves a trace may be the last one: a step, a record, half a record, a file, its renaming."""
    extras = {} if name in ("erm", "trm") else {"record": ()}  # the solves of which take most of the time
    run = small_run(name, settings=settings, **extras, **config)
    run.train(silent(tmp_path / "whole", every=2))
    draw = random.Random(name + str(settings))
    left = [10**9]

    def event(*_):
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    real_replace, real_fsync = os.replace, os.fsync

    def replace_(source, target):
        event()
        real_replace(source, target)
        event()

    def fsync(handle):
        real_fsync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if left[0] == 1 and path.name == "records.jsonl":
            content = path.read_bytes()
            path.write_bytes(content[: -len(content) // 4])
        event()

    monkeypatch.setattr(os, "replace", replace_)
    monkeypatch.setattr(os, "fsync", fsync)
    kills = 0
    for _ in range(100):
        left[0] = draw.randint(1, 16)
        try:
            trained = run.train(silent(tmp_path / "cut", resume=True, every=2), Steps(event))
            break
        except Killed:
            kills += 1
    assert kills >= 2
    assert steps_of(trained.history) == sorted(run.config.evaluated(3 * run.config.epochs if name != "dfr" else 9))
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def in_a_process(run, folder):
    torch.set_num_threads(1)
    run.train(silent(folder, resume=True, every=1), Steps(lambda *_: time.sleep(0.01)))


@pytest.mark.parametrize("name", ["trm", "fish"])
def test_sigkill(tmp_path, name):
    """A process of its own, ended by the system at random moments."""
    run = small_run(name, epochs=20, evaluations=12)
    run.train(silent(tmp_path / "whole"))
    draw = random.Random(name)
    kills = 0
    for attempt in range(8):
        process = multiprocessing.get_context("fork").Process(target=in_a_process, args=(run, tmp_path / "cut"))
        process.start()
        process.join(draw.uniform(0.1, 0.6) if attempt < 7 else None)
        if process.exitcode is not None:
            assert process.exitcode == 0
            break
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        kills += 1
    assert kills >= 2
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    assert {p.name for p in (tmp_path / "cut").iterdir()} == FILES


@pytest.mark.parametrize(
    ("signum", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138), (signal.SIGUSR2, 140)],
)
def test_a_signal_finishes_the_step_and_saves(tmp_path, signum, code):
    before = signal.getsignal(signum)
    run, ended = small_run("trm"), []

    class Asks(Watch):
        def after_step(self, step, total, loss):
            if step == 3:
                for _ in range(1 if signum == signal.SIGINT else 3):  # schedulers send some of them again
                    os.kill(os.getpid(), signum)

        def end(self, error):
            ended.append(error)

    with pytest.raises(Stopped, match=r"step 4 of 9.*the same again") as stopped:
        run.train(silent(tmp_path / "cut", again="the same again"), Asks())
    assert stopped.value.exit_code == code
    assert ended == [stopped.value]
    assert load_checkpoint(tmp_path / "cut" / "last.safetensors").values["step"] == 4
    assert signal.getsignal(signum) is before
    run.train(silent(tmp_path / "whole"))
    run.train(silent(tmp_path / "cut", resume=True))
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_signal_during_the_last_step_acts_when_all_is_saved(tmp_path):
    interrupt = Steps(lambda done, total: os.kill(os.getpid(), signal.SIGINT) if done == total else None)
    with pytest.raises(KeyboardInterrupt):
        small_run().train(silent(tmp_path), interrupt)
    assert small_run().train(silent(tmp_path, resume=True)).history[-1]["step"] == STEPS
    assert load_checkpoint(tmp_path / "last.safetensors").values["step"] == STEPS


def test_a_signal_that_the_program_uses_is_left_to_it(tmp_path):
    came = []
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
    try:
        ask = Steps(lambda done, total: os.kill(os.getpid(), signal.SIGUSR1) if done == 2 else None)
        assert small_run().train(silent(tmp_path), ask).history[-1]["step"] == STEPS
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came == [1]


def test_without_a_folder_a_signal_is_left_to_the_caller():
    interrupt = Steps(lambda done, total: os.kill(os.getpid(), signal.SIGINT) if done == 2 else None)
    with pytest.raises(KeyboardInterrupt):
        small_run().train(interrupt)


def test_an_empty_folder_is_begun_and_a_finished_one_says_so(tmp_path):
    said = []
    small_run().train(RunFolder(tmp_path, resume=True, say=said.append))
    assert len(said) == 1
    assert "starting afresh" in said[0]
    said.clear()
    trained = small_run().train(RunFolder(tmp_path, resume=True, say=said.append))
    assert said == [f"{tmp_path} is finished: step 9 of 9"]
    assert steps_of(trained.history) == [3, 6, 9]


# ---- what is refused


def test_other_settings_are_refused_with_the_difference(tmp_path):
    small_run("trm").train(silent(tmp_path))
    other = small_run("trm", seed=1, lr=0.01)
    with pytest.raises(InputError) as refused:
        other.train(silent(tmp_path, resume=True))
    for part in ("seed: 0 there, 1 here", "training.lr: 0.05 there, 0.01 here"):
        assert part in str(refused.value)
    assert "momentum" not in str(refused.value)
    assert "\n" not in str(refused.value)


def other_number(tensor):
    """The tensor with its last number changed."""
    tensor = tensor.clone()
    tensor.view(-1)[-1] = 1 - tensor.view(-1)[-1].clamp(0, 1)
    return tensor


@pytest.mark.parametrize(
    ("part", "what", "fields"),
    [
        ("train", "inputs", {"inputs": other_number}),
        ("train", "labels", {"labels": other_number}),
        ("train", "environments", {"environments": other_number}),
        ("train", "environments", {"sources": lambda _: torch.arange(60) // 2}),
        ("training_domain", "names", {"class_names": lambda names: names[::-1]}),
        ("test_domain", "names", {"environment_names": lambda _: ("west",)}),
        ("test", "inputs", {"inputs": lambda inputs: inputs.double()}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_other_data_is_refused(tmp_path, part, what, fields):
    run = small_run("erm", evaluations=1)
    run.train(silent(tmp_path))
    small_run("erm", evaluations=1).train(silent(tmp_path, resume=True))
    data = run.sets[part]
    changed = replace(data, **{name: change(getattr(data, name)) for name, change in fields.items()})
    with pytest.raises(InputError, match=rf"{part}\.{what}: changed since"):
        replace(run, sets=run.sets | {part: changed}).train(silent(tmp_path, resume=True))


def test_a_folder_in_use_is_refused(tmp_path):
    class Second(Watch):
        def begin(self, run):
            with pytest.raises(InputError, match="another process is training in"):
                small_run().train(silent(tmp_path, resume=True))

    small_run().train(silent(tmp_path), Second())
    small_run().train(silent(tmp_path, resume=True))


def test_what_is_refused_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputError, match="batch"):
        small_run("erm", batch_size=1000).train(silent(tmp_path / "deep" / "run"))
    with pytest.raises(InputError, match="fp8"):
        replace(small_run("erm"), engine={"precision": "fp8"}).train(silent(tmp_path / "deep" / "run"))
    assert list(tmp_path.iterdir()) == []


# ---- divergence and full disks


@pytest.mark.parametrize("name", ["erm", "trm", "mldg"])
def test_a_diverging_run_ends_with_a_line_and_a_good_checkpoint(tmp_path, name):
    with pytest.raises(DivergedError, match=r"diverged at lr=1e\+20: .* after step \d+; .* step 1$"):
        small_run(name, lr=1e20, momentum=0.0, evaluations=1).train(silent(tmp_path, every=1))
    checkpoint = load_checkpoint(tmp_path / "last.safetensors")
    assert all(t.isfinite().all() for t in checkpoint.tensors.values() if t.is_floating_point())


def test_weights_that_are_not_numbers_are_never_saved(tmp_path):
    """The loss of a step is of the weights before it."""

    class Poisoned(ERM):
        def step(self, model, batch, optimiser, epoch):
            if epoch > 1.3:
                model.head.weight.data[0, 0] = float("inf")
            return {"loss": torch.tensor(1.0)}

    with pytest.raises(DivergedError, match=r"weights are .* after step 6; .*last.safetensors holds step 3"):
        small_run(Poisoned).train(silent(tmp_path))


@pytest.mark.parametrize("name", ["last.safetensors", "model.safetensors", "records.jsonl"])
def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch, name):
    small_run().train(silent(tmp_path / "whole"))
    folder, full = tmp_path / "cut", [False]
    real_replace, real_fsync = os.replace, os.fsync

    def refuse(path):
        if full[0] and path.name == name:
            raise OSError(28, "No space left on device")

    def replace_(source, target):
        refuse(Path(target))
        real_replace(source, target)

    def fsync(handle):
        refuse(Path(os.readlink(f"/proc/self/fd/{handle}")))
        real_fsync(handle)

    monkeypatch.setattr(os, "replace", replace_)
    monkeypatch.setattr(os, "fsync", fsync)
    filling = Steps(lambda done, _: full.__setitem__(0, done >= 3))
    with pytest.raises(TransferRiskError) as told:
        small_run().train(silent(folder, again="the same again"), filling)
    step = 6 if name == "model.safetensors" else 3
    assert f"{folder / name} cannot be written (No space left on device)" in str(told.value)
    assert f"the same again; {folder / 'last.safetensors'} holds step {step}" in str(told.value)
    assert load_checkpoint(folder / "last.safetensors").values["step"] == step
    full[0] = False
    small_run().train(silent(folder, resume=True))
    assert_same_run(tmp_path / "whole", folder)


# ---- the files


@pytest.fixture
def folder(tmp_path):
    small_run("groupdro").train(silent(tmp_path / "run"))
    return tmp_path / "run"


def test_what_is_in_the_files(folder):
    assert {path.name for path in folder.iterdir()} == FILES
    checkpoint = load_checkpoint(folder / "last.safetensors")
    about = json.loads((folder / "run.json").read_text())
    assert checkpoint.description == {key: about[key] for key in ("spec", "samples", "digests")}
    assert about["versions"]["transferrisk"] == __version__
    assert about["spec"]["settings"]["weights_lr"] == 0.01
    assert about["spec"]["precision"] == "fp32"
    assert about["samples"]["train"] == 60
    assert checkpoint.values["step"] == 9
    assert set(checkpoint.part("algorithm")) == {"weights"}
    assert not torch.equal(checkpoint.part("algorithm")["weights"], torch.tensor([0.5, 0.5]))
    with safe_open(folder / "last.safetensors", "pt") as file:  # any reader of safetensors can take the weights
        assert file.get_tensor("model.head.weight").shape == (3, 6)
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.get_tensor("head.weight").shape == (3, 6)
    described = json.loads((folder / "model.json").read_text())
    assert described["classes"] == ["a", "b", "c"]
    assert described["environments"] == ["north", "south"]
    assert described["about"]["spec"] == about["spec"]


def test_restoring_keeps_tensors_that_were_captured():
    state = small_run().start()
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


def change_header(content):
    place = content.index(rb"\"step\": ") + len(rb"\"step\": ")
    return content[:place] + b"7" + content[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [lambda c: b"", lambda c: c[: len(c) // 2], lambda c: c[:-1], flip, lambda c: b"x" * 200, change_header],
    ids=["empty", "half", "a byte short", "one bit", "something else", "the header"],
)
def test_a_damaged_checkpoint_is_told_in_a_line(folder, damage):
    last = folder / "last.safetensors"
    last.write_bytes(damage(last.read_bytes()))
    with pytest.raises(InputError, match=rf"{last} is damaged") as told:
        small_run("groupdro").train(silent(folder, resume=True))
    assert "\n" not in str(told.value)


class Emptied(ERM):
    """Forgets everything after the first epoch, so that the first evaluation is the best."""

    def step(self, model, batch, optimiser, epoch):
        logs = super().step(model, batch, optimiser, epoch)
        if epoch >= 1:
            model.head.weight.data.zero_()
        return logs


@pytest.mark.parametrize("damage", [None, b"", b"junk"], ids=["gone", "empty", "junk"])
def test_a_selected_model_that_is_lost_is_not_passed_over(tmp_path, damage):
    run = SmallRun(Emptied)
    run.train(silent(tmp_path))
    model = tmp_path / "model.safetensors"
    kept = model.read_bytes()
    assert read_tensors(model)[1]["about"]["step"] == 3
    model.unlink() if damage is None else model.write_bytes(damage)
    with pytest.raises(InputError, match=rf"{model}.*step 3") as told:
        run.train(silent(tmp_path, resume=True))
    assert "\n" not in str(told.value)
    model.write_bytes(kept)
    assert steps_of(run.train(silent(tmp_path, resume=True)).history) == [3, 6, 9]


def test_files_that_are_gone(tmp_path):
    """A description is written again; records and checkpoints cannot be, and a run is not begun anew over them."""
    small_run("erm").train(silent(tmp_path))
    described = (tmp_path / "run.json").read_text()
    (tmp_path / "run.json").unlink()
    small_run("erm").train(silent(tmp_path, resume=True))
    assert (tmp_path / "run.json").read_text() == described
    records = (tmp_path / "records.jsonl").read_bytes()
    (tmp_path / "records.jsonl").write_text("")
    with pytest.raises(InputError, match=r"records.jsonl.*got 0"):
        small_run("erm").train(silent(tmp_path, resume=True))
    (tmp_path / "records.jsonl").write_bytes(records)
    (tmp_path / "last.safetensors").unlink()
    with pytest.raises(InputError, match=r"records.jsonl and model.safetensors but no last.safetensors"):
        small_run("erm").train(silent(tmp_path, resume=True))
    assert (tmp_path / "records.jsonl").read_bytes() == records
    (tmp_path / "records.jsonl").unlink()
    with pytest.raises(InputError, match=r"holds a run already \(model.safetensors\)"):
        RunFolder(tmp_path)


def test_other_files(tmp_path, folder):
    with pytest.raises(InputError, match=r"holds no none\.safetensors"):
        load_checkpoint(tmp_path / "none.safetensors")
    save_file({"w": torch.zeros(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match=r"weights\.safetensors holds tensors"):
        load_checkpoint(tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match="is not a checkpoint"):
        load_checkpoint(folder / "model.safetensors")


def test_a_header_holds_no_numbers_that_json_has_not(tmp_path):
    path = tmp_path / "one.safetensors"
    path.write_bytes(encode_tensors({"w": torch.zeros(2)}, {"scale": float("inf"), "loss": float("nan")}))
    with safe_open(path, "pt") as file:
        entry = file.metadata()["transferrisk"]
    assert "NaN" not in entry
    assert "Infinity" not in entry
    assert read_tensors(path)[1]["scale"] is None


# ---- the saved model


def test_a_model_built_in_python_is_loaded_by_whoever_can_build_it(folder):
    with pytest.raises(InputError, match="pass it as network"):
        load_model_folder(folder)
    saved = load_model_folder(folder, small_run().build())
    assert saved.classes == ("a", "b", "c")
    tensors, _ = read_tensors(folder / "model.safetensors")
    assert torch.equal(saved.network.head.weight, tensors["head.weight"])
    with pytest.raises(InputError, match=r"does not fit this model \(.*\)") as told:
        load_model_folder(folder, Classifier(nn.Linear(4, 7), 7, 3))
    assert "\n" not in str(told.value)
