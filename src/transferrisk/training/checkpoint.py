"""A training state in one file: tensors as safetensors, the rest as JSON in its header, nothing pickled.

The header's entry "transferrisk" holds `format`, `values` (counters, the optimiser's settings), `configuration` (all
that decides the numbers) and `versions`; "crc" is the sum of that entry and of the tensors' bytes. A file is written
beside its target and renamed, so there is an old one or a new one, never half of one.
"""

from __future__ import annotations

import json
import math
import platform
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..models import Classifier
from .digests import PREFIX
from .plain import dumps
from .state import COUNTERS, Snapshot

FORMAT = 2
_ENTRY = "transferrisk"


@dataclass(frozen=True)
class Checkpoint(Snapshot):
    configuration: Mapping[str, Any]
    versions: Mapping[str, str]


def versions() -> dict[str, str]:
    from .. import __version__

    return {"transferrisk": __version__, "torch": torch.__version__, "python": platform.python_version()}


def encode(snapshot: Snapshot, configuration: Mapping[str, Any]) -> bytes:
    from safetensors.torch import save

    tensors = dict(snapshot.tensors)
    header = {
        "format": FORMAT,
        "values": snapshot.values,
        "configuration": configuration,
        "versions": versions(),
    }
    entry = dumps(header)
    return save(tensors, {_ENTRY: entry, "crc": str(_crc(entry, tensors))})


def load(path: Path | str) -> Checkpoint:
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        how = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"{path} {how}: name a checkpoint, such as last.safetensors of a run")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            entry = metadata.get(_ENTRY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
        if entry is None:
            raise InputError(f"{path} is no checkpoint of a training: it holds tensors only")
        if metadata.get("crc") != str(_crc(entry, tensors)):
            raise InputError(f"{path} is damaged: its content is not what was written; use an older copy, or another")
        header = json.loads(entry)
        if header["format"] != FORMAT:
            raise InputError(f"{path} is of format {header['format']}, and this version reads {FORMAT}: use another")
        values = header["values"]
        values |= {name: math.nan for name in COUNTERS if values.get(name, 0) is None}  # JSON has no other word for it
        return Checkpoint(tensors, values, header["configuration"], header["versions"])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        cause = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is damaged or no checkpoint ({cause}): use an older copy, or another") from None


def load_model(model: Classifier, checkpoint: Checkpoint, path: Path | str) -> None:
    """The checkpoint's weights, and nothing else of it, into a model of the same shape."""
    try:
        model.load_state_dict(checkpoint.part("model"))
    except RuntimeError as error:
        made = ", ".join(f"{k} {v}" for k in ("data", "backbone") if (v := checkpoint.configuration.get(k)))
        first = str(error).splitlines()[1:2] or [str(error)]
        raise InputError(
            f"{path} does not fit this model ({first[0].strip().rstrip('.')}): it was trained with "
            f"{made or 'another'}; use the same backbone and number of classes"
        ) from None


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """What differs between two configurations: "lr: 0.1 there, 0.05 here; ..."; empty where nothing does.

    Of what is known by a digest alone it is said that it changed: "train.labels: changed since".
    """
    there, here = json.loads(dumps(there)), json.loads(dumps(here))
    told = {}
    for key in {**there, **here}:
        if there.get(key) == here.get(key):
            continue
        if not key.startswith(PREFIX):
            told[key] = f"{there.get(key)} there, {here.get(key)} here"
        elif key in there:
            told[key.removeprefix(PREFIX)] = "changed since"
        else:
            told["digests"] = "not all there, as in an earlier version"
    return "; ".join(f"{key}: {how}" for key, how in told.items())


def _crc(entry: str, tensors: Mapping[str, Tensor]) -> int:
    value = zlib.crc32(entry.encode())
    for name in sorted(tensors):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data, value)
    return value
