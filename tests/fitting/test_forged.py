"""Model folders and schemas that are well-formed and hold nonsense: refused in one line, never with a traceback."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from rows import ASKED, table

from transferrisk.data.infer import read_declared
from transferrisk.errors import InputError
from transferrisk.fitting import Plan, fit, load_model, save_fit
from transferrisk.models.saved import encode_tensors, read_tensors

NAMES = {"names", "versions", "dropped", "remarks", "about"}  # whose keys are names, or settings of their own


@pytest.fixture(scope="module")
def rows():
    return table(150)


@pytest.fixture(scope="module")
def folder(rows, tmp_path_factory):
    """An average of trees and a network with figures, sets, a threshold and every kind of column."""
    place = tmp_path_factory.mktemp("forged")
    rows.to_csv(place / "visits.csv", index=False)
    plan = Plan(algorithms=("majority", "lightgbm"), algorithm="blend", metric="f1", device="cpu", workers=1)
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr("transferrisk.fitting.blending.CLOSE", 9.0)  # though the losses of the two are far apart
        save_fit(fit(place / "visits.csv", ASKED, plan), place / "model")
    return place / "model"


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values of JSON; of the items of a list, and of entries that differ by name alone, the first."""
    items = list(content.items() if isinstance(content, dict) else enumerate(content))
    for key, value in items[:1] if isinstance(content, list) or path[-1:] in {("seen",), ("temperatures",)} else items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def wrong_type(value: Any) -> Any:
    return {dict: [1], list: 7, str: 5, bool: "odd", type(None): {"odd": 1}}.get(type(value), "odd")


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    content = deepcopy(content)
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return content


VALUES = [
    None, True, "", "odd", "trees", "mlp:999999999", 0, -1, 3, 10**12, 2**64, 10**400, 0.5, 1e308, [], {}, ["a", "a"],
]  # fmt: skip
"""What takes the place of a value; each value gets a quarter of them."""
TENSORS = {
    "cut": lambda tensor: tensor.flatten()[:-1],
    "empty": lambda tensor: tensor.new_zeros(0),
    "twice": lambda tensor: torch.stack([tensor, tensor]),
    "transposed": lambda tensor: tensor.mT if tensor.ndim > 1 else tensor[None],
    "nan": lambda tensor: tensor.double() * torch.nan,
    "infinite": lambda tensor: tensor.double() + torch.inf,
    **{str(kind): lambda tensor, kind=kind: tensor.to(kind) for kind in (
        torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64,
    )},
    **{str(number): lambda tensor, number=number: torch.full_like(tensor, number) for number in (-1, 0, 2**62)},
}  # fmt: skip
"""What takes the place of each tensor."""


@pytest.fixture
def forge(folder, rows):
    """Write a model anew; return the message that refuses it, or "" if it gives probabilities and sets."""
    tensors, header = read_tensors(folder / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}  # and not the file, which is written anew
    (folder / "model.json").unlink(missing_ok=True)
    new = rows.drop(columns=["outcome", "site"]).head(3)

    def answer(change_tensors: dict[str, Any] | None = None, header: Any = header) -> str:
        content = {**tensors, **(change_tensors or {})}
        content = {name: tensor.contiguous() for name, tensor in content.items() if tensor is not None}
        (folder / "model.safetensors").write_bytes(encode_tensors(content, header))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                model = load_model(folder)
                assert np.allclose(model.predict_proba(new).sum(1), 1)
                assert model.predict_sets(new).any(1).all()
            except InputError as error:
                told = str(error)
            else:
                told = ""
        assert len(told.splitlines()) <= 1
        return told

    yield answer, tensors, header
    (folder / "model.safetensors").write_bytes(encode_tensors(tensors, header))
    load_model(folder)


def test_every_key_of_a_model_with_a_wrong_type_is_refused_and_with_another_value_never_a_traceback(forge):
    answer, _, header = forge
    paths = [*places(header)]
    assert len(paths) > 70
    for i, path in enumerate(paths):
        value = header
        for key in path:
            value = value[key]
        assert answer(header=changed(header, path, wrong_type(value))), path
        for other in VALUES[i % 4 :: 4]:
            answer(header=changed(header, path, other))


def test_every_tensor_of_another_shape_or_type_or_without_finite_numbers_is_refused(forge):
    answer, tensors, _ = forge
    assert len(tensors) > 15
    assert "odd" in answer({"odd": torch.zeros(3)})
    for name, tensor in tensors.items():
        assert answer({name: None}), name
        for what, change in TENSORS.items():
            try:
                other = change(tensor)
            except RuntimeError:  # a type without this number
                continue
            same = (other.dtype == tensor.dtype and other.shape == tensor.shape) or name.endswith("_extra_state")
            told = answer({name: other})
            infinite = what == "infinite" and name.endswith("featuriser.threshold")  # all rows go left
            assert told or infinite or (same and what not in ("nan", "infinite")), (name, what)


def test_a_file_that_is_cut_anywhere_is_refused(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for length in [*range(12), *range(12, len(whole), len(whole) // 40), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"model\.safetensors is damaged"):
            load_model(folder)
    path.write_bytes(whole)


@pytest.mark.parametrize("classes", [["no", "no"], ["no", "\ud800"], ["no"], ["no", "yes", "perhaps"]])
def test_classes_that_cannot_be_those_of_the_model_are_refused(forge, classes):
    answer, _, header = forge
    assert answer(header=changed(header, ("classes",), classes))


def test_a_schema_that_does_not_give_the_inputs_of_the_network_is_refused(forge):
    answer, _, header = forge
    for columns in (header["about"]["schema"]["columns"][1:], []):
        assert "features" in answer(header=changed(header, ("about", "schema", "columns"), columns))


def test_every_key_of_a_schema_file_with_a_wrong_type_is_refused(folder, tmp_path):
    content = json.loads((folder / "schema.json").read_text())
    for path in places(content):
        value = content[path[0]] if len(path) == 1 else content[path[0]][path[1]]
        (tmp_path / "schema.json").write_text(json.dumps(changed(content, path, wrong_type(value))))
        with pytest.raises(InputError, match=r"schema\.json") as error:
            read_declared(tmp_path / "schema.json")
        assert len(str(error.value).splitlines()) == 1
