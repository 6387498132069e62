"""The final model of a fit, put together from the estimators that were trained on all rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..data import Options
from ..data.schema import Form
from ..models import Classifier, OnFrozen, build_model
from ..models.blend import BLEND, Member, blend_on
from ..models.trees import TREES, sizes_of
from ..settings import as_json
from ..training.feed import inputs_digest
from .candidates import ImageClassifier, form_of
from .decisions import Decision
from .model import Model, Origin
from .plan import Plan
from .source import Source


def assemble_model(
    source: Source,
    plan: Plan,
    algorithm: str,
    trained: Mapping[str, Any],
    weights: Mapping[str, float],
    backbone: Classifier | None,
    options: Options,
    decision: Decision,
) -> Model:
    """Build the model of the fitted estimators: their network, behind the frozen backbone if there is one.

    Its logits are divided by the temperature that calibrates them.
    """
    first, final = next(iter(trained.items()))
    samples, network, name, on_top, shape = source.samples, final.model_, str(plan.backbone), "", source.shape
    sizes, form, members = sizes_of(network), form_of(first), None
    if algorithm == BLEND:
        members, form, columns = _members(source, trained, weights)
        if backbone is None:
            name, shape = "linear", (columns,)
        base = backbone or build_model(name, network.head.out_features, shape, "none")
        network, on_top, sizes = blend_on(base, members, [one.model_ for one in trained.values()]), BLEND, None
    elif sizes is not None:
        name, shape = TREES, (final.n_features_in_,)
    elif not isinstance(final, ImageClassifier):
        on_top = getattr(final, "representation_", "linear")
        if backbone is None:
            name = "linear"
        else:
            top = Classifier(network.featuriser.top, network.head.in_features, network.head.out_features)
            top.head = network.head
            network = OnFrozen(backbone, top, network.featuriser.standardise).eval()
    with torch.no_grad():
        network.head.weight /= decision.temperature
        network.head.bias /= decision.temperature
    origin = Origin(
        source.name,
        source.kind,
        source.label,
        source.environment,
        {name: value for name in ("features", "path") if (value := getattr(options, name))},
        source.columns,
        algorithm,
        inputs_digest(samples),
    )
    about = {
        "on_top": on_top,
        "dtype": str(network.head.weight.dtype).removeprefix("torch."),
        "origin": as_json(origin),
        "schema": None if source.schema is None else source.schema.to_dict(),
        "form": form,
        "sizes": as_json(sizes),
        "members": as_json(members),
        "decision": as_json(decision),
    }
    classes = tuple(np.array(samples.class_names, dtype=object)[final.classes_])
    return Model(network, name, shape, classes, samples.environment_names, about, origin, source.schema, form, decision)


def _members(
    source: Source, trained: Mapping[str, Any], weights: Mapping[str, float]
) -> tuple[list[Member], Form, int]:
    """Return the members of an average, the form in which it takes rows of a table, and its number of columns."""
    schema = source.schema if len(set(map(form_of, trained))) > 1 else None
    form: Form = "both" if schema is not None else form_of(next(iter(trained)))
    members = []
    for name, one in trained.items():
        sizes = sizes_of(one.model_)
        members.append(
            Member(
                name,
                weights[name],
                one.n_features_in_,
                start=0 if schema is None or form_of(name) == "features" else len(schema.feature_names),
                on_top=getattr(one, "representation_", "linear") if sizes is None else "",
                dtype="float64" if one.model_.head.weight.dtype == torch.float64 else "float32",
                sizes=sizes,
            )
        )
    return members, form, max(member.start + member.width for member in members)
