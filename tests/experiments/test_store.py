"""Where runs are kept, and one run from its settings to its rows."""

from __future__ import annotations

import errno
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
import torch
from sweep_tasks import MODEL, STARTS, Shelf, starts, walk

from transferrisk.errors import InputError, TransferRiskError
from transferrisk.experiments.execute import Outcome, execute_run, in_a_line
from transferrisk.experiments.executors import Slot
from transferrisk.experiments.store import Lost, Store

CPU = Slot("cpu", threads=1)


@pytest.fixture
def shelf(tmp_path):
    """Storage without locks, in the folder out."""
    fsspec.register_implementation("shelf", Shelf, clobber=True)
    return Store(f"shelf://{tmp_path / 'out'}", tmp_path / "scratch")


@pytest.fixture(params=["folder", "file", "memory", "shelf"])
def store(request, tmp_path):
    addresses = {
        "folder": str(tmp_path / "out"),
        "file": f"file://{tmp_path / 'out'}",
        "memory": f"memory://{tmp_path.name}/out",
        "shelf": f"shelf://{tmp_path / 'out'}",
    }
    fsspec.register_implementation("shelf", Shelf, clobber=True)
    return Store(addresses[request.param], scratch=tmp_path / "scratch")


def test_a_run_is_done_once_and_read_anywhere(store):
    run = walk(seed=3)
    assert not store.done(run.name)
    assert store.missing([run]) == [run]
    outcome = execute_run(run, store, CPU)
    assert (outcome.name, outcome.state, outcome.error) == (run.name, "done", None)
    assert outcome.seconds > 0
    again = pickle.loads(pickle.dumps(store))
    assert again.done(run.name)
    assert again.finished() == {run.name}
    assert again.missing([run]) == []
    assert [row["step"] for row in again.records(run.name)] == [0, 1, 2]
    assert json.loads(again.read(f"runs/{run.name}/run.json"))["settings"] == run.settings
    about = json.loads(again.read(f"runs/{run.name}/done.json"))
    assert about["threads"] == torch.get_num_threads()
    assert again.seconds(run.name) == about["seconds"] <= outcome.seconds + 0.001
    assert about["device"] == "cpu"
    assert about["versions"]["torch"] == torch.__version__
    assert execute_run(run, again, CPU) == Outcome(run.name, "done")
    assert len(starts(again.folder(run.name))) == 1


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        ("error", "the reason in two lines"),
        ("mistake", "KeyError: 'nothing here'"),
        ("full", "OSError: [Errno 28] No space left on device: 'checkpoint'"),
    ],
)
def test_what_a_task_raises_is_told_in_a_line(store, trouble, told):
    run = walk(trouble=trouble)
    outcome = execute_run(run, store, CPU)
    assert (outcome.state, outcome.error) == ("failed", told)
    assert not store.done(run.name)
    failed = json.loads(store.read(f"runs/{run.name}/failed.json"))
    assert failed["error"] == told
    assert "in suffer" in failed["traceback"]


def test_a_failure_is_forgotten_when_the_run_is_done(store):
    run = walk(trouble="one error")
    assert execute_run(run, store, CPU).error == "only the first time"
    assert execute_run(run, store, CPU).state == "done"
    assert store.read(f"runs/{run.name}/failed.json") is None


def test_a_model_is_kept_where_that_is_asked_for(store):
    execute_run(walk(), store, CPU)
    kept = walk(keep=True)
    assert kept.name == walk().name
    assert store.missing([walk()]) == []
    assert store.missing([kept]) == [kept]
    execute_run(kept, store, CPU)
    assert store.missing([kept]) == []
    assert (store.folder(kept.name) / MODEL).exists()


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    store, run = Store(tmp_path), walk()

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    for module in ("execute", "store"):
        monkeypatch.setattr(f"transferrisk.experiments.{module}.write_atomically", full)
    outcome = execute_run(run, store, CPU)
    assert outcome.state == "failed"
    assert f"{tmp_path}/runs/{run.name}/run.json cannot be written (No space left on device)" in outcome.error
    with pytest.raises(TransferRiskError, match=r"trial/recipe.json cannot be written \(No space left on device\)"):
        store.write("trial/recipe.json", "{}")


def test_a_place_where_no_folder_can_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"must go to a folder, got .*file"):
        Store(tmp_path / "file")
    (tmp_path / "runs").write_text("")
    outcome = execute_run(walk(), Store(tmp_path), CPU)
    assert outcome.state == "failed"
    assert f"runs/{walk().name} cannot be written (Not a directory)" in outcome.error


def test_another_process_has_the_run(tmp_path):
    store, run = Store(tmp_path), walk()
    code = (
        "import sys; from transferrisk.experiments.store import Store\n"
        "with Store(sys.argv[1]).claim(sys.argv[2]): print('mine', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path), run.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"mine\n"
        assert store.taken(run.name)
        assert execute_run(run, store, CPU) == Outcome(run.name, "busy")
        other.kill()
        other.wait()
        assert not store.taken(run.name)
        assert execute_run(run, store, CPU).state == "done"


def test_an_upload_that_was_cut_off_is_made_up_for(tmp_path, monkeypatch, shelf):
    run = walk()
    put = Shelf.put_file

    def cut(self, local, remote, **more):
        if remote.endswith("records.jsonl"):
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return put(self, local, remote, **more)

    monkeypatch.setattr(Shelf, "put_file", cut)
    outcome = execute_run(run, shelf, CPU)
    assert "cannot be written (Connection reset by peer)" in outcome.error
    assert not shelf.done(run.name)
    monkeypatch.setattr(Shelf, "put_file", put)
    assert execute_run(run, shelf, CPU).state == "done"
    assert (tmp_path / "out" / "runs" / run.name / STARTS).read_text().count("\n") == 1
    assert not [p for p in (tmp_path / "scratch").rglob("*") if p.is_file() and p.name != ".lock"]


def test_done_is_the_last_that_is_uploaded(monkeypatch, shelf):
    names, put = [], Shelf.put_file

    def noted(self, local, remote, **more):
        names.append(Path(remote).name)
        return put(self, local, remote, **more)

    monkeypatch.setattr(Shelf, "put_file", noted)
    execute_run(walk(), shelf, CPU)
    assert sorted(names) == ["done.json", "records.jsonl", "run.json", STARTS]
    assert names[-1] == "done.json"


def test_a_run_removed_from_storage_is_done_anew(tmp_path, shelf):
    run = walk(keep=True)
    execute_run(run, shelf, CPU)
    (shelf.folder(run.name) / "records.jsonl").write_text("of no use")
    shutil.rmtree(tmp_path / "out" / "runs" / run.name)
    assert execute_run(run, shelf, CPU).state == "done"
    assert [row["step"] for row in shelf.records(run.name)] == [0, 1, 2]
    assert not list((tmp_path / "out").rglob(".seen"))


def test_a_failed_run_removed_from_storage_does_not_go_on_from_what_it_had(tmp_path, shelf):
    run = walk(trouble="one error")
    execute_run(run, shelf, CPU)
    shutil.rmtree(tmp_path / "out" / "runs" / run.name)
    assert execute_run(run, shelf, CPU).error == "only the first time"
    assert execute_run(run, shelf, CPU).state == "done"


def test_a_run_done_again_on_another_machine_is_fetched_again(tmp_path):
    fsspec.register_implementation("shelf", Shelf, clobber=True)
    here, there = (Store(f"shelf://{tmp_path / 'out'}", tmp_path / name) for name in ("here", "there"))
    run = walk(keep=True)
    execute_run(run, here, CPU)
    (here.folder(run.name) / MODEL).write_text("of no use")
    shutil.rmtree(tmp_path / "out" / "runs" / run.name)
    execute_run(run, there, Slot("cpu:0", threads=1))
    assert (here.folder(run.name) / MODEL).read_text() == (there.folder(run.name) / MODEL).read_text()


def test_storage_that_is_not_known():
    for address, why in (("nonesuch://bucket", "Protocol not known: nonesuch"), ("dir://x", ""), ("github://a/b", "")):
        with pytest.raises(InputError, match=rf"{address} cannot be used for results \(.*{why}.*\): name a folder"):
            Store(address)


def test_rows_that_are_damaged(tmp_path):
    store, run = Store(tmp_path), walk()
    with pytest.raises(InputError, match=f"run {run.name} must be done again"):
        store.records(run.name)
    assert store.seconds(run.name) is None
    execute_run(run, store, CPU)
    whole = (tmp_path / "runs" / run.name / "records.jsonl").read_bytes()
    for content in (b'{"step": 0}\n{"st', b"\xff\xfe", b"3\n", b"[" * 100_000, b"", whole[: whole.index(b"\n") + 1]):
        (tmp_path / "runs" / run.name / "records.jsonl").write_bytes(content)
        with pytest.raises(Lost, match=rf"records.jsonl is damaged \(.*\): run {run.name} must be done again"):
            store.records(run.name)
    for content in ("", "3", '{"versions": 3}'):
        (tmp_path / "runs" / run.name / "done.json").write_text(content)
        with pytest.raises(Lost, match=r"done.json is damaged"):
            store.provenance(run.name)
        assert store.seconds(run.name) is None
        assert not store.done(run.name, keep=True)


def test_rows_that_are_set_aside_are_to_be_done(store):
    run = walk(keep=True)
    execute_run(run, store, CPU)
    (store.folder(run.name) / "records.jsonl").write_text("of no use")
    store.write(f"runs/{run.name}/records.jsonl", "of no use")
    for _ in range(2):
        store.set_aside(run.name)
    assert store.missing([run]) == [run]
    assert store.read(f"runs/{run.name}/records.damaged.jsonl") == b"of no use"
    assert execute_run(run, store, CPU).state == "done"
    assert [row["step"] for row in store.records(run.name)] == [0, 1, 2]


def test_memory_that_is_full_is_told_plainly():
    told = in_a_line(MemoryError("Unable to allocate 5.00 GiB"))
    assert told == "memory is full: use fewer workers, or a smaller batch"
    assert in_a_line(KeyError()) == "KeyError"
