"""Folders of trained models, and files of tensors with a description; nothing is pickled.

    model.safetensors  the weights; the file's header has a description of the model, and a checksum of both
    model.json         the same description, for people and other programs to read

`model.safetensors` is complete by itself and replaced in one step, so an interruption leaves the old model or the new
one, never half of one. Invariant: a `model.json` that is there says what `model.safetensors` says; it is removed before
the weights are replaced, and written again after them.
"""

from __future__ import annotations

import json
import platform
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ..data.values import SURROGATE, Standardise
from ..errors import InputError, cause_of
from ..files import whole_file, write_atomically
from ..settings import Count, Length, Settings, convert, dumps, field_kinds
from .blend import BLEND, Member, blend_on, check_members
from .classifier import Classifier, OnFrozen
from .networks import build_model
from .trees import TREES, Sizes, empty_trees

DESCRIPTION, WEIGHTS = "model.json", "model.safetensors"
FORMAT = 4
MOST_NUMBERS = 1 << 24  # in one input; a network for larger ones, which a damaged description may ask for, is not built
_ENTRY = "transferrisk"


def versions() -> dict[str, str]:
    """Return the versions of this package, torch and Python."""
    from .. import __version__

    return {"transferrisk": __version__, "torch": torch.__version__, "python": platform.python_version()}


def encode_tensors(tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> bytes:
    """Return a safetensors file whose metadata has a description, as JSON, and a checksum of it and of the tensors."""
    from safetensors.torch import save

    kept = dict[str, Tensor]()
    for name, tensor in tensors.items():
        kept[name] = tensor.detach().cpu().contiguous()
    entry = dumps({"format": FORMAT, "versions": versions(), **header})
    return save(kept, {_ENTRY: entry, "crc": str(_checksum(entry, kept))})


def read_tensors(path: Path | str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the description in a file of `encode_tensors`; any other file is an InputError."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        folder, fault = path.parent, f"holds no {path.name}"
        if not folder.is_dir():
            fault = "is a file" if folder.exists() else "does not exist"
        raise InputError(f"{folder} {fault}: name the folder of a run or of a trained model")
    try:
        with safe_open(path, framework="pt") as file:
            metadata, names = file.metadata() or {}, list(file.keys())
            tensors = dict(zip(names, map(file.get_tensor, names), strict=True))
        entry = metadata.get(_ENTRY)
        if entry is None:
            raise InputError(f"{path} holds tensors without a description of the model: use a file of a run")
        if metadata.get("crc") != str(_checksum(entry, tensors)):
            raise InputError(f"{path} is damaged: its checksum differs from the one that was written; use another copy")
        header: dict[str, Any] = json.loads(entry)
        if header["format"] != FORMAT:
            raise InputError(f"{path} must have format {FORMAT}, got {header['format']!r}: use another version")
        return tensors, header
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        cause = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is damaged or of another kind ({cause}): use another copy") from None


@dataclass(frozen=True)
class SavedModel:
    """A model with its description.

    Parameters
    ----------
    network
        The classifier, on the CPU.
    backbone
        Name of the network, as `build_model` takes it; "" for a network of the caller's own, which only they can build.
    input_shape
        Shape of one input.
    classes
        Names of the classes, by number.
    environments
        Names of the training environments.
    about
        Settings and history, in the types of JSON, such as the `TrainSpec` and the schema of a table.

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


@dataclass(frozen=True)
class Description(Settings):
    """The header of a saved model."""

    backbone: str
    input_shape: Annotated[tuple[Count, ...], Length(1)]
    classes: Annotated[tuple[str, ...], Length(2)]
    environments: tuple[str, ...]
    about: Mapping[str, Any]
    versions: Mapping[str, str]
    format: int


@dataclass(frozen=True)
class Layers(Settings):
    """The parts of a network beside its backbone, in `about`.

    on_top   name of the network on the backbone's standardised features, computed in `dtype`; "": the backbone is all
    sizes    sizes of the trees, where the backbone is "trees"
    members  members of the average, where `on_top` is "blend"
    """

    on_top: str = ""
    dtype: Literal["float32", "float64"] = "float32"
    sizes: Sizes | None = None
    members: tuple[Member, ...] | None = None


def save_model(folder: Path, saved: SavedModel) -> None:
    """Write a model into a folder; a model that is there is replaced.

    Parameters
    ----------
    folder
        Folder to write.
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
    content = encode_tensors(saved.network.state_dict(), header)
    with whole_file(folder / WEIGHTS) as temporary:
        temporary.write_bytes(content)
        (folder / DESCRIPTION).resolve().unlink(missing_ok=True)  # a link is kept
    write_atomically(folder / DESCRIPTION, dumps({"versions": versions(), **header}, indent=2) + "\n")


def load_model_folder(folder: Path | str, network: Classifier | None = None) -> SavedModel:
    """Read the model in a folder, on the CPU and in evaluation mode.

    Parameters
    ----------
    folder
        Folder that `save_model`, `trm fit` or `trm train` wrote.
    network
        Network that takes the weights. Default: one built by the description.

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
    path, beside = Path(folder) / WEIGHTS, Path(folder) / DESCRIPTION
    tensors, header = read_tensors(path)
    try:
        same = not beside.exists() or header == {"format": FORMAT, **json.loads(beside.read_bytes())}
    except (OSError, ValueError, TypeError, RecursionError):
        same = False
    if not same:
        raise InputError(
            f"{beside} is damaged or was changed, and must say what {WEIGHTS} says: remove it, since nothing reads it, "
            "or use a copy of the folder"
        )
    described = _description(path, header)
    backbone, shape, classes, about = described.backbone, described.input_shape, described.classes, described.about
    try:
        if network is None and backbone:
            layers = {}
            for name in field_kinds(Layers):
                if name in about:
                    layers[name] = about[name]
            network = _build_saved(backbone, shape, len(classes), convert("about", layers, Layers))
    except (InputError, RuntimeError) as error:
        raise _undescribed(path, error) from None
    if network is None:
        raise InputError(f"{folder} holds a network that was built in Python: build it there, and pass it as network")
    head = tensors.get("head.weight", network.head.weight)
    if head.dtype in (torch.float32, torch.float64) and not isinstance(network, OnFrozen):
        network.to(head.dtype)
    own = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for name, tensor in tensors.items():
        may_be_infinite = name.endswith("featuriser.threshold")  # of trees, where all values go to one side
        if (tensor.isnan() if may_be_infinite else ~tensor.isfinite()).any():
            fault = "finite numbers, got nan or infinity"
        elif name in own and tensor.dtype != own[name].dtype:  # copying would round its numbers
            fault = f"{own[name].dtype}, got {tensor.dtype}"
        elif name.endswith("standardise.scale") and (tensor < 0).any():
            fault = f"numbers >= 0, got {float(tensor.min())}"
        else:
            continue
        raise InputError(f"{path} cannot be used ({name} must hold {fault}): train it again, or use a copy")
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        first = (str(error).splitlines()[1:2] or [str(error)])[0].strip().rstrip(".")
        raise InputError(
            f"{folder} does not fit this model ({first}): it holds {backbone or 'a network'} for {len(classes)} "
            "classes; use the same backbone and number of classes"
        ) from None
    return SavedModel(network.eval(), backbone, shape, classes, described.environments, about)


def _build_saved(backbone: str, shape: tuple[int, ...], classes: int, layers: Layers | Member) -> Classifier:
    """Return the network that a description asks for, with random weights; the backbone "linear" gives its inputs."""
    if backbone == TREES:
        return empty_trees(convert("sizes", layers.sizes, Sizes), classes, shape[0])
    network = build_model(backbone, classes, shape, "none")
    if not layers.on_top:
        return network
    width = network.head.in_features
    if layers.on_top == BLEND:
        members = convert("members", getattr(layers, "members", None), tuple[Member, ...])
        check_members(members, width)
        backbones = ["linear" if one.sizes is None else TREES for one in members]
        networks = [
            _build_saved(name, (one.width,), classes, one) for name, one in zip(backbones, members, strict=True)
        ]
        return blend_on(network, members, networks)
    dtype = getattr(torch, layers.dtype)
    top = build_model(layers.on_top, classes, (width,), "none").to(dtype)
    return OnFrozen(network, top, Standardise(torch.zeros(width), torch.ones(width), dtype))


def describe_folder(folder: Path | str) -> Description:
    """Return the description of the model in a folder."""
    path = Path(folder) / WEIGHTS
    return _description(path, read_tensors(path)[1])


def _description(path: Path, header: Mapping[str, Any]) -> Description:
    """Check the header of a file of weights."""
    try:
        described: Description = convert("header", header, Description)
        shape, classes = described.input_shape, described.classes
        if prod(shape) > MOST_NUMBERS:
            raise InputError(f"input_shape must hold at most {MOST_NUMBERS} numbers, got {shape}")
        if len(set(classes)) < len(classes) or SURROGATE.search("".join(classes)):
            raise InputError(f"classes must be different texts that UTF-8 can hold, got {classes}")
    except InputError as error:
        raise _undescribed(path, error) from None
    return described


def _undescribed(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} does not describe a model ({cause_of(error)}): train it again, or use a copy")


def _checksum(entry: str, tensors: Mapping[str, Tensor]) -> int:
    value = zlib.crc32(entry.encode())
    for name in sorted(tensors):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(tensors[name].contiguous().flatten().view(torch.uint8).numpy().data, value)
    return value
