"""`Plan`: the settings of a fit, and the defaults that depend on the data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import InputError, WeightsWarning, listed, warn
from ..models import backbone_at_hand, is_registered
from ..models.blend import BLEND
from ..settings import Count, Seed, Settings
from ..training.defaults import default_backbone
from ..training.engine import device_of
from .candidates import check_candidate, default_candidates, make_candidates
from .metrics import Metric
from .source import Source


@dataclass(frozen=True)
class Plan(Settings):
    """Settings of a fit.

    Parameters
    ----------
    algorithms
        Candidates to compare. Default: by the kind of data, see `candidates.default_candidates`.
    algorithm
        Candidate to take, whatever the comparison says. Default: the comparison's choice.
    compared
        Whether to compare candidates in held-out environments.
    metric
        Metric that the choice goes by.
    settings
        Settings of algorithms: "key=value" for each that has the key, "trm.ridge=1e-2" for one.
    backbone
        Network. Default: by the kind of input.
    weights
        Weights of the backbone, as `models.build_model` takes them.
    epochs
        Number of passes over all rows. Default: by their number.
    seed
        Random seed.
    repeats
        Number of seeds of the comparison, from `seed` on.
    folds
        Largest number of trainings of each candidate in the comparison. With more environments, each training holds out
        several, drawn by the seed; if they are ordered, the last are held out, each by itself.
    ordered
        Whether environments are times. Each is then tested after a training on the earlier ones alone.
    device
        Device to train on.
    workers
        Number of processes that train at once. Default: the number of cores for large tables on a CPU, otherwise 1.
    drop_small
        Whether to leave out environments with fewer than 10 rows.
    drop_unstable
        Whether to leave out a table's columns whose effect on the label differs between environments. In the
        comparison, they are those that are unstable in the environments of each training.
    frozen
        Whether a pretrained backbone stays as it is and a network on its features is trained. Default: on a CPU.
    on_top
        Network on a frozen backbone. Default: the one for vectors.

    Examples
    --------
    >>> from transferrisk.fitting import Plan
    >>> Plan(algorithms=("linear", "trm"), metric="brier").metric
    'brier'
    """

    algorithms: tuple[str, ...] | None = None
    algorithm: str | None = None
    compared: bool = True
    metric: Metric = "log_loss"
    settings: tuple[str, ...] = ()
    backbone: str | None = None
    weights: str | None = None
    epochs: Count | None = None
    seed: Seed = 0
    repeats: Count = 1
    folds: Count = 10
    ordered: bool = False
    device: str = "auto"
    workers: Count | None = None
    drop_small: bool = False
    drop_unstable: bool = False
    frozen: bool | None = None
    on_top: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self.algorithms
        for name in filter(None, (*(given or ()), self.algorithm)):
            check_candidate(name)
        if given is not None and (not given or len(set(given)) < len(given)):
            raise InputError(f"algorithms must be names, each given once, got {listed(given) or 'none'}")
        if self.ordered and not self.compared:
            raise InputError("ordered (--ordered) is about the comparison, and there is none: leave out --no-compare")
        if self.algorithm == BLEND and not self.compared:
            raise InputError(f"algorithm {BLEND!r} takes its weights from the comparison: leave out --no-compare")
        averaged = {*(given or ()), self.algorithm} - {BLEND, None}
        if self.averages and given is not None and len(averaged) < 2:
            names = listed(averaged) or "none"
            raise InputError(f"algorithms must name two or more candidates for {BLEND!r} to average, got {names}")

    @property
    def averages(self) -> bool:
        """True if the weighted average of the candidates is asked for."""
        return BLEND in (*(self.algorithms or ()), self.algorithm)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all candidates that are compared or asked for."""
        compared = (self.algorithms or ()) if self.compared else (self.algorithm or "trm",)
        return tuple(dict.fromkeys((*compared, *filter(None, (self.algorithm,)))))


def settle(source: Source, plan: Plan) -> Plan:
    """Return the plan with all open settings of the network decided by the data, the device and available weights.

    A pretrained network is frozen on a CPU, which is too slow to train all of it. Settings that no candidate has are
    refused.
    """
    images = source.kind == "images"
    usual = default_backbone(source.shape, len(source.samples))
    backbone, weights = plan.backbone or usual, plan.weights
    if not is_registered(backbone):
        if plan.backbone is None and weights is None and (backbone := backbone_at_hand(usual)) != usual:
            warn(
                f"the ImageNet weights of {usual} cannot be fetched: {backbone}, whose weights are installed, is used; "
                "name another with --backbone",
                WeightsWarning,
            )
        weights = weights or "imagenet"
    pretrained = images and weights not in (None, "none")
    if plan.frozen and not images:
        raise InputError(f"frozen (--frozen) is for the backbone of images, got {source.name}: leave it out")
    if plan.frozen and not pretrained:
        raise InputError(
            f"frozen (--frozen) needs a pretrained backbone, got {backbone!r} without weights: name one with "
            "--backbone, or a file with --weights"
        )
    frozen = plan.frozen if plan.frozen is not None else pretrained and device_of(plan.device).type == "cpu"
    if plan.on_top is not None and not frozen:
        raise InputError(f"on_top={plan.on_top!r} (--on-top) needs a frozen backbone: add --frozen, or leave it out")
    on_top = (plan.on_top or default_backbone((1,), len(source.samples))) if frozen else None
    algorithms = plan.algorithms or default_candidates(source.kind, images and not frozen)
    settled = replace(plan, backbone=backbone, weights=weights, frozen=frozen, on_top=on_top, algorithms=algorithms)
    make_candidates(source, settled, settled.names)
    return settled
