"""What the transfer risk adds to a training step: time of one step with it over one without, in one run.

    python benchmarks/head.py [--device cuda] [--json FILE]

Settings are the sizes of the paper's experiments; the step is forward, backward and SGD on random data.
`trm` is the exact default; `trm-captured` the fixed number of iterations; on a GPU, where launching small
kernels is most of the cost, the `-graph` variants are the same steps captured in a CUDA graph.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from transferrisk import TransferRisk
from transferrisk.models import Classifier, SmallCNN

SETTINGS = {"cmnist": (2, 128, 28, 64, 10), "demo": (2, 128, 10, 16, 10)}
"""environments, samples of each, image size, width of the CNN, classes"""


def build(setting: str, variant: str, device: str) -> Callable[[], Tensor]:
    environments, samples, size, width, classes = SETTINGS[setting]
    torch.manual_seed(0)
    cnn = SmallCNN(width=width)
    model = Classifier(cnn, cnn.num_features, classes).to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    n = environments * samples
    images = torch.rand(n, 3, size, size, device=device)
    labels = torch.randint(classes, (n,), device=device)
    index = torch.arange(environments, device=device).repeat_interleave(samples)
    criterion = None
    if variant.startswith("trm"):
        fixed = {"captured": True, "capacity": samples} if "captured" in variant else {}
        criterion = TransferRisk(num_classes=classes, environments=environments, **fixed).to(device)

    def step() -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        features = model.featurise(images)
        loss = F.cross_entropy(model.head(features), labels)
        if criterion is not None:
            loss = loss + criterion(features, labels, index, start=model.predictor).risk
        loss.backward()
        optimiser.step()
        return loss

    if not variant.endswith("-graph"):
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()

    def replay(keep: Callable[[], Tensor] = step) -> Tensor:
        """`keep` holds on to the tensors whose addresses the graph has recorded."""
        graph.replay()
        return loss

    return replay


def medians(steps: dict[str, Callable[[], Tensor]], device: str, repeats: int) -> dict[str, float]:
    """Milliseconds of each step, median over `repeats`, taken in turns so that a slow moment strikes all alike."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(repeats + 5):
        for name, step in steps.items():
            if device == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            if i >= 5:  # after the warm-up
                times[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = options.device
    repeats = 50 if device == "cuda" else 15
    cpu = f"{torch.get_num_threads()} threads, {platform.machine()}"
    hardware = torch.cuda.get_device_name() if device == "cuda" else cpu
    print(f"{hardware}, torch {torch.__version__}, float32, median of {repeats} steps")
    base = {"erm": "erm", "trm": "erm", "trm-captured": "erm"}
    if device == "cuda":
        base |= {"erm-graph": "erm-graph", "trm-captured-graph": "erm-graph"}
    rows = []
    for setting in options.settings:
        measured = medians({variant: build(setting, variant, device) for variant in base}, device, repeats)
        for variant, ms in measured.items():
            ratio = ms / measured[base[variant]]
            rows.append({"setting": setting, "variant": variant, "device": device, "ms": ms, "ratio": ratio})
            print(f"{setting:8} {variant:20} {ms:9.2f} ms   x {ratio:.2f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
