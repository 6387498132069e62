"""A training state in one file: tensors as safetensors, the rest as JSON in its header, nothing pickled.

The header's entry "transferrisk" holds `format`, `values` (counters, the optimiser's settings), `configuration` (all
that decides the numbers) and `versions`; "crc" is the sum of that entry and of the tensors' bytes. A file is written
beside its target and renamed, so there is an old one or a new one, never half of one.
"""

from __future__ import annotations

import json
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
from .state import Snapshot

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
    entry = json.dumps(header)
    return save(tensors, {_ENTRY: entry, "crc": str(_crc(entry, tensors))})


def load(path: Path) -> Checkpoint:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InputError(f"{path} does not exist: name a checkpoint, such as last.safetensors of a run")
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
        return Checkpoint(tensors, header["values"], header["configuration"], header["versions"])
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        cause = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is damaged or no checkpoint ({cause}): use an older copy, or another") from None


def load_model(model: Classifier, checkpoint: Checkpoint, path: Path) -> None:
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
    """What differs between two configurations: "lr: 0.1 there, 0.05 here; ..."; empty where nothing does."""
    here = json.loads(json.dumps(here))
    keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
    return "; ".join(f"{key}: {there.get(key)} there, {here.get(key)} here" for key in keys)


def _crc(entry: str, tensors: Mapping[str, Tensor]) -> int:
    value = zlib.crc32(entry.encode())
    for name in sorted(tensors):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data, value)
    return value
