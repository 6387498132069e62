"""SceneCOCO from files in COCO's and Places' formats, drawn here in flat colours that say what a pixel shows."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from scenes import (
    BEHIND,
    GAP,
    OBJECT,
    OBJECT_COLOURS,
    SCENE_COLOURS,
    SHADES,
    draw_scenes,
    parts,
    pixel,
    scene,
)

from transferrisk.data import Options, Shift, TestDomainValidation, TrainingDomainValidation, load_data
from transferrisk.data.catalogue import VARIABLE
from transferrisk.data.sets.scenecoco import CLASSES, FAINTEST, SCENES
from transferrisk.errors import DataWarning

pytestmark = pytest.mark.filterwarnings("ignore:.* objects are found where:transferrisk.errors.DataWarning")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return draw_scenes(tmp_path_factory.mktemp("large"), each=100)


@pytest.fixture(scope="module")
def splits(root):
    with pytest.warns(DataWarning, match="1000 objects are found where the paper has 10000: all parts of the set are"):
        return load_data("scenecoco", Options(root=root))


def ties(data):
    """The scene that most samples of each class have, (10,)."""
    pairs = torch.bincount(data.labels * len(SCENES) + scene(data), minlength=10 * len(SCENES))
    return pairs.reshape(10, -1).argmax(1)


def test_sizes_names_and_types(splits):
    assert [len(part) for part in parts(splits)] == [520, 220, 220, 260]
    assert splits.train.environment_names == splits.training_domain.environment_names == ("bias 90%", "bias 80%")
    assert splits.train.group_counts().sum(1).tolist() == [260, 260]
    assert splits.train.inputs[:].shape == (520, 3, 64, 64)
    assert splits.train.inputs[:].dtype == torch.uint8
    assert splits.train.class_names == CLASSES
    assert isinstance(splits.training_domain, TrainingDomainValidation)
    assert isinstance(splits.test_domain, TestDomainValidation)
    sources = torch.cat([part.sources for part in (splits.train, splits.training_domain, splits.test)])
    assert len(sources.unique()) == 1000


def test_labels_are_those_of_the_objects(splits):
    for part in parts(splits):
        colours = pixel(part, OBJECT)
        assert float((colours - OBJECT_COLOURS[part.labels]).abs().max()) <= 2  # its own colours, and not another's


def test_masks_of_several_parts_leave_the_gap_open(splits):
    open_gaps = 0
    for part in (splits.train, splits.training_domain, splits.test):
        gap, behind, body = (pixel(part, place) for place in (GAP, BEHIND, OBJECT))
        through = (gap - behind).abs().amax(1) <= 1
        assert (through | ((gap - body).abs().amax(1) <= 1)).all()
        open_gaps += int(through.sum())
    assert open_gaps == 250  # one in four


def test_objects_stay_where_they_are_in_the_photograph(splits):
    inside = np.zeros((64, 64), bool)
    inside[9:55, 10:27] = True  # well within 15..115 of 130 rows, and 20..70 of 160 columns
    outside = np.ones((64, 64), bool)
    outside[6:58, 6:54] = False
    images = splits.train.inputs[:].float()
    assert float(images[:, :, inside].std(2).max()) < 1
    assert float(images[:, :, outside].std(2).max()) < 1


def test_scenes_follow_the_label_as_stated(splits):
    first, second = (splits.train.environment(name) for name in splits.train.environment_names)
    tied = ties(first)
    assert len(tied.unique()) == 10
    assert set(scene(splits.test).tolist()) == set(tied.tolist())  # ten scenes, and no other
    for data, share in (
        (first, 0.91), (second, 0.82), (splits.test, 0.1), (splits.test_domain, 0.1),
        (splits.training_domain.environment("bias 90%"), 0.91), (splits.training_domain.environment("bias 80%"), 0.82),
    ):  # fmt: skip
        realised = float((scene(data) == tied[data.labels]).float().mean())
        assert realised == pytest.approx(share, abs=4 * (share * (1 - share) / len(data)) ** 0.5)


def test_any_photograph_of_a_scene_may_be_behind(splits):
    shades = SCENE_COLOURS[scene(splits.train)] - pixel(splits.train, BEHIND) / 0.75
    nearest = (shades.mean(1, keepdim=True) - torch.tensor(SHADES)).abs().argmin(1)
    assert float((torch.bincount(nearest) / len(nearest) - 1 / 3).abs().max()) < 0.1


def clusters(points, tolerance=0.03):
    """How many points lie around each of as few centres as it takes."""
    counts, centres = [], []
    for point in points:
        for i, centre in enumerate(centres):
            if float((point - centre).abs().max()) < tolerance:
                counts[i] += 1
                break
        else:
            centres.append(point)
            counts.append(1)
    return centres, counts


@pytest.mark.parametrize("kind", ["label-uncorrelated", "combined"])
def test_five_tints_for_each_environment(root, kind):
    splits = load_data("scenecoco", Options(root=root, seed=1, shift=Shift(kind, (0.9, 0.8))))
    every = []
    for part in (*(splits.train.environment(name) for name in splits.train.environment_names), splits.test):
        tints = pixel(part, OBJECT) / OBJECT_COLOURS[part.labels]
        centres, counts = clusters(tints)
        assert len(centres) == 5
        assert max(abs(count / len(part) - 0.2) for count in counts) < 0.1
        assert all(float(centre.min()) > FAINTEST - 0.02 for centre in centres)
        every += centres
    assert len(clusters(every)[0]) == 15  # of its own
    if kind == "label-uncorrelated":
        assert not any(pixel(part, BEHIND).any() for part in parts(splits))
    else:
        assert len(scene(splits.train).unique()) == 10


def test_black_backgrounds_need_no_scenes(copied_scenes):
    shutil.rmtree(copied_scenes / "places")
    splits = load_data("scenecoco", Options(root=copied_scenes, shift=Shift("label-uncorrelated", (0.9, 0.8))))
    assert not pixel(splits.test, BEHIND).any()
    assert pixel(splits.test, OBJECT).all()


def test_oracle_trains_on_what_the_test_looks_like(root, splits):
    oracle = load_data("scenecoco", Options(root=root, oracle=True))
    assert torch.equal(oracle.train.sources, splits.train.sources)  # the same objects
    tied = ties(splits.train.environment("bias 90%"))
    assert float((scene(oracle.train) == tied[oracle.train.labels]).float().mean()) < 0.16
    assert float((scene(oracle.test) == tied[oracle.test.labels]).float().mean()) < 0.16


def test_seed_decides(small_scenes):
    first, again, other = (
        load_data("scenecoco", Options(root=small_scenes, seed=seed, shift=Shift("combined", (0.9, 0.8))))
        for seed in (3, 3, 4)
    )
    for one, two in zip(parts(first), parts(again), strict=True):
        assert torch.equal(one.inputs[:], two.inputs[:])
        assert torch.equal(one.labels, two.labels)
    assert not torch.equal(first.train.inputs[:], other.train.inputs[:])
    drawn = [{int(s) for part in parts(splits) for s in scene(part)} for splits in (first, other)]
    assert drawn[0] != drawn[1]


REAL = Path(os.environ.get(VARIABLE, "/nonexistent"))


@pytest.mark.skipif(
    not (REAL / "coco").is_dir() or not (REAL / "places").is_dir(), reason=f"${VARIABLE} does not hold COCO and Places"
)
def test_the_real_set():
    splits = load_data("scenecoco")
    assert sum(len(part) for part in (splits.train, splits.training_domain, splits.test)) > 9500
    assert splits.train.group_counts().min() > 150
