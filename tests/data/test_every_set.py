"""What holds of every data set, whatever it is made of; and the published sizes of those that have them."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scenes
import test_celeba
import test_cmnist
import test_wilds
import torch
from drawn import picture, sites, write_folder, write_tar

from transferrisk.data import (
    BalancedSampler,
    EnvironmentSet,
    Facts,
    Options,
    Shift,
    Splits,
    TestDomainValidation,
    TrainingDomainValidation,
    available,
    load_data,
    load_splits,
)
from transferrisk.data.catalogue import DATA_SETS, DataSet, available_sources, find_set, register
from transferrisk.data.roots import VARIABLE
from transferrisk.errors import DataWarning, InputError


def published(root, name, suffix="png"):
    """One picture under all the names a published set has: its real number of files, at the size of a few bytes."""
    facts = available()[name].facts
    content = picture(size=(1, 1))
    files = {}
    for environment, count in facts.environments.items():
        for i in range(count):
            files[f"{environment}/{facts.classes[i % len(facts.classes)]}/{i}.{suffix}"] = content
    write_tar(root / facts.folder / "all.tar", files)
    return name, Options(root=root, size=2)


def table(root, kind):
    generator = np.random.default_rng(0)
    n = 90
    site, label = np.repeat(["a", "b", "c"], n // 3), np.tile(["no", "yes"], n // 2)
    features = generator.normal(size=(n, 3)).astype(np.float32)
    frame = pd.DataFrame(features, columns=["x", "y", "z"]).assign(label=label, environment=site)
    if kind == "npz":
        np.savez(root / "file.npz", features=features, labels=label, environments=site)
        return f"npz:{root / 'file.npz'}", Options()
    if kind == "parquet":
        frame.to_parquet(root / "file.parquet")
        return f"parquet:{root / 'file.parquet'}", Options()
    frame.to_csv(root / "file.csv", index=False)
    return f"table:{root / 'file.csv'}", Options(label="label", environment="environment")


def manifest(root):
    write_folder(root, sites())
    rows = [{"path": n, "label": n.split("/")[1], "environment": n.split("/")[0]} for n in sites()]
    pd.DataFrame(rows).to_csv(root / "list.csv", index=False)
    return f"manifest:{root / 'list.csv'}", Options(size=6)


def prepare(name, root, monkeypatch):
    """The name and the options under which a small or empty-looking version of a set can be loaded."""
    if name in ("10c-cmnist", "10c-cmnist-public"):
        test_cmnist.write_set(root, n=1500)
        test_cmnist.write_set(root, n=500, part="t10k")
        return name, Options(root=root)
    if name == "celeba":
        test_celeba.publish_small(monkeypatch)
        return name, test_celeba.lay_out(root, "official")
    if name == "scenecoco":
        scenes.draw_scenes(root, 8)
        return name, Options(root=root)
    if name == "wilds":
        monkeypatch.setitem(sys.modules, "wilds", test_wilds.stand_in())
        return "wilds:camelyon17", Options(size=8)
    if name in ("pacs", "office-home"):
        return published(root, name)
    if name == "folder":
        return f"folder:{write_folder(root / 'own', sites())}", Options(size=6)
    if name == "manifest":
        return manifest(root)
    if name in ("table", "npz", "parquet"):
        return table(root, name)
    return name, Options()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Each set is prepared and loaded once."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TRANSFERRISK_CACHE", str(tmp_path_factory.mktemp("contract")))
        found = {}

        def get(name):
            if name not in found:
                called, options = prepare(name, tmp_path_factory.mktemp("data"), monkeypatch)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DataWarning)  # small sets lack some things
                    found[name] = called, options, load_data(called, options), load_data(called, options)
            return found[name]

        yield get


def parts_of(data):
    return (
        [data] if isinstance(data, EnvironmentSet) else [data.train, data.training_domain, data.test_domain, data.test]
    )


NAMES = sorted(available())


@pytest.mark.parametrize("name", NAMES)
def test_samples(loaded, name):
    _, options, data, _ = loaded(name)
    facts = available()[name].facts
    for part in parts_of(data):
        assert len(part) == len(part.inputs) == len(part.labels) == len(part.environments) > 0
        assert set(part.labels.tolist()) <= set(range(len(part.class_names)))
        assert set(part.environments.tolist()) == set(range(len(part.environment_names)))
        for names in (part.class_names, part.environment_names):
            assert len(set(names)) == len(names)
            assert all(isinstance(n, str) and n for n in names)
        raw, batch = part.inputs[:2], part.batch(torch.tensor([0]))
        assert raw.dtype == (torch.uint8 if raw.dim() == 4 else torch.float32)
        assert batch.dtype == torch.float32
        if raw.dim() == 4:
            assert 0 <= float(batch.min()) <= float(batch.max()) <= 1
        if facts.shape and options.size is None:
            assert tuple(raw.shape[1:]) == facts.shape
        if facts.classes:
            assert part.class_names == facts.classes
        x, label, environment = part[len(part) - 1]
        assert torch.equal(x, part.batch(slice(len(part) - 1, None))[0])
        assert (label, environment) == (int(part.labels[-1]), int(part.environments[-1]))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_again(loaded, name):
    _, _, data, again = loaded(name)
    for one, other in zip(parts_of(data), parts_of(again), strict=True):
        assert torch.equal(one.inputs[:], other.inputs[:])
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.environments, other.environments)
        assert one.environment_names == other.environment_names


@pytest.mark.parametrize("name", NAMES)
def test_splits_can_be_trained_on(loaded, name):
    called, options, data, _ = loaded(name)
    choice = data.environment_names[-1] if isinstance(data, EnvironmentSet) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        splits = load_splits(called, options, choice)
    assert isinstance(splits, Splits)
    assert isinstance(splits.training_domain, TrainingDomainValidation)
    assert isinstance(splits.test_domain, TestDomainValidation)
    assert len(splits.train.environment_names) >= 2
    assert splits.training_domain.environment_names == splits.train.environment_names
    assert len({part.class_names for part in parts_of(splits)}) == 1
    sampler = BalancedSampler(splits.train, 2, seed=0)
    drawn = splits.train.environments[sampler.next()]
    assert torch.bincount(drawn).tolist() == [2] * len(splits.train.environment_names)


@pytest.mark.parametrize("name", NAMES)
def test_an_option_without_effect_is_refused(loaded, name):
    called, options, _, _ = loaded(name)
    taken = available()[name].takes
    for option, value in (("shift", Shift()), ("lazy", True), ("features", "x"), ("oracle", True), ("path", "x")):
        if option not in taken:
            with pytest.raises(InputError, match=f"does not take {option}"):
                load_data(called, replace(options, **{option: value}))


@pytest.mark.parametrize("name", ["10c-digits", "10c-cmnist", "10c-cmnist-public", "gaussian", "scenecoco"])
def test_another_seed_draws_another_set(loaded, name):
    called, options, data, _ = loaded(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        other = load_data(called, replace(options, seed=1))
    assert not torch.equal(other.train.inputs[:], data.train.inputs[:])


@pytest.mark.parametrize("name", ["10c-digits", "gaussian", "pacs", "office-home"])
def test_published_sizes(loaded, name):
    _, _, data, _ = loaded(name)
    facts = available()[name].facts
    if isinstance(data, Splits):
        counts = dict(zip(data.train.environment_names, data.train.group_counts().sum(1).tolist(), strict=True))
        if name == "gaussian":  # validation is a part of the environments there
            assert facts.samples == sum(map(len, parts_of(data)))
        else:
            counts |= {data.test.environment_names[0]: len(data.test)}
            assert counts == facts.environments
            assert len(data.training_domain) == len(data.test_domain) == facts.validation
    else:
        counts = dict(zip(data.environment_names, data.group_counts().sum(1).tolist(), strict=True))
        assert counts == facts.environments


def test_published_figures():
    facts = {name: data_set.facts for name, data_set in available().items()}
    assert (facts["pacs"].samples, len(facts["pacs"].classes)) == (9991, 7)
    assert list(facts["pacs"].environments.values()) == [2048, 2344, 1670, 3929]
    assert (facts["office-home"].samples, len(facts["office-home"].classes)) == (15588, 65)
    assert facts["10c-cmnist"].samples == 60000
    assert facts["scenecoco"].samples == 10000
    assert facts["celeba"].samples == 202599


@pytest.mark.parametrize("name", [*NAMES, *available_sources()])
def test_facts_are_complete(name):
    facts = available_sources()[name] if name in available_sources() else available()[name].facts
    assert facts.title
    assert facts.licence
    if name in available_sources() or facts.environments:
        assert facts.citation
    for file in facts.files:
        assert file.bytes > 0
        kind, _, value = (file.digest or file.content).partition(":")
        assert len(value) == {"md5": 32, "sha256": 64}[kind]
        assert kind == "sha256" or facts.name in ("coco", "places"), "others publish MD5 alone"
        assert file.sources[0].startswith(("https://", "pip:"))
        secure = [source.startswith(("https://", "pip:")) for source in file.sources]
        assert secure == sorted(secure, reverse=True)


def test_an_unknown_name():
    with pytest.raises(InputError, match=r"unknown data set 'pasc': did you mean 'pacs'\?"):
        load_data("pasc")
    with pytest.raises(InputError, match="'mnist' has no environments itself: use '10c-cmnist'"):
        load_data("mnist")
    with pytest.raises(InputError, match="write folder:PATH"):
        load_data("folder")
    with pytest.raises(InputError, match="write pacs"):
        load_data("pacs:x")


def test_a_set_of_ones_own():
    data = EnvironmentSet(torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4, ("a", "b"), ("x", "y"))
    mine = DataSet(Facts("mine", "my set", "my own", ""), lambda argument, options: data)
    with DATA_SETS.temporary():
        register(mine)
        register(mine)  # again is no harm
        assert load_data("mine") is data
        assert find_set("mine") == (mine, "")
        with pytest.raises(InputError, match="'mine' is already registered"):
            register(replace(mine, takes=frozenset({"size"})))
    assert "mine" not in available()


REAL = Path(os.environ.get(VARIABLE, "/nonexistent"))


@pytest.mark.skipif(not (REAL / "PACS").is_dir(), reason=f"${VARIABLE} does not hold PACS")
def test_the_real_pacs():
    data = load_data("pacs", Options(size=32))
    assert data.group_counts().sum(1).tolist() == [2048, 2344, 1670, 3929]
    assert data.group_counts()[3].tolist() == [772, 740, 753, 608, 816, 80, 160]
    sketches = data.environment("sketch").batch(torch.arange(100))
    assert float(sketches.mean()) > 0.85  # thin lines on white
    assert float((sketches[:, 0] - sketches[:, 1]).abs().mean()) < 0.02
