"""The idx format of MNIST and its relatives: a magic number, the sizes, then the bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from .archives import unreadable

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path) -> Tensor:
    """The array in an idx file of unsigned bytes, compressed (.gz) or not."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path") from None
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error, "gzip") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UNSIGNED_BYTE:
        raise InputError(f"{path} is not an idx file of bytes: it begins with {content[:4].hex() or 'nothing'}")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise InputError(f"{path} ends within its header: it is damaged; fetch it again")
    sizes = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(sizes):
        raise InputError(
            f"{path} holds {len(content) - start} bytes where its header promises {math.prod(sizes)}: it is damaged; "
            "fetch it again"
        )
    if not math.prod(sizes):
        raise InputError(f"{path} holds nothing, {' x '.join(map(str, sizes))}: fetch it again")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(sizes)
