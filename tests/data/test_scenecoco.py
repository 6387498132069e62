"""SceneCOCO from files in COCO's and Places' formats, drawn here in flat colours that say what a pixel shows."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pycocotools import mask as coding

from transferrisk.data import Options, TestDomainValidation, TrainingDomainValidation, load
from transferrisk.data.coco import Instance, largest_instances
from transferrisk.data.root import VARIABLE
from transferrisk.data.sets import scenecoco
from transferrisk.data.sets.scenecoco import CLASSES, FAINTEST, SCENES, compose
from transferrisk.data.shifts import Shift
from transferrisk.errors import DataWarning, InputError

pytestmark = pytest.mark.filterwarnings("ignore:.* objects are found where:transferrisk.errors.DataWarning")

IDS = {"person": 1, "motorcycle": 4, "airplane": 5, "bus": 6, "train": 7, "truck": 8, "boat": 9, "bird": 16, "dog": 18,
       "horse": 19, "zebra": 24}  # fmt: skip
WIDTH, HEIGHT = 160, 130
BODY = [[20, 15, 130, 15, 130, 115, 20, 115]]  # x, y, ...
HALVES = [[20, 15, 70, 15, 70, 115, 20, 115], [80, 15, 130, 15, 130, 115, 80, 115]]
OBJECT, GAP, BEHIND = (32, 18), (32, 30), (2, 61)  # pixels of a sample; GAP is between the halves
LEVELS = list(itertools.product((90, 160, 240), repeat=3))
OBJECT_COLOURS = torch.tensor(LEVELS[3:23:2])
SCENE_COLOURS = torch.tensor(list(itertools.product((40, 140, 240), repeat=3))[:19])
SHADES = (0, 6, 12)  # the photographs of a scene


def picture(colour, box=None, size=(WIDTH, HEIGHT)):
    image = Image.new("RGB", size, (120, 120, 120) if box else colour)
    if box:
        image.paste(colour, box)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=100, subsampling=0)
    return file.getvalue()


def run_lengths(mask):
    """COCO's plain run lengths: column after column, zeros first."""
    flat = mask.flatten(order="F").tolist()
    runs = [len(list(group)) for _, group in itertools.groupby(flat)]
    return {"counts": [0, *runs] if flat[0] else runs, "size": list(mask.shape)}


def packed(mask):
    runs = coding.encode(np.asfortranarray(mask))
    return {"counts": runs["counts"].decode(), "size": list(mask.shape)}


def rectangle(x0, y0, x1, y1):
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[y0:y1, x0:x1] = 1
    return mask


BODY_MASK = rectangle(20, 15, 130, 115)
KINDS = (BODY, HALVES, run_lengths(BODY_MASK), packed(BODY_MASK))


class Annotations:
    """A file such as instances_train2017.json, growing."""

    def __init__(self):
        categories = [{"id": number, "name": name, "supercategory": "thing"} for name, number in IDS.items()]
        self.content = {"info": {}, "licenses": [], "images": [], "annotations": [], "categories": categories}

    def image(self, number):
        name = f"{number:012d}.jpg"
        self.content["images"].append({"id": number, "file_name": name, "width": WIDTH, "height": HEIGHT})
        return name

    def object(self, image, name, area, segmentation=BODY, crowd=0):
        number = len(self.content["annotations"]) + 1
        self.content["annotations"].append(
            {"id": number, "image_id": image, "category_id": IDS[name], "area": area, "iscrowd": crowd,
             "bbox": [20, 15, 110, 100], "segmentation": segmentation}
        )  # fmt: skip

    def encoded(self):
        return json.dumps(self.content).encode()


def draw_coco(root, each):
    """`each` photographs of each class, and what must not be used: crowds, small and other objects, empty pictures."""
    annotations = Annotations()
    images = root / "coco" / "train2017"
    images.mkdir(parents=True)
    for label, name in enumerate(CLASSES):
        content = picture(tuple(OBJECT_COLOURS[label].tolist()), (20, 15, 130, 115))
        other = CLASSES[(label + 1) % 10]
        for k in range(each):
            number = 1 + label + 10 * k
            (images / annotations.image(number)).write_bytes(content)
            annotations.object(number, other, 9999.5, [[0, 0, 60, 0, 60, 60, 0, 60]])
            annotations.object(number, name, 10000.0 if k % 4 == 1 else 11000.0, KINDS[k % 4])
            annotations.object(number, "person", 20000.0)
            annotations.object(number, other, 16000.0, run_lengths(rectangle(0, 0, 160, 100)), crowd=1)
    for number in range(100_000, 100_005):
        (images / annotations.image(number)).write_bytes(picture((255, 255, 255)))
    (root / "coco" / "annotations").mkdir()
    (root / "coco" / "annotations" / "instances_train2017.json").write_bytes(annotations.encoded())


def scene_folder(scene):
    """As in Places365."""
    name = {"desert sand": "desert/sand", "broadleaf forest": "forest/broadleaf"}.get(scene, scene.replace(" ", "_"))
    return f"data_256/{name[0]}/{name}"


def draw_places(root, scenes=SCENES):
    for scene in scenes:
        folder = root / "places" / scene_folder(scene)
        folder.mkdir(parents=True)
        for k, shade in enumerate(SHADES):
            colour = tuple(int(c) - shade for c in SCENE_COLOURS[SCENES.index(scene)])
            (folder / f"{k:08d}.jpg").write_bytes(picture(colour, size=(256, 256)))
    (root / "places" / "data_256" / "b" / "beach_house").mkdir(parents=True, exist_ok=True)
    (root / "places" / "data_256" / "b" / "beach_house" / "00000000.jpg").write_bytes(picture((255, 0, 255)))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("large")
    draw_coco(root, each=100)
    draw_places(root)
    return root


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    root = tmp_path_factory.mktemp("small")
    draw_coco(root, each=4)
    draw_places(root)
    return root


@pytest.fixture
def copied(small, tmp_path):
    return Path(shutil.copytree(small, tmp_path / "copy"))


@pytest.fixture(scope="module")
def splits(root):
    with pytest.warns(DataWarning, match="1000 objects are found where the paper has 10000: all parts of the set are"):
        return scenecoco.load(0, root=root)


def pixel(data, place):
    return data.inputs[:][:, :, place[0], place[1]].float()  # (n, 3)


def scene(data):
    """Which scene each sample is over, from a pixel beside the object; its colour must be one of the scene's."""
    shades = torch.stack([0.75 * (SCENE_COLOURS - shade) for shade in SHADES], 1)  # (19, 3, 3)
    distance, which = torch.cdist(pixel(data, BEHIND), shades.flatten(0, 1)).min(1)
    assert float(distance.max()) < 3
    return which // len(SHADES)


def parts(splits):
    return splits.train, splits.training_domain, splits.test_domain, splits.test


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
    splits = scenecoco.load(1, Shift(kind, (0.9, 0.8)), root)
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


def test_black_backgrounds_need_no_scenes(copied):
    shutil.rmtree(copied / "places")
    splits = scenecoco.load(0, Shift("label-uncorrelated", (0.9, 0.8)), copied)
    assert not pixel(splits.test, BEHIND).any()
    assert pixel(splits.test, OBJECT).all()


def test_oracle_trains_on_what_the_test_looks_like(root, splits):
    oracle = scenecoco.load(0, None, root, oracle=True)
    assert torch.equal(oracle.train.sources, splits.train.sources)  # the same objects
    tied = ties(splits.train.environment("bias 90%"))
    assert float((scene(oracle.train) == tied[oracle.train.labels]).float().mean()) < 0.16
    assert float((scene(oracle.test) == tied[oracle.test.labels]).float().mean()) < 0.16


def test_seed_decides(small):
    first, again, other = (scenecoco.load(seed, Shift("combined", (0.9, 0.8)), small) for seed in (3, 3, 4))
    for one, two in zip(parts(first), parts(again), strict=True):
        assert torch.equal(one.inputs[:], two.inputs[:])
        assert torch.equal(one.labels, two.labels)
    assert not torch.equal(first.train.inputs[:], other.train.inputs[:])
    drawn = [{int(s) for part in parts(splits) for s in scene(part)} for splits in (first, other)]
    assert drawn[0] != drawn[1]


def test_archives_give_the_same_set_by_name(copied):
    from_folders = load("scenecoco", Options(root=copied, seed=2))
    for name, folder in (("annotations_trainval2017", "annotations"), ("train2017", "train2017")):
        with zipfile.ZipFile(copied / "coco" / f"{name}.zip", "w") as archive:
            for file in sorted((copied / "coco" / folder).iterdir()):
                archive.write(file, f"{folder}/{file.name}")
        shutil.rmtree(copied / "coco" / folder)
    with tarfile.open(copied / "places" / "train_256_places365standard.tar", "w") as archive:
        archive.add(copied / "places" / "data_256", "data_256")
    shutil.rmtree(copied / "places" / "data_256")
    from_archives = load("scenecoco", Options(root=copied, seed=2))
    for one, two in zip(parts(from_folders), parts(from_archives), strict=True):
        assert torch.equal(one.inputs[:], two.inputs[:])
        assert torch.equal(one.labels, two.labels)


def test_scenes_in_other_folders_and_fewer_of_them(copied):
    shutil.rmtree(copied / "places")
    draw_places(copied, SCENES[:11])
    for old, new in (("desert sand", "desert-sand"), ("broadleaf forest", "Broadleaf forest"), ("beach", "beach")):
        shutil.move(copied / "places" / scene_folder(old), copied / "places" / new)
    with pytest.warns(DataWarning, match="has 11 of 19 scenes, not pagoda, rock arch, .* are drawn among those"):
        splits = scenecoco.load(0, Shift(biases=(0.0, 0.0)), copied)
    assert int(scene(splits.train).max()) < 11


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
         "000000000001.jpg .it is no image of a known kind.: correct or remove them"),
        (lambda r: photograph(r).write_bytes(photograph(r).read_bytes()[:700]), "000000000001.jpg .it is damaged"),
        (lambda r: rewrite(r, wrong_size), "000000000001.jpg .it has 160 x 130 pixels where 161 x 130 are expected"),
        (lambda r: [shutil.rmtree(r / "places" / scene_folder(s)) for s in SCENES[9:]],
         "has 9 of 19 scenes, not kasbah, .*, zen garden: ten are needed; fetch them with `trm data fetch places`"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(copied, damage, message):
    damage(copied)
    with pytest.raises(InputError, match=message) as caught:
        scenecoco.load(0, root=copied)
    assert "\n" not in str(caught.value)


def test_bad_photographs_can_be_left_out(copied):
    photograph(copied, 1).write_bytes(b"no picture")
    photograph(copied, 2).unlink()
    for scene_name in SCENES:
        (copied / "places" / scene_folder(scene_name) / "00000001.jpg").write_bytes(b"")
    with pytest.warns(DataWarning) as caught:
        splits = load("scenecoco", Options(root=copied, skip_bad=True))
    told = [str(warning.message) for warning in caught]
    assert "1 of 40 photographs are not in" in told[0]
    assert told[0].endswith("such as 000000000002.jpg: they are left out")
    assert "39 objects" in told[1]
    assert "1 of 39 photographs left out: " in told[2]
    assert "000000000001.jpg (it is no image" in told[2]
    assert "10 of 30 photographs left out" in told[3]
    assert sum(len(part) for part in (splits.train, splits.training_domain, splits.test)) == 38
    for part in parts(splits):
        assert float((pixel(part, OBJECT) - OBJECT_COLOURS[part.labels]).abs().max()) <= 2
        scene(part)


def test_a_scene_without_a_readable_photograph(copied):
    for scene_name in SCENES:
        for k in range(len(SHADES)):
            (copied / "places" / scene_folder(scene_name) / f"{k:08d}.jpg").write_bytes(b"")
    with pytest.raises(InputError, match=r"30 of 30 photographs cannot be used, the first is .*: correct them"):
        scenecoco.load(0, root=copied, skip_bad=True)


def test_progress_is_told(small):
    told = []
    scenecoco.load(0, root=small, progress=lambda *step: told.append(step))
    assert told == [("objects", 40, 40), ("scenes", 30, 30)]


def test_without_pycocotools_the_extra_is_named(small, monkeypatch):
    monkeypatch.setattr("transferrisk.extras.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pycocotools is not installed: pip install 'transferrisk\[coco\]'"):
        scenecoco.load(0, root=small)


REAL = Path(os.environ.get(VARIABLE, "/nonexistent"))


@pytest.mark.skipif(
    not (REAL / "coco").is_dir() or not (REAL / "places").is_dir(), reason=f"${VARIABLE} does not hold COCO and Places"
)
def test_the_real_set():
    splits = scenecoco.load(0)
    assert sum(len(part) for part in (splits.train, splits.training_domain, splits.test)) > 9500
    assert splits.train.group_counts().min() > 150
