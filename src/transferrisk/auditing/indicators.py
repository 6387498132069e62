"""Missing-value indicators of a table: they stay where they help in environments that a predictor was not fitted on."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError
from .samples import arrange_samples, thin_samples
from .without import GROUPS, choose_ridge, fit_without_groups, held_out_losses

if TYPE_CHECKING:
    import pandas as pd

    from ..data.schema import Declared, Schema

_ROWS = 3000  # samples that indicators are judged by
_WAY_OUT = "say whether missing-value indicators are used, with --missing-indicators always or never"


def settle_indicators(
    schema: Schema, declared: Declared, frame: pd.DataFrame, labels: Any, environments: Any
) -> Schema:
    """Return the schema with missing-value indicators only where they help in new environments.

    What is missing may tell the environment, and then what is learnt from it does not transfer. All indicators that
    nothing is said about stay or go together. They stay where linear predictors with them lose less in held-out
    environments of these rows, (n,) labels and environments, than predictors of the same ridge without them, by more
    than the standard error of the mean difference over environments. That error is taken from how much environments
    differ, but not below what the spread of their samples allows, so that a few that agree by luck do not decide.
    Environments count the same: weighted by their errors as in `pool`, indicators of pure noise would seem to help in
    half of all tables. Two environments are too few to tell: the indicators are left out.
    """
    if declared.others != "auto":
        return schema
    bare = schema
    with suppress(InputError):  # nothing else varies, so that the indicators have to stay
        bare = schema.without_indicators([name for name, stays in declared.indicators.items() if stays])
    several = len(np.unique(np.asarray(environments))) > 2 and len(np.unique(np.asarray(labels))) > 1
    if bare == schema or not several:
        return bare
    without, whole = (
        thin_samples(arrange_samples(one.encode(frame).features, labels, environments, 2, 0, True), _ROWS, 0)
        for one in (bare, schema)
    )  # the same rows in the same order
    groups = np.random.default_rng(0).permutation(len(whole.environments)) % GROUPS
    _, ridge, predictors = choose_ridge(without, groups, _WAY_OUT)
    before = held_out_losses(without, groups, predictors)
    after = held_out_losses(whole, groups, fit_without_groups(whole, groups, ridge, None, _WAY_OUT))
    gains = [was - now for was, now in zip(before, after, strict=True)]
    means, errors = np.array([(one.mean(), one.var() / len(one)) for one in gains]).T
    error = np.sqrt(max(means.var(ddof=1), errors.mean()) / len(means))
    return schema if means.mean() > error else bare
