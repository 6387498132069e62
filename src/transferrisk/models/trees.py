"""Boosted trees as a network: the trees of scikit-learn or LightGBM as arrays, which are used without these libraries.

Conventions, for N nodes of T trees, k columns and S scores (one for two classes, else one for each class):

    inputs     (n, k), a number or the index of a category; nan where it is missing
    node       a row goes left if its value is at most `threshold`, or its category is in `subset`; if the value is
               missing, `missing_left` decides. A leaf is its own child, so that all rows take equally many steps
    scores     (n, S): the sum over trees of the values, (N, S), of the leaves that a row reaches
    logits     (n, C), by a linear head: the scores plus their starting values; of two classes, the first has logit 0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import InputError
from ..settings import Count, Seed, Settings
from .classifier import Classifier

TREES = "trees"  # the backbone's name in a saved model
STEPS_AT_ONCE = 4  # down the trees, before rows that came to a leaf are left out
TREES_AT_ONCE = 256  # most numbers for a row at a time, one for each tree and score
UNSEEN, RIGHT, LEFT = 0, 1, 2  # the way of a category at a split; an unseen one goes the way of missing values


@dataclass(frozen=True)
class Sizes(Settings):
    """Sizes of the arrays of an ensemble, which are part of a saved model's description."""

    nodes: Count
    trees: Count
    scores: Count
    subsets: Count
    categories: Count
    depth: Seed


class TreeEnsemble(nn.Module):
    """Trees from inputs (n, k) to scores (n, S)."""

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    missing_left: Tensor
    subset: Tensor
    subsets: Tensor
    value: Tensor
    roots: Tensor

    def __init__(self, sizes: Sizes, columns: int | None = None) -> None:
        super().__init__()
        self.sizes, self.columns = sizes, columns
        self.one_score = False  # whether tree t has values of score t mod S alone
        self.shapes: dict[str, tuple[int, ...]] = {
            **dict.fromkeys(("feature", "threshold", "left", "right", "missing_left"), (sizes.nodes,)),
            "subset": (sizes.nodes,),  # place in `subsets`; 0: the split is by threshold
            "subsets": (sizes.subsets, sizes.categories),
            "value": (sizes.nodes, sizes.scores),
            "roots": (sizes.trees,),
        }
        kinds = {"missing_left": torch.bool, "threshold": torch.float64, "value": torch.float64}
        for name in self.shapes:  # empty until a state is loaded, since sizes in a file may be anything
            self.register_buffer(name, torch.zeros(0, dtype=kinds.get(name, torch.int64)))

    def _load_from_state_dict(self, state_dict: Mapping[str, Tensor], prefix: str, *rest: Any) -> None:
        """Load arrays that have the right shapes and are trees; anything else is an error of `load_state_dict`."""
        errors: list[str] = rest[-1]
        arrays = {}
        for name, shape in self.shapes.items():
            array = state_dict.get(prefix + name)
            if array is None:
                continue
            arrays[name] = array
            if array.shape != shape:
                errors.append(f"{name} must have shape {shape}, got {tuple(array.shape)}")
        if errors:
            return
        for name, array in arrays.items():
            own = getattr(self, name)
            setattr(self, name, torch.empty(array.shape, dtype=own.dtype, device=own.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if arrays.keys() == self.shapes.keys():
            errors.extend(self._faults())
            tree = torch.bucketize(torch.arange(self.sizes.nodes, device=self.roots.device), self.roots, right=True) - 1
            others = nn.functional.one_hot(tree.clamp(min=0) % self.sizes.scores, self.sizes.scores) == 0
            self.one_score = self.sizes.trees % self.sizes.scores == 0 and not (self.value * others).any()

    def _faults(self) -> Iterator[str]:
        """Yield what keeps the arrays from being trees in which every row comes to a leaf after at most `depth` steps.

        Invariant: the nodes of a tree follow its root, and each of them is the child of one earlier node.
        """
        N, nodes = self.sizes.nodes, torch.arange(self.sizes.nodes, device=self.roots.device)
        ranges: dict[str, tuple[Tensor | int, int]] = {
            "left": (nodes, N),
            "right": (nodes, N),
            "subset": (0, self.sizes.subsets),
            "subsets": (UNSEEN, LEFT + 1),
            "roots": (0, N),
        }
        if self.columns is not None:
            ranges["feature"] = 0, self.columns
        sound = True
        for name, (least, below) in ranges.items():
            array = getattr(self, name)
            wrong = (array < least) | (array >= below)
            if wrong.any():
                yield f"{name} must lead to a node, column or subset that is there, got {int(array[wrong][0])}"
                sound = False
        if not sound:
            return
        if self.roots[0] != 0 or (torch.diff(self.roots) <= 0).any():
            yield f"roots must ascend from 0, got {self.roots[:5].tolist()}"
            return
        tree = torch.bucketize(nodes, self.roots, right=True)
        inner = (self.left != nodes) | (self.right != nodes)
        children = torch.cat([self.left[inner], self.right[inner]])
        parents = torch.bincount(children, minlength=N)
        parents[self.roots] += 1
        if (parents != 1).any() or (tree[children] != tree[nodes[inner]].repeat(2)).any():
            yield "left and right must lead once to every node of their tree but its root"
            return
        steps, reached = 0, self.roots[inner[self.roots]]
        while len(reached):
            ends = torch.cat([self.left[reached], self.right[reached]])
            steps, reached = steps + 1, ends[inner[ends]]
        if not steps <= self.sizes.depth <= N:
            yield f"depth must be {steps}, the steps from a root to the farthest leaf, got {self.sizes.depth}"

    def final_nodes(self, inputs: Tensor, roots: Tensor | None = None) -> Tensor:
        """Return the leaf that each row reaches in each tree, (n, T), or in the trees with these roots."""
        x = inputs.double()
        n, k = x.shape[:2]  # len() would be a constant in an exported file
        roots = self.roots if roots is None else roots
        if torch.compiler.is_compiling():  # while it is exported
            node = roots.expand(n, -1)
            for _ in range(self.sizes.depth):
                node = self._below(node, x.gather(1, self.feature[node]))
            return node
        # One tree of many is deep, and most rows are in a leaf long before: after a few steps they are left out.
        leaf = self.left == torch.arange(self.sizes.nodes, device=x.device)
        first = torch.arange(0, n * k, k, device=x.device).repeat_interleave(len(roots))  # number of each row in `x`
        node, final = roots.repeat(n), roots.repeat(n)
        pair = torch.arange(len(node), device=x.device)
        x = x.flatten()
        while len(pair):
            for _ in range(STEPS_AT_ONCE):
                node = self._below(node, x[first + self.feature[node]])
            final[pair] = node
            going = ~leaf[node]
            pair, first, node = pair[going], first[going], node[going]
        return final.view(n, len(roots))

    def _below(self, node: Tensor, value: Tensor) -> Tensor:
        """Return the child of each node that a value of its column leads to; a leaf is its own child."""
        lost, left = value.isnan(), value <= self.threshold[node]
        if len(self.subsets) > 1:  # some split is by categories
            subset = self.subset[node]
            place = torch.where(lost, 0, value).clamp(0, self.subsets.shape[1] - 1).long()
            way = self.subsets[subset, place]
            by_subset = subset > 0
            # By logic and not by `where`, which runtimes of ONNX do not have for truth values.
            left = (by_subset & (way == LEFT)) | (~by_subset & left)
            lost = lost | (by_subset & ((way == UNSEEN) | (value >= self.subsets.shape[1])))
        left = (lost & self.missing_left[node]) | (~lost & left)
        return torch.where(left, self.left[node], self.right[node])

    def forward(self, inputs: Tensor) -> Tensor:
        """Add up the scores of a few trees at a time, since (n, T, S) would be large with many classes."""
        S, scores = self.sizes.scores, inputs.new_zeros((), dtype=self.value.dtype)
        few = max(1, TREES_AT_ONCE // S)
        for roots in self.roots.split(few * S):
            nodes = self.final_nodes(inputs, roots)
            if self.one_score:
                scores = scores + self.value.sum(1)[nodes].unflatten(1, (-1, S)).sum(1)
                continue
            for reached in nodes.split(few, 1):
                scores = scores + self.value[reached].sum(1)
        return scores

    def column_shares(self, inputs: Tensor, columns: int) -> tuple[Tensor, Tensor]:
        """Return each column's share in the scores of nodes, (N, k, S), and of inputs, (n, k, S).

        A node's value is the mean of its leaves, weighted by the inputs that reach them. From the root to a leaf, each
        change of the value belongs to the column that is split; a leaf's shares add up to its value less the root's.
        """
        reached = self.final_nodes(inputs)
        left, right, feature, value = self.left.numpy(), self.right.numpy(), self.feature.numpy(), self.value.numpy()
        counts = np.bincount(reached.flatten(), minlength=len(value)).astype(np.float64)
        inner = np.flatnonzero(left != np.arange(len(value)))
        value = value.copy()
        for node in inner[::-1]:  # children come after their parents
            ends = [left[node], right[node]]
            counts[node] = counts[ends].sum()
            value[node] = np.average(value[ends], 0, counts[ends] if counts[node] else None)
        changes = np.zeros((len(value), columns, value.shape[1]))
        for node in inner:
            for end in (left[node], right[node]):
                changes[end] = changes[node]
                changes[end, feature[node]] += value[end] - value[node]
        shares = torch.from_numpy(changes)
        added = nn.functional.embedding_bag(reached, shares.flatten(1), mode="sum")
        return shares, added.unflatten(1, shares.shape[1:])


class _Growing:
    """Arrays of an ensemble to which trees are being added."""

    def __init__(self, start: Sequence[float], categories: Mapping[int, Sequence[int]]) -> None:
        self.start, self.categories = start, 1 + max(chain.from_iterable(categories.values()), default=0)
        self.nodes: list[tuple[int, float, int, int, bool, int, float]] = []
        self.subsets: list[NDArray[np.int64]] = [np.zeros(self.categories, np.int64)]
        self.trees: list[tuple[int, int]] = []  # root, score
        self.depth = 0

    def add_subset(self, seen: Sequence[int], chosen: Sequence[int]) -> int:
        ways = np.full(self.categories, UNSEEN, np.int64)
        ways[list(seen)] = RIGHT
        ways[list(chosen)] = LEFT
        self.subsets.append(ways)
        return len(self.subsets) - 1

    def classifier(self, classes: int) -> Classifier:
        """Return the ensemble, with a head that adds the starting values of the scores."""
        sizes = Sizes(len(self.nodes), len(self.trees), len(self.start), len(self.subsets), self.categories, self.depth)
        model = empty_trees(sizes, classes)
        trees = model.featuriser
        names = ("feature", "threshold", "left", "right", "missing_left", "subset", "value")
        columns = map(np.array, zip(*self.nodes, strict=True))
        state = dict(zip(names, map(torch.from_numpy, columns), strict=True))
        roots, scores = zip(*self.trees, strict=True)
        score = np.repeat(scores, np.diff([*roots, len(self.nodes)]))  # of each node; its tree's nodes follow the root
        state["value"] = state["value"].unsqueeze(1) * nn.functional.one_hot(torch.from_numpy(score), len(self.start))
        state["subsets"] = torch.from_numpy(np.stack(self.subsets))
        state["roots"] = torch.tensor(roots)
        trees.load_state_dict(state)
        model.head.bias[classes - len(self.start) :] = torch.tensor(list(self.start), dtype=torch.float64)
        return model


def empty_trees(sizes: Sizes, classes: int, columns: int | None = None) -> Classifier:
    """Return an ensemble of these sizes that has no arrays until a state is loaded; splits are of `columns` columns."""
    if sizes.scores not in (1, classes):
        raise InputError(f"scores must be 1 or {classes}, the number of classes, got {sizes.scores}")
    model = Classifier(TreeEnsemble(sizes, columns), sizes.scores, classes).double().eval().requires_grad_(False)
    model.head.weight.copy_(torch.eye(classes)[:, classes - sizes.scores :])
    model.head.bias.zero_()
    return model


def sizes_of(model: Classifier) -> Sizes | None:
    """Return the sizes of a classifier's trees; None if it has no trees."""
    return model.featuriser.sizes if isinstance(model.featuriser, TreeEnsemble) else None


def from_scikit_learn(
    fitted: Any,
    order: Sequence[int],
    categories: Mapping[int, Sequence[int]],
    cuts: Mapping[int, NDArray[np.float64]] | None = None,
) -> Classifier:
    """Return the trees of a HistGradientBoostingClassifier.

    order       for each column that the trees were grown on, its place in the inputs
    categories  place of a categorical column in the inputs -> its categories in order, which the trees know by place
    cuts        place of a column in the inputs -> cuts between its values; the trees know the number of cuts below one
    """
    start = np.asarray(fitted._baseline_prediction, dtype=np.float64).ravel()
    growing = _Growing(start.tolist(), categories)
    for one_round in fitted._predictors:
        for score, tree in enumerate(one_round):
            first = len(growing.nodes)
            growing.trees.append((first, score))
            growing.depth = max(growing.depth, int(tree.nodes["depth"].max()))
            for i, node in enumerate(tree.nodes.tolist()):
                named = dict(zip(tree.nodes.dtype.names, node, strict=True))
                if named["is_leaf"]:
                    growing.nodes.append((0, 0.0, first + i, first + i, True, 0, named["value"]))
                    continue
                column, subset = int(order[named["feature_idx"]]), 0
                if named["is_categorical"]:
                    seen = categories[column]
                    words = tree.raw_left_cat_bitsets[named["bitset_idx"]].tolist()
                    chosen = [place for i, place in enumerate(seen) if words[i // 32] >> (i % 32) & 1]
                    subset = growing.add_subset(seen, chosen)
                ends = first + named["left"], first + named["right"]
                missing_left, threshold = bool(named["missing_go_to_left"]), named["num_threshold"]
                if cuts and column in cuts and np.isfinite(threshold):
                    # At the number of all cuts, every value that is given goes left.
                    threshold = float(np.append(cuts[column], np.inf)[int(threshold)])
                growing.nodes.append((column, threshold, *ends, missing_left, subset, 0.0))
    return growing.classifier(len(fitted.classes_))


def from_lightgbm(dumped: Mapping[str, Any], classes: int, categories: Mapping[int, Sequence[int]]) -> Classifier:
    """Return the trees in the result of `Booster.dump_model`; a category that is new or missing goes right."""
    scores = int(dumped["num_tree_per_iteration"])
    growing = _Growing([0.0] * scores, categories)

    def add(node: Mapping[str, Any], depth: int) -> int:
        place = len(growing.nodes)
        growing.depth = max(growing.depth, depth)
        growing.nodes.append((0, 0.0, place, place, True, 0, float(node.get("leaf_value", 0.0))))
        if "split_feature" not in node:
            return place
        subset, threshold = 0, 0.0
        if node["decision_type"] == "==":
            chosen = np.array(node["threshold"].split("||"), dtype=np.int64)
            subset = growing.add_subset(range(growing.categories), chosen[chosen < growing.categories].tolist())
            missing_left = False
        else:
            threshold = float(node["threshold"])
            # Without missing values in training, LightGBM takes them as 0.
            missing_left = node["default_left"] if node["missing_type"] == "NaN" else threshold >= 0
        ends = add(node["left_child"], depth + 1), add(node["right_child"], depth + 1)
        growing.nodes[place] = (node["split_feature"], threshold, *ends, bool(missing_left), subset, 0.0)
        return place

    for i, tree in enumerate(dumped["tree_info"]):
        growing.trees.append((add(tree["tree_structure"], 0), i % scores))
    return growing.classifier(classes)
