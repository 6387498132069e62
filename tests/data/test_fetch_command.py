"""`trm data fetch` and what `trm data list` tells of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from fetching import BY_HAND, CONTENT, Answer, remote


def test_the_command_fetches(server, known, tmp_path, trm):
    name = known(remote(server.address("/a")))
    target = tmp_path / "things/a.bin"
    assert trm("data", "fetch", name, "--data-root", tmp_path) == (0, f"fetched {target}\n", "")
    code, out, _ = trm("data", "fetch", name, "--data-root", tmp_path)
    assert (code, out) == (0, f"nothing to do: all that {name} needs is in {tmp_path}\n")
    code, out, err = trm("data", "fetch", name, "--data-root", tmp_path, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["files"] == [{"path": str(target), "state": "there"}]
    code, out, _ = trm("data", "fetch", "gaussian")
    assert (code, out) == (0, "gaussian needs no files: there is nothing to fetch\n")


def test_the_command_fails_in_one_line(server, known, by_hand, tmp_path, trm):
    gone = known(remote(server.address("/a", Answer(status=404))), name="gone")
    for arguments, told in (
        ([gone], "404 Not Found"),
        ([by_hand], BY_HAND),
        ([by_hand, "--from", tmp_path / "absent"], "does not exist"),
        (["mnst"], "did you mean 'mnist'"),
        (["gaussian", "--from", tmp_path], "it needs no files"),
    ):
        code, out, err = trm("data", "fetch", *arguments, "--data-root", tmp_path)
        assert (code, out) == (2, "")
        assert err.startswith("trm: ")
        assert told in err
        assert err.count("\n") == 1


def test_the_list_tells_what_is_there(known, tmp_path, trm):
    known(remote("http://127.0.0.1:1/a"))
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin").write_bytes(CONTENT)
    code, out, _ = trm("data", "list", "--json", "--data-root", tmp_path)
    listed = json.loads(out)
    assert code == 0
    sets = {entry["name"]: entry for entry in listed["sets"]}
    assert sets["10c-cmnist"]["usage"] == "10c-cmnist[:FOLDER]"
    assert sets["10c-cmnist"]["there"] == "no"
    assert sets["10c-digits"]["there"] == "yes"
    assert {"citation", "homepage", "departures", "licence"} <= set(sets["gaussian"])
    assert {entry["name"]: entry["there"] for entry in listed["sources"]}["things"] == "yes"


@pytest.mark.parametrize("width", [80, 140])
def test_the_list_fits(width, tmp_path):
    code = "from transferrisk.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "data", "list", "--data-root", str(tmp_path)],
        capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": str(width)},
    )  # fmt: skip
    tables = result.stdout.partition("Data root:")[0]
    assert max(map(len, tables.splitlines())) <= width
    for whole in ("10c-cmnist[:FOLDER]", "fashion-mnist", "3x256x256", "19.6 GB", "To fetch"):
        assert whole in tables
