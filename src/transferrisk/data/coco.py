"""COCO's instance annotations: which objects there are in which photograph, and their masks.

A file holds `images`, `annotations` and `categories`. A mask is a list of polygons, or run lengths column after column,
plain or compressed; a crowd is many objects under one mask, so it is not an object here.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..extras import require


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

    In the order of the photographs' numbers. `source` is what to call the file in errors.
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
