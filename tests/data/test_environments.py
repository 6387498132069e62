"""Sets share memory with their parts; splits are drawn by the seed and keep apart what belongs apart; batches."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from transferrisk.data import (
    BalancedSampler,
    EnvironmentSet,
    Options,
    Shift,
    TestDomainValidation,
    TrainingDomainValidation,
    WholeSampler,
    filled,
    leave_out,
    load_data,
)
from transferrisk.data.environments import concatenate
from transferrisk.data.splits import hold_out
from transferrisk.errors import InputError


def vectors(sources=None, sizes=(50, 30, 20)):
    n = sum(sizes)
    environments = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return EnvironmentSet(
        torch.arange(n).float().unsqueeze(1), torch.arange(n) % 2, environments, ("a", "b", "c"), ("x", "y"), sources
    )


def test_parts_share_memory():
    data = vectors()
    part = data.environment("b").select(torch.tensor([3, 1])).select(slice(1, None))
    assert part.inputs.stored is data.inputs
    assert part.batch().tolist() == [[51.0]]
    assert part.labels.tolist() == [1]


def test_only_numbers_anew():
    part = vectors().only(("c", "a"))
    assert part.environment_names == ("c", "a")
    assert len(part) == 70
    for position in (0, 49, 50, 69):
        was = "a" if float(part[position].inputs) < 50 else "c"
        assert part.environment_names[part[position].environment] == was
    with pytest.raises(InputError, match="unknown environment 'd': choose from a, b, c"):
        vectors().only(("d",))


def test_groups():
    data = vectors().by_group()
    assert data.environment_names == ("a, x", "a, y", "b, x", "b, y", "c, x", "c, y")
    assert data.environments[:3].tolist() == [0, 1, 0]
    assert data.environments[50:52].tolist() == [2, 3]


def test_a_sample():
    inputs, label, environment = vectors()[51]
    assert (inputs.tolist(), label, environment) == ([51.0], 1, 1)
    assert vectors()[-1].inputs.tolist() == [99.0]
    with pytest.raises(IndexError):
        vectors()[100]


def test_a_fifth_of_each_environment_is_held_out():
    data = vectors()
    kept, held = hold_out(data, 0.2, seed=3)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(100))
    assert torch.bincount(data.environments[held]).tolist() == [10, 6, 4]
    assert torch.equal(held, hold_out(data, 0.2, seed=3)[1])
    assert not torch.equal(held, hold_out(data, 0.2, seed=4)[1])


def test_samples_of_one_source_stay_together():
    data = vectors(sources=torch.arange(100) // 5)
    kept, held = hold_out(data, 0.2, seed=0)
    assert not set((kept // 5).tolist()) & set((held // 5).tolist())
    assert len(held) == 20


def test_small_environments_keep_something_on_both_sides():
    kept, held = hold_out(vectors(sizes=(2, 3, 40)), 0.2, seed=0)
    assert len([i for i in kept.tolist() if i < 2]) == 1
    assert len([i for i in held.tolist() if i < 2]) == 1
    with pytest.raises(InputError, match=r"'a'.*, got 1\b"):
        hold_out(vectors(sizes=(1, 3, 40)), 0.2, seed=0)
    with pytest.raises(InputError, match=r"share must be .*, got 1\.0"):
        hold_out(vectors(), 1.0, seed=0)


def test_leave_out():
    data = vectors()
    splits = leave_out(data, "b", seed=1)
    parts = [splits.train, splits.training_domain, splits.test_domain, splits.test]
    assert [len(part) for part in parts] == [56, 14, 6, 24]
    assert [part.environment_names for part in parts] == [("a", "c"), ("a", "c"), ("b",), ("b",)]
    assert isinstance(splits.training_domain, TrainingDomainValidation)
    assert isinstance(splits.test_domain, TestDomainValidation)
    everything = torch.cat([part.batch() for part in parts]).flatten()
    assert sorted(everything.tolist()) == list(range(100))
    with pytest.raises(InputError, match="unknown test environment 'd': choose from a, b, c"):
        leave_out(data, "d", seed=1)
    with pytest.raises(InputError, match="2 environments leave 1 to train on"):
        leave_out(data.only(("a", "b")), "a", seed=1)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"labels": torch.arange(100) % 3}, "labels must be below 2, .* got 0 to 2: number them from 0 to 1"),
        ({"environments": torch.arange(100) - 1}, "environments must be below 3, .* got -1 to 98"),
        ({"environment_names": ("a", "b", "a")}, "environment 'a' is named twice"),
        ({"class_names": ("x", "x")}, "label 'x' is named twice"),
        ({"sources": torch.arange(99)}, "sources must be one for each of 100 samples, got 99"),
    ],
)
def test_sets_that_make_no_sense(changes, match):
    with pytest.raises(InputError, match=match):
        replace(vectors(), **changes)


def test_sets_are_compared_by_identity():
    data = vectors()
    assert data != vectors()
    assert len({data, leave_out(data, "a", 0).train}) == 2


def test_a_part_is_pickled_without_the_whole():
    data = vectors(sizes=(5000, 3000, 2000))
    part = data.select(torch.tensor([7, 3]))
    content = pickle.dumps(part)
    assert len(content) < 5000
    assert pickle.loads(content).batch().tolist() == [[7.0], [3.0]]


def test_biases_that_print_alike_have_names_of_their_own():
    assert Shift(biases=(1.0, 0.9)).environment_names == ("bias 100%", "bias 90%")
    assert Shift(biases=(1.0, 0.99999999)).environment_names == ("bias 100%", "bias 99.999999%")
    assert Shift(biases=(0.9, 0.9)).environment_names == ("training 1", "training 2")


def test_more_biases_than_samples():
    with pytest.raises(InputError, match="3000 bias degrees are too many for 1797 samples: give fewer"):
        load_data("10c-digits", Options(shift=Shift(biases=tuple(i / 3000 for i in range(3000)))))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"seed": 10**20}, "seed must be .*, got 1000"),
        ({"seed": -1}, "seed must be .*, got -1"),
        ({"size": 100_000}, "size must be .* <= 4096 or None, got 100000"),
        ({"shift": "combined"}, "shift must be a Shift or None, got 'combined'"),
        ({"device": "gpu3"}, "device must be .*, got 'gpu3'"),
    ],
)
def test_options_out_of_range(options, match):
    with pytest.raises(InputError, match=match):
        load_data("gaussian", Options(**options))


@pytest.mark.parametrize(
    ("refused", "match"),
    [
        (lambda: Shift(dummies=0), "dummies must be .*, got 0"),
        (lambda: BalancedSampler(vectors(), -4, 0), "batch_size must be .*, got -4"),
        (lambda: vectors().only(("a", "a")), "environment 'a' is named twice"),
        (lambda: BalancedSampler(data([10, 3]), 4, 0), "'site 1' has 3 training samples, fewer than batch_size=4"),
    ],
)
def test_values_out_of_range(refused, match):
    with pytest.raises(InputError, match=match):
        refused()


def test_the_cpu_however_it_is_written():
    for device in ("cpu", torch.device("cpu")):
        assert len(load_data("gaussian", Options(device=device)).train) > 0
    with pytest.raises(InputError, match="does not take device"):
        load_data("gaussian", Options(device="cuda"))


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
    with pytest.raises(InputError, match="weights must be one for each of 5 samples, got 4"):
        replace(source, weights=torch.ones(4))
