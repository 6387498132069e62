"""The batches are the sampler's draws, wherever the data lies, whoever reads it, and after a restart."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
from dataclasses import dataclass, replace

import pytest
import torch
from small import Killed, kill_at, small_run, without_time
from torch import Tensor

from transferrisk.algorithms import Team
from transferrisk.data import BalancedSampler, EnvironmentSet, WholeSampler
from transferrisk.errors import InputError, TransferRiskError
from transferrisk.results import read_records
from transferrisk.training import RunFolder
from transferrisk.training.feed import Feed

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Undecoded:
    """Inputs that are no tensor before they are asked for; sample `bad` cannot be had."""

    content: Tensor
    bad: int | None = None

    def __len__(self):
        return len(self.content)

    def __getitem__(self, index):
        positions = torch.arange(len(self))[index]
        if self.bad is not None and self.bad in positions.tolist():
            raise InputError(f"sample {self.bad} is damaged: remove it")
        return self.content[positions]


def images(n=40):
    generator = torch.Generator().manual_seed(0)
    content = torch.randint(256, (n, 3, 4, 4), generator=generator).to(torch.uint8)
    return EnvironmentSet(
        content, torch.arange(n) % 2, (torch.arange(n) >= n // 3).long(), ("a", "b"), ("x", "y")
    )  # fmt: skip


def lazy(data, bad=None):
    return replace(data, inputs=Undecoded(data.inputs, bad))


def test_a_batch_is_what_the_sampler_drew():
    data = images()
    feed, sampler = Feed(data, BalancedSampler(data, 5, 0), CPU), BalancedSampler(data, 5, 0)
    for _ in range(7):
        batch, index = feed.next(), sampler.next()
        assert torch.equal(batch.inputs, data.inputs[index].float() / 255)
        assert torch.equal(batch.labels, data.labels[index])
        assert torch.equal(batch.environments, data.environments[index])


def test_what_must_be_decoded_is_streamed():
    data = images()

    def loaders(data, device=CPU):
        return Feed(data, WholeSampler(data), device, loaders=2).loaders

    assert loaders(data) == loaders(data.select(torch.arange(5))) == 0
    assert loaders(lazy(data)) == loaders(lazy(data).select(torch.arange(5))) == 2
    assert loaders(data, torch.device("meta")) == 2


def test_streaming_gives_the_same_batches_also_after_a_restart():
    """The state saved after four batches knows nothing of those that were read ahead."""
    data = images()
    resident = Feed(data, BalancedSampler(data, 5, 0), CPU)
    expected = [resident.next() for _ in range(9)]
    before = torch.get_rng_state()
    sampler = BalancedSampler(data, 5, 0)
    streaming = Feed(lazy(data), sampler, CPU, loaders=2)
    batches = [streaming.next() for _ in range(4)]
    saved = copy.deepcopy(sampler.state_dict())
    streaming.next()
    streaming.close()
    resumed = BalancedSampler(data, 5, seed=99)
    resumed.load_state_dict(saved)
    again = Feed(lazy(data), resumed, CPU, loaders=1)
    batches += [again.next() for _ in range(5)]
    again.close()
    for one, other in zip(expected, batches, strict=True):
        for a, b in zip(one[:3], other[:3], strict=True):
            assert torch.equal(a, b)
    assert torch.equal(torch.get_rng_state(), before)  # the loader drew nothing from torch's generator


def test_more_loaders_than_processors_give_no_warning(monkeypatch):
    """The loader would warn, and warnings are errors here."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    data = images()
    feed = Feed(lazy(data), BalancedSampler(data, 5, 0), CPU, loaders=2)
    expected = data.batch(BalancedSampler(data, 5, 0).next())
    assert torch.equal(feed.next().inputs, expected)
    feed.close()


def test_a_streamed_run_that_is_cut_is_the_resident_one(tmp_path):
    def run(loaders):
        small = small_run("trm", settings={"query": "random"})
        train_set = small.sets["train"]
        if loaders:
            train_set = replace(train_set, inputs=Undecoded(train_set.inputs))
        return replace(small, sets=small.sets | {"train": train_set}, engine={"loaders": loaders})

    whole = run(0).train()
    with pytest.raises(Killed):
        run(2).train(RunFolder(tmp_path, every=2, say=print), kill_at(5))
    run(1).train(RunFolder(tmp_path, resume=True))
    assert without_time(read_records(tmp_path / "records.jsonl")) == without_time(whole.history)


@pytest.mark.parametrize("loaders", [0, 2])
def test_an_input_that_cannot_be_read_is_one_line(loaders):
    data = images()
    feed = Feed(lazy(data, bad=3), BalancedSampler(data, 5, 0), CPU, loaders=loaders)
    with pytest.raises(TransferRiskError, match=r"^sample 3 is damaged: remove it$"):
        [feed.next() for _ in range(9)]


def test_the_processes_end_with_the_feed_though_an_error_holds_its_iterator():
    data = images()
    for end in (Feed.close, lambda feed: None):
        before = set(multiprocessing.active_children())
        feed = Feed(lazy(data, bad=3), BalancedSampler(data, 5, 0), CPU, loaders=2)
        with pytest.raises(InputError) as held:
            [feed.next() for _ in range(9)]
        children = set(multiprocessing.active_children()) - before
        assert sum(child.is_alive() for child in children) == 2
        end(feed)
        held.value.__traceback__ = None
        del feed, held
        gc.collect()
        assert not any(child.is_alive() for child in children)


def test_augmentation_has_a_stream_of_its_own_and_varies_images_only():
    data = images()

    def batches(seed, count=3):
        generator = torch.Generator().manual_seed(seed)
        feed = Feed(data, BalancedSampler(data, 5, 0), CPU, generator)
        return [feed.next().inputs for _ in range(count)]

    plain = Feed(data, BalancedSampler(data, 5, 0), CPU).next().inputs
    before = torch.get_rng_state()
    first, again, other = batches(0), batches(0), batches(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], plain)
    vectors = replace(data, inputs=torch.randn(40, 6))
    feed = Feed(vectors, BalancedSampler(vectors, 5, 0), CPU, torch.Generator())
    assert torch.equal(feed.next().inputs, vectors.inputs[BalancedSampler(vectors, 5, 0).next()])


def test_processes_share_every_environment_of_a_batch():
    data = images()
    whole = Feed(data, BalancedSampler(data, 6, 0), CPU).next()
    parts = [Feed(data, BalancedSampler(data, 6, 0), CPU, team=Team(rank, 3)).next() for rank in range(3)]
    for part in parts:
        assert part.environments.tolist() == [0, 0, 1, 1]
    together = torch.cat([part.inputs for part in parts]).flatten(1)
    assert sorted(together.tolist()) == sorted(whole.inputs.flatten(1).tolist())
    with pytest.raises(InputError, match=r"batch_size must be a multiple of 3.* got 5"):
        Feed(data, BalancedSampler(data, 5, 0), CPU, team=Team(0, 3)).next()


def test_a_batch_of_all_samples_is_in_no_blocks_and_carries_their_weights():
    data = replace(images(), weights=torch.linspace(0, 1, 40))
    feed = Feed(data, WholeSampler(data), CPU)
    batch = feed.next()
    order = data.environments.argsort(stable=True)
    assert batch.block is None
    assert torch.equal(batch.weights, data.weights[order])
    assert torch.equal(batch.environments, data.environments[order])
    shared = Feed(data, WholeSampler(data), CPU, team=Team(0, 2))
    with pytest.raises(InputError, match=r"batch_size must .* got None"):
        shared.next()
