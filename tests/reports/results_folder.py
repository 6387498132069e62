"""Folders as experiments leave them, with numbers that are known."""

from __future__ import annotations

import hashlib
import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

METHODS = {"ERM": {"algorithm": "erm"}, "TRM": {"algorithm": "trm"}}


def evaluation(step, test, training=0.5, test_domain=0.5, environments=("new",), **more):
    """Rows of one evaluation; `test` is one accuracy or one for each test environment."""
    tests = test if isinstance(test, tuple) else (test,) * len(environments)
    about = {"step": step, "epoch": step / 10, "seconds": 1.0}
    rows = [
        {**about, "part": "training_domain", "environment": name, "accuracy": training, "loss": 0.1} | more
        for name in ("a", "b")
    ]
    rows += [
        {**about, "part": "test_domain", "environment": name, "accuracy": test_domain, "loss": 0.1}
        for name in environments
    ]
    rows += [
        {**about, "part": "test", "environment": name, "accuracy": accuracy, "loss": 0.1, "worst_group": accuracy}
        for name, accuracy in zip(environments, tests, strict=True)
    ]
    return rows


def cells_of(axes, methods, seeds, points=None):
    """Columns of all cells, in the order of a plan; `points`: method -> those of its grid."""
    for values in itertools.product(*axes.values()):
        for method in methods:
            for point in (points or {}).get(method, [""]):
                for seed in range(seeds):
                    yield dict(zip(axes, values, strict=True)) | {"method": method, "point": point, "seed": seed}


def name_of(columns):
    return hashlib.sha256(json.dumps(columns, sort_keys=True).encode()).hexdigest()[:16]


def write(root, name, show, cells, rows_of, recipe=None, run_of=name_of):
    """An experiment; `rows_of(columns)` are the rows of a cell, None where its run is missing."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    whole = {"name": name, "title": f"About {name}", "paper": "Table 9", "select": ["training_domain"],
             "methods": METHODS, "published": {}, "show": show} | (recipe or {})  # fmt: skip
    cells = list(cells)
    planned = [[run_of(columns), columns] for columns in cells]
    (folder / "recipe.json").write_text(json.dumps({"recipe": whole, "cells": planned}))
    rows = []
    for run, columns in planned:
        rows += [{**columns, "run": run, **{k: v for k, v in row.items() if k not in columns}}
                 for row in rows_of(columns) or []]  # fmt: skip
    (folder / "records.parquet").unlink(missing_ok=True)
    if rows:
        names = dict.fromkeys(key for row in rows for key in row)
        pq.write_table(pa.table({key: [row.get(key) for row in rows] for key in names}), folder / "records.parquet")
    return folder


def pictures(root, columns, environments):
    run = root / "runs" / name_of(columns)
    run.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    arrays = {str(i): random.integers(0, 255, (4, 2, 6, 6, 3), dtype=np.uint8) for i in range(len(environments))}
    np.savez_compressed(run / "pictures.npz", **arrays)
    return [{"environment": name, "number": i, "samples": 10} for i, name in enumerate(environments)]
