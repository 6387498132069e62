"""Weights from files. Only tensors are unpickled, and a file that does not fit a network is refused.

1. The prefixes `module.` and `_orig_mod.` of parallel and compiled networks are removed from keys.
2. Keys of the file's classifier are left out, since the head is always a new one.
3. If the file holds a whole `Classifier` of this library, the network below its head is read.
4. An archive of TensorFlow.js, or its folder, is read by `keras.read_keras`.
5. All other keys must match by name and shape, except the counters of batch norm, which old files lack.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import InputError, cause_of, listed
from .classifier import Featuriser
from .keras import read_keras

SUFFIXES = (".safetensors", ".pth", ".pt", ".tgz")
_WRAPPERS = ("module.", "_orig_mod.")
_CONTAINERS = ("state_dict", "model", "model_state_dict")
_COUNTER = "num_batches_tracked"

State = dict[str, Tensor]


def load_weights(featuriser: Featuriser, path: Path, name: str, classifier: Sequence[str] = ()) -> None:
    """Load the weights in a file into a featuriser; the layers of the file named in `classifier` are left out."""
    state = read_weights(path)
    below = {key.removeprefix("featuriser."): value for key, value in state.items() if key.startswith("featuriser.")}
    if below:
        fit_weights(featuriser, {k: v for k, v in below.items() if not k.endswith("_extra_state")}, name, path.name)
    else:
        layers = tuple(f"{layer}." for layer in classifier)
        fit_weights(featuriser.network, {k: v for k, v in state.items() if not k.startswith(layers)}, name, path.name)


def read_weights(path: Path) -> State:
    """Return the tensors in a file by name, on the CPU; a folder must hold one such file."""
    try:
        there = path.exists()
    except OSError:  # the name is too long
        there = False
    if not there:
        raise InputError(f"weights must be a file, 'imagenet' or 'none', got {str(path)!r}, which does not exist")
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
        if not files:
            return read_keras(path)
        if len(files) > 1:
            raise InputError(f"{path} holds {len(files)} files of weights, such as {files[0].name}: name one of them")
        path = files[0]
    if path.suffix not in SUFFIXES:
        raise InputError(f"a file of weights must end in {', '.join(SUFFIXES)}, got {str(path)!r}")
    if path.suffix == ".tgz":
        return read_keras(path)
    return _unwrapped(_safetensors(path) if path.suffix == ".safetensors" else _torch(path), path)


def _safetensors(path: Path) -> State:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} cannot be read as safetensors ({cause_of(error)}): fetch or save it again") from error


def _torch(path: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the age or the form of the file
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} holds more than tensors, or is damaged, and is not unpickled for your safety: "
            "save network.state_dict() alone, best as .safetensors"
        ) from error
    except Exception as error:  # whatever torch's reader meets in a damaged file
        raise InputError(f"{path} cannot be read ({cause_of(error)}): fetch or save it again") from error


def _unwrapped(content: object, path: Path) -> State:
    for key in _CONTAINERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise InputError(f"{path} holds a {type(content).__name__}, not tensors by name: save network.state_dict()")
    state = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if not state:
        raise InputError(f"{path} holds no tensors: save network.state_dict()")
    for prefix in _WRAPPERS * 2:  # in either order
        if all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def fit_weights(module: nn.Module, state: State, name: str, source: str) -> None:
    """Load tensors into a module, which must have all of them and no others."""
    own = {key: value for key, value in module.state_dict().items() if isinstance(value, Tensor)}
    own = {key: value for key, value in own.items() if not key.endswith("_extra_state")}
    lacking = [key for key in own if key not in state and not key.endswith(_COUNTER)]
    foreign = [key for key in state if key not in own]
    otherwise = [
        f"{key} {tuple(state[key].shape)} instead of {tuple(value.shape)}"
        for key, value in own.items()
        if key in state and state[key].shape != value.shape
    ]
    faults = (("lacks", lacking), ("has also", foreign), ("has", otherwise))
    found = [f"{verb} {listed(keys, 2)}" for verb, keys in faults if keys]
    if found:
        raise InputError(f"{source} does not fit {name!r}: it {'; '.join(found)}: name the backbone it was saved from")
    try:
        module.load_state_dict(state, strict=False)
    except RuntimeError as error:  # a type that cannot be copied
        raise InputError(
            f"{source} does not fit {name!r} ({cause_of(error)}): name the backbone it was saved from"
        ) from None


def renamed(module: nn.Module, state: State, name: str, source: str) -> State:
    """Return the tensors of a file under the module's names, if the file has them in the same order."""
    own = module.state_dict()
    same = len(own) == len(state) and all(
        mine.rpartition(".")[2] == theirs.rpartition(".")[2] and own[mine].shape == state[theirs].shape
        for mine, theirs in zip(own, state, strict=False)
    )
    if not same:
        raise InputError(f"{source} does not hold the layers of {name!r} in their order: install another version of it")
    return dict(zip(own, state.values(), strict=True))
