"""How each data set is trained on where nothing else is asked for: the paper's protocol (appendix B.3).

And what is the same wherever settings are chosen by the user's data: `trm train`, `trm fit`, the classifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..data import EnvironmentSet, Splits
from .config import TrainConfig

_SMALL_IMAGES = TrainConfig(record=())
_PHOTOGRAPHS = TrainConfig(epochs=50, batch_size=32, lr=1e-4, decay_at=1.0, record=())

PROTOCOLS = {
    "10c-cmnist": _SMALL_IMAGES,
    "10c-digits": _SMALL_IMAGES,
    "scenecoco": TrainConfig(epochs=100, record=()),
    "pacs": _PHOTOGRAPHS,
    "office-home": _PHOTOGRAPHS,
    "celeba": _PHOTOGRAPHS,
}

TABLE_STEPS = 1000  # that a table of many rows is trained for
SMALLEST_BATCH, LARGEST_STEP = 16, 2048  # samples of an environment, and of all of them together


def protocol(name: str, splits: Splits, held_out: bool = False) -> TrainConfig:
    """The set's own, or for the user's files that of the paper's set most like them, with batches they can fill.

    Those are of the largest power of two, up to the protocol's, that the smallest environment holds. A test
    environment that is one of training's, `held_out` to select settings by, counts too: with and without it, the
    settings are the same.
    """
    own = PROTOCOLS.get(name.partition(":")[0])
    if own is not None:
        return own
    like = protocol_like(splits.train)
    smallest = min(smallest_environment(data) for data in [splits.train] + [splits.test] * held_out)
    return replace(like, batch_size=min(like.batch_size, 2 ** (max(1, smallest).bit_length() - 1)))


def protocol_like(data: EnvironmentSet) -> TrainConfig:
    """That of the paper's set most like these samples."""
    return _PHOTOGRAPHS if side(data) > 64 else _SMALL_IMAGES


def batch_per_environment(environments: int, usual: int) -> int:
    """The usual number of samples, fewer where a step on so many environments would be too large."""
    return max(SMALLEST_BATCH, min(usual, LARGEST_STEP // environments))


def smallest_environment(data: EnvironmentSet) -> int:
    """How many samples it has."""
    return int(data.environments.bincount(minlength=len(data.environment_names)).min())


def default_backbone(shape: Sequence[int]) -> str:
    """The paper's network for inputs of this shape."""
    longer = side_of(shape)
    if not longer:
        return "mlp"
    return "cnn" if longer <= 28 else "wrn-16-2" if longer <= 64 else "resnet18"


def side(data: EnvironmentSet) -> int:
    """The longer side of the images, in pixels; 0 where the inputs are vectors."""
    return side_of(data.inputs[:1].shape[1:])


def side_of(shape: Sequence[int]) -> int:
    return max(shape[1:]) if len(shape) == 3 else 0
