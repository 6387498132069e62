"""Pictures of the environments of a data set, for the report to draw."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ...data import EnvironmentSet, Options, Shift, load
from ...data.gallery import environments_of, pictures_by_class
from ...errors import InputError
from ...files import write_atomically
from .base import Place, Row, Task, register
from .train import shift_of

PICTURES = "pictures.npz"


@dataclass(frozen=True)
class PicturesSettings:
    """
    per_class  pictures of each class in each environment
    others     as those of a training
    """

    data: str
    seed: int = 0
    shift: str | None = None
    bias: float | None = None
    first_bias: float | None = None
    size: int | None = None
    per_class: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.per_class, int) or not 1 <= self.per_class <= 100:
            raise InputError(f"per_class={self.per_class!r} is no number of pictures: use 1 to 100")
        self.drawn()

    def drawn(self) -> Shift | None:
        return shift_of(self.shift, self.bias, self.first_bias)


@register("pictures")
class PicturesTask(Task[PicturesSettings]):
    """Rows: one for each environment; its pictures are in pictures.npz under "number", (C, per_class, h, w, 3)."""

    settings_type: ClassVar[type[Any]] = PicturesSettings

    def complete(self, settings: PicturesSettings) -> PicturesSettings:
        shift = settings.drawn()
        first, second = (None, None) if shift is None else shift.biases
        return replace(settings, first_bias=first, bias=second)

    def run(self, settings: PicturesSettings, place: Place) -> list[Row]:
        options = Options(root=place.data_root, seed=settings.seed, shift=settings.drawn(), size=settings.size)
        data = load(settings.data, options)
        rows: list[Row] = []
        pictures = {}
        for number, (name, members) in enumerate(environments_of(data)):
            _check_images(settings.data, members)
            pictures[str(number)] = pictures_by_class(members, settings.per_class, settings.seed)
            rows.append({"environment": name, "number": number, "samples": len(members)})
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **pictures)  # type: ignore[arg-type]  # numpy types its keywords as arrays only
        write_atomically(place.folder / PICTURES, buffer.getvalue())
        return rows


def _check_images(name: str, data: EnvironmentSet) -> None:
    if len(data.inputs[:1].shape) != 4:
        raise InputError(f"{name} has vectors, and no pictures to show: name a set of images")
