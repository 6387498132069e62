"""What a user may ask of a data set. Each set says which of these it takes; the others are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from ..errors import InputError
from .shifts import Shift

Progress = Callable[[str, int, int], None]
"""progress(what, done, total): called now and then while something takes long."""


@dataclass(frozen=True)
class Options:
    """
    root         the data root; None: see `root.data_root`
    seed         of everything drawn at random
    size         height and width of images, pixels
    lazy         decode images when they are asked for; None: when the decoded ones would take more than 8 GiB
    verify       read every image once, even where none is decoded before it is asked for
    skip_bad     leave out what cannot be read, with a warning that lists it; like `verify`, this changes nothing where
                 there are no files to read
    shift        what differs between the environments of a synthetic set
    oracle       train on data distributed like the test environment
    label        column or array with the labels
    environment  column or array with the environments
    features     array or column with the features; columns, separated by commas
    path         column with the paths of a manifest
    device       where a synthetic set is built
    progress     called now and then while something takes long
    """

    root: Path | str | None = None
    seed: int = 0
    size: int | None = None
    lazy: bool | None = None
    verify: bool = False
    skip_bad: bool = False
    shift: Shift | None = None
    oracle: bool = False
    label: str | None = None
    environment: str | None = None
    features: str | None = None
    path: str | None = None
    device: torch.device | str = "cpu"
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise InputError(f"seed {self.seed} is out of range: give a whole number from 0 to 2^63 - 1")
        if self.size is not None and not 1 <= self.size <= LARGEST_SIZE:
            raise InputError(f"size {self.size} is out of range: give 1 to {LARGEST_SIZE} pixels")
        if self.shift is not None and not isinstance(self.shift, Shift):
            raise InputError(f"shift {self.shift!r} is no Shift: write Shift({self.shift!r})")
        try:
            torch.device(self.device)
        except (RuntimeError, TypeError):
            raise InputError(f"device {self.device!r} is not known to PyTorch: use 'cpu' or 'cuda'") from None

    def _is_set(self, option: str, default: object) -> bool:
        value = getattr(self, option)
        return torch.device(value).type != "cpu" if option == "device" else value != default

    def refuse_all_but(self, taken: frozenset[str], name: str) -> None:
        """An option that was set and would have no effect is an error."""
        for option in fields(self):
            if option.name not in taken | ALWAYS and self._is_set(option.name, option.default):
                known = ", ".join(sorted(taken)) or "no such options"
                raise InputError(
                    f"data set {name!r} does not take {option.name}: leave it out (what it takes is {known})"
                )


SKIP_BAD = "skip_bad (--skip-bad)"
"""How messages call that option, to users of Python and of the command line."""

LARGEST_SIZE = 4096

ALWAYS = frozenset({"root", "seed", "verify", "skip_bad", "progress"})
"""Options that make sense of any set."""
