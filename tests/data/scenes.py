"""COCO and Places in a few flat colours, from which every part of SceneCOCO can be told."""

from __future__ import annotations

import io
import itertools
import json

import numpy as np
import pytest
import torch
from PIL import Image

from transferrisk.data.sets.scenecoco import CLASSES, SCENES

coding = pytest.importorskip("pycocotools.mask", reason="pip install 'transferrisk[coco]'")

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


def draw_scenes(root, each):
    """COCO and Places in a folder, which is returned."""
    draw_coco(root, each)
    draw_places(root)
    return root


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
