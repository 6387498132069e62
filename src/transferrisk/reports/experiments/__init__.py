"""Reports of experiments: the paper's tables and figures beside ours, from the records of runs alone."""

from .report import READ, Report, check, report

__all__ = ["READ", "Report", "check", "report"]
