"""SceneCOCO from files in COCO's and Places' formats, drawn here in flat colours that say what a pixel shows."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from scenes import (
    BEHIND,
    BODY,
    BODY_MASK,
    GAP,
    HALVES,
    HEIGHT,
    IDS,
    OBJECT,
    OBJECT_COLOURS,
    SCENE_COLOURS,
    SHADES,
    WIDTH,
    Annotations,
    draw_places,
    draw_scenes,
    packed,
    parts,
    pixel,
    rectangle,
    run_lengths,
    scene,
    scene_folder,
)

from transferrisk.data import Options, Shift, TestDomainValidation, TrainingDomainValidation, load_data
from transferrisk.data.roots import VARIABLE
from transferrisk.data.sets.scenecoco import CLASSES, FAINTEST, SCENES, Instance, compose, largest_instances
from transferrisk.errors import DataWarning, InputError

pytestmark = pytest.mark.filterwarnings("ignore:.* objects are found where:transferrisk.errors.DataWarning")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return draw_scenes(tmp_path_factory.mktemp("large"), each=24)


@pytest.fixture(scope="module")
def splits(root):
    with pytest.warns(DataWarning, match="240 objects are found where the paper has 10000: each is shown over several"):
        return load_data("scenecoco", Options(root=root))


def ties(data):
    """The scene that most samples of each class have, (10,)."""
    pairs = torch.bincount(data.labels * len(SCENES) + scene(data), minlength=10 * len(SCENES))
    return pairs.reshape(10, -1).argmax(1)


def test_sizes_names_and_types(splits):
    assert [len(part) for part in parts(splits)] == [992, 432, 432, 496], "62 objects of 240, eight times each"
    assert splits.train.environment_names == splits.training_domain.environment_names == ("bias 90%", "bias 80%")
    assert splits.train.group_counts().sum(1).tolist() == [496, 496]
    assert splits.train.inputs[:].shape == (992, 3, 64, 64)
    assert splits.train.inputs[:].dtype == torch.uint8
    assert splits.train.class_names == CLASSES
    assert isinstance(splits.training_domain, TrainingDomainValidation)
    assert isinstance(splits.test_domain, TestDomainValidation)
    separate = [part.sources.unique() for part in (splits.train, splits.training_domain, splits.test)]
    assert len(torch.cat(separate).unique()) == sum(map(len, separate)) == 240, "views of an object stay together"
    views = splits.train.sources == splits.train.sources[0]
    assert int(views.sum()) == 8
    assert len(splits.train.labels[views].unique()) == 1
    assert len(splits.train.inputs[:][views].flatten(1).unique(dim=0)) > 1


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
    assert open_gaps == 8 * 60  # one object in four


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


REAL = Path(os.environ.get(VARIABLE, "/nonexistent"))


@pytest.mark.skipif(
    not (REAL / "coco").is_dir() or not (REAL / "places").is_dir(), reason=f"${VARIABLE} does not hold COCO and Places"
)
@pytest.mark.filterwarnings("ignore::transferrisk.errors.DataWarning")
def test_the_real_set():
    """Or as much of it as there is, in about the paper's size."""
    splits = load_data("scenecoco")
    sizes = [*splits.train.group_counts().sum(1).tolist(), len(splits.test), len(splits.training_domain)]
    assert sizes[0] == sizes[1] == sizes[2] == pytest.approx(2600, rel=0.05)
    assert sizes[3] == pytest.approx(2200, rel=0.05)
    assert splits.train.group_counts().min() > 10


def test_archives_give_the_same_set_by_name(copied_scenes):
    from_folders = load_data("scenecoco", Options(root=copied_scenes, seed=2))
    for name, folder in (("annotations_trainval2017", "annotations"), ("train2017", "train2017")):
        with zipfile.ZipFile(copied_scenes / "coco" / f"{name}.zip", "w") as archive:
            for file in sorted((copied_scenes / "coco" / folder).iterdir()):
                archive.write(file, f"{folder}/{file.name}")
        shutil.rmtree(copied_scenes / "coco" / folder)
    with tarfile.open(copied_scenes / "places" / "train_256_places365standard.tar", "w") as archive:
        archive.add(copied_scenes / "places" / "data_256", "data_256")
    shutil.rmtree(copied_scenes / "places" / "data_256")
    from_archives = load_data("scenecoco", Options(root=copied_scenes, seed=2))
    for one, two in zip(parts(from_folders), parts(from_archives), strict=True):
        assert torch.equal(one.inputs[:], two.inputs[:])
        assert torch.equal(one.labels, two.labels)


def test_scenes_in_other_folders_and_fewer_of_them(copied_scenes):
    shutil.rmtree(copied_scenes / "places")
    draw_places(copied_scenes, SCENES[:11])
    for old, new in (("desert sand", "desert-sand"), ("broadleaf forest", "Broadleaf forest"), ("beach", "beach")):
        shutil.move(copied_scenes / "places" / scene_folder(old), copied_scenes / "places" / new)
    with pytest.warns(DataWarning, match="has 11 of 19 scenes, not pagoda, rock arch, .* are drawn among those"):
        splits = load_data("scenecoco", Options(root=copied_scenes, shift=Shift(biases=(0.0, 0.0))))
    assert int(scene(splits.train).max()) < 11


def json_path(root):
    return root / "coco" / "annotations" / "instances_train2017.json"


def rewrite(root, change):
    content = json.loads(json_path(root).read_text())
    change(content)
    json_path(root).write_text(json.dumps(content))


def without_trucks(content):
    content["categories"] = [c for c in content["categories"] if c["name"] != "truck"]


def small_trucks(content):
    for item in content["annotations"]:
        if item["category_id"] == IDS["truck"]:
            item["area"] = 5000.0


def wrong_size(content):
    content["images"][0]["width"] = 161


def photograph(root, number=1):
    return root / "coco" / "train2017" / f"{number:012d}.jpg"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda r: shutil.rmtree(r / "coco"),
         r"no instances_train2017.json in .*annotations or annotations_trainval2017.zip: fetch coco with `trm data "
         r"fetch coco`, or say where the data is with --data-root or \$TRANSFERRISK_DATA$"),
        (lambda r: shutil.rmtree(r / "coco" / "train2017"),
         "no photographs in .*train2017 or train2017.zip: fetch coco"),
        (lambda r: shutil.rmtree(r / "places"),
         "no scenes in .*places or train_256_places365standard.tar: fetch places"),
        (lambda r: json_path(r).write_bytes(json_path(r).read_bytes()[:3000]),
         "instances_train2017.json is not in COCO's format .*: it is damaged; fetch it again"),
        (lambda r: json_path(r).write_text("[]"), "instances_train2017.json is not in COCO's format"),
        (lambda r: rewrite(r, lambda c: c.pop("images")), "is not in COCO's format .no 'images'.: it is damaged"),
        (lambda r: rewrite(r, without_trucks), "has no category 'truck': use COCO 2017's instances_train2017.json"),
        (lambda r: rewrite(r, small_trucks), "has no truck of 10000 pixels or more: objects of all ten classes"),
        (lambda r: photograph(r).unlink(),
         "1 of 40 photographs are not in .*train2017, such as 000000000001.jpg: fetch them with `trm data fetch coco`"),
        (lambda r: photograph(r).write_bytes(b"no picture"),
         "000000000001.jpg .it is not an image of a known kind.: correct or remove them"),
        (lambda r: photograph(r).write_bytes(photograph(r).read_bytes()[:700]), "000000000001.jpg .it is damaged"),
        (lambda r: rewrite(r, wrong_size), "000000000001.jpg .it has 160 x 130 pixels where 161 x 130 are expected"),
        (lambda r: [shutil.rmtree(r / "places" / scene_folder(s)) for s in SCENES[9:]],
         "has 9 of 19 scenes, not kasbah, .*, zen garden: ten are needed; fetch them with `trm data fetch places`"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(copied_scenes, damage, message):
    damage(copied_scenes)
    with pytest.raises(InputError, match=message) as caught:
        load_data("scenecoco", Options(root=copied_scenes))
    assert "\n" not in str(caught.value)


def test_bad_photographs_can_be_left_out(copied_scenes):
    photograph(copied_scenes, 1).write_bytes(b"no picture")
    photograph(copied_scenes, 2).unlink()
    for scene_name in SCENES:
        (copied_scenes / "places" / scene_folder(scene_name) / "00000001.jpg").write_bytes(b"")
    with pytest.warns(DataWarning) as caught:
        splits = load_data("scenecoco", Options(root=copied_scenes, skip_bad=True))
    told = [str(warning.message) for warning in caught]
    assert "1 of 40 photographs are not in" in told[0]
    assert told[0].endswith("such as 000000000002.jpg: they are left out")
    assert "39 objects" in told[1]
    assert "1 of 39 photographs left out: " in told[2]
    assert "000000000001.jpg (it is not an image" in told[2]
    assert "10 of 30 photographs left out" in told[3]
    assert sum(len(part) for part in (splits.train, splits.training_domain, splits.test)) == 8 * 38
    for part in parts(splits):
        assert float((pixel(part, OBJECT) - OBJECT_COLOURS[part.labels]).abs().max()) <= 2
        scene(part)


def test_a_scene_without_a_readable_photograph(copied_scenes):
    for scene_name in SCENES:
        for k in range(len(SHADES)):
            (copied_scenes / "places" / scene_folder(scene_name) / f"{k:08d}.jpg").write_bytes(b"")
    with pytest.raises(InputError, match=r"30 of 30 photographs cannot be used, the first is .*: correct them"):
        load_data("scenecoco", Options(root=copied_scenes, skip_bad=True))


def test_progress_is_told(small_scenes):
    told = []
    load_data("scenecoco", Options(root=small_scenes, progress=lambda *step: told.append(step)))
    assert told == [("objects", 40, 40), ("scenes", 30, 30)]


def test_without_pycocotools_the_extra_is_named(small_scenes, monkeypatch):
    monkeypatch.setattr("transferrisk.extras.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pycocotools is not installed: pip install 'transferrisk\[coco\]'"):
        load_data("scenecoco", Options(root=small_scenes))


def test_the_largest_instance_of_the_classes():
    annotations = Annotations()
    for number in (5, 3, 8, 9, 11):
        annotations.image(number)
    annotations.object(5, "boat", 10500)
    annotations.object(5, "dog", 12000)
    annotations.object(5, "bird", 11000)
    annotations.object(5, "person", 15000)
    annotations.object(5, "zebra", 20000, run_lengths(BODY_MASK), crowd=1)
    annotations.object(3, "bus", 10000)
    annotations.object(8, "bus", 9999)
    annotations.object(9, "truck", 15000, packed(BODY_MASK), crowd=1)
    found = largest_instances(annotations.encoded(), "file", CLASSES, 10_000)
    assert [(i.photograph, CLASSES[i.label], i.area) for i in found] == [
        ("000000000003.jpg", "bus", 10000), ("000000000005.jpg", "dog", 12000),
    ]  # fmt: skip


def instance(segmentation):
    return Instance(7, 0, 11000.0, "x.jpg", HEIGHT, WIDTH, segmentation)


def test_masks_in_every_coding():
    ragged = (np.random.default_rng(0).random((HEIGHT, WIDTH)) < 0.5).astype(np.uint8)
    for mask in (ragged, 1 - ragged, BODY_MASK):
        assert np.array_equal(instance(run_lengths(mask)).mask(), mask)
        assert np.array_equal(instance(packed(mask)).mask(), mask)
    for polygons, mask in ((BODY, BODY_MASK), (HALVES, BODY_MASK - rectangle(70, 15, 80, 115))):
        assert int((instance(polygons).mask() != mask).sum()) <= 2 * 2 * (110 + 100)  # the rim is a matter of rounding


@pytest.mark.parametrize(
    "segmentation",
    ["polygon", {"counts": [1]}, {"counts": 5, "size": [HEIGHT, WIDTH]}, [], run_lengths(np.ones((5, 5), np.uint8)),
     run_lengths(np.zeros((HEIGHT, WIDTH), np.uint8))],
)  # fmt: skip
def test_damaged_masks(segmentation):
    with pytest.raises(InputError, match=r"the mask of annotation 7 .* it is damaged"):
        instance(segmentation).mask()


def test_compose():
    objects = torch.tensor([200, 100, 50, 255, 200, 100, 50, 0, 200, 100, 50, 51], dtype=torch.uint8)
    objects = objects.reshape(1, 3, 4).permute(0, 2, 1).unsqueeze(2)  # one image of 1 x 3: covered, open, a fifth
    scenes = torch.tensor([[40, 80, 120]], dtype=torch.uint8)[:, :, None, None].expand(1, 3, 1, 3)
    images = compose(objects, scenes, torch.tensor([[0.5, 1.0, 0.2]]))
    assert images.tolist() == [[[[100, 30, 44]], [[100, 60, 68]], [[10, 90, 74]]]]
