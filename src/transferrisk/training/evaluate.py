"""How good a model is, in each environment. Evaluation data is never augmented."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import EnvironmentSet
from ..functional import environment_means, transfer_matrix
from ..models import Classifier
from .records import Scores

_CHUNK = 2048


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def featurise(model: Classifier, data: EnvironmentSet) -> Tensor:
    """Phi(x) of every sample, (n, d), in evaluation mode."""
    device = next(model.parameters()).device
    with evaluation_mode(model):
        parts = [model.featurise(data.batch(slice(i, i + _CHUNK)).to(device)) for i in range(0, len(data), _CHUNK)]
    return torch.cat(parts)


def evaluate(model: Classifier, data: EnvironmentSet) -> dict[str, Scores]:
    features = featurise(model, data)
    with torch.no_grad():
        logits = model.head(features)
    labels, index = data.labels.to(logits.device), data.environments.to(logits.device)
    E = len(data.environment_names)
    accuracy, present = environment_means((logits.argmax(1) == labels).float(), index, E)
    loss, _ = environment_means(F.cross_entropy(logits, labels, reduction="none"), index, E)
    return {
        name: Scores(float(accuracy[e]), float(loss[e])) for e, name in enumerate(data.environment_names) if present[e]
    }


def held_out_transfer_matrix(model: Classifier, data: EnvironmentSet, ridge: float) -> Tensor:
    """M[Q, P] of the model's features on samples it was not trained on, (E, E), on the CPU.

    Q's predictor is fitted on every other sample of Q and P's loss taken on the rest of P's, so that the diagonal
    too is held out.
    """
    features = featurise(model, data)
    labels, index = data.labels.to(features.device), data.environments.to(features.device)
    E, C = len(data.environment_names), len(data.class_names)
    order = torch.argsort(index, stable=True)
    halves = torch.empty_like(order).scatter_(0, order, torch.arange(len(data), device=index.device)) % 2
    # Environments 0..E-1 are the fitting halves, E..2E-1 the testing ones.
    matrix = transfer_matrix(features, labels, index + E * halves, C, ridge)
    return matrix[:E, E:].cpu()
