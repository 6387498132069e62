"""COCO and Places, the sources of SceneCOCO: instances with their masks, scenes by folder, photographs decoded small.

COCO's instance annotations hold `images`, `annotations` and `categories`. A mask is a list of polygons, or run lengths
column after column, plain or compressed; a crowd is many objects under one mask, so it is not an object here. Places
has a folder for each scene: `b/beach`, `d/desert/sand`, at any depth.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError
from ...extras import require
from ..catalogue import VARIABLE, Facts, Options, RemoteFile
from ..checks import refuse_or_skip
from ..containers import Entry, contents, entries
from ..images import is_image

SCENES_ARCHIVE = "train_256_places365standard.tar"

COCO = Facts(
    name="coco",
    title="COCO 2017: 118287 training photographs with instance masks of 80 objects",
    licence="CC BY 4.0 (annotations); photographs under Flickr's terms",
    citation="Lin et al. (2014), Microsoft COCO: Common Objects in Context",
    homepage="https://cocodataset.org",
    files=(
        RemoteFile(
            path="coco/annotations_trainval2017.zip",
            sources=(
                "http://images.cocodataset.org/annotations/annotations_trainval2017.zip",
                "https://s3.amazonaws.com/images.cocodataset.org/annotations/annotations_trainval2017.zip",
            ),
            bytes=252907541,
            digest="md5:f4bbac642086de4f52a3fdda2de5fa2c",
        ),
        RemoteFile(
            path="coco/train2017.zip",
            sources=(
                "http://images.cocodataset.org/zips/train2017.zip",
                "https://s3.amazonaws.com/images.cocodataset.org/zips/train2017.zip",
            ),
            bytes=19336861798,
            digest="md5:cced6f7f71b7629ddf16f17bbcfab6b2",
        ),
    ),
)

PLACES = Facts(
    name="places",
    title="Places365-Standard, small: 1803460 training photographs of 365 scenes, 256 x 256",
    licence="for research and education only, see the home page",
    citation="Zhou et al. (2018), Places: A 10 Million Image Database for Scene Recognition",
    homepage="http://places2.csail.mit.edu",
    shape=(3, 256, 256),
    files=(
        RemoteFile(
            path=f"places/{SCENES_ARCHIVE}",
            sources=(f"http://data.csail.mit.edu/places/places365/{SCENES_ARCHIVE}",),
            bytes=26103685120,
            digest="md5:53ca1c756c3d1e7809517cc47c5561c5",
        ),
    ),
)


@dataclass(frozen=True)
class Instance:
    """One object in a photograph."""

    number: int  # of the annotation
    label: int  # index into the classes asked for
    area: float  # pixels
    photograph: str  # name of its file
    height: int
    width: int
    segmentation: Any

    def mask(self) -> NDArray[np.uint8]:
        """1 where the object is, else 0: (height, width)."""
        coding = require("pycocotools.mask", "coco")
        runs = self.segmentation
        try:
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # pycocotools under NumPy 2
                if isinstance(runs, list):
                    runs = coding.merge(coding.frPyObjects(runs, self.height, self.width))
                elif isinstance(runs["counts"], list):
                    runs = coding.frPyObjects(runs, self.height, self.width)
                mask: NDArray[np.uint8] = coding.decode(runs)
        except Exception as error:  # pycocotools raises bare ones
            raise InputError(f"the mask of annotation {self.number} cannot be read ({error}): it is damaged") from None
        if mask.shape != (self.height, self.width) or not mask.any():
            raise InputError(
                f"the mask of annotation {self.number} is {mask.shape[1]} x {mask.shape[0]} with {mask.sum()} pixels "
                f"set, which does not fit its photograph of {self.width} x {self.height}: it is damaged"
            )
        return mask


def largest_instances(content: bytes, source: object, classes: tuple[str, ...], smallest: float) -> list[Instance]:
    """The largest instance of any of these classes in each photograph, if its area is `smallest` or more.

    They are in the order of the photographs' numbers. `source` is what errors call the file.
    """

    def needed(item: dict[str, Any]) -> dict[str, Any] | None:
        """Most annotations are too small: dropped while the file is parsed, they never take memory."""
        return None if "segmentation" in item and (item["iscrowd"] or item["area"] < smallest) else item

    try:
        parsed = json.loads(content, object_hook=needed)
        numbers = {category["name"]: category["id"] for category in parsed["categories"]}
        missing = [name for name in classes if name not in numbers]
        labels = {numbers[name]: label for label, name in enumerate(classes) if name in numbers}
        images = {image["id"]: image for image in parsed["images"]}
        largest: dict[int, Instance] = {}
        for item in filter(None, parsed["annotations"]):
            if item["category_id"] in labels:
                image = images[item["image_id"]]
                found = Instance(
                    int(item["id"]), labels[item["category_id"]], float(item["area"]),
                    str(image["file_name"]), int(image["height"]), int(image["width"]), item["segmentation"],
                )  # fmt: skip
                if image["id"] not in largest or found.area > largest[image["id"]].area:
                    largest[image["id"]] = found
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        cause = f"no {error}" if isinstance(error, KeyError) else error
        raise InputError(f"{source} is not in COCO's format ({cause}): it is damaged; fetch it again") from None
    if missing:
        raise InputError(
            f"{source} has no category {', '.join(map(repr, missing))}: use COCO 2017's instances_train2017.json"
        )
    return [largest[number] for number in sorted(largest)]


def photographs_by_scene(places: Path, scenes: Sequence[str]) -> dict[str, list[Entry]]:
    """Photographs of each of these scenes that there is, from a folder or the archive in it."""
    by_words = {_words(scene): scene for scene in scenes}

    @cache
    def scene_of(folders: tuple[str, ...]) -> str | None:
        return by_words.get(_words(*folders[-1:])) or by_words.get(_words(*folders[-2:]))

    photographs: dict[str, list[Entry]] = {}
    wanted = first_entries(
        (places, places / SCENES_ARCHIVE), lambda e: is_image(e.name) and bool(scene_of(e.folders)), "scenes", PLACES
    )
    for entry in wanted:
        photographs.setdefault(scene_of(entry.folders) or "", []).append(entry)
    return {scene: photographs[scene] for scene in scenes if scene in photographs}


def _words(*names: str) -> tuple[str, ...]:
    """The words that `forest/broadleaf`, `forest-broadleaf` and "broadleaf forest" have in common."""
    return tuple(sorted(re.findall("[a-z]+", " ".join(names).lower())))


def first_entries(paths: Sequence[Path], wanted: Callable[[Entry], bool], what: str, source: Facts) -> list[Entry]:
    """The wanted files of the first of these folders and archives that has any."""
    for path in paths:
        found = [entry for entry in entries(path) if wanted(entry)] if path.exists() else []
        if found:
            return found
    raise InputError(
        f"no {what} in {paths[0]} or {paths[1].name}: fetch {source.name} with `trm data fetch {source.name}`, or say "
        f"where the data is with --data-root or ${VARIABLE}"
    )


def shrunk_mask(mask: NDArray[np.uint8], size: int) -> Tensor:
    """How much of each pixel a mask (h, w) of zeros and ones covers, in 0..255: (1, size, size) uint8."""
    from PIL import Image

    covered = Image.fromarray(mask * np.uint8(255)).resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(covered)).unsqueeze(0)


def decode_photographs(
    wanted: Sequence[Entry], decode: Callable[[int, bytes], Tensor], what: str, where: Path, options: Options
) -> tuple[Tensor, Tensor]:
    """decode(position, content) of each entry, stacked in the order wanted; and the positions of those, ascending.

    These are all positions, unless some cannot be decoded, which is an error, or a warning with `skip_bad`.
    """
    images: Tensor | None = None
    good = torch.zeros(len(wanted), dtype=torch.bool)
    bad: list[str] = []
    for done, (i, content) in enumerate(contents(wanted), start=1):
        if options.progress is not None and (done % 64 == 0 or done == len(wanted)):
            options.progress(what, done, len(wanted))
        try:
            if isinstance(content, InputError):
                raise content
            image = decode(i, content)
        except InputError as error:
            bad.append(f"{wanted[i]} ({error})")
            continue
        if images is None:
            images = torch.empty(len(wanted), *image.shape, dtype=image.dtype)
        images[i], good[i] = image, True
    refuse_or_skip(bad, len(wanted), "photograph", where, options.skip_bad)
    assert images is not None
    return (images[good] if bad else images), good.nonzero().flatten()
