"""Where experiments keep their runs: a folder, or any storage that fsspec reaches.

    ROOT/runs/<name>/     one folder a run: run.json (task and settings), rows.jsonl (its result), then done.json or
                          failed.json, and what the task keeps beside them
    ROOT/<experiment>/    recipe.json and records.parquet

Invariant: where done.json is, the rest is whole; it is written last.

In a folder, a run is held by one process at a time, by a lock that ends with the process. Object storage knows no
locks: there, a run works in a folder of its machine (`scratch`), and is uploaded when it is finished. Two at once may
then do the same run twice, and never damage it, because each object is replaced as a whole. What `scratch` holds of a
run goes when the run's folder is removed from the storage.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from ..errors import InputError, TransferRiskError
from ..files import readable, write_atomically
from ..training.plain import dumps
from .bucket import Bucket
from .tasks import PlannedRun, Row

RUNS, LOCK = "runs", ".lock"
RUN, ROWS, DONE, FAILED = "run.json", "rows.jsonl", "done.json", "failed.json"
ASIDE = "rows.damaged.jsonl"
MADE = ("precision", "hardware", "threads", "version", "commit", "date")
SEEN = ".seen"  # in scratch: the storage has files of the run, or had until they were removed


class Lost(InputError):
    """A finished run whose files are gone or cannot be read: it is to be done again."""


class Store:
    """
    root     a folder, or an address such as s3://bucket/results
    scratch  where runs work when root is an address; None: below the system's folder for temporary files
    """

    def __init__(self, root: str | Path, scratch: Path | str | None = None) -> None:
        text = os.fspath(root).removeprefix("file://")
        self._bucket = Bucket.of(text.rstrip("/")) if "://" in text else None
        self.root = text.rstrip("/") if self._bucket else os.path.abspath(text)
        if self._bucket is None:
            self.local = Path(self.root)
            if self.local.exists() and not self.local.is_dir():
                raise InputError(f"{readable(self.root)} is no folder: name one for the results")
        else:
            below = Path(scratch or Path(tempfile.gettempdir()) / f"transferrisk-{getpass.getuser()}").absolute()
            self.local = below / hashlib.sha256(self.root.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"Store({self.root!r})"

    def where(self, path: str) -> str:
        """The full name of a file, for a message."""
        return f"{self.root}/{path}"

    def read(self, path: str) -> bytes | None:
        """None where there is no such file."""
        try:
            with self._reading(path):
                return self._bucket.read(path) if self._bucket else (self.local / path).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes | str) -> None:
        data = content.encode() if isinstance(content, str) else content
        with self._disk_errors(path):
            if self._bucket:
                self._bucket.write(path, data)
            else:
                write_atomically(self.local / path, data)

    def copy(self, patterns: Iterable[str], folder: Path) -> None:
        """Files that match, such as */recipe.json, to the same places below a folder."""
        for pattern in patterns:
            parts = len(Path(pattern).parts)
            with self._reading(pattern):
                found = self._bucket.find(pattern) if self._bucket else [*map(str, self.local.glob(pattern))]
            for path in ("/".join(full.split("/")[-parts:]) for full in found):
                content = self.read(path)
                if content is not None:
                    write_atomically(folder / path, content)

    def finished(self) -> set[str]:
        """Names of the runs that are done and have their rows."""
        if self._bucket:
            with self._reading(RUNS):
                paths = [self._bucket.find(f"{RUNS}/*/{name}") for name in (DONE, ROWS)]
            return set.intersection(*({path.split("/")[-2] for path in found} for found in paths))
        done = (path.parent for path in (self.local / RUNS).glob(f"*/{DONE}"))
        return {folder.name for folder in done if (folder / ROWS).exists()}

    def done(self, name: str, keep: bool = False) -> bool:
        """Whether the run is; with `keep`, whether its model was kept too."""
        content = self.read(f"{RUNS}/{name}/{DONE}")
        if content is None or self.read(f"{RUNS}/{name}/{ROWS}") is None:
            return False
        return not keep or kept(content)

    def missing(self, runs: Iterable[PlannedRun]) -> list[PlannedRun]:
        """Those that are not done yet."""
        finished = self.finished()
        return [run for run in runs if run.name not in finished or (run.keep and not self.done(run.name, keep=True))]

    def rows(self, name: str) -> list[Row]:
        """The result of a finished run."""
        path = f"{RUNS}/{name}/{ROWS}"
        content = self.read(path)
        if content is None:
            raise Lost(f"{self.where(path)} does not exist: run {name} is not done")
        with self._damage(name, DONE):
            digest = json.loads(self.read(f"{RUNS}/{name}/{DONE}") or b"{}").get("rows", digest_of(content))
        with self._damage(name, ROWS):
            if digest_of(content) != digest:
                raise ValueError("it is not what was written")
            rows: list[Row] = [json.loads(line) for line in content.splitlines()]
            if not all(isinstance(row, dict) for row in rows):
                raise ValueError("a line is no JSON object")
            return rows

    def seconds(self, name: str) -> float | None:
        """That a finished run took, since it was last taken up; None where its files do not tell."""
        try:
            return float(json.loads(self.read(f"{RUNS}/{name}/{DONE}") or b"")["seconds"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def made_with(self, name: str) -> dict[str, Any]:
        """`MADE` of a finished run, as far as known; threads are told of a CPU's."""
        contents = (self.read(f"{RUNS}/{name}/{file}") for file in (DONE, RUN))
        done, run = (b"{}" if content is None else content for content in contents)
        with self._damage(name, DONE):
            about = json.loads(done)
            threads = about.get("threads") if about.get("device") == "cpu" else None
            version = about.get("versions", {}).get("transferrisk")
            made = [about.get("hardware"), threads, version, about.get("commit"), about.get("date")]
        with self._damage(name, RUN):
            precision = json.loads(run).get("settings", {}).get("precision")
        return dict(zip(MADE, [precision, *made], strict=True))

    def set_aside(self, name: str) -> None:
        """The rows of a finished run, so that it counts as one to be done; nothing where another process does it."""
        path = f"{RUNS}/{name}"
        with self.claim(name) as folder, self._disk_errors(path), suppress(FileNotFoundError):
            if folder is not None and self._bucket:
                _empty(folder)
                self._bucket.move(f"{path}/{ROWS}", f"{path}/{ASIDE}")
            elif folder is not None:
                os.replace(folder / ROWS, folder / ASIDE)

    def is_aside(self, name: str) -> bool:
        """Whether the run once had rows that turned out to be damaged."""
        return self.read(f"{RUNS}/{name}/{ASIDE}") is not None

    @contextmanager
    def claim(self, name: str) -> Iterator[Path | None]:
        """The run's folder for this process alone; None where another has it."""
        folder = self.local / RUNS / name
        with self._disk_errors(f"{RUNS}/{name}"):
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            ours = _lock(handle)
            if ours:
                self._follow_removal(name)
            yield folder if ours else None
        finally:
            os.close(handle)

    def _follow_removal(self, name: str) -> None:
        """Who removes a run's folder from the storage wants it done anew, not its copy here uploaded again."""
        folder = self.local / RUNS / name
        if self._bucket and (folder / SEEN).exists() and not self._bucket.find(f"{RUNS}/{name}/*"):
            _empty(folder)

    def taken(self, name: str) -> bool:
        """Whether another process works on the run."""
        with self.claim(name) as folder:
            return folder is None

    def publish(self, name: str, keep: bool = False) -> None:
        """Bring a run that is done in its claimed folder to where all see it; with `keep`, the folder stays too."""
        if self._bucket is None:
            return
        folder, path = self.local / RUNS / name, f"{RUNS}/{name}"
        with self._disk_errors(path):
            self._bucket.upload(folder, path, last=DONE, but=(LOCK, SEEN))
            self._bucket.remove(f"{path}/{FAILED}")
            (folder / SEEN).touch()
        if not keep:
            _empty(folder)

    def fail(self, name: str, error: str, trace: str = "") -> None:
        """Note why an attempt failed. Where even that cannot be written, the caller still knows."""
        with suppress(TransferRiskError, OSError):
            self.write(f"{RUNS}/{name}/{FAILED}", dumps({"error": error, "traceback": trace}, indent=2) + "\n")
            if self._bucket:
                (self.local / RUNS / name / SEEN).touch()

    def folder(self, name: str) -> Path:
        """Of a finished run, on this machine."""
        folder = self.local / RUNS / name
        if self._bucket is None:
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / LOCK):
            done = self.read(f"{RUNS}/{name}/{DONE}")
            if not (folder / DONE).exists() or (folder / DONE).read_bytes() != done:  # it has been done again elsewhere
                _empty(folder)
                self._bucket.download(f"{RUNS}/{name}", folder, last=DONE)
                (folder / SEEN).touch()
        return folder

    @contextmanager
    def alone(self, experiment: str) -> Iterator[None]:
        """One process at a time in an experiment's own folder; others wait."""
        if self._bucket is None:
            with self._disk_errors(experiment):
                (self.local / experiment).mkdir(parents=True, exist_ok=True)
        with nullcontext() if self._bucket else _locked(self.local / experiment / LOCK):
            yield

    @contextmanager
    def _damage(self, name: str, file: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            where = self.where(f"{RUNS}/{name}/{file}")
            raise Lost(f"{where} is damaged ({error}): run {name} is to be done again") from None

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise TransferRiskError(
                f"{self.where(path)} cannot be read ({error.strerror or error}): mend that or remove it, and run the "
                "same again"
            ) from None

    @contextmanager
    def _disk_errors(self, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TransferRiskError(
                f"{self.where(path)} cannot be written ({error.strerror or error}): mend that, and run the same again"
            ) from None


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def kept(content: bytes) -> bool:
    """Whether this done.json says that the model was; a damaged one says nothing."""
    try:
        return bool(json.loads(content).get("keep"))
    except (ValueError, AttributeError):
        return False


def _empty(folder: Path) -> None:
    """Remove all but the lock, which a process may be about to take."""
    for item in folder.iterdir():
        if item.is_dir():
            shutil.rmtree(item)
        elif item.name != LOCK:
            item.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(handle, wait=True)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, wait: bool = False) -> bool:
    """Whether the file, open for writing as network file systems want it, is ours until the handle is closed."""
    try:
        import fcntl
    except ImportError:  # a platform without them: two processes are then not kept apart
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a network file system may know no locks
        return True
    return True
