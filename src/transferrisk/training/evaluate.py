"""How good a model is, in each environment. Evaluation data is never augmented."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import EnvironmentSet
from ..functional import environment_means, transfer_risk
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
    """M[Q, P] of the model's features on samples it was not trained on, (E, E), on the CPU; nan where there are none.

    Q's predictor is fitted on every other source of Q's samples and P's loss taken on the rest of P's, so that the
    diagonal too is held out.
    """
    features = featurise(model, data)
    labels, index = data.labels.to(features.device), data.environments.to(features.device)
    E, C = len(data.environment_names), len(data.class_names)
    # Environments 0..E-1 are the fitting halves, E..2E-1 the testing ones.
    halves = alternate(data).to(features.device)
    queries = torch.arange(E, device=features.device)
    result = transfer_risk(features, labels, index + E * halves, 2 * E, C, ridge, queries=queries)
    return result.matrix[:, E:].cpu()


def alternate(data: EnvironmentSet) -> Tensor:
    """0 and 1 in turns along the sources of each environment, (n,): samples of one source never part."""
    sources = torch.arange(len(data)) if data.sources is None else data.sources
    halves = torch.zeros_like(data.environments)
    for e in range(len(data.environment_names)):
        members = data.environments == e
        _, rank = sources[members].unique(return_inverse=True)
        halves[members] = rank % 2
    return halves
