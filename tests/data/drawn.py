"""Small pictures in flat colours, and the folders and archives they come in."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

from PIL import Image

RED, GREEN, BLUE, WHITE = (200, 30, 30), (30, 200, 30), (30, 30, 200), (255, 255, 255)


def picture(colour=RED, size=(12, 9), mode="RGB", kind="PNG", **options) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, colour).save(buffer, kind, **options)
    return buffer.getvalue()


def write_folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def write_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def sites(classes=("cat", "dog"), environments=("site a", "site b", "site c"), per_class=4) -> dict[str, bytes]:
    """<environment>/<class>/*.png, every picture in a colour of its own."""
    return {
        f"{environment}/{label}/{i}.png": picture((10 + 60 * e, 10 + 60 * c, 10 + 20 * i))
        for e, environment in enumerate(environments)
        for c, label in enumerate(classes)
        for i in range(per_class)
    }
