"""What an epoch costs, for all algorithms in one run, so that ratios mean something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from ...algorithms import get_algorithm
from ...errors import InputError
from ...training.config import Precision
from ..bench import SETTINGS, measure
from ..provenance import hardware
from .base import Place, Row, Task, register


@dataclass(frozen=True)
class TimeSettings:
    """
    setting   of `trm bench`
    samples   of the smallest training environment; an epoch is as many batches as they fill
    hardware  what it is measured on; None: what there is when it is planned. A time on other hardware is another run
    """

    setting: str
    samples: int
    algorithms: Sequence[str]
    precision: Precision | None = None
    hardware: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.setting not in SETTINGS:
            raise InputError(f"setting {self.setting!r} is not known: choose from {', '.join(SETTINGS)}")
        batch = SETTINGS[self.setting].batch_size
        if not isinstance(self.samples, int) or self.samples < batch:
            raise InputError(f"samples={self.samples!r} fill no batch of {batch}: use a whole number, {batch} or more")
        for name in self.algorithms:
            get_algorithm(name)


@register("time")
class TimeTask(Task[TimeSettings]):
    """Rows: one for each algorithm. They are times, so a repetition gives others."""

    settings_type: ClassVar[type[Any]] = TimeSettings

    def complete(self, settings: TimeSettings) -> TimeSettings:
        return replace(settings, hardware=settings.hardware or hardware("auto"))

    def run(self, settings: TimeSettings, place: Place) -> list[Row]:
        here = hardware(place.device)
        if settings.hardware != here:
            raise InputError(
                f"this is to be measured on {settings.hardware}, and here is {here}: plan it where it runs"
            )
        steps = settings.samples // SETTINGS[settings.setting].batch_size
        found = measure(
            settings.setting,
            settings.algorithms,
            place.device,
            settings.precision,
            progress=lambda what, done, total: place.on_step(done, total),
        )
        return [{**asdict(one), "seconds_per_epoch": steps * one.ms / 1000} for one in found]
