"""Places' photographs, a folder for each scene: `b/beach`, `d/desert/sand`, at any depth."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from .containers import Entry
from .images import is_image
from .pictures import found_in

ARCHIVE = "train_256_places365standard.tar"


def by_scene(places: Path, scenes: Sequence[str]) -> dict[str, list[Entry]]:
    """Photographs of each of these scenes that there is, from a folder or the archive in it."""
    known = {_words(scene): scene for scene in scenes}

    @cache
    def scene_of(folders: tuple[str, ...]) -> str | None:
        return known.get(_words(*folders[-1:])) or known.get(_words(*folders[-2:]))

    photographs: dict[str, list[Entry]] = {}
    wanted = found_in(
        (places, places / ARCHIVE), lambda e: is_image(e.name) and bool(scene_of(e.folders)), "scenes", "places"
    )
    for entry in wanted:
        photographs.setdefault(scene_of(entry.folders) or "", []).append(entry)
    return {scene: photographs[scene] for scene in scenes if scene in photographs}


def _words(*names: str) -> tuple[str, ...]:
    """What `forest/broadleaf`, `forest-broadleaf` and "broadleaf forest" have in common."""
    return tuple(sorted(re.findall("[a-z]+", " ".join(names).lower())))
