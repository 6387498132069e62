"""Storage that fsspec reaches, such as s3://bucket/results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import write_atomically


@dataclass(frozen=True)
class Bucket:
    """Files below an address."""

    files: Any  # fsspec's AbstractFileSystem
    base: str

    @classmethod
    def of(cls, address: str) -> Bucket:
        from fsspec.core import url_to_fs

        try:
            return cls(*url_to_fs(address))
        except Exception as error:  # whatever the package behind it makes of an address
            why = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{address} cannot be used for results ({why}): name a folder, or other storage") from None

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
        """All files of the folder but some, the one whose presence says that the others are there at the end."""
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
        """Where the storage knows folders, a file needs its own."""
        self.files.makedirs(f"{self.base}/{path}".rpartition("/")[0], exist_ok=True)
