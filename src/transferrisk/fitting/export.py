"""Export of a model with its preprocessing to ONNX, for runtimes without Python.

    vectors   input `features` (n, d) float32, as in the file of embeddings; the graph standardises them
    images    input `images` (n, 3, h, w) uint8, decoded and scaled to that size; the graph normalises them
    tables    one input for each column, (n,), which the graph encodes:
                numeric      float64, NaN where it is missing
                boolean      float64, 1 or 0, NaN where it is missing
                date         float64, days since 1970 began in Greenwich, NaN where it is missing
                categorical  string, as in the table, a whole number without ".0"; "" where it is missing

The output is `probabilities` (n, C), float32. The file's property `classes` has the names of the columns, as JSON. The
graph does not decide for a class: if the property `threshold` is there, predict the second of the two classes where its
probability is above the threshold, else the class with the largest probability. Tables are encoded as in `data.schema`,
in float64, so that large numbers keep their digits.
"""

from __future__ import annotations

import json
import warnings
from contextlib import redirect_stdout
from io import StringIO
from math import pi
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.schema import MONDAY, WEEK, YEAR, Boolean, Categorical, Column, Date, Form, Schema
from ..data.values import Scaling
from ..errors import InputError, listed
from ..extras import require
from ..files import check_target, write_atomically
from .model import Model

OPSET = 18
PROBABILITIES = "probabilities"
TO_MARCH = 719_468  # days from 1 March of year 0 to 1 January 1970
ERA = 146_097  # days in 400 years


class _Deployed(nn.Module):
    """Network from inputs, as files hold them, to probabilities."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = model.network
        self.images = model.origin.kind == "images"

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(inputs.float() / 255 if self.images else inputs)
        return logits.softmax(1).float()


def export_onnx(model: Model, path: Path) -> list[tuple[str, str, str]]:
    """Write a model as ONNX, and return the name, type and meaning of each input of the graph."""
    onnx = require("onnx", "onnx")
    require("onnxscript", "onnx")
    check_target(path)
    if path.suffix.lower() != ".onnx":
        raise InputError(f"--output must end in .onnx, got {path}")
    images = model.origin.kind == "images"
    name, kind = ("images", torch.uint8) if images else ("features", torch.float32)
    graph = _exported(_Deployed(model).eval(), torch.zeros(2, *model.input_shape, dtype=kind), name)
    if model.schema is not None:
        inputs = _inputs_of(model.schema)
        graph = _with_table(model.schema, model.form, graph)
    else:
        shape = ", ".join(map(str, model.input_shape))
        meaning = "decoded and scaled to this size" if images else "as in the file"
        if str(dict(model.about.get("spec") or {}).get("data")).startswith("table:"):
            meaning = "a table's columns, encoded as for its training"
        inputs = [(name, f"{str(kind).removeprefix('torch.')} (n, {shape})", meaning)]
    graph.producer_name = "transferrisk"
    del graph.metadata_props[:]
    properties = {
        "classes": json.dumps(model.classes),
        "label": model.origin.label,
        "algorithm": model.origin.algorithm,
    }
    if model.decision.threshold is not None:
        properties["threshold"] = repr(model.decision.threshold)
    onnx.helper.set_model_props(graph, properties)
    onnx.checker.check_model(graph)
    write_atomically(path, graph.SerializeToString())
    return inputs


def _with_table(schema: Schema, form: Form, network: Any) -> Any:
    """Return the graph that encodes a table's columns and applies the network to them."""
    onnx = require("onnx", "onnx")
    if PROBABILITIES in {column.name for column in schema.columns}:
        raise InputError(f"a column is named {PROBABILITIES!r}, like the output of the graph: fit with another name")
    prefix = _own_prefix(schema)
    before = _preprocessing(schema, form, OPSET, network.ir_version)
    network = onnx.compose.add_prefix(network, f"{prefix}network.")
    joint = [(f"{prefix}features", f"{prefix}network.features")]
    graph = onnx.compose.merge_models(before, network, io_map=joint, name="model")
    (output,) = graph.graph.output
    for node in graph.graph.node:
        for names in (node.input, node.output):
            names[:] = [PROBABILITIES if name == output.name else name for name in names]
    output.name = PROBABILITIES
    return graph


def _exported(module: nn.Module, example: Tensor, name: str) -> Any:
    """Return the onnx.ModelProto of a module, for any number of samples."""
    # The exporter warns and, in some versions, prints about itself.
    with warnings.catch_warnings(), redirect_stdout(StringIO()):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (example,),
            input_names=[name],
            output_names=[PROBABILITIES],
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("n")},),
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def _inputs_of(schema: Schema) -> list[tuple[str, str, str]]:
    """Return the name, type and meaning of each column's input."""
    numbers = "float64 (n,)"
    meanings = {
        "numeric": (numbers, "NaN where it is missing"),
        "boolean": (numbers, "1 or 0, NaN where it is missing"),
        "date": (numbers, "days since 1970 began in Greenwich, NaN where it is missing"),
        "categorical": ("string (n,)", 'as in the table, "" where it is missing'),
    }
    found = []
    for column in schema.columns:
        kind, meaning = meanings[column.kind]
        if codes := schema.missing.get(column.name):
            meaning += f", and in place of {listed(map(repr, codes))}"
        found.append((column.name, kind, meaning))
    return found


def _preprocessing(schema: Schema, form: Form, opset: int, ir_version: int) -> Any:
    """Return the onnx.ModelProto from columns to features (n, d)."""
    onnx = require("onnx", "onnx")
    graph = _Graph(onnx, _own_prefix(schema))
    forms: tuple[Form, ...] = ("features", "columns") if form == "both" else (form,)
    features = [name for one in forms for column in schema.columns for name in _features(graph, column, one)]
    stacked = graph.node("Concat", *(graph.node("Unsqueeze", name, graph.whole([1])) for name in features), axis=1)
    graph.node("Cast", stacked, to=onnx.TensorProto.FLOAT, output=f"{graph.prefix}features")
    kinds = onnx.TensorProto
    inputs = [
        onnx.helper.make_tensor_value_info(
            column.name, kinds.STRING if isinstance(column, Categorical) else kinds.DOUBLE, ["n"]
        )
        for column in schema.columns
    ]
    output = onnx.helper.make_tensor_value_info(f"{graph.prefix}features", kinds.FLOAT, ["n", len(features)])
    graph_proto = onnx.helper.make_graph(graph.nodes, "encoding", inputs, [output], graph.constants)
    operators = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("ai.onnx.ml", 3)]
    return onnx.helper.make_model(graph_proto, opset_imports=operators, ir_version=ir_version)


def _own_prefix(schema: Schema) -> str:
    """Return a prefix for names inside the graph with which no column's name begins."""
    prefix = "trm."
    while any(column.name.startswith(prefix) for column in schema.columns):
        prefix = f"_{prefix}"
    return prefix


class _Graph:
    """Nodes and constants of a graph, each under a name of its own."""

    def __init__(self, onnx: Any, prefix: str) -> None:
        self.onnx, self.prefix = onnx, prefix
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, *inputs: str, output: str = "", domain: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        output = output or f"{self.prefix}value.{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [output], domain=domain, **attributes))
        return output

    def number(self, value: float) -> str:
        return self._constant(np.array(value, dtype=np.float64))

    def whole(self, value: Any) -> str:
        return self._constant(np.array(value, dtype=np.int64))

    def _constant(self, value: Any) -> str:
        name = f"{self.prefix}constant.{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(value, name))
        return name

    def as_number(self, truth: str) -> str:
        return self.node("Cast", truth, to=self.onnx.TensorProto.DOUBLE)

    def scaled(self, value: str, scaling: Scaling) -> str:
        """Return (x - mean) / scale."""
        return self.node("Div", self.node("Sub", value, self.number(scaling.mean)), self.number(scaling.scale))

    def floor_of(self, value: str, divisor: float) -> str:
        """Return floor(x / divisor)."""
        return self.node("Floor", self.node("Div", value, self.number(divisor)))

    def without(self, value: str, times: str, factor: float) -> str:
        """Return x - factor y."""
        return self.node("Sub", value, self.node("Mul", times, self.number(factor)))


def _features(graph: _Graph, column: Column, form: Form) -> list[str]:
    """Return the names of the column's features, each (n,) float64."""
    if isinstance(column, Categorical):
        return _categories(graph, column) if form == "features" else [_place(graph, column)]
    absent = graph.node("IsNaN", column.name)
    stand_in = float(column.usual) if isinstance(column, Boolean) else column.scaling.median
    value = graph.node("Where", absent, graph.number(stand_in), column.name)
    if isinstance(column, Boolean):
        found = [] if column.constant else [value]
    elif not column.scaling.scale:
        found = []
    elif isinstance(column, Date):
        waves = _calendar(graph, value) if form == "features" else []
        found = [graph.scaled(value, column.scaling), *waves]
    else:
        found = [graph.scaled(value, column.scaling)]
    if column.missing and form == "columns" and found:
        return [graph.node("Where", absent, graph.number(float("nan")), one) for one in found]
    return [*found, graph.as_number(absent)] if column.missing and column.indicator else found


def _place(graph: _Graph, column: Categorical) -> str:
    """Return the place of a row's category, `other` being the last; nan for "" and for a new category."""
    count = len(column.categories)
    place = graph.node(
        "LabelEncoder",
        column.name,
        domain="ai.onnx.ml",
        keys_strings=[*column.categories, ""],
        values_int64s=[*range(count), -2],
        default_int64=count if column.other else -2,
    )
    unknown = graph.node("Equal", place, graph.whole(-2))
    return graph.node("Where", unknown, graph.number(float("nan")), graph.as_number(place))


def _categories(graph: _Graph, column: Categorical) -> list[str]:
    """Return a 0/1 feature for each category.

    A category has its place, "" the place after the last or that of its stand-in, and any other text -1.
    """
    count, filled = len(column.categories), column.missing and not column.indicator
    place = graph.node(
        "LabelEncoder",
        column.name,
        domain="ai.onnx.ml",
        keys_strings=[*column.categories, ""],
        values_int64s=[*range(count), column.categories.index(column.usual) if filled else count],
        default_int64=-1,
    )
    places = [*range(count), *([-1] if column.other else []), *([count] if column.missing and not filled else [])]
    return [graph.as_number(graph.node("Equal", place, graph.whole(p))) for p in places]


def _calendar(graph: _Graph, days: str) -> list[str]:
    """Return sine and cosine of the day's place in the year and in the week.

    Years are counted from March, so that a leap day is the last of its year, in eras of 400 years (E. G. Richards'
    algorithm); from 1 March on, 1 January is 59 days back, or 60 in leap years.
    """
    day = graph.node("Floor", days)
    shifted = graph.node("Add", day, graph.number(TO_MARCH))
    in_era = graph.without(shifted, graph.floor_of(shifted, ERA), ERA)
    rest = graph.node("Sub", in_era, graph.floor_of(in_era, 1460))
    rest = graph.node("Add", rest, graph.floor_of(in_era, 36_524))
    rest = graph.node("Sub", rest, graph.floor_of(in_era, ERA - 1))
    year = graph.floor_of(rest, 365)
    since_march = graph.without(in_era, year, 365)
    since_march = graph.node("Sub", since_march, graph.floor_of(year, 4))
    since_march = graph.node("Add", since_march, graph.floor_of(year, 100))
    # floor(y/4) - floor((y-1)/4) is 1 in years that 4 divides.
    before = graph.node("Sub", year, graph.number(1))
    leap = graph.node("Sub", graph.floor_of(year, 4), graph.floor_of(before, 4))
    leap = graph.node("Sub", leap, graph.node("Sub", graph.floor_of(year, 100), graph.floor_of(before, 100)))
    leap = graph.node("Add", leap, graph.node("Sub", graph.floor_of(year, 400), graph.floor_of(before, 400)))
    same_year = graph.node("Add", graph.node("Add", since_march, graph.number(59)), leap)
    next_year = graph.node("Sub", since_march, graph.number(306))
    in_year = graph.node("Where", graph.node("Less", since_march, graph.number(306)), same_year, next_year)
    since_monday = graph.node("Sub", day, graph.number(MONDAY))
    in_week = graph.without(since_monday, graph.floor_of(since_monday, WEEK), WEEK)
    angles = [
        graph.node("Mul", in_year, graph.number(2 * pi / YEAR)),
        graph.node("Mul", in_week, graph.number(2 * pi / WEEK)),
    ]
    # Not every runtime has sine and cosine in float64; an angle below 2 pi is exact enough in float32.
    short = [graph.node("Cast", angle, to=graph.onnx.TensorProto.FLOAT) for angle in angles]
    return [graph.as_number(graph.node(wave, angle)) for angle in short for wave in ("Sin", "Cos")]
