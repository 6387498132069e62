"""celeba: is the hair blond? The label goes with gender, and blond men are few (appendix C.4).

Environments   female and male: the two between which TRM transfers predictors
Groups         (gender, hair): `EnvironmentSet.by_group`, the groups of worst-group accuracy and GroupDRO
Splits         the official partition; its validation part is both like the training data and like the test data
Source         <root>/celeba: img_align_celeba (folder or zip), list_attr_celeba and list_eval_partition (.txt or .csv)
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path, PurePosixPath

from ...errors import SKIP_BAD, InputError
from ..catalogue import DataSet, Options, register
from ..containers import Entry, entries
from ..facts import Facts
from ..image_set import SIZE, LabelledFile, image_set
from ..images import is_image
from ..roots import data_root
from ..splits import Splits, TestDomainValidation, TrainingDomainValidation, retyped
from .published import compare_counts, images_among, letters

LABEL, ENVIRONMENT = "Blond_Hair", "Male"
CLASSES, ENVIRONMENTS = ("not blond", "blond"), ("female", "male")

FACTS = Facts(
    name="celeba",
    title="CelebA: blond or not, in women and men",
    licence="for non-commercial research only, see the home page",
    citation="Liu, Luo, Wang & Tang (2015), Deep Learning Face Attributes in the Wild; groups of Sagawa et al. (2020)",
    homepage="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    environments={"female": 118165, "male": 84434},
    classes=CLASSES,
    shape=(3, SIZE, SIZE),
    folder="CelebA",
    by_hand="from the Google Drive folder linked at https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html download "
    "img_align_celeba.zip, list_attr_celeba.txt and list_eval_partition.txt into one folder, then run: trm data fetch "
    "celeba --from FOLDER",
    departures="both kinds of validation are the official validation part; a smaller copy, whose tables name the "
    "images that it has, is read with a warning, with the parts that its own partition says",
)


def load_celeba(_: str, options: Options) -> Splits:
    folder, parted = find_samples(options)
    train, validation, test = (image_set(part, ENVIRONMENTS, CLASSES, SIZE, options, folder) for part in parted)
    return Splits(train, retyped(validation, TrainingDomainValidation), retyped(validation, TestDomainValidation), test)


def find_samples(options: Options) -> tuple[Path, list[list[LabelledFile]]]:
    """Return the folder, and its images for training, validation and test; missing images are an error."""
    folder = locate(data_root(options.root))
    if folder is None:
        raise InputError(f"celeba is not in {data_root(options.root)}: {FACTS.by_hand}")
    files = entries(folder)
    blond, male = (_column(folder, files, "list_attr_celeba", name) for name in (LABEL, ENVIRONMENT))
    partition = _column(folder, files, "list_eval_partition", "partition")
    images = {PurePosixPath(entry.name).name: entry for entry in images_among(folder, files)}
    lost = {name: None for name in partition if name not in images or name not in blond}
    if lost and not options.skip_bad:
        raise InputError(
            f"{folder} lacks the image or the attributes of {len(lost)} of {len(partition)} samples, such as "
            f"{next(iter(lost))}: get it again, or go on without them with {SKIP_BAD}"
        )
    parted: list[list[LabelledFile]] = [[], [], []]
    for name in sorted(partition):
        if not 0 <= partition[name] < 3:
            raise InputError(
                f"{folder} has {name} in part {partition[name]}: 0 train, 1 validation and 2 test are known; get it "
                "again"
            )
        if name not in lost:
            sample = LabelledFile(images[name], CLASSES[blond[name] > 0], ENVIRONMENTS[male[name] > 0])
            parted[partition[name]].append(sample)
    for number, part in enumerate(parted):
        if not part:
            raise InputError(f"{folder} has no sample of part {number} (0 train, 1 validation, 2 test): get it again")
    counts = Counter(sample.environment for part in parted for sample in part)
    # Fewer samples, all of them in the tables and in the folder, are a smaller copy, not a damaged one.
    is_smaller = all(counts[name] <= published for name, published in FACTS.environments.items())
    compare_counts(FACTS, counts, folder, options.skip_bad or is_smaller)
    return folder, parted


def locate(root: Path) -> Path | None:
    below = sorted(root.iterdir()) if root.is_dir() else []
    return next((p for p in below if p.is_dir() and letters(p.name) == "celeba" and any(p.iterdir())), None)


def _column(folder: Path, files: list[Entry], stem: str, column: str) -> dict[str, int]:
    """Image name -> value in a table of the official form (.txt) or of its common conversion (.csv).

    The official attributes begin with their number and the column names; the official partition has neither.
    """
    found = [entry for entry in files if PurePosixPath(entry.name).stem == stem]
    if not found:
        raise InputError(f"{folder} has no {stem}.txt or {stem}.csv: {FACTS.by_hand}")
    lines = found[0].read().decode(errors="replace").splitlines()
    rows = [line.replace(",", " ").split() for line in lines if line.strip()]
    if rows and len(rows[0]) == 1:  # the number of images
        rows = rows[1:]
    if not rows:
        raise InputError(f"{found[0]} is empty: get it again")
    names = rows.pop(0) if not is_image(rows[0][0]) else ["image_id", "partition"]
    place = names.index(column) - len(names) if column in names else None  # from the end: some headers name no image
    if place is None:
        raise InputError(f"{found[0]} has no column {column!r}: it begins with {' '.join(names[:5])!r}")
    values = {}
    for row in rows:
        try:
            values[row[0]] = int(row[place])
        except (ValueError, IndexError):
            line = " ".join(row)[:60]
            raise InputError(f"{found[0]} has a row that cannot be read: {line!r}; get it again") from None
    return values


register(DataSet(FACTS, load_celeba, takes=frozenset({"size", "lazy"}), locate=locate, check=find_samples))
