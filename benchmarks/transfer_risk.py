"""Measure how time and memory of `TransferRisk` grow with environments, samples, classes and features.

    python benchmarks/transfer_risk.py                             # a table for this installation
    python benchmarks/transfer_risk.py --against ../old/src        # compare with another checkout, in alternating runs
    python benchmarks/transfer_risk.py --case 20 64 1000 768       # one case: environments, samples of each, classes, d

A step is a forward and a backward pass. Each run is a separate process with one thread. Its time is the smallest CPU
time of a step, which depends little on other work of the machine. Its memory is the peak of the resident memory,
without that of the batch and the imports.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

CASES = (
    (3, 32, 7, 512), (2, 128, 10, 128), (20, 64, 1000, 768),
    (10, 32, 10, 128), (30, 32, 10, 128), (100, 32, 10, 128), (300, 32, 10, 128), (1000, 32, 10, 128),
    (10, 32, 100, 128), (10, 32, 1000, 128), (10, 32, 10_000, 128), (300, 32, 1000, 128),
    (10, 32, 10, 512), (10, 32, 10, 2048), (10, 128, 10, 128), (10, 512, 10, 128),
)  # fmt: skip
STEP = """
import json, resource, sys, time, warnings
import torch
from transferrisk import TransferRisk
torch.set_num_threads(1)
warnings.simplefilter("ignore")
E, n, C, d = map(int, sys.argv[1:])
generator = torch.Generator().manual_seed(100)
environments, labels = torch.arange(E).repeat_interleave(n), torch.randint(C, (E * n,), generator=generator)
centres = torch.randn(C, d, generator=generator) / d**0.5
features = (3 / d**0.5 * torch.randn(E * n, d, generator=generator) + 2 * centres[labels]).relu()
criterion = TransferRisk(environments=E, num_classes=C)
before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
while len(seconds) < 20 and sum(seconds) < 2:
    moving = (features + 0.01 * torch.randn(features.shape, generator=generator)).requires_grad_()
    begun = time.process_time()
    out = criterion(moving, labels, environments)
    out.risk.backward()
    seconds.append(time.process_time() - begun)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"seconds": min(seconds), "mib": peak / 1024, "queries": len(out.solution.value)}))
"""


def measure(case: tuple[int, ...], source: Path) -> dict[str, float]:
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", STEP, *map(str, case)]
    found: dict[str, float] = json.loads(
        subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="The src folder of another checkout.")
    parser.add_argument("--case", type=int, nargs=4, help="Environments, samples of each, classes, features.")
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    sources = [Path(__file__).parents[1] / "src", *([options.against] if options.against else [])]
    print("| environments | samples of each | classes | features | queries | ms | MiB |", end="")
    print(" ms, other | MiB, other | ratio |" if options.against else "")
    print("|" + "---|" * (10 if options.against else 7))
    for case in [tuple(options.case)] if options.case else CASES:
        runs: list[list[dict[str, float]]] = [[] for _ in sources]
        for _ in range(options.repeats):
            for source, found in zip(sources, runs, strict=True):
                found.append(measure(case, source))
        times = [1000 * statistics.median(one["seconds"] for one in found) for found in runs]
        peaks = [statistics.median(one["mib"] for one in found) for found in runs]
        cells = [*map(str, case), str(runs[0][0]["queries"])]
        for milliseconds, mib in zip(times, peaks, strict=True):
            cells += [f"{milliseconds:.1f}", f"{mib:.0f}"]
        cells += [f"{times[0] / times[1]:.2f}"] if options.against else []
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
