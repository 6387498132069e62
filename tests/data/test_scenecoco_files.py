"""SceneCOCO from archives, other folders and files that are damaged."""

from __future__ import annotations

import json
import shutil
import tarfile
import zipfile

import pytest
import torch
from scenes import (
    IDS,
    OBJECT,
    OBJECT_COLOURS,
    SHADES,
    draw_places,
    parts,
    pixel,
    scene,
    scene_folder,
)

from transferrisk.data import Options, Shift, load_data
from transferrisk.data.sets.scenecoco import SCENES
from transferrisk.errors import DataWarning, InputError

pytestmark = pytest.mark.filterwarnings("ignore:.* objects are found where:transferrisk.errors.DataWarning")


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
    assert sum(len(part) for part in (splits.train, splits.training_domain, splits.test)) == 38
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
