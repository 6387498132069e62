"""What a criterion keeps: saved, restored, and untouched by what it refuses."""

from __future__ import annotations

import copy

import pytest
import torch
from problems import arguments, random_batch

from transferrisk import TransferRisk
from transferrisk.errors import InputError


@pytest.mark.parametrize("used", [False, True], ids=["before the first batch", "after"])
@pytest.mark.parametrize("explicit", [False, True], ids=["inferred", "given"])
def test_state_dict_round_trips(used, explicit):
    batch = random_batch(4, [9, 9, 9], classes=4, width=4)
    options = {"environments": [2, 5, 9], "num_classes": 4} if explicit else {}
    criterion = TransferRisk(**options)
    if used:
        criterion(*arguments(batch, ids=[2, 5, 9]))
    restored = TransferRisk(**options)
    restored.load_state_dict(copy.deepcopy(criterion.state_dict()))
    for name, tensor in criterion.state_dict().items():
        assert torch.equal(tensor, restored.state_dict()[name])
    following = random_batch(5, [5, 6, 7], classes=3, width=4)  # with a class fewer: num_classes must be remembered
    a, b = (c(*arguments(following, ids=[2, 5, 9])) for c in (criterion, restored))
    assert torch.equal(a.risk, b.risk)
    assert torch.equal(criterion.alpha, restored.alpha)


def test_a_state_of_other_environments_or_classes_is_refused():
    saved = TransferRisk(environments=3, num_classes=2).state_dict()
    with pytest.raises(InputError, match=r"saved criterion has environments \[0, 1, 2\], this one \[0, 1\]"):
        TransferRisk(environments=2, num_classes=2).load_state_dict(saved)
    with pytest.raises(InputError, match=r"saved criterion has environments \[0, 1, 2\], this one \[7, 8, 9\]"):
        TransferRisk(environments=[7, 8, 9], num_classes=2).load_state_dict(saved)
    with pytest.raises(InputError, match="saved criterion has 2 classes, this one 5"):
        TransferRisk(environments=3, num_classes=5).load_state_dict(saved)


def test_an_empty_state_leaves_explicit_settings_alone():
    criterion = TransferRisk(environments=[4, 5, 6], num_classes=5)
    criterion.load_state_dict(TransferRisk().state_dict())
    assert criterion.environment_ids.tolist() == [4, 5, 6]
    assert criterion.num_classes == 5


def test_a_state_with_missing_or_unknown_parts_is_refused_by_torch():
    saved = TransferRisk(environments=2, num_classes=2).state_dict()
    with pytest.raises(RuntimeError, match="Missing key"):
        TransferRisk().load_state_dict({k: v for k, v in saved.items() if k != "alpha"})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        TransferRisk().load_state_dict(saved | {"beta": torch.zeros(1)})


def test_first_batch_in_inference_mode_does_not_spoil_training():
    batch = random_batch(4, [9, 9], classes=3, width=4)
    criterion = TransferRisk().eval()
    with torch.inference_mode():
        criterion(*arguments(batch))
    features = batch.features.clone().requires_grad_()
    criterion.train()(features, batch.labels, batch.index).risk.backward()
    assert features.grad.isfinite().all()


def test_a_refused_first_batch_leaves_no_trace():
    batch = random_batch(4, [9, 9], classes=3, width=4)
    criterion = TransferRisk()
    with pytest.raises(InputError, match="nan or infinity"):
        criterion(batch.features * torch.nan, batch.labels, batch.index)
    assert criterion.num_environments == 0
    assert criterion.num_classes is None
