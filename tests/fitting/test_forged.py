"""Model folders and schemas whose JSON is well-formed and says nonsense: refused in one line, and never a traceback."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
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


def test_every_key_of_a_model_with_a_wrong_type_or_size_is_refused(folder, rows):
    tensors, header = read_tensors(folder / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}  # and not the file, which is written anew
    (folder / "model.json").unlink()
    rows, paths = rows.drop(columns=["outcome", "site"]).head(3), [*places(header)]
    assert len(paths) > 70

    def answer(path: tuple[Any, ...], forged: Any) -> str:
        """The error's text; "": rows could be predicted."""
        (folder / "model.safetensors").write_bytes(encode_tensors(tensors, changed(header, path, forged)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                load_model(folder).predict_proba(rows)
            except InputError as error:
                return str(error)
        return ""

    for path in paths:
        value = header
        for key in path:
            value = value[key]
        assert len(answer(path, wrong_type(value)).splitlines()) == 1, path
        for size in (-1, 10**12) if isinstance(value, int | float) else ():
            assert len(answer(path, size).splitlines()) <= 1, path
    (folder / "model.safetensors").write_bytes(encode_tensors(tensors, header))
    load_model(folder)


def test_every_key_of_a_schema_file_with_a_wrong_type_is_refused(folder, tmp_path):
    content = json.loads((folder / "schema.json").read_text())
    for path in places(content):
        value = content[path[0]] if len(path) == 1 else content[path[0]][path[1]]
        (tmp_path / "schema.json").write_text(json.dumps(changed(content, path, wrong_type(value))))
        with pytest.raises(InputError, match=r"schema\.json") as error:
            read_declared(tmp_path / "schema.json")
        assert len(str(error.value).splitlines()) == 1
