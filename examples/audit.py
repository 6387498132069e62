"""An audit of embeddings.

The embeddings come from four scanners. At one of them, a direction that predicts the label is reversed. The audit shows
where predictors transfer, before any model is trained. `trm audit embeddings.npz` does the same and writes a page.
"""

from __future__ import annotations

import sys
import textwrap

import matplotlib.pyplot as plt
import numpy as np

from transferrisk import Audit, audit

SCANNERS = ("A", "B", "C", "D")


def audited(per_scanner: int = 300, seed: int = 0) -> Audit:
    rng = np.random.default_rng(seed)
    scanner = np.repeat(SCANNERS, per_scanner)
    label = rng.integers(2, size=len(scanner))
    embeddings = rng.normal(size=(len(scanner), 16))
    embeddings[:, 0] += 1.5 * label  # the same everywhere
    embeddings[:, 1] += np.where(scanner == "D", -2, 2) * label  # reversed at D
    return audit(embeddings, np.where(label == 1, "ill", "healthy"), scanner, bootstrap=100)


def main(picture: str | None = None) -> None:
    report = audited()
    print(*map(textwrap.fill, report.verdict), sep="\n")
    accuracy = 100 * report.accuracy.value
    print(report.to_frame().query("fitted_on == 'A'")[["fitted_on", "tested_on", "loss", "accuracy"]].round(3))
    if picture:
        plt.matshow(accuracy, cmap="Blues_r", fignum=0)
        plt.xticks(range(4), SCANNERS)
        plt.yticks(range(4), SCANNERS)
        plt.xlabel("tested on")
        plt.ylabel("fitted on")
        for (row, column), value in np.ndenumerate(accuracy):
            plt.text(column, row, f"{value:.0f} %", ha="center", va="center", color="white" if value < 60 else "black")
        plt.savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
