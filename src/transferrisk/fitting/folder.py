"""A model as a folder: weights, how to encode, what was compared, a card and a page. Written whole or not at all.

`schema.json` holds the digest of the weights and of itself, so that what was changed or cut off is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from ..data.standardise import Standardise
from ..errors import InputError
from ..files import check_target, new_folders, write_atomically
from ..models import Classifier, build_model, on_frozen
from .encoders import from_dict
from .model import Model, Origin

FORMAT = 1
WEIGHTS, SCHEMA, CARD, COMPARISON, REPORT = (
    "model.safetensors",
    "schema.json",
    "card.md",
    "comparison.json",
    "report.html",
)
FILES = (WEIGHTS, SCHEMA, CARD, COMPARISON, REPORT)


def check_output(folder: Path, force: bool) -> None:
    """Refuse a folder that could not become a model's, before hours of work and without creating anything."""
    check_target(folder / SCHEMA)
    if not folder.exists():
        return
    others = sorted(path.name for path in folder.iterdir() if path.name not in FILES)
    there = [name for name in FILES if (folder / name).exists()]
    if others:
        raise InputError(f"{folder} holds other things than a model, such as {others[0]}: choose another output")
    if there and not force:
        raise InputError(f"{folder} holds a model already: choose another output, or replace it with force (--force)")


def write_folder(folder: Path, model: Model, write_rest: Callable[[Path], None], force: bool = False) -> None:
    """The model's folder. Its files are made under a hidden name, and take their place when all of them are there."""
    check_output(folder, force)
    place = Path(os.path.realpath(folder))
    there = place.exists()
    with new_folders(place.parent):
        made = Path(tempfile.mkdtemp(dir=place if there else place.parent, prefix=f".{place.name[:100]}."))
        try:
            write_model(made, model)
            write_rest(made)
            if there:
                _move_in(made, place)
            else:
                os.chmod(made, 0o755)
                made.rename(place)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _move_in(made: Path, place: Path) -> None:
    """The files to a folder that is there and stays, since one that is a mount or where the user stands cannot move.

    The schema, without which a folder is no model, goes first and comes last. What fails brings the old files back.
    """
    old = made / "old"
    old.mkdir()
    others = [name for name in FILES if name != SCHEMA]
    try:
        for name in (SCHEMA, *others):
            if (place / name).exists():
                (place / name).rename(old / name)
        for name in (*others, SCHEMA):
            (made / name).rename(place / name)
    except BaseException:
        for name in (*others, SCHEMA):
            if not (made / name).exists():
                (place / name).unlink(missing_ok=True)
            if (old / name).exists():
                (old / name).rename(place / name)
        raise


def write_model(folder: Path, model: Model) -> None:
    from safetensors.torch import save

    from .. import __version__

    state = {name: value.detach().contiguous() for name, value in model.network.state_dict().items()}
    weights = save(state)
    content = {
        "format": FORMAT,
        "version": __version__,
        "classes": list(model.class_names),
        "encoder": model.encoder.to_dict(),
        "origin": asdict(model.origin),
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    write_atomically(folder / WEIGHTS, weights)
    write_atomically(folder / SCHEMA, json.dumps({**content, "sha256": _digest(content)}, indent=2) + "\n")


def load(folder: Path | str) -> Model:
    """The model in a folder, if it is what was written."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: name one that trm fit has written")
    for name in (SCHEMA, WEIGHTS):
        if not (folder / name).is_file():
            raise InputError(f"{folder} is no model: it holds no {name}; name a folder that trm fit has written")
    content = _schema(folder / SCHEMA)
    weights = (folder / WEIGHTS).read_bytes()
    if hashlib.sha256(weights).hexdigest() != content.get("weights_sha256"):
        raise InputError(f"{folder / WEIGHTS} is damaged or of another model: fit it again, or use a copy")
    try:
        encoder = from_dict(content["encoder"])
        origin, classes = Origin(**content["origin"]), tuple(map(str, content["classes"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder / SCHEMA} cannot be understood ({error!r}): fit the model again") from None
    model = Model(encoder, _network(origin, len(classes), encoder.shape), classes, origin)
    _fill(model, weights, folder / WEIGHTS)
    return model


def _network(origin: Origin, classes: int, shape: tuple[int, ...]) -> Classifier:
    """Of the right kind, with weights that mean nothing yet."""
    network = build_model(origin.backbone, classes, shape, "none")
    if not origin.on_top:
        return network
    width = network.head.in_features
    return on_frozen(network, build_model(origin.on_top, classes, (width,)), Standardise.identity(width))


def _schema(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
        digest = content.pop("sha256")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise InputError(f"{path} is damaged: it is no JSON of a model; fit it again, or use a copy") from None
    if content.get("format") != FORMAT:
        raise InputError(
            f"{path} is of format {content.get('format')!r}, and this version reads {FORMAT}: use the version that "
            f"wrote it, {content.get('version')!r}"
        )
    if digest != _digest(content):
        raise InputError(f"{path} was changed after it was written: fit the model again, or use a copy")
    found: Mapping[str, Any] = content
    return found


def _fill(model: Model, weights: bytes, path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load as tensors

    try:
        state: dict[str, Tensor] = tensors(weights)
        model.network.load_state_dict(state)
    except (SafetensorError, RuntimeError) as error:
        cause = " ".join(str(error).split())[:200]
        raise InputError(f"{path} does not fit {model.origin.backbone!r} ({cause}): fit the model again") from None
    model.network.eval()


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
