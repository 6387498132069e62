"""Evaluation of a model in each environment: accuracy and loss, IRMv1's penalties, and the transfer matrix.

Evaluation data is never augmented.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data import EnvironmentSet
from ..functional import environment_means, irm_penalty, transfer_risk
from ..models import Classifier, features_of
from ..results import Record
from ..solvers.protocols import wait_for


def evaluate(
    model: Classifier, data: EnvironmentSet, features: Tensor | None = None, trained_on: EnvironmentSet | None = None
) -> dict[str, Record]:
    """Return the number of samples, accuracy, loss and worst_group (lowest accuracy of a class) by environment.

    With `trained_on`, a group is an environment and a class together, and `adjusted` is the sum over the groups of an
    environment of their accuracy times their share of the training samples. Its sum over environments is the adjusted
    average accuracy, the one on samples with the groups of the training data. It is left out unless all environments
    are among those of the training data.

    Parameters
    ----------
    model
        The classifier.
    data
        Samples to evaluate it on.
    features
        Features of the samples under the model, (n, d). None: they are computed.
    trained_on
        Training data, for `adjusted`.

    Returns
    -------
    dict[str, Record]
        Record of each environment that has samples, by name.

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
    samples = (index == torch.arange(E, device=index.device).unsqueeze(1)).sum(1)
    wait_for(index.device)
    names = ("samples", "accuracy", "loss", "worst_group")
    columns = map(Tensor.tolist, (samples, accuracy, loss, worst))
    scores = {}
    for name, there, *values in zip(data.environment_names, present.tolist(), *columns, strict=True):
        if there:
            scores[name] = dict(zip(names, values, strict=True))
    if trained_on is not None and set(data.environment_names) <= set(trained_on.environment_names):
        shares = _group_shares(trained_on, data.environment_names).to(by_group)  # (E, C)
        accuracies = torch.where(occurs, by_group, torch.nan).reshape(E, C)
        adjusted = torch.where(shares > 0, shares * accuracies, 0).sum(1)  # nan where a group has no samples
        for name, value in zip(data.environment_names, adjusted.tolist(), strict=True):
            if name in scores:
                scores[name]["adjusted"] = value
    return scores


def _group_shares(data: EnvironmentSet, environments: Sequence[str]) -> Tensor:
    """Return the share of each class in each of these environments among all samples of the environments, (E, C)."""
    E, C = len(data.environment_names), len(data.class_names)
    counts = torch.bincount(data.environments.long() * C + data.labels.long(), minlength=E * C).reshape(E, C)
    counts = counts[list(map(list(data.environment_names).index, environments))].float()
    return counts / counts.sum()


def irm_penalties(model: Classifier, data: EnvironmentSet, features: Tensor | None = None) -> dict[str, float]:
    """Return IRMv1's penalty (dR_e/ds)^2 at s = 1 by environment, for the risk R_e of logits times s.

    Parameters
    ----------
    model
        The classifier.
    data
        Samples to evaluate it on.
    features
        Features of the samples under the model, (n, d). None: they are computed.

    Returns
    -------
    dict[str, float]
        Penalty of each environment, by name.

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
    """Return the transfer matrix M[Q, P] of a model's features on samples that it was not trained on.

    The predictor of Q is fitted on every other source of samples in Q, and tested on the rest of each P, so that the
    diagonal is held out too. This is one exact solve with a given ridge on the model's device, cheap enough for every
    evaluation of a training and comparable between them. `audit` is slower and more accurate: it tests each sample
    once, chooses ridges by cross-validation, and computes intervals.

    Parameters
    ----------
    model
        The classifier.
    data
        Samples that the model was not trained on.
    ridge
        Strength of the penalty ridge/2 |W|^2 of each predictor.
    features
        Features of the samples under the model, (n, d). None: they are computed.

    Returns
    -------
    Tensor
        Matrix M, (E, E), on the CPU; nan where an environment has no samples.

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
    # Environments 0..E-1 are the halves to fit on, E..2E-1 those to test on.
    halves = alternate_sources(data).to(features.device)
    queries = torch.arange(E, device=features.device)
    result = transfer_risk(features, labels, index + E * halves, 2 * E, C, ridge, queries=queries)
    return result.matrix[:, E:].cpu()


def alternate_sources(data: EnvironmentSet) -> Tensor:
    """Return 0 and 1 in turn for the sources of each environment, (n,): samples of one source are in one half."""
    sources = torch.arange(len(data), device=data.labels.device) if data.sources is None else data.sources
    halves = torch.zeros_like(data.environments)
    for e in range(len(data.environment_names)):
        members = data.environments == e
        _, rank = sources[members].unique(return_inverse=True)
        halves[members] = rank % 2
    return halves
