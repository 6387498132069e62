"""Images by the features of a backbone that stays as it is: computed once, and from then on vectors like any others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ..data import EnvironmentSet
from ..data.standardise import Standardise
from ..errors import InputError
from ..models import Classifier, evaluation_mode, on_frozen
from ..training.engine import Engine, device_of
from .encoders import VectorEncoder
from .source import Source
from .trial import Outcome, at_a_time


def featurised(source: Source, backbone: Classifier, device: str, on_images: Callable[[int, int], None]) -> Source:
    """The source with the backbone's features (n, d) in place of its images, which are read once, in their order."""
    features = features_of(backbone, source.samples, device_of(device), on_images)
    wrong = ~features.isfinite().all(1)
    if wrong.any():
        raise InputError(
            f"{source.name}: image {int(wrong.int().argmax()) + 1} has features that are no numbers: use other weights"
        )
    return replace(source, kind="vectors", samples=replace(source.samples, inputs=features), columns=("features",))


def features_of(
    backbone: Classifier, data: EnvironmentSet, device: torch.device, on_images: Callable[[int, int], None]
) -> Tensor:
    """(n, d) on the CPU, in full precision on any device, since it is on a CPU that the model will predict."""
    features = torch.empty(len(data), backbone.head.in_features)
    size = at_a_time(data)
    with Engine.of(str(device), precision="fp32").arithmetic(), evaluation_mode(backbone.to(device)):
        for start in range(0, len(data), size):
            part = data.batch(slice(start, start + size))
            features[start : start + len(part)] = backbone.featurise(part.to(device)).cpu()
            on_images(start + len(part), len(data))
    backbone.cpu()
    return features


def whole(backbone: Classifier, outcome: Outcome) -> Classifier:
    """What was trained on the features, behind the backbone they are of: from images to logits."""
    encoder = outcome.encoder
    assert isinstance(encoder, VectorEncoder)
    mean, scale = (torch.tensor(values, dtype=torch.float64) for values in (encoder.mean, encoder.scale))
    return on_frozen(backbone, outcome.model, Standardise(mean, scale)).eval()
