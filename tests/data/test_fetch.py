"""Fetching against a server on this machine that breaks off, lies and refuses on demand; no network beyond it."""

from __future__ import annotations

import gzip
import hashlib
import ssl
from urllib.error import URLError

import pytest
from fetching import CONTENT, SHA, SIZE, Answer, left, nothing_but, remote

from transferrisk.data import RemoteFile, download
from transferrisk.data.fetch import fetch, verify
from transferrisk.errors import InputError


def test_a_file_comes_whole_and_only_once(server, known, tmp_path):
    seen = []
    name = known(remote(server.address("/a")))
    paths = fetch(name, tmp_path, progress=lambda *told: seen.append(told))
    assert paths == [tmp_path / "things/a.bin"]
    nothing_but(tmp_path)
    assert ("a.bin", SIZE, SIZE) in seen
    assert all(done <= total == SIZE for _, done, total in seen)
    assert fetch(name, tmp_path) == []
    assert server.asked == [("/a", None)]


def test_a_wrong_file_in_its_place_is_replaced(server, known, tmp_path):
    target = tmp_path / "things/a.bin"
    target.parent.mkdir()
    target.write_bytes(CONTENT[::-1])
    name = known(remote(server.address("/a")))
    assert [s.state for s in verify(name, tmp_path)] == ["wrong"]
    assert fetch(name, tmp_path) == [target]
    nothing_but(tmp_path)


@pytest.mark.parametrize("length", [True, False], ids=["with length", "without length"])
def test_a_broken_connection_goes_on_where_it_stopped(server, known, tmp_path, length):
    name = known(remote(server.address("/a", Answer(breaks=[1000, 2000], length=length))))
    fetch(name, tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", None), ("/a", "bytes=1000-"), ("/a", "bytes=3000-")]


def test_a_stalled_connection_goes_on_with_another(server, known, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    fetch(known(remote(server.address("/a", Answer(breaks=[1000], stall=1)))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", None), ("/a", "bytes=1000-")]


def test_a_silent_server_is_not_waited_for_again(server, known, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    with pytest.raises(InputError, match=r"no answer within 0\.2 seconds"):
        fetch(known(remote(server.address("/a", Answer(silence=1)))), tmp_path)
    assert server.asked == [("/a", None)]


def test_a_certificate_that_is_not_trusted(known, tmp_path, monkeypatch):
    def refuse(request, timeout):
        error = ssl.SSLCertVerificationError(1, "certificate verify failed")
        error.verify_message = "certificate has expired"
        raise URLError(error)

    monkeypatch.setattr(download, "urlopen", refuse)
    with pytest.raises(InputError, match="its certificate is not trusted: certificate has expired"):
        fetch(known(remote("https://example.org/a")), tmp_path)


def test_what_an_earlier_call_got_is_not_asked_for_again(server, known, tmp_path):
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin.part").write_bytes(CONTENT[:4000])
    fetch(known(remote(server.address("/a"))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", "bytes=4000-")]


def test_a_whole_part_is_checked_and_not_asked_for(server, known, tmp_path):
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin.part").write_bytes(CONTENT)
    fetch(known(remote(server.address("/a"))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == []


def test_a_server_that_ignores_ranges_begins_again(server, known, tmp_path):
    name = known(remote(server.address("/a", Answer(ranges=False, breaks=[1000]))))
    fetch(name, tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", None), ("/a", "bytes=1000-")]


def test_a_server_that_ignores_ranges_and_always_breaks_is_given_up(server, known, tmp_path):
    name = known(remote(server.address("/a", Answer(ranges=False, breaks=[1000, 500] * 50))))
    with pytest.raises(InputError, match="the connection ended after 500 of 512000 bytes"):
        fetch(name, tmp_path)
    assert len(server.asked) == 1 + download.RETRIES
    assert left(tmp_path) == ["things/a.bin.part"]


@pytest.mark.parametrize("offset", [7, -7])
def test_another_part_than_asked_for_is_not_used(server, known, tmp_path, offset):
    name = known(remote(server.address("/a", Answer(offset=offset, breaks=[1000]))))
    fetch(name, tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", None), ("/a", "bytes=1000-"), ("/a", None)]


def test_416_discards_a_part_that_is_too_long(server, known, tmp_path):
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin.part").write_bytes(CONTENT + b"more")
    fetch(known(remote(server.address("/a"))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", f"bytes={SIZE + 4}-"), ("/a", None)]


@pytest.mark.parametrize(
    ("status", "times"), [(404, 1), (403, 1), (500, 1 + download.RETRIES), (503, 1 + download.RETRIES)]
)
def test_the_next_source_is_asked(server, known, tmp_path, status, times):
    name = known(remote(server.address("/bad", Answer(status=status)), server.address("/good")))
    fetch(name, tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/bad", None)] * times + [("/good", None)]


def test_the_next_source_goes_on_with_the_part(server, known, tmp_path):
    broken = Answer(breaks=[1000, 0, 0, 0, 0])
    name = known(remote(server.address("/bad", broken), server.address("/good")))
    fetch(name, tmp_path)
    nothing_but(tmp_path)
    assert server.asked[-1] == ("/good", "bytes=1000-")
    assert server.asked[:-1] == [("/bad", None)] + [("/bad", "bytes=1000-")] * download.RETRIES


def test_a_part_of_other_bytes_is_got_afresh_once(server, known, tmp_path):
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin.part").write_bytes(b"other" * 100)
    fetch(known(remote(server.address("/a"))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", "bytes=500-"), ("/a", None)]


def test_a_wrong_digest_leaves_nothing(server, known, tmp_path):
    wrong = CONTENT[:-1] + b"!"
    address = server.address("/a", Answer(body=wrong))
    with pytest.raises(InputError) as error:
        fetch(known(remote(address)), tmp_path)
    for told in (address, SHA.partition(":")[2], hashlib.sha256(wrong).hexdigest(), str(tmp_path / "things/a.bin")):
        assert told in str(error.value)
    assert left(tmp_path) == []
    assert server.asked == [("/a", None)]


def test_a_wrong_digest_is_mended_by_the_next_source(server, known, tmp_path):
    fetch(known(remote(server.address("/bad", Answer(body=CONTENT[::-1])), server.address("/good"))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/bad", None), ("/good", None)]


def test_a_page_in_place_of_the_file_is_known_by_its_size(server, known, tmp_path):
    with pytest.raises(InputError, match="offers 15 bytes where 512000 are published"):
        fetch(known(remote(server.address("/a", Answer(body=b"<html>log in...")))), tmp_path)
    assert left(tmp_path) == []


def test_all_sources_are_named_when_none_has_it(server, known, tmp_path):
    gone, closed = server.address("/gone", Answer(status=404)), "http://127.0.0.1:1/a"
    with pytest.raises(InputError) as error:
        fetch(known(remote(gone, closed)), tmp_path)
    assert f"{gone} (404 Not Found)" in str(error.value)
    assert f"{closed} (Connection refused)" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_silent_host_is_asked_once_in_a_call(server, known, tmp_path, monkeypatch):
    opened = []
    real = download.urlopen
    monkeypatch.setattr(download, "urlopen", lambda request, timeout: opened.append(request.full_url) or real(request))
    closed = "http://127.0.0.1:1"
    files = [remote(f"{closed}/{n}", server.address(f"/{n}"), path=f"things/{n}.bin") for n in "ab"]
    fetch(known(*files), tmp_path)
    assert left(tmp_path) == ["things/a.bin", "things/b.bin"]
    assert sum(url.startswith(closed) for url in opened) == 1


def test_compressed_content_counts_not_its_wrapping(server, known, tmp_path):
    packed = gzip.compress(CONTENT, 1)
    file = RemoteFile("things/a.gz", (server.address("/a", Answer(body=packed)),), 77, content=SHA)
    fetch(known(file), tmp_path)
    nothing_but(tmp_path, "things/a.gz", packed)
    assert [s.state for s in verify("things", tmp_path)] == ["there"]
    (tmp_path / "things/a.gz").write_bytes(packed[:-20])
    assert "damaged" in str(verify("things", tmp_path)[0])
    (tmp_path / "things/a.gz").unlink()
    (tmp_path / "things/a").write_bytes(CONTENT)  # unpacked, as loaders take it too
    assert fetch("things", tmp_path) == []
