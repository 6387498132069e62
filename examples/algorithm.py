"""Your own algorithm.

Write a class with an objective on one forward pass; the base class adds checkpoints, several devices and CUDA graphs.
To use it by name, as in `trm train`, add `@register("tilted")` or an entry point of a package.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch
from loop import site
from torch import nn

from transferrisk.algorithms import Algorithm, Config, Logs, Pass, create
from transferrisk.data import EnvironmentSet
from transferrisk.models import Classifier
from transferrisk.results import mean_score
from transferrisk.settings import Positive
from transferrisk.training import TrainConfig, setting_of, train


@dataclass(frozen=True)
class TiltedConfig(Config):
    tilt: Positive = 5.0


class Tilted(Algorithm[TiltedConfig]):
    """Minimise log(mean_e exp(t R_e)) / t: between the mean of the environments' risks and the largest of them."""

    config_type = TiltedConfig

    def objective(self, out: Pass, penalised: bool) -> Logs:
        risks, present = out.environment_risks(self.setting.num_environments)
        tilted = (self.config.tilt * risks).masked_fill(~present, -float("inf"))
        loss = (tilted.logsumexp(0) - present.sum().log()) / self.config.tilt
        return {"loss": loss, "mean_risk": out.empirical_risk}


def sites(agreements: dict[str, float], rows: int, seed: int) -> EnvironmentSet:
    """Sites where a spurious measurement agrees with the label in these shares of the rows."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [site(rows, agreement, generator) for agreement in agreements.values()]
    inputs, labels = (torch.cat(both) for both in zip(*drawn, strict=True))
    environments = torch.arange(len(agreements)).repeat_interleave(rows)
    return EnvironmentSet(inputs, labels, environments, tuple(agreements), ("no", "yes"))


def compared(epochs: int = 40) -> dict[str, float]:
    """Accuracy at a site that was not trained on."""
    data, unseen = sites({"a": 1.0, "b": 0.8, "c": 0.3}, 500, seed=0), sites({"d": 0.1}, 5000, seed=1)
    setting, config = setting_of(data), TrainConfig(epochs=epochs, evaluations=1, lr=0.05)
    found = {}
    for name, algorithm in {
        "ERM": create("erm", setting),
        "tilt 1": Tilted(setting, TiltedConfig(tilt=1)),
        "tilt 10": Tilted(setting, TiltedConfig(tilt=10)),
    }.items():
        trained = train(lambda: Classifier(nn.Linear(6, 4), 4, 2), data, algorithm, config, evaluate={"test": unseen})
        found[name] = mean_score(trained.selected, "test")
    return found


def main(picture: str | None = None) -> None:
    found = compared()
    for name, value in found.items():
        print(f"{name}: {value:.3f} right at the site that was not trained on")
    if picture:
        plt.bar(list(found), list(found.values()))
        plt.ylabel("accuracy at the unseen site")
        plt.savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
