"""The bias engine and the coloured digits: realised frequencies against the stated bias."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transferrisk.data import EnvironmentSet, TestDomainValidation, TrainingDomainValidation
from transferrisk.data.sets import digits
from transferrisk.data.sets.ten_colours import COLOURS, TenColours, paint
from transferrisk.data.shifts import biased_values, random_bijection
from transferrisk.errors import InputError


@given(st.floats(0, 1), st.integers(0, 10**6))
def test_realised_bias(bias, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (20_000,), generator=generator)
    bijection = random_bijection(10, generator)
    values = biased_values(labels, bias, bijection, generator)
    share = float((values == bijection[labels]).float().mean())
    assert share == pytest.approx(bias + (1 - bias) / 10, abs=0.02)
    others = values[values != bijection[labels]]
    if len(others) > 5000:
        frequencies = torch.bincount(others, minlength=10) / len(others)
        assert float((frequencies - 0.1).abs().max()) < 0.03


def test_bias_must_be_a_share():
    with pytest.raises(InputError, match=r"bias degree 90 is not a share: give a number from 0 to 1"):
        biased_values(torch.zeros(3, dtype=torch.long), 90, torch.arange(10), torch.Generator())


@pytest.fixture(scope="module")
def splits():
    return digits.load(seed=0)


def colour_index(images):
    """Which of the ten colours each image has, from its brightest pixel."""
    flat = images.flatten(2).float()
    brightest = flat.sum(1).argmax(1)
    pixel = flat[torch.arange(len(flat)), :, brightest]
    return torch.cdist(pixel, COLOURS.float()).argmin(1)


def test_sizes_and_names(splits):
    assert splits.train.environment_names == ("bias 100%", "bias 90%")
    assert splits.train.group_counts().sum(1).tolist() == [3832, 3832]
    assert len(splits.test) == 3832
    assert len(splits.training_domain) == len(splits.test_domain) == 2872
    assert splits.train.inputs.shape[1:] == (3, 10, 10)
    assert splits.train.inputs.dtype == torch.uint8
    assert 0 <= float(splits.train.batch().min()) < float(splits.train.batch().max()) <= 1


def test_validations_have_types_of_their_own(splits):
    assert isinstance(splits.training_domain, TrainingDomainValidation)
    assert isinstance(splits.test_domain, TestDomainValidation)
    assert not isinstance(splits.test_domain, TrainingDomainValidation)
    assert splits.training_domain.environment_names == splits.train.environment_names


def test_colours_follow_the_label_as_stated(splits):
    first = splits.train.environment("bias 100%")
    bijection = {}
    for colour, label in zip(colour_index(first.inputs).tolist(), first.labels.tolist(), strict=True):
        assert bijection.setdefault(label, colour) == colour
    assert len(set(bijection.values())) == 10
    tied = torch.tensor([bijection[label] for label in range(10)])
    for data, expected in ((splits.train.environment("bias 90%"), 0.91), (splits.test, 0.1)):
        share = float((colour_index(data.inputs) == tied[data.labels]).float().mean())
        assert share == pytest.approx(expected, abs=0.02)


def test_seed_decides(splits):
    again, other = digits.load(seed=0), digits.load(seed=1)
    assert torch.equal(again.train.inputs, splits.train.inputs)
    assert not torch.equal(other.train.labels, splits.train.labels)


def test_views_of_a_digit_stay_on_one_side():
    shapes = torch.eye(64)[:60].reshape(60, 1, 8, 8).expand(-1, 4, -1, -1)  # each sample inks a pixel of its own
    parts = TenColours(1.0, 1.0).build(shapes, torch.zeros(60, dtype=torch.long), tuple("0123456789"), seed=3)
    train, validation, test = (
        set(part.inputs.sum(1).flatten(1).argmax(1).tolist())
        for part in (parts.train, parts.training_domain, parts.test)
    )
    assert (len(train), len(validation), len(test)) == (32, 12, 16)
    assert not train & validation
    assert not train & test
    assert not validation & test


def test_placed_views_are_whole_and_different():
    shapes = torch.rand(5, 8, 8)
    views = digits.placed(shapes, 8, 10, torch.Generator().manual_seed(0))
    torch.testing.assert_close(views.sum((2, 3)), shapes.sum((1, 2))[:, None].expand(5, 8))
    assert len({view.numpy().tobytes() for view in views[0]}) == 8


def test_paint():
    image = paint(torch.tensor([[[0.0, 0.5, 1.0]]]), torch.tensor([[200, 100, 0]], dtype=torch.uint8))
    assert image.tolist() == [[[[0, 100, 200]], [[0, 50, 100]], [[0, 0, 0]]]]


def test_every_sample_needs_a_label():
    with pytest.raises(InputError, match="3 inputs, 2 labels and 3 environments"):
        EnvironmentSet(torch.zeros(3, 1), torch.zeros(2), torch.zeros(3), ("a",), ("x",))
