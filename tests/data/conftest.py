"""Every test has a cache of decoded images of its own; what several of them fetch from, or compose scenes of."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from transferrisk.data import DataSet, Facts, RemoteFile, download, register
from transferrisk.data.catalogue import DATA_SETS


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TRANSFERRISK_CACHE", str(folder))
    return folder


@pytest.fixture
def server(monkeypatch):
    from fetching import Server

    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "BACKOFF", 0.001)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def registered():
    """Registers facts for one test, as those of a source."""

    def add(*files: RemoteFile, name: str = "things", **more: str) -> str:
        source = Facts(name, title="", licence="", citation="", files=files, **more)
        built = Facts(f"built from {name}", title="", licence="", citation="")
        register(DataSet(built, lambda argument, options: None, sources=(source,)))
        return name

    with DATA_SETS.temporary():
        yield add


@pytest.fixture
def by_hand(registered):
    from fetching import BY_HAND

    return registered(by_hand=BY_HAND, folder="Things")


@pytest.fixture(scope="session")
def small_scenes(tmp_path_factory):
    """COCO with four photographs of each class, and Places. It is read only: `copied_scenes` may be changed."""
    from scenes import draw_scenes

    return draw_scenes(tmp_path_factory.mktemp("small"), each=4)


@pytest.fixture
def copied_scenes(small_scenes, tmp_path):
    return Path(shutil.copytree(small_scenes, tmp_path / "copy"))
