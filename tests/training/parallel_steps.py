"""Ten steps of algorithms on one process or several: python parallel_steps.py SETTINGS DEVICES TARGET."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from transferrisk.algorithms import create
from transferrisk.data import Options, load_splits
from transferrisk.models import build_model
from transferrisk.training import Engine, TrainConfig, setting_of
from transferrisk.training.captured import make_step
from transferrisk.training.feed import Feed
from transferrisk.training.processes import first_process_speaks
from transferrisk.training.state import start_state


def take_steps(settings: dict, devices: int) -> tuple[int, dict]:
    """The process's number, and by name the weights, losses and state of the algorithm; settings: name -> algorithm."""
    data = load_splits("gaussian", Options(seed=1)).train
    engine, final = Engine.of(devices=devices), {}
    config = TrainConfig(epochs=1, batch_size=32, lr=0.05)
    for name, (algorithm, options) in settings.items():
        if algorithm in ("irm", "vrex", "trm", "trm-direct"):
            options = {"start_epoch": 0.0, **options}
        method = create(algorithm, setting_of(data), **options)
        state = start_state(lambda: build_model("mlp:16", 2, (15,)), data, method, config, 3, engine)
        feed, step, losses = Feed(data, state.sampler, engine.device, team=engine.team), make_step(state), []
        for _ in range(10):
            losses.append(float(step(feed.next())["loss"]))
            state.step += 1
        weights = torch.cat([p.detach().flatten() for p in state.model.parameters()])
        held = {key: value.tolist() for key, value in state.algorithm.state_dict().items()}
        final[name] = {"weights": weights.tolist(), "losses": losses, "algorithm": held}
    return engine.team.rank, final


if __name__ == "__main__":
    torch.set_num_threads(1)
    with first_process_speaks():  # leaves the group at the end: its threads may abort the process otherwise
        rank, found = take_steps(json.loads(sys.argv[1]), int(sys.argv[2]))
    if rank == 0:
        Path(sys.argv[3]).write_text(json.dumps(found))
