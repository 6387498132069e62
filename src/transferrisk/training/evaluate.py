"""How good a model is, in each environment. Evaluation data is never augmented."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data import EnvironmentSet
from ..functional import environment_means, irm_penalty, transfer_risk
from ..models import Classifier
from .records import Scores

_CHUNK = 2048  # samples at a time
_CHUNK_BYTES = 2**27  # and no more than this of them


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
    chunk = max(1, min(_CHUNK, _CHUNK_BYTES // max(1, data.batch(slice(0, 1)).nbytes)))
    with evaluation_mode(model):
        parts = [model.featurise(data.batch(slice(i, i + chunk)).to(device)) for i in range(0, len(data), chunk)]
    return torch.cat(parts) if parts else model.head.weight.detach().new_empty(0, model.head.in_features)


def evaluate(model: Classifier, data: EnvironmentSet, features: Tensor | None = None) -> dict[str, Scores]:
    """Scores by name of the environment; `features` (n, d) are the model's own, where they are known already."""
    logits = _logits(model, data, features)
    labels, index = data.labels.to(logits.device), data.environments.to(logits.device)
    E, C = len(data.environment_names), len(data.class_names)
    correct = (logits.argmax(1) == labels).float()
    weights = None if data.weights is None else data.weights.to(logits.device)
    accuracy, present = environment_means(correct, index, E, weights)
    loss, _ = environment_means(F.cross_entropy(logits, labels, reduction="none"), index, E, weights)
    by_group, occurs = environment_means(correct, index * C + labels, E * C)
    worst = torch.where(occurs, by_group, torch.inf).reshape(E, C).amin(1)
    return {
        name: Scores(float(accuracy[e]), float(loss[e]), float(worst[e]))
        for e, name in enumerate(data.environment_names)
        if present[e]
    }


def irm_penalties(model: Classifier, data: EnvironmentSet, features: Tensor | None = None) -> dict[str, float]:
    """IRMv1's penalty by name of the environment: the squared slope of its risk in a scale of the logits."""
    logits = _logits(model, data, features)
    labels, index = data.labels.to(logits.device), data.environments.to(logits.device)
    penalties = irm_penalty(logits, labels, index, len(data.environment_names)).tolist()
    return dict(zip(data.environment_names, penalties, strict=True))


def _logits(model: Classifier, data: EnvironmentSet, features: Tensor | None) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model.head(featurise(model, data) if features is None else features)
    return logits


def held_out_transfer_matrix(
    model: Classifier, data: EnvironmentSet, ridge: float, features: Tensor | None = None
) -> Tensor:
    """M[Q, P] of the model's features on samples it was not trained on, (E, E), on the CPU; nan where there are none.

    Q's predictor is fitted on every other source of Q's samples and P's loss taken on the rest of P's, so that the
    diagonal too is held out. Unlike `audit`, which takes longer to be more accurate (every sample tested once, ridges
    by cross-validation, intervals), this is one exact solve with a given ridge, on the model's device: cheap enough for
    every evaluation of a training, and the same ridge makes them comparable.
    """
    features = featurise(model, data) if features is None else features
    labels, index = data.labels.to(features.device), data.environments.to(features.device)
    E, C = len(data.environment_names), len(data.class_names)
    # Environments 0..E-1 are the fitting halves, E..2E-1 the testing ones.
    halves = alternate(data).to(features.device)
    queries = torch.arange(E, device=features.device)
    result = transfer_risk(features, labels, index + E * halves, 2 * E, C, ridge, queries=queries)
    return result.matrix[:, E:].cpu()


def alternate(data: EnvironmentSet) -> Tensor:
    """0 and 1 in turns along the sources of each environment, (n,): samples of one source never part."""
    sources = torch.arange(len(data), device=data.labels.device) if data.sources is None else data.sources
    halves = torch.zeros_like(data.environments)
    for e in range(len(data.environment_names)):
        members = data.environments == e
        _, rank = sources[members].unique(return_inverse=True)
        halves[members] = rank % 2
    return halves
