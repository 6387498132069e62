"""Trees as arrays say what the libraries that grew them say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier

from transferrisk.errors import InputError
from transferrisk.fitting.model import load_model
from transferrisk.models.saved import SavedModel, encode_tensors, read_tensors, save_model
from transferrisk.models.trees import TREES, Sizes, empty_trees, sizes_of
from transferrisk.settings import as_json, convert
from transferrisk.sklearn import BoostingClassifier, LeafTransferClassifier


def rows(classes, count=1500):
    """A numeric column, one of categories of which not all occur, and noise, with missing values everywhere."""
    random = np.random.default_rng(classes)
    X = random.normal(size=(count, 3)).astype(np.float32)
    X[:, 1] = 2 * random.integers(0, 7, count)
    X[random.random(X.shape) < 0.1] = np.nan
    score = np.nan_to_num(X[:, 0]) + (X[:, 1] == 4) + random.normal(size=count) / 2
    y = np.digitize(score, np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1]))
    new = X.copy()
    new[:50, 1], new[50:90, 1], new[90:95] = 99, 3, np.nan  # categories that were not there
    return X, y, new


@pytest.mark.parametrize("classes", [2, 4])
def test_scikit_learn(classes):
    X, y, new = rows(classes)
    expected = HistGradientBoostingClassifier(categorical_features=[1], random_state=0).fit(X.astype(float), y)
    found = BoostingClassifier(categorical=[1], random_state=0).fit(X, y)
    np.testing.assert_allclose(found.predict_proba(new), expected.predict_proba(new.astype(float)), atol=1e-12)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("missing", [True, False])
def test_lightgbm(classes, missing):
    lightgbm = pytest.importorskip("lightgbm", reason="comes with the extra boosting")
    X, y, new = rows(classes)
    if not missing:
        X = np.nan_to_num(X)
    expected = lightgbm.LGBMClassifier(random_state=0, verbose=-1, n_jobs=1).fit(
        X.astype(float), y, categorical_feature=[1]
    )
    found = BoostingClassifier("lightgbm", categorical=[1], random_state=0).fit(X, y)
    chances = expected.booster_.predict(new.astype(float))
    if classes == 2:
        chances = np.stack([1 - chances, chances], 1)
    np.testing.assert_allclose(found.predict_proba(new), chances, atol=1e-6)


def test_arrays_of_these_sizes_take_the_state():
    X, y, new = rows(2, 300)
    model = BoostingClassifier(random_state=0).fit(X, y).model_
    other = empty_trees(sizes_of(model), 2)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(torch.from_numpy(new)), model(torch.from_numpy(new)))
    with pytest.raises(InputError, match="nodes"):
        convert("sizes", {"nodes": "many", "trees": 1, "scores": 1, "subsets": 1, "categories": 1, "depth": 1}, Sizes)


@pytest.mark.parametrize("dense", [False, True])
def test_scores_of_many_trees_are_the_sum_over_all_of_them(dense):
    """More trees than are taken at once, with values of one score each and with values of all."""
    X, y, new = rows(9)
    few = {"max_iter": 32, "max_leaf_nodes": 4}
    site = np.arange(len(X)) % 2
    classifier = LeafTransferClassifier(params=few) if dense else BoostingClassifier(params=few)
    trees = classifier.fit(X, y, environments=site).model_.featuriser
    expected = trees.value[trees.final_nodes(torch.from_numpy(new))].sum(1)
    assert (trees.value.count_nonzero(1) > 1).any() == dense
    torch.testing.assert_close(trees(torch.from_numpy(new)), expected)


def test_memory_does_not_grow_with_trees_times_classes():
    random = np.random.default_rng(0)
    X, y = random.normal(size=(400, 2)), random.integers(20, size=400)
    model = BoostingClassifier(params={"max_iter": 30, "max_leaf_nodes": 4}).fit(X, y).model_
    rows = torch.from_numpy(random.normal(size=(1000, 2)))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        model(rows)
    assert max(event.cpu_memory_usage for event in profile.events()) < 1e7  # (n, T, S) takes 96 MB


FORGED = {
    "left": lambda state, sizes: state["left"].add_(10**6),
    "right": lambda state, sizes: state["right"].fill_(-5),
    "feature": lambda state, sizes: state["feature"].add_(50),
    "subset": lambda state, sizes: state["subset"].add_(10**6),
    "roots": lambda state, sizes: state["roots"].sub_(1),
    "depth": lambda state, sizes: sizes.update(depth=10**9),
    "the steps": lambda state, sizes: sizes.update(depth=1),
    "roots must ascend": lambda state, sizes: state["roots"].copy_(state["roots"].flip(0)),
    "lead once": lambda state, sizes: state["left"].copy_(state["right"]),  # no node goes left
    "of their tree": lambda state, sizes: state["right"][:1].fill_(sizes["nodes"] - 1),
    "subsets": lambda state, sizes: sizes.update(subsets=10**15),
    "scores": lambda state, sizes: sizes.update(scores=10**15),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_file_is_refused(tmp_path, name):
    X, y, new = rows(2, 300)
    network = BoostingClassifier(categorical=[1], random_state=0).fit(X, y).model_
    about = {"sizes": as_json(sizes_of(network))}
    save_model(tmp_path, SavedModel(network, TREES, (3,), ("no", "yes"), ("all",), about))
    found = load_model(tmp_path).network
    assert torch.equal(found(torch.from_numpy(new)), network(torch.from_numpy(new)))
    tensors, header = read_tensors(tmp_path / "model.safetensors")
    state = {key.removeprefix("featuriser."): tensor for key, tensor in tensors.items()}
    FORGED[name](state, header["about"]["sizes"])
    (tmp_path / "model.safetensors").write_bytes(encode_tensors(tensors, header))
    (tmp_path / "model.json").unlink()
    with pytest.raises(InputError, match=name):
        load_model(tmp_path)
