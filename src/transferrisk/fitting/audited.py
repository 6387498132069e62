"""Features of a trained model for an audit, for samples that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ..auditing.samples import Audited, join_sets, unseen_sets
from ..data import EnvironmentSet, Options, Splits, leave_out, load_data
from ..data.catalogue import set_name
from ..data.schema import Schema
from ..data.table_files import read_header
from ..errors import InputError
from ..files import expand_home
from ..models import backbone_at_hand, build_model, features_of, is_registered
from ..training.defaults import default_backbone
from ..training.feed import content_digests, inputs_digest
from ..training.finetune import few_samples
from .model import Model, load_model
from .source import read_source

_KINDS = {"table": "a table", "vectors": "vectors", "images": "images"}
_UNSEEN = ("training_domain", "test")  # splits that a training does not use


def read_model_features(folder: Path, given: str, options: Options, drop_small: bool = False) -> Audited:
    """Compute a model's features of the samples of a file or a data set that it was not trained on.

    A model of `trm train` stores how its data was divided; a model of `trm fit` was trained on every row of its data.
    `drop_small` leaves out environments with few rows.
    """
    model = load_model(folder)
    spec: Mapping[str, Any] | None = model.about.get("spec")
    if spec is None:
        sets = [_unseen_by_fit(folder, model, given, options, drop_small)]
    else:
        sets = _unseen_by_training(folder, spec, model.about.get("digests", {}), given, options, drop_small)
    return join_sets(sets, [features_of(model.network, one.batch, len(one)) for one in sets])


def pretrained_features(images: EnvironmentSet, on_progress: Callable[[str, int, int], None]) -> Tensor | None:
    """Compute features (n, d) of images by the pretrained backbone that is installed; None for small images."""
    shape = tuple(images.inputs[:1].shape[1:])
    usual = default_backbone(shape)
    if is_registered(usual):
        return None
    name = backbone_at_hand(usual)
    backbone = build_model(name, len(images.class_names), shape, weights="imagenet")
    return features_of(backbone, images.batch, len(images), partial(on_progress, f"features by {name}"))


def _unseen_by_fit(folder: Path, model: Model, given: str, options: Options, drop_small: bool) -> EnvironmentSet:
    """Return all samples as the model takes them; its training data is refused, also under another name."""
    origin = model.origin
    if origin.data.startswith("parquet:") and options.features is None:
        options = replace(options, features=origin.names.get("features"))
    name = set_name(given, options)
    trained = f"{folder} was fitted on all rows of {name}: audit rows that are new to it, in another file"
    if _is_same_set(name, origin.data):
        raise InputError(trained)
    if origin.kind == "images":
        options = replace(options, size=options.size or model.input_shape[-1])
    elif name.partition(":")[0] == origin.data.partition(":")[0]:
        own = {"label": origin.label, "environment": origin.environment, **origin.names}
        asked: dict[str, Any] = {key: getattr(options, key) or value for key, value in own.items()}
        options = replace(options, **asked)
        if model.schema is not None:
            options = _columns_of_model(folder, model.schema, name, options)
    source = read_source(name, options, drop_small=drop_small or None)
    if source.kind != origin.kind:
        raise InputError(f"{name} must hold {_KINDS[origin.kind]}, which {folder} takes, got {_KINDS[source.kind]}")
    rows = source.samples
    if model.schema is not None and source.frame is not None:
        rows = replace(rows, inputs=model.schema.encode(source.frame, model.form).features)
    shape = tuple(rows.inputs[:1].shape[1:])
    if shape != model.input_shape:
        raise InputError(
            f"{name} must hold inputs of shape {tuple(model.input_shape)}, which {folder} takes, got {shape}"
        )
    if model.form != "features" and model.schema is not None and source.frame is not None:
        by_features = replace(rows, inputs=model.schema.encode(source.frame).features)
    else:
        by_features = rows
    if inputs_digest(by_features) == origin.digest:
        raise InputError(trained)
    return rows


def _columns_of_model(folder: Path, schema: Schema, name: str, options: Options) -> Options:
    """Return the options with which the columns of a table are read as the model takes them."""
    for option in ("categorical", "numeric", "drop", "missing", "schema"):
        if getattr(options, option) is not None:
            raise InputError(
                f"{option} (--{option}) is for a table's own columns, and {folder} says what they are: leave it out"
            )
    there = {*read_header(name.partition(":")[2])} - {options.label, options.environment}
    texts, numbers = (
        tuple(one.name for one in schema.columns if one.kind == kind and one.name in there)
        for kind in ("categorical", "numeric")
    )
    codes = tuple(f"{name}={code}" for name in schema.missing if name in there for code in schema.missing[name])
    return replace(options, categorical=texts, numeric=numbers, missing=codes or None, missing_indicators="always")


def _unseen_by_training(
    folder: Path, spec: Mapping[str, Any], digests: Mapping[str, Any], given: str, options: Options, drop_small: bool
) -> list[EnvironmentSet]:
    """Return the splits that were not trained on if this is the data of the training; otherwise all samples."""
    name = set_name(given, options)
    same = _is_same_set(name, str(spec.get("data") or ""))
    if options.size is None:
        options = replace(options, size=spec.get("size"))
    if same:
        options = replace(options, seed=spec.get("seed", options.seed))
    data = load_data(name, options)
    splits = _splits_of(data, spec, digests, same)
    if splits is None and same:
        raise InputError(
            f"{name} must be the data that {folder} was trained on, or new to it, got a changed one: give the options "
            "of its training, or another file"
        )
    return unseen_sets(data if splits is None else splits, name, drop_small)


def _is_same_set(name: str, other: str) -> bool:
    """Return whether two names are of the same data set; a path may be written in several ways."""
    (base, _, argument), (other_base, _, other_argument) = name.partition(":"), other.partition(":")
    if base != other_base:
        return False
    return argument == other_argument or expand_home(argument).resolve() == expand_home(other_argument).resolve()


def _splits_of(
    data: EnvironmentSet | Splits, spec: Mapping[str, Any], digests: Mapping[str, Any], same: bool
) -> Splits | None:
    """Divide the data as `trm train` did; return None if it is other data.

    Data is compared by digests of the samples that were not trained on, so that a file is recognised under another
    name. A model without digests is compared by name (`same`).
    """
    own = {split: digests[split] for split in _UNSEEN if split in digests}
    if not own and not same:
        return None
    try:
        splits = data if isinstance(data, Splits) else _divided(data, spec)
        if spec.get("finetune_samples") is not None:
            test = few_samples(splits.test, int(spec["finetune_samples"]), int(spec["seed"]))[1]
            splits = replace(splits, test=test)
    except InputError:  # environments or samples are missing: it is other data
        return None
    if any(content_digests(getattr(splits, split)) != digest for split, digest in own.items()):
        return None
    return splits


def _divided(data: EnvironmentSet, spec: Mapping[str, Any]) -> Splits:
    test, held_out = spec["test_env"], spec["hold_out"]
    if test not in data.environment_names:
        raise InputError(f"environments must hold {test!r}, got {data.environment_names}")
    if held_out is not None:
        data, test = data.only([name for name in data.environment_names if name != test]), held_out
    return leave_out(data, test, int(spec["seed"]))
