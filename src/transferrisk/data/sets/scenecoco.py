"""scenecoco: objects cut out of COCO over scenes of Places, 64 x 64 (section 5.1 and appendix B.1.2).

Causal         the object, one of ten classes: in each photograph the largest instance, of 10000 pixels or more
Non-causal     the scene behind it, at 0.75 of its brightness: of ten scenes drawn a run, tied to the label by a random
               bijection; black where it takes no part
Dummy          a colour that tints the object, one of five that each environment draws for itself; the object's own
               colours where it takes no part
Splits         2600 for each of two training environments and the test, 2200 for validation; see
               `shifts.build_splits`
Views          with fewer than 10000 objects, each is shown as often, in another scene and tint each time, as it takes
               to reach about these sizes, eight times at most; all its images are in one part of the set
Source         <root>/coco/annotations/instances_train2017.json and <root>/coco/train2017/, or the archives
               annotations_trainval2017.zip and train2017.zip; <root>/places/ with a folder a scene, nested in any way,
               or train_256_places365standard.tar in it

COCO's instance annotations hold `images`, `annotations` and `categories`. A mask is a list of polygons, or run lengths
column after column, plain or compressed; a crowd is many objects under one mask, so it is not an object here.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from ...errors import SKIP_BAD, DataWarning, InputError, refuse_or_skip, warn
from ...extras import require
from ..catalogue import DataSet, Options, register
from ..containers import Entry, contents, entries
from ..facts import Facts, RemoteFile
from ..images import decode, is_image
from ..roots import VARIABLE, data_root
from ..shifts import Shift, build_splits, split_sizes
from ..splits import Splits

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
            sources=("https://s3.amazonaws.com/images.cocodataset.org/annotations/annotations_trainval2017.zip",),
            bytes=252907541,
            digest="md5:f4bbac642086de4f52a3fdda2de5fa2c",
        ),
        RemoteFile(
            path="coco/train2017.zip",
            sources=("https://s3.amazonaws.com/images.cocodataset.org/zips/train2017.zip",),
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
            sources=tuple(
                f"{scheme}://data.csail.mit.edu/places/places365/{SCENES_ARCHIVE}" for scheme in ("https", "http")
            ),
            bytes=26103685120,
            digest="md5:53ca1c756c3d1e7809517cc47c5561c5",
        ),
    ),
)

CLASSES = ("boat", "airplane", "truck", "dog", "zebra", "horse", "bird", "train", "bus", "motorcycle")
SCENES = (
    "beach", "canyon", "building facade", "staircase", "desert sand", "crevasse", "bamboo forest", "broadleaf forest",
    "ball pit", "kasbah", "lighthouse", "pagoda", "rock arch", "oast house", "orchard", "viaduct", "water tower",
    "waterfall", "zen garden",
)  # fmt: skip
SHIFT = Shift("label-correlated", (0.9, 0.8))
SIZE = 64
SMALLEST = 10_000  # pixels of an object
EACH = 1000  # objects of a class, and photographs of a scene
MOST_VIEWS = 8  # of an object
SCENE_BRIGHTNESS = 0.75
FAINTEST = 0.25  # share of a channel that a tint leaves, at least

FACTS = Facts(
    name="scenecoco",
    title="SceneCOCO: objects of COCO over scenes of Places",
    licence="those of COCO and Places, below",
    citation="Xu & Jaakkola (2021), Learning Representations that Support Robust Transfer of Predictors; Ahmed et al. "
    f"(2021), Systematic generalisation with group invariant predictions; {COCO.citation}; {PLACES.citation}",
    environments={"bias 90%": 2600, "bias 80%": 2600, "unbiased": 2600},
    test="unbiased",
    validation=2200,
    classes=CLASSES,
    shape=(3, SIZE, SIZE),
    departures="bias 90% in the first environment, as the main text says, where the appendix says 100%; five object "
    "colours, where the appendix says five and ten. Where the paper is silent: objects stay where they are in their "
    "photograph, which is resized as a whole, and a tint multiplies, both as in the public code; colours are random, "
    "each channel at least 0.25 so that objects stay visible (public code: five of the ten digit colours); ten scenes "
    "are drawn a run from the 19, all of which Places365 has, as the paper says (public code: always the first ten), "
    "and 1000 photographs of each; crowds are not objects; a photograph gives one object; without "
    "scenes the background is black; where fewer than 10000 objects are found, each is shown several times, over "
    "another scene and in another tint, eight times at most, so that the set has about the paper's size",
)


def load_scenecoco(_: str, options: Options) -> Splits:
    """Return one draw of the set; with `skip_bad`, photographs that cannot be read are left out, with a warning."""
    require("pycocotools.mask", "coco")  # before minutes are spent on reading
    shift, folder = options.shift or SHIFT, data_root(options.root)
    generator = Generator().manual_seed(50_000 + options.seed)
    objects, labels = cut_outs(folder / "coco", generator, options)
    scenes, counts = torch.zeros(1, 3, SIZE, SIZE, dtype=torch.uint8), torch.ones(1, dtype=torch.long)
    if shift.kind != "label-uncorrelated":
        scenes, counts = backgrounds(folder / "places", generator, options)
    first = counts.cumsum(0) - counts
    views = min(MOST_VIEWS, max(1, round(EACH * len(CLASSES) / len(labels))))

    def painted(index: Tensor, values: Tensor | None, dummies: Tensor | None, generator: Generator) -> Tensor:
        values = torch.zeros(len(index) * views, dtype=torch.long) if values is None else values
        index = index.repeat_interleave(views)
        behind = first[values] + (torch.rand(len(index), generator=generator) * counts[values]).long()
        tints = torch.ones(len(index), 3) if dummies is None else 1 - (1 - FAINTEST) * dummies
        batches = zip(*(part.split(256) for part in (index, behind, tints)), strict=True)
        return torch.cat([compose(objects[i], scenes[s], tint) for i, s, tint in batches])

    sizes = split_sizes(len(labels), len(shift.biases), ratio=(13, 11))
    return build_splits(painted, labels, CLASSES, shift, options.seed, options.oracle, sizes, views)


def compose(objects: Tensor, scenes: Tensor, tints: Tensor) -> Tensor:
    """Paint objects (n, 4, h, w), with their mask last, over scenes (n, 3, h, w); all are uint8, as the images.

    image = mask * tint * object + (1 - mask) * 0.75 * scene, with a tint (n, 3) in 0..1 for each channel
    """
    tinted = objects[:, :3] * tints[:, :, None, None]
    return torch.lerp(SCENE_BRIGHTNESS * scenes, tinted, objects[:, 3:] / 255).round_().to(torch.uint8)


def cut_outs(coco: Path, generator: Generator, options: Options) -> tuple[Tensor, Tensor]:
    """Return 1000 objects of each class, or all if they are fewer, with masks (n, 4, 64, 64), and labels (n,)."""
    file = first_entries(
        (coco / "annotations", coco / "annotations_trainval2017.zip"),
        lambda entry: PurePosixPath(entry.name).name == "instances_train2017.json",
        "instances_train2017.json",
        COCO,
    )[0]
    found = largest_instances(file.read(), file, CLASSES, SMALLEST)
    images = first_entries(
        (coco / "train2017", coco / "train2017.zip"), lambda e: is_image(e.name), "photographs", COCO
    )
    files = {PurePosixPath(entry.name).name: entry for entry in images}
    missing = [instance.photograph for instance in found if instance.photograph not in files]
    if missing:
        line = f"{len(missing)} of {len(found)} photographs are not in {images[0].container}, such as {missing[0]}"
        if not options.skip_bad:
            raise InputError(f"{line}: fetch them with `trm data fetch coco`, or leave them out with {SKIP_BAD}")
        warn(f"{line}: they are left out", DataWarning)
    drawn: list[Instance] = []
    for label, name in enumerate(CLASSES):
        members = [instance for instance in found if instance.label == label and instance.photograph in files]
        if not members:
            raise InputError(
                f"{file} has no {name} of {SMALLEST} pixels or more: objects of all ten classes are needed"
            )
        drawn += [members[i] for i in torch.randperm(len(members), generator=generator)[:EACH]]
    if len(drawn) < EACH * len(CLASSES):
        line = f"{len(drawn)} objects are found where the paper has {EACH * len(CLASSES)}"
        warn(f"{line}: each is shown over several scenes", DataWarning)

    def cut_out(i: int, content: bytes) -> Tensor:
        photograph = decode(content, SIZE, (drawn[i].width, drawn[i].height))
        return torch.cat([torch.from_numpy(photograph), shrunk_mask(drawn[i].mask(), SIZE)])

    chosen = [files[instance.photograph] for instance in drawn]
    objects, positions = decode_photographs(chosen, cut_out, "objects", coco, options)
    return objects, torch.tensor([instance.label for instance in drawn])[positions]


def backgrounds(places: Path, generator: Generator, options: Options) -> tuple[Tensor, Tensor]:
    """Return 1000 photographs of each of ten scenes, or all if they are fewer, (n, 3, 64, 64), and numbers (10,)."""
    photographs = photographs_by_scene(places, SCENES)
    names = list(photographs)
    if len(names) < len(SCENES):
        line = f"{places} has {len(names)} of 19 scenes, not {', '.join(name for name in SCENES if name not in names)}"
        if len(names) < len(CLASSES):
            raise InputError(f"{line}: ten are needed; fetch them with `trm data fetch places`")
        warn(f"{line}: the ten of a run are drawn among those there are", DataWarning)
    chosen: list[Entry] = []
    scenes: list[int] = []
    for scene, i in enumerate(torch.randperm(len(names), generator=generator)[: len(CLASSES)]):
        members = photographs[names[i]]
        picked = torch.randperm(len(members), generator=generator)[:EACH]
        chosen += [members[j] for j in picked]
        scenes += [scene] * len(picked)

    def scene_in(_: int, content: bytes) -> Tensor:
        return torch.from_numpy(decode(content, SIZE))

    images, positions = decode_photographs(chosen, scene_in, "scenes", places, options)
    counts = torch.bincount(torch.tensor(scenes)[positions], minlength=len(CLASSES))
    if not counts.all():
        raise InputError(f"no photograph of a scene in {places} can be read: fetch them again")
    return images, counts


# ---- COCO and Places


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
        """Return 1 where the object is, else 0, (height, width)."""
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
    """Return the largest instance of any of these classes in each photograph, if its area is `smallest` or more.

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
    """Return the photographs of each of these scenes that a folder, or the archive in it, has."""
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
    """Return the words that `forest/broadleaf`, `forest-broadleaf` and "broadleaf forest" have in common."""
    return tuple(sorted(re.findall("[a-z]+", " ".join(names).lower())))


def first_entries(paths: Sequence[Path], wanted: Callable[[Entry], bool], what: str, source: Facts) -> list[Entry]:
    """Return the wanted files of the first of these folders and archives that has any."""
    for path in paths:
        found = [entry for entry in entries(path) if wanted(entry)] if path.exists() else []
        if found:
            return found
    raise InputError(
        f"no {what} in {paths[0]} or {paths[1].name}: fetch {source.name} with `trm data fetch {source.name}`, or say "
        f"where the data is with --data-root or ${VARIABLE}"
    )


def shrunk_mask(mask: NDArray[np.uint8], size: int) -> Tensor:
    """Return the share of each pixel that a mask (h, w) of zeros and ones covers, in 0..255, (1, size, size) uint8."""
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


register(DataSet(FACTS, load_scenecoco, takes=frozenset({"shift", "oracle"}), shift=SHIFT, sources=(COCO, PLACES)))
