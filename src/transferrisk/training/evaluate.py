"""Evaluation of a model, in each environment. Evaluation data is never augmented."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import EnvironmentSet
from ..functional import environment_means, irm_penalty, transfer_risk
from ..models import Classifier, features_of
from ..results import Record


def evaluate(model: Classifier, data: EnvironmentSet, features: Tensor | None = None) -> dict[str, Record]:
    """Measure samples, accuracy, loss and worst_group (the lowest accuracy in a class) by environment.

    Parameters
    ----------
    model
        The classifier.
    data
        What to evaluate it on.
    features
        (n, d), the model's own, where they are known already.

    Returns
    -------
    dict[str, Record]
        Environment -> its record.

    Examples
    --------
    >>> from torch import nn
    >>> from transferrisk.data import load_splits
    >>> from transferrisk.models import Classifier
    >>> from transferrisk.training import evaluate
    >>> model = Classifier(nn.Linear(15, 8), num_features=8, num_classes=2)
    >>> sorted(evaluate(model, load_splits("gaussian").training_domain)["environment 1"])
    ['accuracy', 'loss', 'samples', 'worst_group']
    """
    features = features_of(model, data.batch, len(data)) if features is None else features
    with torch.no_grad():
        logits = model.head(features)
    labels, index = data.labels.to(logits.device), data.environments.to(logits.device)
    E, C = len(data.environment_names), len(data.class_names)
    correct = (logits.argmax(1) == labels).float()
    weights = None if data.weights is None else data.weights.to(logits.device)
    accuracy, present = environment_means(correct, index, E, weights)
    loss, _ = environment_means(F.cross_entropy(logits, labels, reduction="none"), index, E, weights)
    by_group, occurs = environment_means(correct, index * C + labels, E * C)
    worst = torch.where(occurs, by_group, torch.inf).reshape(E, C).amin(1)
    names = ("samples", "accuracy", "loss", "worst_group")
    columns = map(Tensor.tolist, (index.bincount(minlength=E), accuracy, loss, worst))
    scores = {}
    for name, there, *values in zip(data.environment_names, present.tolist(), *columns, strict=True):
        if there:
            scores[name] = dict(zip(names, values, strict=True))
    return scores


def irm_penalties(model: Classifier, data: EnvironmentSet, features: Tensor | None = None) -> dict[str, float]:
    """Return IRMv1's penalty by environment: the squared slope of its risk in a scale of the logits.

    Parameters
    ----------
    model
        The classifier.
    data
        What to measure it on.
    features
        (n, d), the model's own, where they are known already.

    Returns
    -------
    dict[str, float]
        Environment -> penalty.

    Examples
    --------
    >>> from torch import nn
    >>> from transferrisk.data import load_splits
    >>> from transferrisk.models import Classifier
    >>> from transferrisk.training import irm_penalties
    >>> model = Classifier(nn.Linear(15, 8), num_features=8, num_classes=2)
    >>> list(irm_penalties(model, load_splits("gaussian").test))
    ['far']
    """
    features = features_of(model, data.batch, len(data)) if features is None else features
    with torch.no_grad():
        logits = model.head(features)
    labels, index = data.labels.to(logits.device), data.environments.to(logits.device)
    penalties = irm_penalty(logits, labels, index, len(data.environment_names)).tolist()
    return dict(zip(data.environment_names, penalties, strict=True))


def held_out_transfer_matrix(
    model: Classifier, data: EnvironmentSet, ridge: float, features: Tensor | None = None
) -> Tensor:
    """Return M[Q, P] of the model's features on samples it was not trained on.

    Q's predictor is fitted on every other source of Q's samples and P's loss taken on the rest of P's, so that the
    diagonal too is held out. Unlike `audit`, which takes longer to be more accurate (every sample tested once, ridges
    by cross-validation, intervals), this is one exact solve with a given ridge, on the model's device: cheap enough for
    every evaluation of a training, and the same ridge makes them comparable.

    Parameters
    ----------
    model
        The classifier.
    data
        Samples it was not trained on.
    ridge
        Of every predictor.
    features
        (n, d), the model's own, where they are known already.

    Returns
    -------
    Tensor
        (E, E), on the CPU; nan where an environment has no samples.

    Examples
    --------
    >>> from torch import nn
    >>> from transferrisk.data import load_splits
    >>> from transferrisk.models import Classifier
    >>> from transferrisk.training import held_out_transfer_matrix
    >>> model = Classifier(nn.Linear(15, 8), num_features=8, num_classes=2)
    >>> held_out_transfer_matrix(model, load_splits("gaussian").training_domain, ridge=1e-2).shape
    torch.Size([3, 3])
    """
    features = features_of(model, data.batch, len(data)) if features is None else features
    labels, index = data.labels.to(features.device), data.environments.to(features.device)
    E, C = len(data.environment_names), len(data.class_names)
    # Environments 0..E-1 are the fitting halves, E..2E-1 the testing ones.
    halves = alternate_sources(data).to(features.device)
    queries = torch.arange(E, device=features.device)
    result = transfer_risk(features, labels, index + E * halves, 2 * E, C, ridge, queries=queries)
    return result.matrix[:, E:].cpu()


def alternate_sources(data: EnvironmentSet) -> Tensor:
    """0 and 1 in turns along the sources of each environment, (n,): samples of one source never part."""
    sources = torch.arange(len(data), device=data.labels.device) if data.sources is None else data.sources
    halves = torch.zeros_like(data.environments)
    for e in range(len(data.environment_names)):
        members = data.environments == e
        _, rank = sources[members].unique(return_inverse=True)
        halves[members] = rank % 2
    return halves
