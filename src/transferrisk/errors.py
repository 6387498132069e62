"""Errors and warnings of the project, and the phrases of their messages.

Every message says what the value was, why it cannot be used, and what to do instead. Errors that a
user's input can cause derive from `InputError`, which the command line turns into one line and exit code 2.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import FrameType


class TransferRiskError(Exception):
    """Base of all errors the package raises on purpose; `exit_code` is that of the command it ends.

    Examples
    --------
    >>> from transferrisk.algorithms import get_algorithm
    >>> from transferrisk.errors import TransferRiskError
    >>> try:
    ...     get_algorithm("trn")
    ... except TransferRiskError as error:
    ...     print(str(error).partition("?")[0], error.exit_code)
    unknown algorithm 'trn': did you mean 'trm' 2
    """

    exit_code = 2


class InputError(TransferRiskError, ValueError):
    """The caller's data or settings cannot be used as they are.

    Examples
    --------
    >>> from transferrisk import TransferRisk
    >>> from transferrisk.errors import InputError
    >>> try:
    ...     TransferRisk(ridge=-1)
    ... except InputError as error:
    ...     print(error)
    ridge must be a finite number > 0, got -1
    """


class UnfitError(InputError):
    """A setting has a value that its annotation does not allow. The arguments are those of `settings.convert`.

    Examples
    --------
    >>> from transferrisk.data import Options
    >>> from transferrisk.errors import UnfitError
    >>> try:
    ...     Options(seed=-1)
    ... except UnfitError as error:
    ...     print(error)
    seed must be an integer >= 0 and < 9.22337e+18, got -1
    """

    def __str__(self) -> str:  # composed where it is read: a union tries one type after the other
        from .settings import describe

        name, value, kind = self.args
        shown = repr(value)
        return f"{name} must be {describe(kind)}, got {shown if len(shown) <= 100 else f'{shown[:97]}...'}"


class BadImageError(InputError):
    """The bytes of a file are not an image that can be read.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from transferrisk.data import Options, load_data
    >>> from transferrisk.errors import BadImageError
    >>> folder = Path(mkdtemp())
    >>> for name in ("a/cat/0.png", "a/dog/0.png", "b/cat/0.png", "b/dog/0.png"):
    ...     (folder / name).parent.mkdir(parents=True)
    ...     written = (folder / name).write_bytes(b"")
    >>> data = load_data(f"folder:{folder}", Options(lazy=True, size=8))
    >>> try:
    ...     images = data.batch()
    ... except BadImageError as error:
    ...     print(str(error).rpartition(": ")[2])
    it is empty
    """


class OtherRunError(InputError):
    """A folder holds a run that was started with other settings or data.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> from transferrisk.errors import OtherRunError
    >>> from transferrisk.training import RunFolder, TrainSpec, run_spec
    >>> folder, training = mkdtemp(), {"steps": 2, "evaluations": 1}
    >>> for name in ("erm", "vrex"):
    ...     try:
    ...         spec = TrainSpec(data="gaussian", algorithm=name, training=training)
    ...         trained = run_spec(spec, device="cpu", watch=[RunFolder(folder, resume=True, say=None)])
    ...     except OtherRunError:
    ...         print(f"{name} needs another folder")
    vrex needs another folder
    """


class DamagedRunError(InputError):
    """A run cannot continue, since files in its folder are damaged.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from transferrisk.errors import DamagedRunError
    >>> from transferrisk.training import RunFolder, TrainSpec, run_spec
    >>> folder = Path(mkdtemp())
    >>> written = (folder / "last.safetensors").write_bytes(b"half a checkpoint")
    >>> spec = TrainSpec(data="gaussian", algorithm="erm", training={"steps": 2, "evaluations": 1})
    >>> try:
    ...     trained = run_spec(spec, device="cpu", watch=[RunFolder(folder, resume=True, say=None)])
    ... except DamagedRunError:
    ...     print("start again in another folder")
    start again in another folder
    """


class DivergedError(TransferRiskError, ArithmeticError):
    """An iteration moved away from its answer, so no answer is returned.

    Examples
    --------
    >>> from transferrisk.errors import DivergedError
    >>> from transferrisk.training import TrainSpec, run_spec
    >>> for lr in (1e30, 0.1):
    ...     training = {"lr": lr, "steps": 5, "evaluations": 1}
    ...     spec = TrainSpec(data="gaussian", algorithm="erm", training=training)
    ...     try:
    ...         trained = run_spec(spec, device="cpu")
    ...     except DivergedError:
    ...         print(f"lr={lr:g} is too large")
    lr=1e+30 is too large
    """


class ProcessLost(TransferRiskError):
    """Another process of a training has ended.

    Parameters
    ----------
    lost
        The process and how it ended. None: not known.
    again
        The way out.

    Examples
    --------
    >>> from transferrisk.errors import ProcessLost
    >>> print(ProcessLost("process 1 has ended", "train again"))
    process 1 has ended: train again
    """

    exit_code = 1

    def __init__(self, lost: str | None, again: str) -> None:
        super().__init__(f"{lost or 'another process of this training has ended or cannot be reached'}: {again}")
        self.lost = lost


class Stopped(TransferRiskError):
    """A training was stopped by a signal and has been saved.

    Parameters
    ----------
    signum
        Number of the signal.
    step, total
        Number of steps taken and of all steps.
    again
        Command that goes on with the training.

    Examples
    --------
    >>> from transferrisk.errors import Stopped
    >>> print(Stopped(2, 30, 100))
    interrupted at step 30 of 100; go on with: train with resume=True
    """

    def __init__(self, signum: int, step: int, total: int, again: str = "train with resume=True") -> None:
        super().__init__(f"interrupted at step {step} of {total}; go on with: {again}")
        self.signum, self.step, self.total = signum, step, total
        self.exit_code = 128 + signum


class DataWarning(UserWarning):
    """The data can be used, but something about it should be checked.

    Examples
    --------
    >>> import warnings
    >>> from transferrisk.errors import DataWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", DataWarning)  # in this block, such data raises an error
    """


class ConvergenceWarning(UserWarning):
    """A solver stopped before it reached its tolerance; its last iterate was used.

    Examples
    --------
    >>> import warnings
    >>> from transferrisk.errors import ConvergenceWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", ConvergenceWarning)  # an error instead, in this block
    """


class FullMemoryError(TransferRiskError):
    """The memory of the machine or of its GPU is full.

    Examples
    --------
    >>> from transferrisk.errors import FullMemoryError
    >>> try:
    ...     raise FullMemoryError("the GPU's memory is full: use a lower --batch-size")
    ... except FullMemoryError as error:
    ...     print(error)
    the GPU's memory is full: use a lower --batch-size
    """


class StepWarning(UserWarning):
    """Steps work, but more slowly or on fewer environments than was asked for.

    Examples
    --------
    >>> import warnings
    >>> from transferrisk.errors import StepWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", StepWarning)  # in this block, slower steps are accepted
    """


class PluginWarning(UserWarning):
    """An addition of an installed package is not used; everything else works.

    Examples
    --------
    >>> import warnings
    >>> from transferrisk.algorithms import available
    >>> from transferrisk.errors import PluginWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", PluginWarning)  # of packages that do not fit this version
    ...     names = available()
    """


class WeightsWarning(UserWarning):
    """The usual weights are not available; the message names the network that was taken instead.

    Examples
    --------
    >>> import warnings
    >>> from transferrisk.errors import WeightsWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", WeightsWarning)  # in this block, no other network is taken
    """


class LeftoverWarning(UserWarning):
    """Unfinished output of a killed process was removed.

    Examples
    --------
    >>> import warnings
    >>> from transferrisk.errors import LeftoverWarning
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", LeftoverWarning)  # removed without a word, in this block
    """


class LabelWarning(UserWarning):
    """Labels seem to be numbered from 1, where 0..num_classes-1 is expected.

    Examples
    --------
    >>> import warnings
    >>> import torch
    >>> from transferrisk.errors import LabelWarning
    >>> from transferrisk.functional import transfer_matrix
    >>> features, labels, site = torch.randn(8, 2), torch.tensor([1, 2] * 4), torch.arange(8) // 4
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", LabelWarning)
    ...     try:
    ...         M = transfer_matrix(features, labels, site)
    ...     except LabelWarning:
    ...         M = transfer_matrix(features, labels - 1, site)
    >>> M.shape
    torch.Size([2, 2])
    """


class EnvironmentWarning(UserWarning):
    """There are too few environments for a request; the message says what was done instead.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> from transferrisk.errors import EnvironmentWarning
    >>> from transferrisk.sklearn import TransferRiskClassifier
    >>> X, y = np.eye(4), [0, 1, 0, 1]
    >>> with warnings.catch_warnings(record=True) as given:
    ...     warnings.simplefilter("always", EnvironmentWarning)
    ...     model = TransferRiskClassifier(max_epochs=1).fit(X, y)  # without environments
    >>> given[0].category.__name__, model.algorithm_
    ('EnvironmentWarning', 'erm')
    """


SKIP_BAD = "--skip-bad (skip_bad=True in Python)"
"""The option as messages call it, for users of Python and of the command line."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the nearest of the other known words, whatever its case, as a question and a space; "" if none is near."""
    by_lower = {name.lower(): name for name in known if name != word}
    close = get_close_matches(word.lower(), by_lower, n=1)
    return f"did you mean {by_lower[close[0]]!r}? " if close else ""


def choices(word: str, known: Iterable[str], most: int = 30) -> str:
    """Return the end of a message about an unknown word: the nearest known one, and all of them."""
    known = list(known)
    if not known:
        return ": there is none to choose from"
    return f": {did_you_mean(word, known)}choose from {listed(known, most)}"


def listed(things: Iterable[object], most: int = 10) -> str:
    """Return the first few things, separated by commas, and how many more there are."""
    things = list(things)
    rest = f" and {len(things) - most} more" if len(things) > most else ""
    return ", ".join(map(str, things[:most])) + rest


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def cause_of(error: BaseException) -> str:
    """Return the first line of an error's text, or its type if it has none; without the number of a system's error."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return next((" ".join(line.split()) for line in text.splitlines() if line.strip()), type(error).__name__)


def describe_values(given: object) -> str:
    """Return how a message calls something that was given in place of an array: its text, or its type and shape."""
    if isinstance(given, str):
        return f"the text {given!r}"
    shape = tuple(getattr(given, "shape", ()))
    return f"{type(given).__name__}{f' of shape {shape}' if shape else ''}"


def one_line(text: str, most: int | None = None) -> str:
    """Return the text on one line; characters that cannot be printed, such as those that steer a terminal, are escaped.

    The middle of a text of more than `most` characters is left out, since a message ends with the way out.
    """
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    if most is None or len(line) <= most:
        return line
    # A broken word is left out too, unless it is long, as a path may be.
    first, last = line[: most // 2], line[3 - most + most // 2 :]
    return f"{re.sub(r' [^ ]{0,40}$', '', first)} … {re.sub(r'^[^ ]{0,40} ', '', last)}"


def full_memory(error: BaseException) -> str | None:
    """Return a message if the error says that memory is full, the GPU's or the machine's; else None."""
    message = " ".join(str(error).split())
    on_gpu = type(error).__name__ == "OutOfMemoryError"  # torch's; this module must not import torch
    if not on_gpu and not isinstance(error, MemoryError) and not any(word in message.lower() for word in _FULL):
        return None
    _, found, rest = message.partition("ried to allocate ")
    amount = f" (tried to allocate {' '.join(rest.split()[:2]).rstrip('.')})" if found else ""
    where = "the GPU's memory" if on_gpu else "memory"
    return f"{where} is full{amount}"


_FULL = (
    *("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory", "unable to allocate"),
    "failed to map segment",  # of a library that is imported
)


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line that called into this package, however deep below it we are."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("transferrisk", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def require_name(name: str, names: Sequence[str], where: Path | str, noun: str, option: str) -> str:
    """Return `name` if a file has such a column or array; the error names the option that chooses another."""
    if name in names:
        return name
    raise InputError(f"{where} has no {noun} {name!r}{choices(name, names)} with --{option}")


def refuse_or_skip(bad: Sequence[str], total: int, noun: str, where: Path | str, skip_bad: bool) -> None:
    """Report bad samples, of `total` in all, each described as "which (why)".

    This is an error that names the first; with `skip_bad` a warning that lists ten, unless nothing would be left.
    """
    if not bad:
        return
    if skip_bad and len(bad) < total:
        warn(f"{where}: {len(bad)} of {counted(total, noun)} left out: {listed(bad)}", DataWarning)
        return
    way_out = f"correct or remove them, or go on without them with {SKIP_BAD}" if len(bad) < total else "correct them"
    raise InputError(f"{where}: {len(bad)} of {counted(total, noun)} cannot be used, the first is {bad[0]}: {way_out}")
