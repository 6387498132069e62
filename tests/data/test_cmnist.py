"""10C-CMNIST from idx files: small ones the test writes, and the real ones where they are."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import pytest
import torch

from transferrisk.data import Options, Shift, load_data
from transferrisk.data.catalogue import VARIABLE, data_root
from transferrisk.data.sets.ten_colours import read_idx
from transferrisk.errors import InputError


def idx_bytes(array):
    return b"\0\0\x08" + bytes([array.dim()]) + struct.pack(f">{array.dim()}I", *array.shape) + array.numpy().tobytes()


def write_set(root, name="MNIST", n=300, compress=True):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (n, 28, 28), generator=generator, dtype=torch.uint8)
    images[images < 128] = 0
    labels = (torch.arange(n) % 10).to(torch.uint8)
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    for stem, array in (("train-images-idx3-ubyte", images), ("train-labels-idx1-ubyte", labels)):
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


def test_same_seed_same_set_whatever_the_shift_draws(tmp_path):
    write_set(tmp_path)
    first, again, other = (
        load_data("10c-cmnist", Options(root=tmp_path, seed=seed, shift=Shift("combined"))).train.inputs[:]
        for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


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
