"""Augmentation against other ways to the same images: interpolate, colorsys, arithmetic."""

from __future__ import annotations

import colorsys

import pytest
import torch
from torch.nn.functional import interpolate

from transferrisk.data import augment as a
from transferrisk.errors import InputError


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def images():
    return torch.rand(6, 3, 20, 24, generator=seeded(1))


# ---- the parts, with parameters known


def test_a_crop_of_whole_pixels_is_what_interpolate_gives(images):
    boxes = torch.tensor(
        [[0, 0, 20, 24], [2, 3, 10, 12], [5, 0, 15, 20], [0, 7, 17, 17], [1, 1, 18, 9], [10, 12, 10, 12]]
    )
    cropped = a.resized_crop(images, boxes.float())
    for image, box, result in zip(images, boxes.tolist(), cropped, strict=True):
        top, left, height, width = box
        part = image[None, :, top : top + height, left : left + width]
        expected = interpolate(part, size=(20, 24), mode="bilinear", align_corners=False)[0]
        torch.testing.assert_close(result, expected, atol=2e-6, rtol=0)


def test_a_crop_between_pixels_follows_a_slope():
    slope = torch.arange(16.0).add(0.5).div(16).expand(1, 3, 16, 16)  # value = x / width
    cropped = a.resized_crop(slope, torch.tensor([[1.3, 2.25, 8.0, 8.5]]))
    x = 2.25 + (torch.arange(16.0) + 0.5) * 8.5 / 16
    torch.testing.assert_close(cropped[0, 0, 3], x.clamp(2.75, 10.25) / 16)


def test_boxes_lie_inside_and_have_the_area_and_ratio_asked_for():
    top, left, height, width = a.random_boxes(20_000, (224, 224), generator=seeded()).unbind(1)
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height).max() <= 224.001
    assert (left + width).max() <= 224.001
    area, ratio = height * width / 224**2, width / height
    assert float(area.max()) <= 1.0001
    assert (area >= 0.6999).float().mean() > 0.999  # but for those no try of which fitted
    assert float(ratio.min()) >= 0.7499
    assert float(ratio.max()) <= 1.3334
    assert float(ratio.log().mean()) == pytest.approx(0, abs=0.005)
    free = 224 - height
    assert float((top / free)[free > 1].mean()) == pytest.approx(0.5, abs=0.01)


def test_boxes_have_torchvisions_distribution():
    """Its loop, one box at a time, without the rounding to pixels."""
    generator, areas = seeded(2), []
    for _ in range(4000):
        for _ in range(10):
            u, v = torch.rand(2, generator=generator).tolist()
            area, ratio = 0.7 + 0.3 * u, (3 / 4) * (16 / 9) ** v
            if area * ratio <= 1 and area / ratio <= 1:
                areas.append(area)
                break
    _, _, height, width = a.random_boxes(20_000, (32, 32), generator=seeded(3)).unbind(1)
    ours = height * width / 32**2
    theirs = torch.tensor(areas)
    assert float(ours.mean()) == pytest.approx(float(theirs.mean()), abs=0.004)
    assert float(ours.std()) == pytest.approx(float(theirs.std()), abs=0.004)


def test_flip_is_exact(images):
    chosen = torch.tensor([True, False, True, False, False, True])
    flipped = a.flip_left_right(images, chosen)
    for image, result, mirrored in zip(images, flipped, chosen.tolist(), strict=True):
        assert torch.equal(result, image[..., range(23, -1, -1)] if mirrored else image)


def test_greyscale_weighs_red_green_and_blue():
    primaries = torch.eye(3).reshape(3, 3, 1, 1)
    torch.testing.assert_close(a.luminance(primaries).flatten(), torch.tensor([0.2989, 0.587, 0.114]))
    grey = a.greyscale(torch.rand(2, 3, 4, 4, generator=seeded()))
    assert torch.equal(grey[:, 0], grey[:, 1])
    assert torch.equal(grey[:, 0], grey[:, 2])


@pytest.mark.parametrize("change", [a.adjust_brightness, a.adjust_contrast, a.adjust_saturation])
def test_factor_one_changes_nothing_and_each_image_has_its_own(change, images):
    torch.testing.assert_close(change(images, torch.ones(6)), images, atol=1e-6, rtol=0)
    factors = torch.linspace(0.7, 1.3, 6)
    alone = torch.cat([change(images[i : i + 1], factors[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(change(images, factors), alone)


def test_factor_zero_is_black_mean_grey_and_greyscale(images):
    zero = torch.zeros(6)
    assert float(a.adjust_brightness(images, zero).max()) == 0
    mean = a.luminance(images).mean((1, 2, 3))
    torch.testing.assert_close(a.adjust_contrast(images, zero), mean[:, None, None, None].expand_as(images))
    torch.testing.assert_close(a.adjust_saturation(images, zero), a.greyscale(images))


def test_hue_turns_as_colorsys_turns_it(images):
    turns = torch.tensor([-0.3, -0.1, 0.0, 0.05, 0.2, 0.3])
    turned = a.adjust_hue(images, turns)
    for i, turn in enumerate(turns.tolist()):
        for y, x in ((0, 0), (3, 7), (11, 2), (19, 23)):
            h, s, v = colorsys.rgb_to_hsv(*images[i, :, y, x].tolist())
            expected = torch.tensor(colorsys.hsv_to_rgb((h + turn) % 1, s, v))
            torch.testing.assert_close(turned[i, :, y, x], expected, atol=1e-5, rtol=0)


def test_hue_and_back(images):
    turns = torch.linspace(-0.3, 0.3, 6)
    torch.testing.assert_close(a.adjust_hue(a.adjust_hue(images, turns), -turns), images, atol=1e-5, rtol=0)
    torch.testing.assert_close(a.adjust_hue(images, torch.full((6,), 1.0)), images, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "pixel", [(0, 0, 0), (1, 1, 1), (0.5, 0.5, 0.5), (1, 0, 0), (1, 1, 0), (0, 1, 1), (0.2, 0.2, 1)]
)
def test_hue_of_greys_and_ties(pixel):
    image = torch.tensor(pixel).float().reshape(1, 3, 1, 1)
    h, s, v = colorsys.rgb_to_hsv(*pixel)
    expected = torch.tensor(colorsys.hsv_to_rgb((h + 0.2) % 1, s, v)).float()
    torch.testing.assert_close(a.adjust_hue(image, torch.tensor([0.2])).flatten(), expected, atol=1e-6, rtol=0)


# ---- all of it


def test_the_state_of_the_generator_decides(images):
    one, two = a.augment(images, seeded(5)), a.augment(images, seeded(5))
    assert torch.equal(one, two)
    assert not torch.equal(one, a.augment(images, seeded(6)))
    generator = seeded(5)
    assert not torch.equal(a.augment(images, generator), a.augment(images, generator))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shape_type_and_range_stay(images, dtype):
    given = images.to(dtype)
    before = given.clone()
    for seed in range(20):
        result = a.augment(given, seeded(seed))
        assert result.shape == given.shape
        assert result.dtype == dtype
        assert float(result.min()) >= 0
        assert float(result.max()) <= 1
    assert torch.equal(given, before)


def test_an_image_does_not_depend_on_its_neighbours(images):
    others = torch.cat([images[:1], torch.rand(5, 3, 20, 24, generator=seeded(9))])
    assert torch.equal(a.augment(images, seeded(4))[0], a.augment(others, seeded(4))[0])


def test_copies_of_one_image_come_out_different(images):
    results = a.augment(images[:1].expand(6, -1, -1, -1), seeded())
    assert len({tuple(r.flatten()[:50].tolist()) for r in results}) == 6


def test_switched_off_it_is_the_identity(images):
    same = a.augment(images[..., :20], seeded(), scale=(1, 1), ratio=(1, 1), flip=0, jitter=0, grey=0)
    torch.testing.assert_close(same, images[..., :20], atol=1e-5, rtol=0)


def test_how_often_images_are_flipped_and_grey_and_how_bright_they_are():
    n = 4000
    half = torch.zeros(n, 3, 8, 8)
    half[:, 0, :, :4] = 0.5  # red on the left
    off = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0)}
    result = a.augment(half, seeded(), jitter=0, **off)
    mirrored = result[:, 0, 0, -1] > result[:, 0, 0, 0]
    assert float(mirrored.float().mean()) == pytest.approx(0.5, abs=0.03)
    grey = (result[:, 0] == result[:, 2]).flatten(1).all(1)
    assert float(grey.float().mean()) == pytest.approx(0.1, abs=0.02)
    even = a.augment(torch.full((n, 3, 2, 2), 0.5), seeded())  # only brightness shows on an even grey
    assert float(even.mean()) == pytest.approx(0.5, abs=0.005)
    assert float(even[:, 0, 0, 0].std()) == pytest.approx(0.5 * 0.6 / 12**0.5, abs=0.003)


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 1, 8, 8)])
def test_what_is_no_batch_of_images(shape):
    with pytest.raises(InputError, match=r"augmenting takes floats in 0..1, \(n, 3, h, w\)"):
        a.augment(torch.zeros(shape))
    with pytest.raises(InputError, match="uint8"):
        a.augment(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))


@pytest.mark.gpu
def test_captured_in_a_graph_it_draws_anew_at_every_replay():
    images = torch.rand(8, 3, 32, 32, device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    a.augment(images, generator)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = a.augment(images, generator)
    graph.replay()
    first = result.clone()
    graph.replay()
    assert not torch.equal(first, result)
    assert float(result.min()) >= 0
    assert float(result.max()) <= 1
    with pytest.raises(InputError, match="generator is on cpu and the images are on cuda"):
        a.augment(images, seeded())
