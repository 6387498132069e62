"""All that changes while training: what is not in here cannot be needed to go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from ..algorithms import Algorithm
from ..data import BalancedSampler
from ..models import Classifier


@dataclass
class TrainState:
    model: Classifier
    optimiser: Optimizer
    algorithm: Algorithm[Any]
    sampler: BalancedSampler
    step: int = 0

    @property
    def epoch(self) -> float:
        return self.step / self.sampler.steps_per_epoch

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "sampler": self.sampler.state_dict(),
            "step": self.step,
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.sampler.load_state_dict(state["sampler"])
        self.step = state["step"]
        torch.set_rng_state(state["random"])
        if state["random_cuda"]:
            torch.cuda.set_rng_state_all(state["random_cuda"])
