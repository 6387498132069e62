"""Store of runs: a folder, or any storage that fsspec reaches.

    ROOT/runs/<name>/     one folder for each run: run.json (task and settings), records.jsonl (its result), then
                          done.json or failed.json, and files that the task keeps
    ROOT/<experiment>/    recipe.json and records.parquet

Invariant: if done.json exists, the other files are complete; it is written last.

In a folder, one process at a time claims a run, by a lock that ends with the process. Object storage has no locks: a
run works in a folder of its machine (`scratch`) and is uploaded when it is finished. Two processes may then do a run
twice, but never damage it, because each object is replaced as a whole. The copy of a run in `scratch` is removed after
the run's folder has been removed from the storage.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from ..errors import InputError, TransferRiskError
from ..files import readable, write_atomically
from ..results import Record
from ..results.records import DONE, FAILED, ORIGIN, RECORDS, RUNS
from ..settings import dumps
from .tasks import PlannedRun

RUN, LOCK = "run.json", ".lock"
ASIDE = "records.damaged.jsonl"
SEEN = ".seen"  # in scratch: the storage has, or had, files of the run


class Lost(InputError):
    """Raised for a finished run whose files are missing or cannot be read: it must be done again."""


class Store:
    """Store of runs and of the files of experiments.

    Parameters
    ----------
    root
        Folder, or an address that fsspec knows, such as s3://bucket/results.
    scratch
        Folder where runs work if `root` is an address. None: below the system's folder for temporary files.

    Examples
    --------
    >>> import tempfile
    >>> from transferrisk.experiments import Store
    >>> store = Store(tempfile.mkdtemp())
    >>> store.write("notes/first.txt", "a note")
    >>> store.read("notes/first.txt"), store.finished()
    (b'a note', set())
    """

    def __init__(self, root: str | Path, scratch: Path | str | None = None) -> None:
        text = os.fspath(root).removeprefix("file://")
        self._bucket = Bucket.of(text.rstrip("/")) if "://" in text else None
        self.root = text.rstrip("/") if self._bucket else os.path.abspath(text)
        if self._bucket is None:
            self.local = Path(self.root)
            if self.local.exists() and not self.local.is_dir():
                raise InputError(
                    f"results must go to a folder, got the file {readable(self.root)}: choose another --output"
                )
        else:
            below = Path(scratch or Path(tempfile.gettempdir()) / f"transferrisk-{getpass.getuser()}").absolute()
            self.local = below / hashlib.sha256(self.root.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"Store({self.root!r})"

    # Files by their path below the root

    def where(self, path: str) -> str:
        """Return the full name of a file, for a message.

        Parameters
        ----------
        path
            Path of the file below `root`.

        Returns
        -------
        str
            Path or address.
        """
        return f"{self.root}/{path}"

    def read(self, path: str) -> bytes | None:
        """Return the content of a file.

        Parameters
        ----------
        path
            Path of the file below `root`.

        Returns
        -------
        bytes or None
            Content, None if the file does not exist.
        """
        with self._errors(path, "read"), suppress(FileNotFoundError):
            return self._bucket.read(path) if self._bucket else (self.local / path).read_bytes()
        return None

    def write(self, path: str, content: bytes | str) -> None:
        """Write a file as a whole.

        Parameters
        ----------
        path
            Path of the file below `root`.
        content
            New content.
        """
        data = content.encode() if isinstance(content, str) else content
        with self._errors(path, "written"):
            if self._bucket:
                self._bucket.write(path, data)
            else:
                write_atomically(self.local / path, data)

    def copy(self, patterns: Iterable[str], folder: Path) -> None:
        """Copy files to the same places below a folder.

        Parameters
        ----------
        patterns
            Patterns of paths below `root`, such as `*/recipe.json`.
        folder
            Folder to copy to.
        """
        for pattern in patterns:
            depth = len(Path(pattern).parts)
            with self._errors(pattern, "read"):
                found = self._bucket.find(pattern) if self._bucket else [*map(str, self.local.glob(pattern))]
            for path in ("/".join(full.split("/")[-depth:]) for full in found):
                content = self.read(path)
                if content is not None:
                    write_atomically(folder / path, content)

    # Finished runs

    def finished(self) -> set[str]:
        """Return the names of finished runs, which have done.json and records.

        Returns
        -------
        set of str
            Names of runs.
        """
        if self._bucket:
            with self._errors(RUNS, "read"):
                paths = [self._bucket.find(f"{RUNS}/*/{name}") for name in (DONE, RECORDS)]
            return set.intersection(*({path.split("/")[-2] for path in found} for found in paths))
        done = (self.local / RUNS).glob(f"*/{DONE}")
        return {path.parent.name for path in done if (path.parent / RECORDS).exists()}

    def done(self, name: str, keep: bool = False) -> bool:
        """Return whether a run is finished.

        Parameters
        ----------
        name
            Name of the run.
        keep
            Whether its model must have been kept, too.

        Returns
        -------
        bool
            Whether it is.
        """
        content = self.read(f"{RUNS}/{name}/{DONE}")
        if content is None or self.read(f"{RUNS}/{name}/{RECORDS}") is None:
            return False
        return not keep or model_was_kept(content)

    def missing(self, runs: Iterable[PlannedRun]) -> list[PlannedRun]:
        """Return the runs that are not finished.

        Parameters
        ----------
        runs
            Runs, such as those of a plan.

        Returns
        -------
        list of PlannedRun
            The missing ones, in the same order.
        """
        finished = self.finished()
        return [run for run in runs if run.name not in finished or (run.keep and not self.done(run.name, keep=True))]

    def records(self, name: str) -> list[Record]:
        """Return the records of a finished run.

        Parameters
        ----------
        name
            Name of the run.

        Returns
        -------
        list of dict
            Its records.

        Raises
        ------
        InputError
            If the run is not finished, or its files are damaged.
        """
        path = f"{RUNS}/{name}/{RECORDS}"
        content = self.read(path)
        if content is None:
            raise Lost(f"{self.where(path)} does not exist: run {name} must be done again")
        with self._damage(name, DONE):
            digest = json.loads(self.read(f"{RUNS}/{name}/{DONE}") or b"{}").get("records", digest_of(content))
        with self._damage(name, RECORDS):
            if digest_of(content) != digest:
                raise ValueError("its content has changed")
            records: list[Record] = [json.loads(line) for line in content.splitlines()]
            return records

    def seconds(self, name: str) -> float | None:
        """Return how long a finished run took since it was last started or continued; its part, if it shared a GPU.

        Parameters
        ----------
        name
            Name of the run.

        Returns
        -------
        float or None
            Seconds, None if its files do not say.
        """
        try:
            about = json.loads(self.read(f"{RUNS}/{name}/{DONE}") or b"")
            return float(about["seconds"]) / int(about.get("at_once", 1))
        except (ValueError, KeyError, TypeError, RecursionError, ZeroDivisionError):
            return None

    def provenance(self, name: str) -> dict[str, Any]:
        """Return where a finished run comes from, as far as it is recorded.

        Parameters
        ----------
        name
            Name of the run.

        Returns
        -------
        dict
            Precision, hardware, threads (only of a run on a CPU), version, commit and date by the names of their
            columns.
        """
        done, run = self.read(f"{RUNS}/{name}/{DONE}"), self.read(f"{RUNS}/{name}/{RUN}")
        with self._damage(name, DONE):
            about = {} if done is None else json.loads(done)
            threads = about.get("threads") if about.get("device") == "cpu" else None
            version = about.get("versions", {}).get("transferrisk")
            values = [about.get("hardware"), threads, version, about.get("commit"), about.get("date")]
        with self._damage(name, RUN):
            precision = None if run is None else json.loads(run).get("settings", {}).get("precision")
        return dict(zip(ORIGIN, [precision, *values], strict=True))

    def folder(self, name: str) -> Path:
        """Return the folder of a finished run on this machine, after a download if the store is an address.

        Parameters
        ----------
        name
            Name of the run.

        Returns
        -------
        Path
            The folder.
        """
        folder = self.local / RUNS / name
        if self._bucket is None:
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / LOCK):
            done = self.read(f"{RUNS}/{name}/{DONE}")
            if not (folder / DONE).exists() or (folder / DONE).read_bytes() != done:  # it was done again elsewhere
                _empty(folder)
                self._bucket.download(f"{RUNS}/{name}", folder, last=DONE)
                (folder / SEEN).touch()
        return folder

    def set_aside(self, name: str) -> None:
        """Rename the records of a finished run, so that it counts as missing, unless another process works on it.

        Parameters
        ----------
        name
            Name of the run.
        """
        path = f"{RUNS}/{name}"
        with self.claim(name) as folder, self._errors(path, "written"), suppress(FileNotFoundError):
            if folder is not None and self._bucket:
                _empty(folder)
                self._bucket.move(f"{path}/{RECORDS}", f"{path}/{ASIDE}")
            elif folder is not None:
                os.replace(folder / RECORDS, folder / ASIDE)

    def is_aside(self, name: str) -> bool:
        """Return whether the run had records that turned out to be damaged.

        Parameters
        ----------
        name
            Name of the run.

        Returns
        -------
        bool
            Whether it had.
        """
        return self.read(f"{RUNS}/{name}/{ASIDE}") is not None

    # Runs at work

    @contextmanager
    def claim(self, name: str) -> Iterator[Path | None]:
        """Claim a run for this process within a `with` block.

        Parameters
        ----------
        name
            Name of the run.

        Yields
        ------
        Path or None
            Folder of the run, None if another process has claimed it.
        """
        folder = self.local / RUNS / name
        lock = FileLock(folder / LOCK, blocking=False)
        with self._errors(f"{RUNS}/{name}", "written"):
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(Timeout):
                lock.acquire()
        try:
            if lock.is_locked and self._was_removed(name):
                _empty(folder)  # a removed run must be done anew; this copy must not be uploaded
            yield folder if lock.is_locked else None
        finally:
            lock.release()

    def _was_removed(self, name: str) -> bool:
        """Return True if the storage had files of the run and has none now."""
        seen = (self.local / RUNS / name / SEEN).exists()
        return seen and self._bucket is not None and not self._bucket.find(f"{RUNS}/{name}/*")

    def taken(self, name: str) -> bool:
        """Return whether another process works on the run.

        Parameters
        ----------
        name
            Name of the run.

        Returns
        -------
        bool
            Whether one does.
        """
        with self.claim(name) as folder:
            return folder is None

    def publish(self, name: str, keep: bool = False) -> None:
        """Upload a run that is finished in its claimed folder, if the store is an address.

        Parameters
        ----------
        name
            Name of the run.
        keep
            Whether to keep the folder on this machine.
        """
        if self._bucket is None:
            return
        folder, path = self.local / RUNS / name, f"{RUNS}/{name}"
        with self._errors(path, "written"):
            self._bucket.upload(folder, path, last=DONE, but=(LOCK, SEEN))
            self._bucket.remove(f"{path}/{FAILED}")
            (folder / SEEN).touch()
        if not keep:
            _empty(folder)

    def fail(self, name: str, error: str, trace: str = "") -> None:
        """Write why an attempt failed. If that cannot be written either, only the caller knows.

        Parameters
        ----------
        name
            Name of the run.
        error
            Reason, in one line.
        trace
            Traceback.
        """
        with suppress(TransferRiskError, OSError):
            self.write(f"{RUNS}/{name}/{FAILED}", dumps({"error": error, "traceback": trace}, indent=2) + "\n")
            if self._bucket:
                (self.local / RUNS / name / SEEN).touch()

    @contextmanager
    def alone(self, experiment: str) -> Iterator[None]:
        """Lock an experiment's folder within a `with` block; other processes wait.

        Parameters
        ----------
        experiment
            Name of the experiment.
        """
        if self._bucket is None:
            with self._errors(experiment, "written"):
                (self.local / experiment).mkdir(parents=True, exist_ok=True)
        with nullcontext() if self._bucket else FileLock(self.local / experiment / LOCK):
            yield

    @contextmanager
    def _damage(self, name: str, file: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            where = self.where(f"{RUNS}/{name}/{file}")
            raise Lost(f"{where} is damaged ({error}): run {name} must be done again") from None

    @contextmanager
    def _errors(self, path: str, how: Literal["read", "written"]) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TransferRiskError(
                f"{self.where(path)} cannot be {how} ({error.strerror or error}): correct that and try again"
            ) from None


def digest_of(content: bytes) -> str:
    """Return a digest of the content of a file."""
    return hashlib.sha256(content).hexdigest()[:16]


def model_was_kept(content: bytes) -> bool:
    """Return True if this done.json says that the model was kept; a damaged one does not."""
    try:
        return bool(json.loads(content).get("keep"))
    except (ValueError, AttributeError):
        return False


def _empty(folder: Path) -> None:
    """Remove all files but the lock, which a process may be about to acquire."""
    for item in folder.iterdir():
        if item.is_dir():
            shutil.rmtree(item)
        elif item.name != LOCK:
            item.unlink()


@dataclass(frozen=True)
class Bucket:
    """Files below an address that fsspec reaches, such as s3://bucket/results."""

    files: Any  # fsspec's AbstractFileSystem
    base: str

    @classmethod
    def of(cls, address: str) -> Bucket:
        from fsspec.core import url_to_fs

        try:
            return cls(*url_to_fs(address))
        except Exception as error:  # packages behind fsspec raise errors of their own
            why = " ".join(str(error).split()) or type(error).__name__
            raise InputError(
                f"{address} cannot be used for results ({why}): name a folder, or another address"
            ) from None

    def read(self, path: str) -> bytes:
        content: bytes = self.files.cat_file(f"{self.base}/{path}")
        return content

    def write(self, path: str, content: bytes) -> None:
        self._make_folder(path)
        self.files.pipe_file(f"{self.base}/{path}", content)

    def find(self, pattern: str) -> list[str]:
        self.files.invalidate_cache()
        found: list[str] = self.files.glob(f"{self.base}/{pattern}")
        return found

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self.files.rm_file(f"{self.base}/{path}")

    def move(self, path: str, to: str) -> None:
        self.files.mv(f"{self.base}/{path}", f"{self.base}/{to}")

    def upload(self, folder: Path, path: str, last: str, but: Sequence[str]) -> None:
        """Upload the files of a folder except for `but`; `last` comes last, since it marks the upload as complete."""
        files = (file for file in folder.rglob("*") if file.is_file() and file.name not in but)
        inside = [str(file.relative_to(folder)) for file in files]
        for name in sorted(inside, key=lambda name: (name == last, name)):
            self._make_folder(f"{path}/{name}")
            self.files.put_file(str(folder / name), f"{self.base}/{path}/{name}")

    def download(self, path: str, folder: Path, last: str) -> None:
        self.files.invalidate_cache()
        start = self.files.info(f"{self.base}/{path}")["name"].rstrip("/")
        for full in self.files.find(start):
            name = full[len(start) + 1 :]
            if name != last:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                self.files.get_file(full, str(folder / name))
        write_atomically(folder / last, self.read(f"{path}/{last}"))

    def _make_folder(self, path: str) -> None:
        """Create the folder of a file if the storage has folders."""
        self.files.makedirs(f"{self.base}/{path}".rpartition("/")[0], exist_ok=True)
