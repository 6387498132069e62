"""The command `trm`: parses, calls one library function, prints."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `trm`; what a user can mend is one line on stderr and exit code 2, an interruption exit code 130."""
    import typer

    from ..errors import TransferRiskError
    from .app import app

    # typer carries its own copy of click or not, by version; what a bad option raises is public in both.
    usage_error: type[Exception] = typer.BadParameter.__bases__[0]
    try:
        sys.exit(app(standalone_mode=False))
    except usage_error as error:
        message = error.format_message()  # type: ignore[attr-defined]  # click's own
        _fail(f"{message} (trm --help shows what there is)")
    except TransferRiskError as error:
        _fail(str(error))
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        _fail(f"{error.strerror or error}{where}")
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", code=130)


def _fail(message: str, code: int = 2) -> None:
    print(f"trm: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)
