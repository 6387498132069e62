"""wilds:NAME, the image classification sets of WILDS, through its own package where that is installed.

Environments   the values of a metadata field: hospitals, cameras, years; `environment` names another field
Splits         its own: train, in-distribution validation (or a fifth of train where there is none) and test, of which
               a fifth is kept for test-domain validation
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import InputError, choices
from ...extras import require
from ..catalogue import DataSet, Options, register
from ..environments import EnvironmentSet, review
from ..facts import Facts
from ..image_set import SIZE
from ..images import as_rgb
from ..roots import data_root
from ..splits import VALIDATION, Splits, TestDomainValidation, TrainingDomainValidation, hold_out, retyped

DOMAINS = {"camelyon17": "hospital", "iwildcam": "location", "fmow": "year", "rxrx1": "experiment"}


@dataclass(frozen=True)
class WildsImages:
    """Images that the package reads when they are needed: (n, 3, size, size) uint8."""

    source: Any  # a WILDSDataset
    size: int

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Tensor | slice, /) -> Tensor:
        positions = torch.arange(len(self))[index].tolist()
        images = [np.asarray(as_rgb(self.source.get_input(i)).resize((self.size, self.size))) for i in positions]
        return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def load_wilds(name: str, options: Options) -> Splits:
    wilds = require("wilds")
    if name not in wilds.supported_datasets:
        raise InputError(f"WILDS has no {name!r}{choices(name, wilds.supported_datasets)}")
    try:
        source = wilds.get_dataset(dataset=name, root_dir=str(data_root(options.root)), download=False)
    except FileNotFoundError:
        raise InputError(
            f"WILDS's {name} is not in {data_root(options.root)}: run python -c \"import wilds; "
            f"wilds.get_dataset('{name}', root_dir='{data_root(options.root)}', download=True)\""
        ) from None
    if not source.is_classification or len(source.y_array.shape) != 1 or not hasattr(source.get_input(0), "resize"):
        raise InputError(f"WILDS's {name} is not an image classification: choose from {', '.join(DOMAINS)}")
    fields = [field for field in source.metadata_fields if field != "y"]
    field = options.environment or DOMAINS.get(name, fields[0])
    if field not in fields:
        raise InputError(f"WILDS's {name} has no metadata field {field!r}{choices(field, fields)}")
    values = source.metadata_array[:, list(source.metadata_fields).index(field)].long()
    everything = EnvironmentSet(
        WildsImages(source, options.size or SIZE),
        source.y_array.long(),
        values,
        _names(source, field, int(values.max()) + 1),
        tuple(map(str, range(int(source.n_classes)))),
    )

    def part(split: str, names: Sequence[str] | None = None) -> EnvironmentSet:
        """Return a part of the data; its environments are those that occur in it, unless others are named."""
        members = torch.as_tensor(np.asarray(source.split_array) == source.split_dict[split]).nonzero().flatten()
        data = everything.select(members)
        return data.only(names or [data.environment_names[e] for e in data.environments.unique().tolist()])

    train, test = review(part("train"), f"WILDS's {name}"), part("test")
    if "id_val" in source.split_dict:
        validation = part("id_val", train.environment_names)
    else:
        kept, held = hold_out(train, VALIDATION, options.seed)
        train, validation = train.select(kept), train.select(held)
    tested, selected = hold_out(test, VALIDATION, options.seed)
    return Splits(
        train,
        retyped(validation, TrainingDomainValidation),
        retyped(test.select(selected), TestDomainValidation),
        test.select(tested),
    )


def _names(source: Any, field: str, count: int) -> tuple[str, ...]:
    """Return the names of a field's values, from the data set's own table if it has one."""
    table: Sequence[Any] = (source.metadata_map or {}).get(field, ())
    return tuple(f"{field} {table[i] if i < len(table) else i}" for i in range(count))


register(
    DataSet(
        Facts(
            name="wilds",
            title="an image set of WILDS, through the package wilds",
            licence="each set's own, see the home page",
            citation="Koh et al. (2021), WILDS: A Benchmark of in-the-Wild Distribution Shifts",
            homepage="https://wilds.stanford.edu",
            shape=(3, SIZE, SIZE),
        ),
        load_wilds,
        takes=frozenset({"size", "environment"}),
        argument="NAME",
    )
)
