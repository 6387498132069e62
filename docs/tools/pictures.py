"""Make the pictures of the site and the outputs of the gallery: `python docs/tools/pictures.py [NAME ...]`, in a clone.

The programs of the gallery are run; their outputs and pictures go to docs/gallery/. The toy and the picture of the
front page go to docs/images/. These files are committed, so that `make docs` does not train anything.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from importlib import import_module

import matplotlib as mpl

mpl.use("agg")
os.environ["SOURCE_DATE_EPOCH"] = "0"  # the date in an SVG: the same picture is the same file

import matplotlib.pyplot as plt
import numpy as np
import torch
from hooks import GALLERY, ROOT

from transferrisk.data import Options, Shift, load_splits
from transferrisk.extras import require
from transferrisk.functional import transfer_risk

DOCS = ROOT / "docs"
STYLE = {
    "figure.figsize": (5.2, 3.2), "figure.constrained_layout.use": True, "savefig.facecolor": "white", "font.size": 10,
    "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "transferrisk", "svg.fonttype": "none",
    "font.family": "sans-serif", "axes.prop_cycle": mpl.cycler(color=["#7a828c", "#d9822b", "#2e8b57", "#1f4fd8"]),
}  # fmt: skip
"""The colours of report pages; text stays text."""


def example(name: str) -> None:
    plt.figure()
    told = io.StringIO()
    with redirect_stdout(told):
        import_module(name).main(str(DOCS / "gallery" / f"{name}.svg"))
    (DOCS / "gallery" / f"{name}.txt").write_text(told.getvalue(), encoding="utf-8")
    plt.close("all")


def toy() -> None:
    """Two environments in the plane, transfer risk and pooled risk of every direction, and the gradient's parts."""
    generator = torch.Generator().manual_seed(0)
    means = {"environment 1": 2.0, "environment 2": -0.5}
    labels = torch.randint(2, (400,), generator=generator)
    sign = (2.0 * labels - 1).unsqueeze(1)
    index = torch.arange(2).repeat_interleave(200)
    spurious = torch.tensor(list(means.values()))[index].unsqueeze(1) * sign
    points = torch.cat([sign, spurious], 1) + torch.randn(400, 2, generator=generator)
    angles = torch.linspace(0, torch.pi, 91)
    risks, pooled, exact, direct = [], [], [], []
    for angle in angles:
        for matching, kept in ((1.0, exact), (0.0, direct)):
            turn = angle.clone().requires_grad_()
            feature = (points @ torch.stack([turn.cos(), turn.sin()])).unsqueeze(1)
            found = transfer_risk(feature, labels, index, 2, 2, ridge=1e-2, gradient_matching=matching)
            found.risk.backward()
            kept.append(float(turn.grad))
        risks.append(float(found.risk.detach()))
        pooled.append(float(found.matrix.diagonal().mean()))
    degrees = np.rad2deg(angles.numpy())

    _, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2))
    for e, (name, marker) in enumerate(zip(means, "o^", strict=True)):
        for y, colour in enumerate(("#d9822b", "#1f4fd8")):
            here = (index == e) & (labels == y)
            left.scatter(*points[here].T, s=8, marker=marker, color=colour, alpha=0.6, label=f"{name}, y = {y}")
    left.set_xlabel("invariant measurement")
    left.set_ylabel("measurement that changes")
    left.legend(fontsize=7)
    right.plot(degrees, risks, label="transfer risk", color="#1f4fd8")
    right.plot(degrees, pooled, label="risk at home", color="#7a828c")
    right.set_xlabel("direction of the feature, degrees")
    right.set_ylabel("cross-entropy")
    right.legend()
    plt.savefig(DOCS / "images" / "toy.svg")
    plt.close("all")

    plt.figure()
    plt.plot(degrees, np.gradient(risks, angles.numpy()), "o", markersize=3, label="differences", color="#7a828c")
    plt.plot(degrees, exact, label="exact gradient", color="#1f4fd8")
    plt.plot(degrees, direct, "--", label="direct part alone", color="#d9822b")
    plt.xlabel("direction of the feature, degrees")
    plt.ylabel("derivative of the transfer risk")
    plt.legend()
    plt.savefig(DOCS / "images" / "toy-gradient.svg")
    plt.close("all")


def front() -> None:
    """The demo's environments, and its result from docs/images/demo.json (`trm demo --json docs/images/demo.json`)."""
    demo = json.loads((DOCS / "images" / "demo.json").read_text(encoding="utf-8"))
    splits = load_splits("10c-digits", Options(seed=0, shift=Shift("label-correlated", (1.0, 0.9))))
    _, (left, right) = plt.subplots(1, 2, figsize=(8.4, 2.6), width_ratios=(1.5, 1))
    parts = [splits.train.environment(name) for name in splits.train.environment_names] + [splits.test]
    names = ["training 1", "training 2", "test"]
    rows = []
    for part in parts:
        chosen = torch.cat([(part.labels == digit).nonzero()[:1, 0] for digit in range(10)])
        rows.append(np.hstack([part.inputs[chosen].permute(0, 2, 3, 1).numpy()[i] for i in range(10)]))
    left.imshow(np.vstack(rows))
    height = rows[0].shape[0]
    left.set_yticks([height * (i + 0.5) for i in range(3)], names)
    left.set_xticks([])
    left.spines[:].set_visible(False)
    left.tick_params(length=0)
    left.set_title("Colour gives the digit away, except in the test", fontsize=10)
    for place, name in enumerate(reversed(demo)):
        mean, deviation = 100 * demo[name]["test_accuracy"], 100 * demo[name]["test_std"]
        right.barh(place, mean, xerr=deviation, color="#1f4fd8" if name == "trm" else "#a3aeba")
        right.text(mean + deviation + 2, place, f"{mean:.0f} %", va="center")
    right.set_yticks(range(len(demo)), ["TRM", "GroupDRO", "IRM", "ERM"])
    right.set_xlim(0, 100)
    right.set_xticks([])
    right.spines["bottom"].set_visible(False)
    right.set_title("Test accuracy of trm demo", fontsize=10)
    plt.savefig(DOCS / "images" / "demo.svg")
    plt.savefig(DOCS / "images" / "demo.png", dpi=110)
    plt.close("all")


OTHERS: dict[str, Callable[[], None]] = {"toy": toy, "front": front}


def main(names: list[str]) -> None:
    sys.path.insert(0, str(ROOT / "examples"))
    with suppress(Exception):
        require("torchvision")  # before Lightning does: see `extras`
    (DOCS / "gallery").mkdir(exist_ok=True)
    with mpl.rc_context(STYLE):
        for name in names or [*GALLERY, *OTHERS]:
            print("==>", name, flush=True)
            OTHERS[name]() if name in OTHERS else example(name)


if __name__ == "__main__":
    main(sys.argv[1:])
