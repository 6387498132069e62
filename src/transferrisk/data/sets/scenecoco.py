"""scenecoco: objects cut out of COCO over scenes of Places, 64 x 64 (section 5.1 and appendix B.1.2).

Causal         the object, one of ten classes: in each photograph the largest instance, of 10000 pixels or more
Non-causal     the scene behind it, at 0.75 of its brightness: of ten scenes drawn a run, tied to the label by a random
               bijection; black where it takes no part
Dummy          a colour that tints the object, one of five that each environment draws for itself; the object's own
               colours where it takes no part
Splits         2600 for each of two training environments and the test, 2200 for validation, or in proportion; see
               `shifts.build_splits`
Source         <root>/coco/annotations/instances_train2017.json and <root>/coco/train2017/, or the archives
               annotations_trainval2017.zip and train2017.zip; <root>/places/ with a folder a scene, nested in any way,
               or train_256_places365standard.tar in it
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import torch
from torch import Generator, Tensor

from ...errors import DataWarning, InputError, warn
from ...extras import require
from ..catalogue import SKIP_BAD, DataSet, Facts, Options, data_root, register
from ..containers import Entry
from ..environments import Splits
from ..images import decode, is_image
from ..shifts import Shift, build_splits
from .coco_places import (
    COCO,
    PLACES,
    Instance,
    decode_photographs,
    first_entries,
    largest_instances,
    photographs_by_scene,
    shrunk_mask,
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
    "scenes the background is black",
)


def load_scenecoco(_: str, options: Options) -> Splits:
    """One draw of the set; `skip_bad` leaves out photographs that are missing or cannot be read, with a warning."""
    require("pycocotools.mask", "coco")  # before minutes are spent on reading
    shift, folder = options.shift or SHIFT, data_root(options.root)
    generator = Generator().manual_seed(50_000 + options.seed)
    objects, labels = cut_outs(folder / "coco", generator, options)
    scenes, counts = torch.zeros(1, 3, SIZE, SIZE, dtype=torch.uint8), torch.ones(1, dtype=torch.long)
    if shift.kind != "label-uncorrelated":
        scenes, counts = backgrounds(folder / "places", generator, options)
    first = counts.cumsum(0) - counts

    def painted(index: Tensor, values: Tensor | None, dummies: Tensor | None, generator: Generator) -> Tensor:
        values = torch.zeros_like(index) if values is None else values
        behind = first[values] + (torch.rand(len(index), generator=generator) * counts[values]).long()
        tints = torch.ones(len(index), 3) if dummies is None else 1 - (1 - FAINTEST) * dummies
        batches = zip(*(part.split(256) for part in (index, behind, tints)), strict=True)
        return torch.cat([compose(objects[i], scenes[s], tint) for i, s, tint in batches])

    return build_splits(painted, labels, CLASSES, shift, options.seed, options.oracle, ratio=(13, 11))


def compose(objects: Tensor, scenes: Tensor, tints: Tensor) -> Tensor:
    """Objects (n, 4, h, w), the last channel their mask, over scenes (n, 3, h, w): images (n, 3, h, w), all uint8.

    image = mask * tint * object + (1 - mask) * 0.75 * scene, with a tint (n, 3) in 0..1 for each channel
    """
    tinted = objects[:, :3] * tints[:, :, None, None]
    return torch.lerp(SCENE_BRIGHTNESS * scenes, tinted, objects[:, 3:] / 255).round_().to(torch.uint8)


def cut_outs(coco: Path, generator: Generator, options: Options) -> tuple[Tensor, Tensor]:
    """1000 objects of each class, or all there are, with their masks (n, 4, 64, 64); and labels (n,)."""
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
        warn(f"{line}: all parts of the set are smaller in proportion", DataWarning)

    def cut_out(i: int, content: bytes) -> Tensor:
        photograph = decode(content, SIZE, (drawn[i].width, drawn[i].height))
        return torch.cat([torch.from_numpy(photograph), shrunk_mask(drawn[i].mask(), SIZE)])

    chosen = [files[instance.photograph] for instance in drawn]
    objects, positions = decode_photographs(chosen, cut_out, "objects", coco, options)
    return objects, torch.tensor([instance.label for instance in drawn])[positions]


def backgrounds(places: Path, generator: Generator, options: Options) -> tuple[Tensor, Tensor]:
    """1000 photographs of each of ten scenes, or all there are, scene after scene (n, 3, 64, 64); and numbers (10,)."""
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


register(DataSet(FACTS, load_scenecoco, takes=frozenset({"shift", "oracle"}), shift=SHIFT, sources=(COCO, PLACES)))
