"""A LightningModule, and the same with Fabric.

The criterion is a module like any other: its weights of environments are buffers, so checkpoints contain them. With
several devices, gather features, labels and environments before computing the risk, as `trm train --devices` does.
"""

from __future__ import annotations

import logging
import sys
import warnings

import matplotlib.pyplot as plt
import pytorch_lightning as pl
import torch
from lightning_fabric import Fabric
from loop import site
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from transferrisk import TransferRisk


class Transferable(pl.LightningModule):
    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(6, 1), nn.Linear(1, 2)
        self.criterion = TransferRisk(num_classes=2, environments=2)
        self.weight = weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.features(inputs))

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], index: int = 0) -> Tensor:
        inputs, labels, environments = batch
        z = self.features(inputs)
        return cross_entropy(self.head(z), labels) + self.weight * self.criterion(z, labels, environments).risk

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def data(seed: int = 0) -> tuple[DataLoader, tuple[Tensor, Tensor]]:
    """Batches of two sites, and a third where a measurement misleads."""
    generator = torch.Generator().manual_seed(seed)
    sites = [site(500, agreement, generator) for agreement in (1.0, 0.8)]
    inputs, labels = (torch.cat(both) for both in zip(*sites, strict=True))
    samples = TensorDataset(inputs, labels, torch.arange(2).repeat_interleave(500))
    return DataLoader(samples, batch_size=250, shuffle=True, generator=generator), site(5000, 0.1, generator)


def with_lightning(weight: float, epochs: int = 50) -> float:
    torch.manual_seed(0)
    loader, (unseen, truth) = data()
    model = Transferable(weight)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on loaders
        trainer.fit(model, loader)
    return float((model(unseen).argmax(1) == truth).float().mean())


def with_fabric(weight: float, epochs: int = 50) -> float:
    torch.manual_seed(0)
    loader, (unseen, truth) = data()
    fabric = Fabric(accelerator="cpu", devices=1)
    module = Transferable(weight)
    model, optimiser = fabric.setup(module, module.configure_optimizers())
    model.mark_forward_method("training_step")
    for _ in range(epochs):
        for batch in fabric.setup_dataloaders(loader):
            optimiser.zero_grad()
            fabric.backward(model.training_step(batch))
            optimiser.step()
    return float((model(unseen).argmax(1) == truth).float().mean())


def main(picture: str | None = None) -> None:
    found = {"Lightning": [with_lightning(w) for w in (0.0, 1.0)], "Fabric": [with_fabric(w) for w in (0.0, 1.0)]}
    for name, (plain, risk) in found.items():
        print(f"{name}: plain {plain:.3f}, with the transfer risk {risk:.3f} right at the unseen site")
    if picture:
        for place, (name, accuracies) in enumerate(found.items()):
            plt.bar([place * 0.4, 1.2 + place * 0.4], accuracies, 0.4, label=name)
        plt.xticks([0.2, 1.4], ["plain", "with the transfer risk"])
        plt.legend()
        plt.ylabel("accuracy at the unseen site")
        plt.savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
