"""A run that was killed goes on to the weights it would have had, bit for bit."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from dataclasses import replace

import pytest
import torch
from small import STEPS, Killed, small_run, without_time

from transferrisk.algorithms import available
from transferrisk.errors import DivergedError, InputError, TransferRiskError
from transferrisk.training import Output, Stopped, load_checkpoint, read_records, train
from transferrisk.training import loop as loop_module
from transferrisk.training import output as output_module

CASES = [(name, {}) for name in available()] + [("trm", {"query": "random"})]


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
    return Output(folder, say=lambda _: None, **options)


def assert_same_run(one, other):
    """All tensors of both checkpoints, and all records but the clock."""
    for name in ("last.safetensors", "best.safetensors"):
        a, b = (load_checkpoint(folder / name) for folder in (one, other))
        assert a.tensors.keys() == b.tensors.keys()
        for key, tensor in a.tensors.items():
            assert torch.equal(tensor, b.tensors[key]), (name, key)
        assert a.values | {"seconds": 0} == b.values | {"seconds": 0}
    a, b = (without_time(read_records(folder / "records.jsonl")) for folder in (one, other))
    assert a == b


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda v: "-".join(v) if isinstance(v, dict) else v)
def test_killed_anywhere_it_ends_as_if_it_had_not_been(tmp_path, monkeypatch, name, settings):
    """Every event that leaves a trace may be the last one: a step, a record, half a record, a file, its renaming."""
    run = small_run(name, settings=settings)
    train(run, output=silent(tmp_path / "whole", every=2))
    draw = random.Random(name + str(settings))
    left = [10**9]

    def event():
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    write, append = output_module.write_atomically, output_module.append_record

    def counted_write(path, content):
        event()
        write(path, content)
        event()

    def counted_append(path, record):
        event()
        append(path, record)
        if left[0] == 1:
            content = path.read_bytes()
            path.write_bytes(content[: -len(content) // 4])
        event()

    monkeypatch.setattr(output_module, "write_atomically", counted_write)
    monkeypatch.setattr(output_module, "append_record", counted_append)
    kills = 0
    for _ in range(60):
        left[0] = draw.randint(1, 12)
        try:
            records = train(run, lambda *_: event(), output=silent(tmp_path / "cut", resume=True, every=2))
            break
        except Killed:
            kills += 1
    assert kills >= 2
    assert [r.step for r in records] == [3, 6, 9]
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def in_a_process(run, folder):
    torch.set_num_threads(1)
    train(run, lambda *_: time.sleep(0.01), output=silent(folder, resume=True, every=1))


@pytest.mark.parametrize("name", ["trm", "fish"])
def test_sigkill(tmp_path, name):
    """A process of its own, ended by the system at random moments."""
    run = small_run(name, epochs=20, evaluations=12)
    train(run, output=silent(tmp_path / "whole"))
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
    left = {p.name for p in (tmp_path / "cut").iterdir()}
    assert left == {"run.json", "records.jsonl", "last.safetensors", "best.safetensors"}


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_and_saves(tmp_path, signum, code):
    before = signal.getsignal(signum)
    run = small_run("trm")

    def ask(done, total):
        if done == 4:
            os.kill(os.getpid(), signum)

    with pytest.raises(Stopped, match="interrupted at step 4 of 9; go on with") as stopped:
        train(run, ask, output=silent(tmp_path / "cut"))
    assert stopped.value.exit_code == code
    assert load_checkpoint(tmp_path / "cut" / "last.safetensors").values["step"] == 4
    assert signal.getsignal(signum) is before
    train(run, output=silent(tmp_path / "whole"))
    train(run, output=silent(tmp_path / "cut", resume=True))
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_signal_during_the_last_step_acts_when_all_is_saved(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(
            small_run(),
            lambda done, total: os.kill(os.getpid(), signal.SIGINT) if done == total else None,
            output=silent(tmp_path),
        )
    assert train(small_run(), output=silent(tmp_path, resume=True))[-1].step == STEPS
    assert load_checkpoint(tmp_path / "last.safetensors").values["step"] == STEPS


def test_without_a_folder_a_signal_is_left_to_the_caller():
    def ask(done, total):
        if done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(small_run(), ask)


def test_where_there_is_nothing_it_starts_afresh_and_says_so(tmp_path):
    said = []
    train(small_run(), output=Output(tmp_path, resume=True, say=said.append))
    assert said == [f"there is no checkpoint in {tmp_path} yet: starting afresh"]
    said.clear()
    records = train(small_run(), output=Output(tmp_path, resume=True, say=said.append))
    assert said == [f"{tmp_path} is finished: step 9 of 9"]
    assert [r.step for r in records] == [3, 6, 9]


def test_a_folder_with_a_run_is_refused(tmp_path):
    train(small_run(), output=silent(tmp_path))
    with pytest.raises(InputError, match=r"holds a run already .*--resume, or choose another folder"):
        Output(tmp_path)


def test_other_settings_are_refused_with_the_difference(tmp_path):
    train(small_run("trm"), output=silent(tmp_path))
    other = replace(small_run("trm", seed=1, lr=0.01), origin={"data": "elsewhere"})
    with pytest.raises(InputError) as refused:
        train(other, output=silent(tmp_path, resume=True))
    for part in ("seed: 0 there, 1 here", "lr: 0.05 there, 0.01 here", "data: None there, elsewhere here"):
        assert part in str(refused.value)
    assert "momentum" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["erm", "trm", "mldg"])
def test_a_diverging_run_ends_with_a_line_and_a_good_checkpoint(tmp_path, name):
    with pytest.raises(DivergedError, match=r"after step \d+: .* diverged at lr=1e\+20; use a lower one; .* step 1$"):
        train(small_run(name, lr=1e20, momentum=0.0, evaluations=1), output=silent(tmp_path, every=1))
    checkpoint = load_checkpoint(tmp_path / "last.safetensors")
    assert all(t.isfinite().all() for t in checkpoint.tensors.values() if t.is_floating_point())


def test_weights_that_are_no_numbers_are_never_saved(tmp_path, monkeypatch):
    """The loss of a step is of the weights before it."""

    def poisoned(state, run):
        def step(batch):
            if state.step == 4:
                state.model.head.weight.data[0, 0] = float("inf")
            return {"loss": torch.tensor(1.0)}

        return step

    monkeypatch.setattr(loop_module, "make_step", poisoned)
    with pytest.raises(
        DivergedError, match=r"the weights are no numbers after step 6: .*last.safetensors holds step 3"
    ):
        train(small_run(), output=silent(tmp_path))


@pytest.mark.parametrize("name", ["last.safetensors", "best.safetensors", "records.jsonl"])
def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path, monkeypatch, name):
    train(small_run(), output=silent(tmp_path / "whole"))
    folder = tmp_path / "cut"
    full = [False]
    write, append = output_module.write_atomically, output_module.append_record

    def refuse(path, *rest, real):
        if full[0] and path.name == name:
            raise OSError(28, "No space left on device")
        real(path, *rest)

    monkeypatch.setattr(output_module, "write_atomically", lambda *a: refuse(*a, real=write))
    monkeypatch.setattr(output_module, "append_record", lambda *a: refuse(*a, real=append))
    with pytest.raises(TransferRiskError) as told:
        train(small_run(), lambda done, _: full.__setitem__(0, done >= 3), output=silent(folder))
    step = 6 if name == "best.safetensors" else 3
    assert str(told.value) == (
        f"{folder / name} cannot be written (No space left on device): mend that, then use --resume; "
        f"{folder / 'last.safetensors'} holds step {step}"
    )
    assert load_checkpoint(folder / "last.safetensors").values["step"] == step
    full[0] = False
    train(small_run(), output=silent(folder, resume=True))
    assert_same_run(tmp_path / "whole", folder)
