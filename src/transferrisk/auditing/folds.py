"""Which fold each sample is held out in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]


def assign_folds(environments: Codes, labels: Codes, folds: int, seed: int) -> Codes:
    """The fold 0..folds-1 of each sample, (n,), at random from `seed`.

    Classes of an environment are dealt out one after the other, as cards are: a class differs between two folds by at
    most one sample, and so does the environment.
    """
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    order = shuffled[np.lexsort((labels[shuffled], environments[shuffled]))]
    places = environments[order]
    first = np.r_[True, places[1:] != places[:-1]]
    begin = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    assigned = np.empty(len(order), np.int64)
    # An environment begins where the one before would have gone on, so that small ones do not all fill fold 0.
    assigned[order] = (np.arange(len(order)) - begin + places) % folds
    return assigned
