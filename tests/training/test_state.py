"""What a state holds, all of it."""

from __future__ import annotations

import pytest
import torch
from small import small_run

from transferrisk.training.state import start


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("algorithm", "find"),
    [
        ("erm", lambda state: state.model.head.bias),
        ("erm", lambda state: state.model.featuriser[2].running_mean),
        ("erm", lambda state: state.model.featuriser[2].running_var),
        ("trm", lambda state: state.algorithm.criterion.alpha),
        ("groupdro", lambda state: state.algorithm.weights),
    ],
    ids=["weights", "mean", "variance", "alpha", "group weights"],
)
def test_a_state_is_finite_only_if_everything_in_it_is(algorithm, find, value):
    state = start(small_run(algorithm))
    assert state.finite
    with torch.no_grad():
        find(state).view(-1)[-1] = value
    assert not state.finite
