"""The command `trm`: parses, calls one library function, prints."""

from __future__ import annotations

import signal
import sys
import warnings
from typing import Any, NoReturn


class Interrupted(BaseException):
    """Ctrl-C. Not a KeyboardInterrupt, which typer would answer for us, differently in each version."""


def main() -> None:
    """Run `trm`; what a user can mend is one line on stderr and exit code 2, an interruption exit code 130."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # otherwise whoever started us has decided about it
        signal.signal(signal.SIGINT, _interrupt)
    try:
        code = _run()
        signal.signal(signal.SIGINT, before)
    except (Interrupted, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one, until the process has ended, adds nothing
        code = _tell("interrupted", 130)
    sys.exit(code)


def _run() -> int:
    import typer  # here, because an interruption may come while modules are read

    from ..errors import TransferRiskError
    from .app import app

    # typer carries its own copy of click or not, by version; what a bad option raises is public in both.
    usage_error: type[Exception] = typer.BadParameter.__bases__[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _show_warning
            return app(prog_name="trm", standalone_mode=False) or 0
    except usage_error as error:
        message, context = error.format_message(), error.ctx  # type: ignore[attr-defined]  # click's own
        command = context.command_path if context else "trm"
        return _tell(f"{message} ({command} --help shows what there is)")
    except TransferRiskError as error:
        return _tell(str(error), error.exit_code)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return _tell(f"{error.strerror or error}{where}")
    except typer.Abort:
        raise Interrupted from None


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """One line, without the place in the code: a user of the command cannot do anything with that."""
    _tell(f"warning: {message}")


def _interrupt(*_: Any) -> NoReturn:
    raise Interrupted


def _tell(message: str, code: int = 2) -> int:
    print(f"trm: {' '.join(message.split())}", file=sys.stderr)
    return code
