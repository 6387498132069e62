"""Ten colours: realised frequencies against the stated bias; 10C-CMNIST from idx files, small or real."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transferrisk.data import EnvironmentSet, Options, Shift, available, load_data
from transferrisk.data.roots import VARIABLE, data_root
from transferrisk.data.sets.ten_colours import BRIGHTEST, COLOURS, coloured_splits, paint, placed, read_idx
from transferrisk.data.shifts import biased_values, split_sizes
from transferrisk.errors import InputError


def idx_bytes(array):
    return b"\0\0\x08" + bytes([array.dim()]) + struct.pack(f">{array.dim()}I", *array.shape) + array.numpy().tobytes()


def write_set(root, name="MNIST", n=300, compress=True, part="train"):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (n, 28, 28), generator=generator, dtype=torch.uint8)
    images[images < 128] = 0
    labels = (torch.arange(n) % 10).to(torch.uint8)
    folder = root / name / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    for stem, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
        content = idx_bytes(array)
        (folder / f"{stem}{'.gz' if compress else ''}").write_bytes(gzip.compress(content) if compress else content)
    return images, labels


@pytest.mark.parametrize("compress", [True, False])
def test_any_idx_set_by_name(tmp_path, compress):
    images, labels = write_set(tmp_path, "FashionMNIST", compress=compress)
    splits = load_data("10c-cmnist:FashionMNIST", Options(root=tmp_path))
    assert splits.train.class_names[9] == "ankle boot"
    assert [len(s) for s in (splits.train, splits.test, splits.training_domain)] == [160, 80, 60]
    source = int(splits.test.sources[0])
    assert int(splits.test.labels[0]) == int(labels[source])
    inked = splits.test.inputs[:][0].amax(0) > 0
    assert torch.equal(inked, images[source] > 0)  # binarised, on black


def test_the_public_code_s_set_takes_both_parts_of_mnist_and_holds_out_a_fifth_of_each_training_environment(tmp_path):
    write_set(tmp_path, n=600)
    write_set(tmp_path, n=103, part="t10k")
    shift = Shift("label-uncorrelated")
    splits = load_data("10c-cmnist-public", Options(root=tmp_path, shift=shift))
    assert splits.train.group_counts().sum(1).tolist() == [188, 188]  # 703 // 3 = 234, less 46
    assert splits.training_domain.group_counts().sum(1).tolist() == [46, 46]
    assert len(splits.test) == 235
    assert len(splits.test_domain) == 92
    used = torch.cat([splits.train.sources, splits.training_domain.sources, splits.test.sources])
    assert sorted(used.tolist()) == list(range(703))
    facts = available()["10c-cmnist-public"].facts
    assert facts.samples == 70000
    assert list(facts.environments.values()) == [70000 // 3 - 70000 // 15] * 2 + [70000 - 2 * (70000 // 3)]


@pytest.mark.parametrize(("name", "ink"), [("10c-cmnist", 255), ("10c-cmnist-public", 1)])
def test_digits_without_a_colour_are_white_or_in_the_public_code_s_set_nearly_black(tmp_path, name, ink):
    images, _ = write_set(tmp_path, n=300)
    write_set(tmp_path, n=300, part="t10k")
    splits = load_data(name, Options(root=tmp_path, shift=Shift("label-uncorrelated")))
    for picture, source in zip(splits.test.inputs[:10], splits.test.sources[:10].tolist(), strict=True):
        inked = images[source % 300] > 0
        assert picture[:, inked].unique().tolist() == [ink]
        assert len(picture[:, ~inked].flatten(1).unique(dim=1).T) == 1  # one background


def test_missing_files_say_where_they_belong(tmp_path):
    with pytest.raises(
        InputError, match=r"MNIST/raw/train-images-idx3-ubyte.gz does not exist.*--data-root or \$TRANSFERRISK_DATA"
    ):
        load_data("10c-cmnist", Options(root=tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not an idx file of bytes: it begins with nothing"),
        (b"GIF89a", "is not an idx file of bytes"),
        (b"\0\0\x08\x03\0\0", "ends within its header"),
        (idx_bytes(torch.zeros(0, 2, dtype=torch.uint8)), "holds nothing, 0 x 2"),
        (idx_bytes(torch.zeros(4, 2, dtype=torch.uint8))[:-3], "holds 5 bytes where its header promises 8"),
    ],
)
def test_damaged_idx_files(tmp_path, content, message):
    path = tmp_path / "x-idx"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_idx(path)


def test_truncated_and_false_gzip(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(idx_bytes(torch.zeros(4000, 2, dtype=torch.uint8)))[:-9])
    with pytest.raises(InputError, match="it is damaged or not a gzip archive"):
        read_idx(path)
    path.write_bytes(b"no gzip at all")
    with pytest.raises(InputError, match="it is damaged or not a gzip archive"):
        read_idx(path)
    with pytest.raises(InputError, match="does not exist"):
        read_idx(tmp_path / "nothing.gz")


def test_images_and_labels_must_match(tmp_path):
    write_set(tmp_path)
    labels = tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx_bytes(torch.zeros(7, dtype=torch.uint8))))
    with pytest.raises(InputError, match=r"images \(300, 28, 28\) and labels \(7,\) do not match"):
        load_data("10c-cmnist", Options(root=tmp_path))
    labels.write_bytes(gzip.compress(idx_bytes(torch.full((300,), 26, dtype=torch.uint8))))
    with pytest.raises(InputError, match="has label 26: ten colours go with ten classes"):
        load_data("10c-cmnist", Options(root=tmp_path))


def test_data_root(monkeypatch, tmp_path):
    assert data_root("~/x") == Path.home() / "x"
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("/else") == Path("/else")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert data_root() == Path("/cache/transferrisk")
    monkeypatch.setattr("sys.platform", "darwin")
    assert data_root() == Path.home() / "Library" / "Caches" / "transferrisk"


REAL = Path(os.environ.get(VARIABLE, "/nonexistent")) / "MNIST" / "raw" / "train-images-idx3-ubyte.gz"


@pytest.mark.skipif(not REAL.is_file(), reason=f"${VARIABLE} does not hold MNIST")
def test_the_real_set():
    splits = load_data("10c-cmnist")
    assert [len(s) for s in (splits.train, splits.test, splits.training_domain, splits.test_domain)] == [
        32_000, 16_000, 12_000, 12_000,
    ]  # fmt: skip
    assert splits.train.group_counts().sum(1).tolist() == [16_000, 16_000]
    assert splits.train.inputs[:].shape[1:] == (3, 28, 28)
    assert len(torch.cat([s.sources for s in (splits.train, splits.test, splits.training_domain)]).unique()) == 60_000


@given(st.floats(0, 1), st.integers(0, 10**6))
def test_realised_bias(bias, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (20_000,), generator=generator)
    bijection = torch.randperm(10, generator=generator)
    values = biased_values(labels, bias, bijection, generator)
    share = float((values == bijection[labels]).float().mean())
    assert share == pytest.approx(bias + (1 - bias) / 10, abs=0.02)
    others = values[values != bijection[labels]]
    if len(others) > 5000:
        frequencies = torch.bincount(others, minlength=10) / len(others)
        assert float((frequencies - 0.1).abs().max()) < 0.03


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"biases": (1.0, 90)}, r"biases\[1\] must be .*, got 90"),
        ({"biases": (1.0,)}, r"biases must be a list of 2 or more values, got \(1.0,\)"),
        ({"kind": "correlated"}, "kind must be one of 'label-correlated', .*, got 'correlated'"),
    ],
)
def test_bad_shifts_say_what_to_do(arguments, message):
    with pytest.raises(InputError, match=message):
        Shift(**arguments)


@pytest.fixture(scope="module")
def splits():
    return load_data("10c-digits")


def colour_index(images):
    """Which of the ten colours each image has, from its brightest pixel."""
    flat = images.flatten(2).float()
    brightest = flat.sum(1).argmax(1)
    pixel = flat[torch.arange(len(flat)), :, brightest]
    return torch.cdist(pixel, COLOURS.float()).argmin(1)


def test_colours_follow_the_label_as_stated(splits):
    first = splits.train.environment("bias 100%")
    bijection = {}
    for colour, label in zip(colour_index(first.inputs[:]).tolist(), first.labels.tolist(), strict=True):
        assert bijection.setdefault(label, colour) == colour
    assert len(set(bijection.values())) == 10
    tied = torch.tensor([bijection[label] for label in range(10)])
    for data, expected in ((splits.train.environment("bias 90%"), 0.91), (splits.test, 0.1)):
        share = float((colour_index(data.inputs[:]) == tied[data.labels]).float().mean())
        assert share == pytest.approx(expected, abs=0.02)


def test_views_of_a_digit_stay_on_one_side():
    shapes = torch.eye(64)[:60].reshape(60, 1, 8, 8).expand(-1, 4, -1, -1)  # each sample inks a pixel of its own
    parts = coloured_splits(shapes, torch.zeros(60, dtype=torch.long), tuple("0123456789"), Options(seed=3))
    train, validation, test = (
        set(part.inputs[:].sum(1).flatten(1).argmax(1).tolist())
        for part in (parts.train, parts.training_domain, parts.test)
    )
    assert (len(train), len(validation), len(test)) == (32, 12, 16)
    assert not train & validation
    assert not train & test
    assert not validation & test


def test_placed_views_are_whole_and_different():
    shapes = torch.rand(5, 8, 8)
    views = placed(shapes, 8, 10, torch.Generator().manual_seed(0))
    torch.testing.assert_close(views.sum((2, 3)), shapes.sum((1, 2))[:, None].expand(5, 8))
    assert len({view.numpy().tobytes() for view in views[0]}) == 8


def squares(n=3000):
    """A square of ink in the middle of each of n images, in ten classes."""
    shapes = torch.zeros(n, 1, 6, 6)
    shapes[:, :, 2:4, 2:4] = 1
    return shapes, torch.arange(n) % 10


@pytest.mark.parametrize("kind", ["label-correlated", "label-uncorrelated", "combined"])
def test_what_takes_part_in_a_shift(kind):
    shapes, labels = squares()
    splits = coloured_splits(shapes, labels, tuple("0123456789"), Options(shift=Shift(kind, (1.0, 0.8, 0.6))))
    assert len(splits.train.environment_names) == 3
    backgrounds = []
    for part in (*(splits.train.environment(name) for name in splits.train.environment_names), splits.test):
        ink, paper = part.inputs[:][:, :, 2, 2], part.inputs[:][:, :, 0, 0]
        if kind == "label-uncorrelated":
            assert (ink == 255).all()
        else:
            assert len(ink.unique(dim=0)) == 10
        palette = paper.unique(dim=0)
        backgrounds.append({tuple(colour) for colour in palette.tolist()})
        if kind == "label-correlated":
            assert not paper.any()
        else:
            assert len(palette) == 5
            assert int(palette.max()) <= 256 * BRIGHTEST
            shares = torch.stack([(paper == colour).all(1).float().mean() for colour in palette])
            assert float((shares - 0.2).abs().max()) < 0.06
    if kind != "label-correlated":
        assert len(set.union(*backgrounds)) > 15  # each environment has five of its own
    assert not {c for b in backgrounds[:3] for c in b} & backgrounds[3] or kind == "label-correlated"


def test_validation_looks_like_what_it_stands_for():
    shapes, labels = squares(6000)
    splits = coloured_splits(
        shapes, labels, tuple("0123456789"), Options(seed=1, shift=Shift("label-correlated", (1.0, 0.5)))
    )
    first = splits.train.environment("bias 100%")
    tied = {int(y): tuple(c.tolist()) for y, c in zip(first.labels, first.inputs[:][:, :, 2, 2], strict=True)}

    def share(data):
        pairs = zip(data.labels.tolist(), data.inputs[:][:, :, 2, 2].tolist(), strict=True)
        return sum(tied[y] == tuple(c) for y, c in pairs) / len(data)

    assert share(splits.training_domain.environment("bias 100%")) == 1
    assert share(splits.training_domain.environment("bias 50%")) == pytest.approx(0.55, abs=0.05)
    assert share(splits.test_domain) == pytest.approx(0.1, abs=0.04)


def test_oracle_trains_on_what_the_test_looks_like():
    shapes, labels = squares()
    oracle = coloured_splits(shapes, labels, tuple("0123456789"), Options(shift=Shift("combined"), oracle=True))
    plain = coloured_splits(shapes, labels, tuple("0123456789"), Options(shift=Shift("combined")))
    assert torch.equal(oracle.train.sources, plain.train.sources)  # the same digits
    papers = [
        {tuple(c) for c in part.inputs[:][:, :, 0, 0].tolist()} for part in (oracle.train, oracle.test, plain.train)
    ]
    assert papers[0] == papers[1]
    assert not papers[0] & papers[2]


def test_the_papers_sizes():
    assert split_sizes(60_000, 2) == [16_000, 16_000, 16_000, 12_000]
    assert split_sizes(10_000, 2, (13, 11)) == [2600, 2600, 2600, 2200]
    assert sum(split_sizes(1797, 3)) == 1797


def test_paint():
    shapes = torch.tensor([[[0.0, 0.5, 1.0]]])
    ink, paper = torch.tensor([[200, 100, 0]], dtype=torch.uint8), torch.tensor([[0, 100, 50]], dtype=torch.uint8)
    assert paint(shapes, ink, paper).tolist() == [[[[0, 100, 200]], [[100, 100, 100]], [[50, 25, 0]]]]


def test_every_sample_needs_a_label():
    with pytest.raises(InputError, match="inputs, labels and environments must be as many, got 3, 2 and 3"):
        EnvironmentSet(torch.zeros(3, 1), torch.zeros(2), torch.zeros(3), ("a",), ("x",))


@pytest.mark.parametrize("kind", ["label-correlated", "combined"])
def test_an_oracle_is_the_same_whatever_the_bias(kind):
    """So that experiments train it once."""
    one, other = (
        load_data("10c-digits", Options(seed=3, shift=Shift(kind, biases), oracle=True))
        for biases in ((1.0, 0.85), (0.9, 0.95))
    )
    for part in ("train", "training_domain", "test_domain", "test"):
        ours, theirs = getattr(one, part), getattr(other, part)
        assert torch.equal(ours.inputs, theirs.inputs)
        assert torch.equal(ours.labels, theirs.labels)
        assert torch.equal(ours.environments, theirs.environments)
