"""Instances of COCO: which of them, and their masks in every coding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scenes import (
    BODY,
    BODY_MASK,
    HALVES,
    HEIGHT,
    WIDTH,
    Annotations,
    packed,
    rectangle,
    run_lengths,
)

from transferrisk.data.sets.coco_places import Instance, largest_instances
from transferrisk.data.sets.scenecoco import CLASSES, compose
from transferrisk.errors import InputError


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
