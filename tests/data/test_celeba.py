"""CelebA's tables, partition and groups, on a set the test draws."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drawn import picture, write_folder, write_zip

from transferrisk.data import Options, Splits, load_data
from transferrisk.data.sets import celeba
from transferrisk.data.sets.celeba import FACTS
from transferrisk.errors import DataWarning, InputError

N = 36
NAMES = [f"{i + 1:06d}.jpg" for i in range(N)]
BLOND = [i % 2 for i in range(N)]
MALE = [i // 2 % 2 for i in range(N)]
PART = [i * 3 // N for i in range(N)]
IMAGES = {name: picture((5 * i, 0, 0), kind="JPEG", quality=95) for i, name in enumerate(NAMES)}
SIGN = {0: "-1", 1: " 1"}


def official():
    rows = [f"{name} -1 {SIGN[b]} {SIGN[m]}" for name, b, m in zip(NAMES, BLOND, MALE, strict=True)]
    attributes = "\n".join([str(N), "Arched_Eyebrows Blond_Hair Male ", *rows])
    partition = "\n".join(f"{name} {part}" for name, part in zip(NAMES, PART, strict=True))
    return {"list_attr_celeba.txt": attributes.encode(), "list_eval_partition.txt": partition.encode()}


def converted():
    rows = [f"{name},-1,{2 * b - 1},{2 * m - 1}" for name, b, m in zip(NAMES, BLOND, MALE, strict=True)]
    attributes = "\n".join(["image_id,Arched_Eyebrows,Blond_Hair,Male", *rows])
    partition = "\n".join(["image_id,partition", *(f"{n},{p}" for n, p in zip(NAMES, PART, strict=True))])
    return {"list_attr_celeba.csv": attributes.encode(), "list_eval_partition.csv": partition.encode()}


def lay_out(root, layout):
    if layout == "official":
        tables = official()
        write_folder(root / "CelebA/Anno", {k: v for k, v in tables.items() if "attr" in k})
        write_folder(root / "CelebA/Eval", {k: v for k, v in tables.items() if "attr" not in k})
        write_zip(root / "CelebA/Img/img_align_celeba.zip", {f"img_align_celeba/{n}": c for n, c in IMAGES.items()})
    else:
        write_folder(root / "celeba", converted())
        write_folder(root / "celeba/img_align_celeba/img_align_celeba", IMAGES)
    return Options(root=root, size=4)


def publish_small(monkeypatch):
    """As if no more had been published than the test draws."""
    monkeypatch.setattr(celeba, "FACTS", replace(FACTS, environments={"female": MALE.count(0), "male": MALE.count(1)}))


@pytest.fixture
def small(monkeypatch):
    publish_small(monkeypatch)


pytestmark = pytest.mark.usefixtures("small")


@pytest.mark.parametrize("layout", ["official", "converted"])
def test_labels_environments_groups_and_partition(tmp_path, layout):
    splits = load_data("celeba", lay_out(tmp_path, layout))
    assert isinstance(splits, Splits)
    for number, data in enumerate((splits.train, splits.training_domain, splits.test)):
        members = [i for i in range(N) if PART[i] == number]
        assert data.labels.tolist() == [BLOND[i] for i in members]
        assert data.environments.tolist() == [MALE[i] for i in members]
        reds = data.inputs[:][:, 0, 0, 0].tolist()
        assert reds == pytest.approx([5 * i for i in members], abs=4)
    assert splits.test_domain.labels.tolist() == splits.training_domain.labels.tolist()
    assert splits.train.environment_names == ("female", "male")
    groups = splits.train.by_group()
    assert groups.environment_names[3] == "male, blond"
    assert (groups.environments == 3).tolist() == [BLOND[i] == MALE[i] == 1 for i in range(12)]


def test_missing_pieces(tmp_path):
    asked = lay_out(tmp_path, "converted")
    (tmp_path / "celeba/img_align_celeba/img_align_celeba/000004.jpg").unlink()
    with pytest.raises(InputError, match=r"attributes of 1 of 36 samples, such as 000004\.jpg"):
        load_data("celeba", asked)
    with pytest.warns(DataWarning, match="male 17 of 18"):
        assert len(load_data("celeba", replace(asked, skip_bad=True)).train) == 11
    with pytest.raises(InputError, match="trm data fetch celeba --from"):
        load_data("celeba", Options(root=tmp_path / "nothing"))


def test_a_smaller_copy_is_read_with_a_warning_and_a_larger_one_refused(tmp_path, monkeypatch):
    asked = lay_out(tmp_path, "converted")
    published = {"female": MALE.count(0) + 1, "male": MALE.count(1) + 5}
    monkeypatch.setattr(celeba, "FACTS", replace(FACTS, environments=published))
    with pytest.warns(DataWarning, match="female 18 of 19, male 18 of 23 images"):
        assert len(load_data("celeba", asked).train) == 12
    monkeypatch.setattr(celeba, "FACTS", replace(FACTS, environments={**published, "male": 3}))
    with pytest.raises(InputError, match="male 18 of 3 images; get it again"):
        load_data("celeba", asked)


def test_a_bad_image_is_skipped_without_shifting_the_others(tmp_path):
    asked = lay_out(tmp_path, "converted")
    (tmp_path / "celeba/img_align_celeba/img_align_celeba/000004.jpg").write_bytes(b"")
    with pytest.warns(DataWarning, match=r"000004\.jpg .it is empty"):
        splits = load_data("celeba", replace(asked, skip_bad=True))
    assert splits.train.labels.tolist() == [BLOND[i] for i in range(12) if i != 3]
    assert splits.test.labels.tolist() == [BLOND[i] for i in range(24, 36)]


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("list_attr_celeba.csv", b"", "is empty"),
        ("list_attr_celeba.csv", b"image_id,Smiling\n000001.jpg,1", "no column 'Blond_Hair'"),
        ("list_attr_celeba.csv", b"image_id,Blond_Hair,Male\n000001.jpg,yes,1", "cannot be read: '000001.jpg yes"),
        ("list_attr_celeba.csv", b"image_id,Blond_Hair,Male\n000001.jpg,--1,1", "cannot be read: '000001.jpg --1"),
        ("list_eval_partition.csv", b"image_id,partition\n000001.jpg,0", "no sample of part 1"),
        ("list_eval_partition.csv", b"image_id,partition\n000001.jpg,3", "000001.jpg in part 3: 0 train"),
    ],
)  # fmt: skip
def test_damaged_tables(tmp_path, name, content, match):
    asked = lay_out(tmp_path, "converted")
    (tmp_path / "celeba" / name).write_bytes(content)
    with pytest.raises(InputError, match=match):
        load_data("celeba", asked)
