"""WILDS sets, through a stand-in for its package with the same attributes."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from PIL import Image

from transferrisk.data import Options, load_data
from transferrisk.errors import InputError

N = 60


class Camelyon:
    is_classification = True
    n_classes = 2
    metadata_fields = ("hospital", "slide", "y")
    metadata_map = None
    y_array = torch.arange(N) % 2
    # Hospitals 0, 3, 4 for training, 1 for out-of-distribution validation, 2 for the test.
    hospital = torch.tensor([0, 3, 4, 1, 2])[torch.arange(N) // 2 % 5]
    metadata_array = torch.stack([hospital, torch.arange(N) // 6, y_array], 1)

    def __init__(self, with_id_val):
        inside = torch.where(torch.arange(N) < 40, 0, 1) if with_id_val else torch.zeros(N, dtype=torch.long)
        self.split_array = torch.where(self.hospital == 2, 3, torch.where(self.hospital == 1, 2, inside)).numpy()
        self.split_dict = {"train": 0, "id_val": 1, "val": 2, "test": 3}
        if not with_id_val:
            del self.split_dict["id_val"]

    def __len__(self):
        return N

    def get_input(self, i):
        return Image.new("RGB", (9, 7), (4 * i, 0, 255))


def stand_in():
    def get_dataset(dataset, root_dir, download):
        assert download is False
        if dataset == "iwildcam":
            raise FileNotFoundError
        source = Camelyon(with_id_val=dataset == "camelyon17")
        if dataset == "poverty":
            source.is_classification = False
        return source

    module = types.ModuleType("wilds")
    module.__spec__ = types.SimpleNamespace()
    module.get_dataset = get_dataset
    module.supported_datasets = ["camelyon17", "iwildcam", "fmow", "poverty"]
    return module


@pytest.fixture
def package(monkeypatch):
    monkeypatch.setitem(sys.modules, "wilds", stand_in())


def positions(data):
    return (data.inputs[:][:, 0, 0, 0] // 4).tolist()


def test_official_splits_and_hospitals(package):
    splits = load_data("wilds:camelyon17", Options(size=8))
    assert splits.train.environment_names == ("hospital 0", "hospital 3", "hospital 4")
    assert splits.test.environment_names == ("hospital 2",)
    inside = [i for i in range(N) if int(Camelyon.hospital[i]) in (0, 3, 4)]
    assert positions(splits.train) == [i for i in inside if i < 40]
    assert positions(splits.training_domain) == [i for i in inside if i >= 40]
    tested = positions(splits.test) + positions(splits.test_domain)
    assert sorted(tested) == [i for i in range(N) if int(Camelyon.hospital[i]) == 2]
    assert len(positions(splits.test_domain)) == round(0.2 * len(tested))
    assert splits.train.batch(slice(0, 2)).shape == (2, 3, 8, 8)
    for data in (splits.train, splits.training_domain):
        hospitals = [int(data.environment_names[e].split()[1]) for e in data.environments.tolist()]
        assert hospitals == Camelyon.hospital[positions(data)].tolist()
        assert data.labels.tolist() == Camelyon.y_array[positions(data)].tolist()


def test_a_fifth_of_training_where_there_is_no_validation_of_its_kind(package):
    splits = load_data("wilds:fmow", Options(size=8, environment="hospital"))
    assert len(splits.training_domain) == 3 * round(0.2 * 12)
    assert not set(positions(splits.train)) & set(positions(splits.training_domain))


def test_another_field(package):
    splits = load_data("wilds:camelyon17", Options(size=8, environment="slide"))
    assert all(name.startswith("slide ") for name in splits.train.environment_names)
    with pytest.raises(InputError, match="no metadata field 'year': choose from hospital, slide"):
        load_data("wilds:camelyon17", Options(environment="year"))


def test_what_cannot_be_had(package, tmp_path):
    with pytest.raises(InputError, match="WILDS has no 'camelyon': did you mean 'camelyon17'"):
        load_data("wilds:camelyon")
    with pytest.raises(InputError, match=r"is not in .*download=True"):
        load_data("wilds:iwildcam", Options(root=tmp_path))
    with pytest.raises(InputError, match="is not an image classification"):
        load_data("wilds:poverty")


def test_without_the_package(monkeypatch):
    monkeypatch.setattr("transferrisk.extras.find_spec", lambda name: None)
    with pytest.raises(InputError, match="wilds is not installed: pip install wilds"):
        load_data("wilds:camelyon17")
