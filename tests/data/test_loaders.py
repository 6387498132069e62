"""Balanced batches."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from transferrisk.data import BalancedSampler, EnvironmentSet, WholeSampler, filled
from transferrisk.data.environments import concatenate
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


def test_small_environments_are_repeated_whole():
    source = data([3, 10, 8, 4])
    source = source.select(torch.randperm(25, generator=torch.Generator().manual_seed(0)))
    found = filled(replace(source, weights=torch.linspace(0.1, 2, 25)), 8)
    times = {0: 3, 1: 1, 2: 1, 3: 2}
    rows, count = found.inputs[:].flatten().unique(return_counts=True)
    assert rows.tolist() == list(range(25))
    assert count.tolist() == [times[int(e)] for e in source.environments[source.inputs[:].flatten().argsort()]]
    assert torch.equal(found.weights.unique(), torch.linspace(0.1, 2, 25))
    assert filled(source, 3) is source


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


def test_the_whole_set_comes_environment_after_environment():
    source = data([3, 2]).select(torch.tensor([4, 0, 3, 1, 2]))
    sampler = WholeSampler(source)
    assert sampler.steps_per_epoch == 1
    for _ in range(2):
        assert source.inputs[sampler.next()].flatten().tolist() == [0, 1, 2, 4, 3]


def test_weights_follow_their_samples():
    source = data([3, 2])
    weighted = replace(source, weights=torch.arange(5.0))
    part = weighted.select(torch.tensor([4, 1]))
    assert part.weights.tolist() == [4, 1]
    assert weighted.only(["site 1"]).weights.tolist() == [3, 4]
    assert weighted.group_counts().tolist() == [[3.0], [7.0]]
    assert concatenate([part, part]).weights.tolist() == [4, 1, 4, 1]
    with pytest.raises(InputError, match="some of the sets have weights"):
        concatenate([part, source])
    with pytest.raises(InputError, match="4 weights for 5 samples"):
        replace(source, weights=torch.ones(4))
