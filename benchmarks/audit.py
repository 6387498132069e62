"""Compare the transfer matrix of the audit with that computed by scikit-learn, in one process on the same data.

    python benchmarks/audit.py                        100 000 x 768, 5 environments, 10 classes, 5 folds, 2 threads
    python benchmarks/audit.py --decay 0              independent features
    python benchmarks/audit.py --samples 5000 --features 64 --json audit.json

Both minimise mean cross-entropy + ridge/2 |W|^2, where the bias is penalised as the weight of a constant column. For
scikit-learn this is LogisticRegression(C=1/(n ridge), fit_intercept=False) with lbfgs and its default tolerance, on
rows with the constant appended beforehand. Wall-clock times are printed with the load of the machine, and with
processor times, which depend less on other work of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transferrisk import audit
from transferrisk.auditing.run import held_out_loss, scores
from transferrisk.auditing.samples import arrange_samples, assign_folds, fit

Floats = NDArray[np.float32]


def make(n: int, d: int, E: int, C: int, decay: float, seed: int) -> tuple[Floats, NDArray[Any], NDArray[Any]]:
    """Draw Gaussian classes that overlap and move between environments; the i-th direction has deviation i^-decay."""
    rng = np.random.default_rng(seed)
    spectrum = (np.arange(1, d + 1) ** -decay).astype(np.float32)
    labels, environments = rng.integers(C, size=n), rng.integers(E, size=n)
    means = rng.standard_normal((1, C, d), np.float32) + 0.5 * rng.standard_normal((E, C, d), np.float32)
    features = rng.standard_normal((n, d), np.float32)
    features += (2 / np.sqrt(d)).astype(np.float32) * means[environments, labels]
    features *= spectrum
    if decay:
        features = features @ np.linalg.qr(rng.standard_normal((d, d)))[0].astype(np.float32)
    features -= features.mean(0)
    features /= features.std(0)
    return features, labels, environments


def ours(data: tuple[Any, ...], held: NDArray[np.int64], ridge: float) -> dict[str, Any]:
    E = len(np.unique(data[2]))
    begin, busy = time.perf_counter(), time.process_time()
    samples = arrange_samples(*data, held, 0, False)
    with torch.no_grad():
        losses = [held_out_loss(samples, [e], ridge) for e in range(E)]
        fits = [fit(loss, way_out="give a larger ridge") for loss in losses]
        predictors = torch.stack([f.value for f in fits])  # (E, folds, C, D)
        matrix = torch.stack([scores(samples, predictors, e).loss.double().mean(1) for e in range(E)], 1)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - busy
        objectives = torch.stack([loss.evaluate(f.value)[0] for loss, f in zip(losses, fits, strict=True)]).numpy()
    return {"seconds": seconds, "cpu": cpu, "objectives": objectives, "matrix": matrix.numpy(),
            "iterations": [f.iterations for f in fits]}  # fmt: skip


def theirs(data: tuple[Any, ...], held: NDArray[np.int64], ridge: float) -> dict[str, Any]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    features, labels, environments = data
    rows = np.c_[features, np.ones(len(features), np.float32)]
    E, F = len(np.unique(environments)), len(np.unique(held))
    objectives, iterations, seconds, cpu = np.empty((E, F)), [], 0.0, 0.0
    total, sizes = np.zeros((E, E)), np.bincount(environments)
    for q in range(E):
        for k in range(F):
            train = np.flatnonzero((environments == q) & (held != k))
            X, y = rows[train], labels[train]
            tests = [np.flatnonzero((environments == p) & (held == k)) for p in range(E)]
            held_out = [(rows[test], labels[test]) for test in tests]
            begin, busy = time.perf_counter(), time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                model = LogisticRegression(C=1 / (len(y) * ridge), fit_intercept=False).fit(X, y)
            for p, (some, true) in enumerate(held_out):
                total[q, p] -= model.predict_log_proba(some)[np.arange(len(true)), true].sum()
            seconds += time.perf_counter() - begin
            cpu += time.process_time() - busy
            W = model.coef_.astype(np.float64)
            objectives[q, k] = loss(X, y, W) + 0.5 * ridge * float((W**2).sum())
            iterations.append(int(model.n_iter_[0]))
    matrix = total / sizes
    return {"seconds": seconds, "cpu": cpu, "objectives": objectives, "matrix": matrix, "iterations": iterations}


def loss(rows: Floats, labels: NDArray[Any], W: NDArray[np.float64]) -> float:
    logits = torch.from_numpy(rows.astype(np.float64) @ W.T)
    return float(torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels)))


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Measure by how many bytes the peak memory of the process exceeds that at the beginning."""
    page = os.sysconf("SC_PAGE_SIZE")

    def held() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * page

    before, most, done = held(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            most[0] = max(most[0], held() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        done.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("samples", 100_000), ("features", 768), ("environments", 5), ("classes", 10), ("folds", 5),
                          ("threads", 2), ("seed", 0)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ridge", type=float, default=1e-3)
    parser.add_argument("--decay", type=float, default=0.5, help="of the features' spectrum; 0: independent features")
    parser.add_argument("--json", help="write the figures here as well")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    data = make(asked.samples, asked.features, asked.environments, asked.classes, asked.decay, asked.seed)
    held = assign_folds(data[2], data[1], asked.folds, asked.seed)
    small = tuple(part[:2000] for part in data)
    ours(small, held[:2000], asked.ridge)  # the first call of anything is slow
    audit(*small, ridge=asked.ridge, bootstrap=2)
    load = [os.getloadavg()[0]]
    mine = ours(data, held, asked.ridge)
    with peak_memory() as peak:
        begin = time.perf_counter()
        whole = audit(*data, ridge=asked.ridge, folds=held, standardise=False)
        seconds = time.perf_counter() - begin
    load.append(os.getloadavg()[0])
    other = theirs(data, held, asked.ridge)
    load.append(os.getloadavg()[0])
    figures = {
        "matrix_s": mine["seconds"],
        "audit_s": seconds,
        "sklearn_matrix_s": other["seconds"],
        "speedup": other["seconds"] / mine["seconds"],
        "matrix_cpu_s": mine["cpu"],
        "sklearn_matrix_cpu_s": other["cpu"],
        "speedup_cpu": other["cpu"] / mine["cpu"],
        "objective_above_sklearn_at_most": float((mine["objectives"] - other["objectives"]).max()),
        "matrix_difference_at_most": float(np.abs(mine["matrix"] - other["matrix"]).max()),
        "own_accuracy": float(np.diag(whole.accuracy.value).mean()),
        "iterations": mine["iterations"],
        "sklearn_iterations": [min(other["iterations"]), max(other["iterations"])],
        "peak_memory_over_input": 1 + peak() / data[0].nbytes,
        "load": load,
    }
    for name, value in figures.items():
        print(f"{name:<34} {value if isinstance(value, list) else f'{value:.4g}'}")
    if asked.json:
        with open(asked.json, "w") as file:
            settings = {name: value for name, value in vars(asked).items() if name != "json"}
            json.dump(settings | figures, file, indent=2)


if __name__ == "__main__":
    main()
