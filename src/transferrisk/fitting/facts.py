"""What there is to say of a fit, for the command, the card and the page alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

from ..algorithms import describe_algorithm
from ..errors import counted, listed
from .compare import Comparison
from .defaults import batch_of
from .encoders import Encoder, ImageEncoder, TableEncoder, VectorEncoder
from .fitted import Fitted

Z = 1.96  # of a 95 % interval


def named(names: Sequence[str]) -> str:
    """All of them; those with a comma are quoted, so that one can tell where each ends."""
    return ", ".join(repr(name) if "," in name else name for name in names)


def wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of so many."""
    centre = share + Z * Z / (2 * count)
    half = Z * sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    scale = 1 + Z * Z / count
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def columns_of(encoder: Encoder) -> list[tuple[str, str, int, str]]:
    """(column, taken as, number of features, remark) of what a model is given."""
    if isinstance(encoder, ImageEncoder):
        return [("images", f"images of {encoder.width} x {encoder.height} pixels", encoder.channels, "")]
    if isinstance(encoder, VectorEncoder):
        constant = sum(scale == 0 for scale in encoder.scale)
        remark = f"{constant} of them constant, and not used" if constant else ""
        return [(listed(encoder.columns) or "features", "vectors, standardised", len(encoder.mean), remark)]
    assert isinstance(encoder, TableEncoder)
    schema = encoder.schema
    used = [(c.name, c.kind, len(c.features), schema.remarks.get(c.name, "")) for c in schema.columns]
    return used + [(name, "not used", 0, why) for name, why in schema.dropped.items()]


def how_compared(comparison: Comparison) -> str:
    """One sentence on what the numbers of a comparison are."""
    seeds = f", {len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else ""
    if comparison.held == "rows":
        return (
            "With two environments none can be held out: the accuracies are on a fifth of each environment's rows, of "
            f"environments that were trained on, and say nothing about new ones{seeds}."
        )
    drawn = f" {len(comparison.environments)} of {len(comparison.environments) + comparison.left_out}, drawn by seed,"
    which = drawn if comparison.left_out else ""
    return (
        f"Each environment{which} was held out once: trained on the others, accuracy on all its rows, which neither "
        f"the model nor the encoding had seen{seeds}."
    )


def ranked(comparison: Comparison) -> list[tuple[str, list[float], float, float]]:
    """(algorithm, accuracy in each environment, mean, worst), as compared."""
    return [
        (name, [accuracy[e] for e in comparison.environments], comparison.mean(name), comparison.worst(name))
        for name, accuracy in comparison.accuracy.items()
    ]


def network_of(fitted: Fitted) -> str:
    """Which network it is, and what of it was trained."""
    plan = fitted.plan
    network = str(plan.backbone) + (f", weights {plan.weights}" if plan.weights is not None else "")
    if not plan.frozen:
        return network
    (width,) = fitted.outcome.encoder.shape
    return f"{network}, frozen: only {plan.on_top} on its {width} features, standardised, was trained"


def settings_of(fitted: Fitted) -> Mapping[str, str | Sequence[str]]:
    """How the final model was trained."""
    outcome, samples = fitted.outcome, fitted.source.samples
    config = outcome.config
    batch = batch_of(config)
    steps = config.epochs * (max(min(fitted.source.sizes.values()), batch) // batch)
    return {
        "Data": f"{fitted.source.name}: {counted(len(samples), 'row')}, label {fitted.source.label!r}, environment "
        f"{fitted.source.environment!r}",
        "Environments": [f"{name}: {counted(size, 'row')}" for name, size in fitted.source.sizes.items()],
        "Classes": [
            f"{name}: {counted(count, 'row')}"
            for name, count in zip(samples.class_names, samples.group_counts().sum(0).tolist(), strict=True)
        ],
        "Algorithm": describe_algorithm(fitted.choice.algorithm, **outcome.settings),
        "Network": network_of(fitted),
        "Training": f"{counted(steps, 'step')} of {batch} samples of each environment, SGD with rate "
        f"{config.lr:g}, momentum {config.momentum:g} and weight decay {config.weight_decay:g}, the rate times "
        f"{config.decay_factor:g} after {config.decay_at:.0%} of the steps"
        + (", images varied" if config.augment else ""),
        "Seed": str(fitted.plan.seed),
    }
