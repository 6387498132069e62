"""How torch rounds products and convolutions of float32: the process has one setting, which a training gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Rounding:
    """The values of torch's older settings, None where they contradict the newer ones, and of the newer ones."""

    products: str | None
    convolutions: bool | None
    parts: tuple[str, ...]

    @classmethod
    def now(cls) -> Rounding:
        return cls(
            _readable(torch.get_float32_matmul_precision),
            _readable(lambda: torch.backends.cudnn.allow_tf32),
            tuple(part.fp32_precision for part in _parts()),
        )

    def set(self) -> None:
        """The newer settings last, because setting an older one changes them too."""
        if self.products is not None:
            torch.set_float32_matmul_precision(self.products)
        if self.convolutions is not None:
            torch.backends.cudnn.allow_tf32 = self.convolutions
        for part, value in zip(_parts(), self.parts, strict=True):
            part.fp32_precision = value


@contextmanager
def rounding_kept() -> Iterator[None]:
    """Ends with the settings that it began with."""
    before = Rounding.now()
    try:
        yield
    finally:
        if Rounding.now() != before:
            before.set()


def _parts() -> tuple[Any, ...]:
    backends: Any = torch.backends  # its submodules make up their attributes as they are imported
    return backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn


def _readable(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except RuntimeError:  # somebody has used the newer settings
        return None
