"""Members of zip archives. Of members with one name the last counts; a backslash in a name separates folders."""

from __future__ import annotations

import zipfile
from pathlib import Path

from ..errors import InputError
from .archives import DAMAGED, because, inside, unreadable


class Zip:
    """An open archive; `members` are its files by name."""

    def __init__(self, path: Path) -> None:
        try:
            self._archive = zipfile.ZipFile(path)
        except DAMAGED as error:
            raise unreadable(path, error, "zip") from None
        try:
            self.members = {
                inside(path, info.filename.replace("\\", "/")): info
                for info in self._archive.infolist()
                if not info.filename.endswith(("/", "\\"))
            }
        except BaseException:
            self._archive.close()
            raise

    def __enter__(self) -> Zip:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def read(self, name: str) -> bytes:
        """One file; what is damaged or locked is an InputError that leaves out which one it is."""
        try:
            return self._archive.read(self.members[name])
        except KeyError:
            raise InputError("it is gone from the archive, which has changed meanwhile") from None
        except DAMAGED as error:
            raise InputError(f"it cannot be read ({because(error)}): the archive is damaged or locked") from None
