"""The theory experiments as tasks, under the names of their modules."""

from __future__ import annotations

from types import ModuleType
from typing import Any, ClassVar

from ..theory import convergence, implicit_gradient, theorem_1, toy_2d
from .base import Place, Row, Task, register


class TheoryTask(Task[Any]):
    """Rows are those of the module's `rows`."""

    module: ClassVar[ModuleType]

    def run(self, settings: Any, place: Place) -> list[Row]:
        found: list[Row] = self.module.rows(settings, place.on_step)
        return found


@register("toy-2d")
class Toy2D(TheoryTask):
    module: ClassVar[ModuleType] = toy_2d
    settings_type: ClassVar[type[Any]] = toy_2d.Settings


@register("theorem-1")
class Theorem1(TheoryTask):
    module: ClassVar[ModuleType] = theorem_1
    settings_type: ClassVar[type[Any]] = theorem_1.Settings


@register("implicit-gradient")
class ImplicitGradient(TheoryTask):
    module: ClassVar[ModuleType] = implicit_gradient
    settings_type: ClassVar[type[Any]] = implicit_gradient.Settings


@register("convergence")
class Convergence(TheoryTask):
    module: ClassVar[ModuleType] = convergence
    settings_type: ClassVar[type[Any]] = convergence.Settings
