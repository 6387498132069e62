"""Errors and warnings of the project.

Every message says what the value was, why it cannot be used, and what to do instead. Errors that a
user's input can cause derive from `InputError`, which the command line turns into one line and exit code 2.
"""


class TransferRiskError(Exception):
    """Base of all errors the package raises on purpose."""


class InputError(TransferRiskError, ValueError):
    """The caller's data or settings cannot be used as they are."""


class DivergedError(TransferRiskError, ArithmeticError):
    """An iteration moved away from its answer, so no answer is returned."""


class DataWarning(UserWarning):
    """Data that can be used, and that holds something its owner may want to know."""


class ConvergenceWarning(UserWarning):
    """A solver stopped before it reached its tolerance; its last iterate was used."""
