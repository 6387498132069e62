"""Tasks of the paper's experiments: the theory, the pictures of its environments, and the time of an epoch."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from ..algorithms import get_algorithm
from ..data import EnvironmentSet, Options, load_data
from ..data.summary import environments_of, pictures_by_class
from ..errors import InputError, choices
from ..experiments.bench import SETTINGS, measure
from ..experiments.execute import hardware
from ..experiments.tasks import Place, Task
from ..files import write_atomically
from ..results import Record
from ..settings import Bound, Count, Seed, Settings
from ..training import Precision
from ..training.spec import shift_of
from .convergence import ConvergenceSettings, convergence_records
from .implicit_gradient import ImplicitGradientSettings, implicit_gradient_records
from .theorem_1 import Theorem1Settings, theorem_1_records
from .toy_2d import Toy2DSettings, toy_2d_records

PICTURES = "pictures.npz"


class Toy2D(Task[Toy2DSettings]):
    """The 2-d example (figure 2)."""

    settings_type: ClassVar[type[Any]] = Toy2DSettings

    def run(self, settings: Toy2DSettings, place: Place) -> list[Record]:
        return toy_2d_records(settings, place.on_step)


class Theorem1(Task[Theorem1Settings]):
    """The classifier of theorem 1."""

    settings_type: ClassVar[type[Any]] = Theorem1Settings

    def run(self, settings: Theorem1Settings, place: Place) -> list[Record]:
        return theorem_1_records(settings, place.on_step)


class ImplicitGradient(Task[ImplicitGradientSettings]):
    """Error and variance of the implicit gradient."""

    settings_type: ClassVar[type[Any]] = ImplicitGradientSettings

    def run(self, settings: ImplicitGradientSettings, place: Place) -> list[Record]:
        return implicit_gradient_records(settings, place.on_step)


class Convergence(Task[ConvergenceSettings]):
    """Regret of algorithm 1."""

    settings_type: ClassVar[type[Any]] = ConvergenceSettings

    def run(self, settings: ConvergenceSettings, place: Place) -> list[Record]:
        return convergence_records(settings, place.on_step)


@dataclass(frozen=True)
class PicturesSettings(Settings):
    """Data to draw pictures of.

    per_class  number of pictures of each class in each environment
    others     see `TrainSpec`
    """

    data: str
    seed: Seed = 0
    shift: str | None = None
    bias: float | None = None
    first_bias: float | None = None
    size: Count | None = None
    per_class: Annotated[int, Bound(least=1, most=100)] = 2


class Pictures(Task[PicturesSettings]):
    """Pictures of environments: a record for each, and pictures (C, per_class, h, w, 3) in pictures.npz by number."""

    settings_type: ClassVar[type[Any]] = PicturesSettings

    def complete(self, settings: PicturesSettings) -> PicturesSettings:
        shift = shift_of(settings.data, settings.shift, settings.bias, settings.first_bias)
        first, second = (None, None) if shift is None else shift.biases
        return replace(settings, first_bias=first, bias=second)

    def run(self, settings: PicturesSettings, place: Place) -> list[Record]:
        shift = shift_of(settings.data, settings.shift, settings.bias, settings.first_bias)
        data = load_data(
            settings.data, Options(root=place.data_root, seed=settings.seed, shift=shift, size=settings.size)
        )
        records: list[Record] = []
        pictures = {}
        for number, (name, members) in enumerate(environments_of(data)):
            _check_images(settings.data, members)
            pictures[str(number)] = pictures_by_class(members, settings.per_class, settings.seed)
            records.append({"environment": name, "number": number, "samples": len(members)})
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **pictures)  # type: ignore[arg-type]  # numpy types its keywords as arrays only
        write_atomically(place.folder / PICTURES, buffer.getvalue())
        return records


def _check_images(name: str, data: EnvironmentSet) -> None:
    if len(data.inputs[:1].shape) != 4:
        raise InputError(f"data must be images, got {name}, which has vectors: name a data set of images")


@dataclass(frozen=True)
class TimeSettings(Settings):
    """Steps to measure.

    setting   workload of `trm bench`
    samples   number of samples of the smallest training environment, which determines the steps of an epoch
    hardware  hardware to measure on, since a time on other hardware is another run. Default: that of this machine
    """

    setting: str
    samples: Count
    algorithms: tuple[str, ...]
    precision: Precision | None = None
    hardware: str | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.setting not in SETTINGS:
            raise InputError(f"unknown setting {self.setting!r}{choices(self.setting, SETTINGS)}")
        batch = SETTINGS[self.setting].batch_size
        if self.samples < batch:
            raise InputError(f"samples must be an integer >= {batch}, so that they fill a batch, got {self.samples}")
        for name in self.algorithms:
            get_algorithm(name)


class Time(Task[TimeSettings]):
    """Seconds of an epoch of all algorithms, measured in one run so that ratios are meaningful."""

    settings_type: ClassVar[type[Any]] = TimeSettings

    def complete(self, settings: TimeSettings) -> TimeSettings:
        return replace(settings, hardware=settings.hardware or hardware("auto"))

    def run(self, settings: TimeSettings, place: Place) -> list[Record]:
        here = hardware(place.device)
        if settings.hardware != here:
            raise InputError(f"hardware must be {here}, which this machine has, got {settings.hardware}: run it there")
        steps = settings.samples // SETTINGS[settings.setting].batch_size
        found = measure(
            settings.setting,
            settings.algorithms,
            place.device,
            settings.precision,
            progress=lambda what, done, total: place.on_step(done, total),
        )
        return [{**asdict(one), "seconds_per_epoch": steps * one.ms / 1000} for one in found]
