"""Balanced batches."""

from __future__ import annotations

import pytest
import torch

from transferrisk.data import BalancedSampler, EnvironmentSet
from transferrisk.errors import InputError


def data(sizes):
    index = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    names = tuple(f"site {i}" for i in range(len(sizes)))
    return EnvironmentSet(torch.arange(len(index)).float()[:, None], torch.zeros_like(index), index, names, ("x",))


def test_every_batch_is_balanced_and_an_epoch_repeats_nothing():
    source = data([10, 25])
    sampler = BalancedSampler(source, batch_size=4, seed=0)
    assert sampler.steps_per_epoch == 2
    drawn = [sampler.next() for _ in range(2)]
    for index in drawn:
        assert torch.bincount(source.environments[index]).tolist() == [4, 4]
    assert len(torch.cat(drawn).unique()) == 16


def test_every_sample_is_drawn_in_time():
    sampler = BalancedSampler(data([10, 25]), batch_size=4, seed=0)
    seen = torch.cat([sampler.next() for _ in range(40)]).unique()
    assert len(seen) == 35


def test_state_continues_where_it_was():
    sampler = BalancedSampler(data([10, 25]), batch_size=4, seed=0)
    for _ in range(5):
        sampler.next()
    other = BalancedSampler(data([10, 25]), batch_size=4, seed=9)
    other.load_state_dict({key: value.clone() for key, value in sampler.state_dict().items()})
    for _ in range(20):
        assert torch.equal(sampler.next(), other.next())


def test_too_large_a_batch_names_the_environment():
    with pytest.raises(InputError, match=r"environment 'site 1' has 3 training samples, fewer than batch_size=4"):
        BalancedSampler(data([10, 3]), batch_size=4, seed=0)
