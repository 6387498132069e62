"""A trained model as a folder, and tensors with a description in one file; nothing is pickled.

    model.safetensors  the weights; the header of the file describes the model, and holds a checksum of both
    model.json         the same description, for people and other programs to read

`model.safetensors` is complete by itself and replaced in one step, so an interruption leaves the old model or the new
one, never half of one.
"""

from __future__ import annotations

import json
import platform
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.values import Standardise
from ..errors import DataWarning, InputError, cause_of, warn
from ..files import write_atomically
from ..settings import dumps
from .blend import BLEND, blend_on, read_members
from .classifier import Classifier, OnFrozen
from .networks import build_model
from .trees import TREES, Sizes, empty_trees

DESCRIPTION, WEIGHTS = "model.json", "model.safetensors"
FORMAT = 4
_ENTRY = "transferrisk"


def versions() -> dict[str, str]:
    """Versions of what computes: this package, torch and Python."""
    from .. import __version__

    return {"transferrisk": __version__, "torch": torch.__version__, "python": platform.python_version()}


def encode_tensors(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bytes:
    """A safetensors file whose metadata holds a description as JSON, and a checksum of it and of the tensors."""
    from safetensors.torch import save

    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    entry = dumps({"format": FORMAT, "versions": versions(), **header})
    return save(kept, {_ENTRY: entry, "crc": str(_checksum(entry, kept))})


def read_tensors(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and description of a file that `encode_tensors` made; whatever else it is, is an InputError."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} {'is a folder' if path.is_dir() else 'does not exist'}: name a file of a training")
    try:
        with safe_open(path, framework="pt") as file:
            metadata, names = file.metadata() or {}, list(file.keys())
            tensors = dict(zip(names, map(file.get_tensor, names), strict=True))
        entry = metadata.get(_ENTRY)
        if entry is None:
            raise InputError(f"{path} holds tensors only, and does not describe them: use a file of a training")
        if metadata.get("crc") != str(_checksum(entry, tensors)):
            raise InputError(f"{path} is damaged: its content is not what was written; use an older copy, or another")
        header: dict[str, Any] = json.loads(entry)
        if header["format"] != FORMAT:
            raise InputError(f"{path} has format {header['format']}, and this version reads {FORMAT}: use another")
        return tensors, header
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        cause = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is damaged or of another kind ({cause}): use an older copy, or another") from None


@dataclass(frozen=True)
class SavedModel:
    """A model and what is known of it.

    Parameters
    ----------
    network
        The classifier, on the CPU.
    backbone
        Its name, as `build_model` takes it; "": a network of the caller's own, which only they can build.
    input_shape
        Of one input.
    classes
        Names of the classes, by number.
    environments
        Those it was trained in.
    about
        How it came about, in the types of JSON: the `TrainSpec`, the encoder of a table, ...

    Examples
    --------
    >>> from torch import nn
    >>> from transferrisk.models import Classifier, SavedModel
    >>> network = Classifier(nn.Linear(5, 8), num_features=8, num_classes=2)
    >>> saved = SavedModel(network, "", (5,), ("no", "yes"), ("north", "south"))
    """

    network: Classifier
    backbone: str
    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    environments: tuple[str, ...]
    about: Mapping[str, Any] = field(default_factory=dict)


def save_model(folder: Path, saved: SavedModel) -> None:
    """Write the model into a folder, in place of the one that is there.

    Parameters
    ----------
    folder
        Where it goes.
    saved
        The model.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from transferrisk.models import SavedModel, build_model, save_model
    >>> folder = Path(mkdtemp())
    >>> save_model(folder, SavedModel(build_model("mlp:8", 2, (5,)), "mlp:8", (5,), ("no", "yes"), ("north", "south")))
    >>> sorted(path.name for path in folder.iterdir())
    ['model.json', 'model.safetensors']
    """
    header = {
        "backbone": saved.backbone,
        "input_shape": saved.input_shape,
        "classes": saved.classes,
        "environments": saved.environments,
        "about": saved.about,
    }
    write_atomically(folder / WEIGHTS, encode_tensors(saved.network.state_dict(), header))
    write_atomically(folder / DESCRIPTION, dumps({"versions": versions(), **header}, indent=2) + "\n")


def load_model_folder(folder: Path | str, network: Classifier | None = None) -> SavedModel:
    """Read the model in a folder, on the CPU and in evaluation mode.

    Parameters
    ----------
    folder
        That `save_model`, `trm fit` or `trm train` wrote.
    network
        Takes the weights; None: it is built as the folder describes it.

    Returns
    -------
    SavedModel
        The model.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from transferrisk.models import SavedModel, build_model, load_model_folder, save_model
    >>> folder = Path(mkdtemp())
    >>> save_model(folder, SavedModel(build_model("mlp:8", 2, (5,)), "mlp:8", (5,), ("no", "yes"), ("north", "south")))
    >>> load_model_folder(folder).classes
    ('no', 'yes')
    """
    path = _weights_of(folder)
    tensors, header = read_tensors(path)
    try:
        backbone, classes = str(header["backbone"]), tuple(map(str, header["classes"]))
        shape = tuple(map(int, header["input_shape"]))
        environments, about = tuple(map(str, header["environments"])), dict(header["about"])
        if network is None and not backbone:
            raise InputError(
                f"{folder} holds a network that was built in Python: build it there, and give it as network"
            )
        network = network or _build_saved(header)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, InputError) and not backbone:
            raise
        raise InputError(
            f"{path} does not describe a model ({cause_of(error)}): train it again, or use a copy"
        ) from None
    head = tensors.get("head.weight", network.head.weight)
    if head.dtype != network.head.weight.dtype:
        network.to(head.dtype)
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        first = (str(error).splitlines()[1:2] or [str(error)])[0].strip().rstrip(".")
        raise InputError(
            f"{folder} does not fit this model ({first}): it holds {backbone or 'a network'} for {len(classes)} "
            "classes; use the same backbone and number of classes"
        ) from None
    _compare_description(path.with_name(DESCRIPTION), header)
    return SavedModel(network.eval(), backbone, shape, classes, environments, about)


def _build_saved(header: Mapping[str, Any]) -> Classifier:
    """The network that the header of a saved model describes, with weights that mean nothing yet.

    It is a backbone by its name or, where `on_top` names a network, that network in this `dtype` on the backbone's
    standardised features. The backbone "linear" gives the rows themselves; "trees" are trees of these `sizes`, and
    "blend" on top is the average of these `members`.
    """
    classes, on_top = len(header["classes"]), header["about"].get("on_top")
    if header["backbone"] == TREES:
        (columns,) = header["input_shape"]
        return empty_trees(Sizes.of(header["about"].get("sizes")), classes, int(columns))
    network = build_model(header["backbone"], classes, tuple(header["input_shape"]), "none")
    if not on_top:
        return network
    if on_top == BLEND:
        members, networks = read_members(header["about"].get("members"), network.head.in_features), []
        for member in members:
            about = {"on_top": member.on_top, "dtype": member.dtype, "sizes": member.sizes}
            backbone = "linear" if member.sizes is None else TREES
            networks.append(
                _build_saved({**header, "backbone": backbone, "input_shape": [member.width], "about": about})
            )
        return blend_on(network, members, networks)
    dtype, width = getattr(torch, header["about"]["dtype"]), network.head.in_features
    top = build_model(on_top, classes, (width,), "none").to(dtype)
    return OnFrozen(network, top, Standardise(torch.zeros(width), torch.ones(width), dtype))


def _compare_description(path: Path, header: Mapping[str, Any]) -> None:
    """Warn where model.json does not say what the weights' own header says, which is what counts."""
    try:
        described = json.loads(path.read_bytes()) if path.exists() else None
    except (OSError, ValueError):
        described = {}
    if described is not None and described != {key: value for key, value in header.items() if key != "format"}:
        warn(f"{path} is damaged or was changed: it is not used, since {WEIGHTS} describes the model", DataWarning)


def describe_folder(folder: Path | str) -> Mapping[str, Any]:
    """The description of a folder's model."""
    return read_tensors(_weights_of(folder))[1]


def _weights_of(folder: Path | str) -> Path:
    folder = Path(folder)
    if not folder.is_dir():
        how = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {how}: name the folder of a trained model")
    if not (folder / WEIGHTS).is_file():
        raise InputError(f"{folder} holds no {WEIGHTS}: name the folder of a trained model")
    return folder / WEIGHTS


def _checksum(entry: str, tensors: Mapping[str, Tensor]) -> int:
    value = zlib.crc32(entry.encode())
    for name in sorted(tensors):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data, value)
    return value
