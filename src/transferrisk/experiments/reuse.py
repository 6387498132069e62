"""Reuse of finished runs from a folder of results, such as published ones, which has tables of records and no runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import readable, write_atomically
from ..results import Record, read_table
from ..results.records import DONE, RECORDS, RUN_COLUMN, TABLE, records_bytes, runs_of
from ..settings import dumps
from .store import RUN, Store, digest_of
from .tasks import PlannedRun

Found = dict[str, tuple[Mapping[str, Any], list[Record]]]
"""Name of a run -> its origin and its records"""


def find_runs(folder: Path, runs: list[PlannedRun]) -> Found:
    """Return those of the runs whose records are in a table FOLDER/EXPERIMENT/records.parquet.

    A run is known by its name, a digest of its settings. Only trainings are looked for, and none whose model is needed,
    since a table has no models.

    Parameters
    ----------
    folder
        Folder of results.
    runs
        Runs to look for.

    Returns
    -------
    dict
        Name of a run -> its origin (precision, hardware, ...) and its records.
    """
    tables = sorted(folder.glob(f"*/{TABLE}"))
    if not tables:
        raise InputError(f"--reuse must be a folder of results, got {readable(folder)}, in which no folder has {TABLE}")
    wanted = {run.name for run in runs if run.task == "train" and not run.keep}
    found: Found = {}
    for path in tables:
        table = read_table(path)
        if RUN_COLUMN in table:
            found |= runs_of(table[table[RUN_COLUMN].isin(list(wanted - found.keys()))])
    return found


def reuse_runs(found: Found, runs: list[PlannedRun], store: Store) -> int:
    """Write runs that were found into a store, unless they are finished there; return how many were written.

    Parameters
    ----------
    found
        Runs by their names, from `find_runs`.
    runs
        Runs of the plan.
    store
        Store to write to.

    Returns
    -------
    int
        Number of runs that were written.
    """
    written = 0
    for run in store.missing(runs):
        if run.name not in found or run.keep:
            continue
        with store.claim(run.name) as folder:
            if folder is None or store.done(run.name):
                continue
            origin, records = found[run.name]
            content = records_bytes(records)
            about = {
                "seconds": max((record.get("seconds") or 0.0 for record in records), default=0.0),
                "records": digest_of(content),
                "date": origin["date"],
                "keep": False,
                "device": "cuda" if origin["threads"] is None else "cpu",
                "threads": origin["threads"],
                "hardware": origin["hardware"],
                "versions": {"transferrisk": origin["version"]},
                "commit": origin["commit"],
            }
            write_atomically(folder / RUN, dumps({"task": run.task, "settings": run.settings}, indent=2) + "\n")
            write_atomically(folder / RECORDS, content)
            write_atomically(folder / DONE, dumps(about, indent=2) + "\n")
            store.publish(run.name)
            written += 1
    return written
