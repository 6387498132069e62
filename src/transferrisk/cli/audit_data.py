"""What `trm audit` looks at: a file by its ending, or a data set by its name, through a trained model or as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..data import EnvironmentSet, Options, Splits

_KINDS = {
    ".npz": "npz",
    ".csv": "table",
    ".csv.gz": "table",
    ".tsv": "table",
    ".tsv.gz": "table",
    ".parquet": "parquet",
}


class Audited(NamedTuple):
    features: Tensor  # (n, d)
    labels: list[str]
    environments: list[str]


def data_name(given: str) -> str:
    """The data set of what was given: a bare path is taken by its ending."""
    from ..data import available
    from ..data.checks import existing_file
    from ..errors import InputError

    if given.partition(":")[0] in available():
        return given
    kind = next((kind for ending, kind in _KINDS.items() if given.lower().endswith(ending)), None)
    if kind is None:
        if "/" in given or Path(given).suffix or Path(given).exists():
            raise InputError(
                f"{given} is not of a kind that can be told by its ending ({', '.join(_KINDS)}): name it so, or write "
                "folder:PATH, manifest:FILE or another of trm data list"
            )
        return given
    if kind == "parquet" and not _has_lists(existing_file(given)):
        kind = "table"
    return f"{kind}:{given}"


def _has_lists(path: Path) -> bool:
    """Whether a Parquet file holds a column of vectors, and is not a table of single values."""
    import pyarrow as pa

    from ..data.tabular import opened_parquet

    kinds = [field.type for field in opened_parquet(path).schema_arrow]
    kinds = [kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind for kind in kinds]
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for kind in kinds for test in tests)


def read(name: str, options: Options, model: Path | None) -> Audited:
    """Features, and the names of label and environment of each sample."""
    from ..data import load
    from ..errors import InputError
    from ..training import load_checkpoint

    checkpoint = None if model is None else load_checkpoint(model)
    if checkpoint is not None and options.size is None:
        options = replace(options, size=checkpoint.configuration.get("data.size"))
    parts = _parts(load(name, options))
    if checkpoint is None:
        if parts[0].inputs[:1].dim() != 2:
            raise InputError(f"data set {name!r} holds images, not features: name a trained model with --model")
        features = [part.inputs[:] for part in parts]
    else:
        features = [_featurised(model, checkpoint, part) for part in parts]
    return Audited(_joined(features), _names(parts, "labels"), _names(parts, "environments"))


def _parts(data: EnvironmentSet | Splits) -> list[EnvironmentSet]:
    """All of a set; of one with a test of its own, what is not trained on."""
    return [data.training_domain, data.test] if isinstance(data, Splits) else [data]


def _featurised(model: Any, checkpoint: Any, data: EnvironmentSet) -> Tensor:
    from ..errors import InputError
    from ..training.evaluate import featurise
    from ..training.request import Network

    backbone = checkpoint.configuration.get("backbone")
    head = checkpoint.part("model").get("head.weight")
    if backbone is None or head is None:
        raise InputError(f"{model} does not say which backbone it holds: use a checkpoint of trm train")
    network = Network(backbone, len(head), tuple(data.inputs[:1].shape[1:]), "none", model)
    return featurise(network(), data)


def _joined(features: Sequence[Tensor]) -> Tensor:
    import torch

    return features[0] if len(features) == 1 else torch.cat(list(features))


def _names(parts: Sequence[EnvironmentSet], what: str) -> list[str]:
    kind = {"labels": "class_names", "environments": "environment_names"}[what]
    return [getattr(part, kind)[i] for part in parts for i in getattr(part, what).tolist()]
