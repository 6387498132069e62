"""The command `trm`: parses, calls one library function, prints."""

from __future__ import annotations

import codecs
import io
import os
import select
import signal
import sys
import warnings
from contextlib import suppress
from traceback import walk_tb
from typing import Any, NoReturn

SMALLER = {
    "fit": "use fewer --workers, a smaller --backbone, a lower --size of images, or --device cpu where it is the GPU's",
    "predict": "use a lower --chunk-rows, or give the samples in several files",
    "audit": "use fewer rows, a lower --bootstrap, or for images --lazy or a lower --size",
    "demo": "use fewer --workers",
}
"""Command -> the way out where memory does not suffice."""
KEPT = dict.fromkeys(("experiment", "fit"), "what is done is kept, and the same command goes on")
"""Command -> the addition to "interrupted"."""

CLOSED_PIPE = 128 + 13
"""Exit code where the reader of the output has ended: that of a program which SIGPIPE, signal 13, ends."""
LISTS = ("--categorical", "--numeric", "--drop", "--missing")
"""Options with a list, of which typer would forget all but the last."""
_ASCII = {"\N{MINUS SIGN}": "-", "\N{EN DASH}": "-", "\N{PLUS-MINUS SIGN}": "+-", "\N{HORIZONTAL ELLIPSIS}": "..."}
"""Characters of ours -> what a terminal prints whose encoding lacks them; any other is a question mark."""


class Interrupted(BaseException):
    """Ctrl-C. Not a KeyboardInterrupt, which typer would answer for us, differently in each version."""


class Terminated(BaseException):
    """SIGTERM. Files that are half written are removed, as after Ctrl-C."""


def main() -> None:
    """Run `trm`. An error that a user can correct is one line on stderr and exit code 2.

    An interruption is exit code 130, a termination 143.
    """
    for number in range(3):  # the null device takes the place of a closed stream, which the next file would take else
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    codecs.register_error("transferrisk", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="transferrisk")
    ours = {signal.SIGINT: (signal.default_int_handler, _interrupt), signal.SIGTERM: (signal.SIG_DFL, _terminate)}
    before = dict(zip(ours, map(signal.getsignal, ours), strict=True))
    for number, (usual, stop) in ours.items():
        if before[number] is usual:  # otherwise whoever started us has decided about it
            signal.signal(number, stop)
    try:
        code = _run()
        for number, handler in before.items():
            signal.signal(number, handler)
    except (Interrupted, KeyboardInterrupt):
        code = _stopped("interrupted", 130)
    except Terminated:
        code = _stopped("terminated", 143)
    sys.exit(code)


def _run() -> int:
    """Run the command and write out all that it printed; errors of the machine may come while modules are read."""
    from ..errors import full_memory

    try:
        code = _command_ended()
    except OSError as error:
        where = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
        code = _tell(f"{error.strerror or error}{where}")
    except (MemoryError, RuntimeError, ImportError) as error:
        full = full_memory(error)
        if full is None:
            raise
        code = _tell(f"{full}: {SMALLER.get(_command(), 'end other programs, or use a machine with more of it')}")
    except SystemExit as stop:  # with 1, of typer and rich, where nobody reads what is printed
        *_, (last, _) = walk_tb(stop.__traceback__)
        by_rich = last.f_globals.get("__name__", "").startswith("rich.")  # which has closed the pipe
        if not (isinstance(stop.__context__, BrokenPipeError) and (by_rich or _reader_ended())):
            raise
        _discard_output()
        return CLOSED_PIPE
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        _discard_output()
        if isinstance(error, BrokenPipeError):
            return code or CLOSED_PIPE
        return code or _tell(f"standard output cannot be written ({error.strerror}): name a file, or read all of it")
    return code


def _reader_ended() -> bool:
    """Return whether standard output or stderr is a pipe that nobody reads any more, as in trm data list | head."""
    if not hasattr(select, "poll"):
        return True
    streams = select.poll()
    streams.register(1, 0)
    streams.register(2, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in streams.poll(0))


def _discard_output() -> None:
    """Send what is still printed to the null device; else Python tries once more at its end, and complains."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command_ended() -> int:
    import typer  # here, because an interruption may come while modules are read

    if sys.argv[1:] == ["--version"]:
        from .. import __version__

        print(f"trm {__version__}")
        return 0
    from ..errors import TransferRiskError, full_memory
    from ..registry import TRACEBACK, failure_in_package
    from .app import app

    words = sys.argv[1:] or ["--help"]
    for place, word in enumerate(words):
        if word == "--":
            break
        if word in LISTS and word in words[:place]:
            return _tell(f"{word} must be given once, with commas between its values, got it twice")
        if not word.strip() or (word.startswith("--") and word.partition("=")[1:] == ("=", "")):
            option = word.strip().rstrip("=") or " ".join(["trm", *words[:place]])
            return _tell(f"an empty value after {option}: leave it out, or write . for the current folder")
        if word == "--json" and (place + 1 == len(words) or words[place + 1].startswith("-")):
            words[place] = "--json=-"  # typer has no option with an optional value: without a FILE, it is -
    # typer carries its own copy of click or not, by version; what a bad option raises is public in both.
    usage_error: type[Exception] = typer.BadParameter.__bases__[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _show_warning
            return app(words, prog_name="trm", standalone_mode=False) or 0
    except usage_error as error:
        message, context = error.format_message(), error.ctx  # type: ignore[attr-defined]  # click's own
        command = context.command_path if context else "trm"
        return _tell(f"{message} (see {command} --help)")
    except TransferRiskError as error:
        return _tell(str(error), error.exit_code)
    except typer.Abort as abort:
        if isinstance(abort.__cause__, EOFError):  # typer takes it for an end of the user's answers; we ask nothing
            raise abort.__cause__ from None
        raise Interrupted from None
    except Exception as error:
        failure = failure_in_package(error)
        if failure is None or os.environ.get(TRACEBACK) or full_memory(error):
            raise
        return _tell(failure)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """One line, without the place in the code: a user of the command cannot do anything with that."""
    _tell(f"warning: {message}")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    """Return ASCII for characters that the encoding of a terminal lacks, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def _interrupt(*_: Any) -> NoReturn:
    raise Interrupted


def _terminate(*_: Any) -> NoReturn:
    raise Terminated


def _stopped(how: str, code: int) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a second one, until the process has ended, adds nothing
    return _tell(f"{how}: {KEPT[_command()]}" if _command() in KEPT else how, code)


def _command() -> str:
    return sys.argv[1] if len(sys.argv) > 1 else ""


def _tell(message: str, code: int = 2) -> int:
    from ..errors import one_line

    if sys.stderr is not None:  # print would take standard output in its place
        with suppress(OSError):
            print(one_line(f"trm: {message}", most=300), file=sys.stderr)
    return code
