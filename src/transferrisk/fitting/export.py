"""A model as an ONNX file, with its preprocessing, for where there is no Python.

    vectors   input `features` (n, d) float32 as they were in the file: standardised inside
    images    input `images` (n, 3, h, w) uint8, decoded and scaled to that size: normalised inside
    tables    one input a column, (n,): see `onnx_table`

The output is `probabilities` (n, C), float32; `classes` among the file's properties names its columns, as JSON.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..extras import require
from ..files import check_target, write_atomically
from .encoders import ImageEncoder, TableEncoder, VectorEncoder
from .model import Model

OPSET = 18
PROBABILITIES = "probabilities"


class _Deployed(nn.Module):
    """From what a file holds to probabilities."""

    mean: Tensor
    factor: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.network = model.network
        encoder = model.encoder
        self.images = isinstance(encoder, ImageEncoder)
        self.standardised = isinstance(encoder, VectorEncoder)
        if isinstance(encoder, VectorEncoder):
            self.register_buffer("mean", torch.tensor(encoder.mean, dtype=torch.float64))
            self.register_buffer("factor", encoder.factor)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.images:
            inputs = inputs.float() / 255
        if self.standardised:
            inputs = ((inputs.double() - self.mean) * self.factor).float()
        logits: Tensor = self.network(inputs)
        return logits.softmax(1)


def export(model: Model, path: Path) -> list[tuple[str, str, str]]:
    """Write the file; (name, type, meaning) of each of its inputs."""
    onnx = require("onnx", "onnx")
    require("onnxscript", "onnx")
    check_target(path)
    if path.suffix.lower() != ".onnx":
        raise InputError(f"{path} does not end in .onnx: name the output so")
    encoder = model.encoder
    name = "images" if isinstance(encoder, ImageEncoder) else "features"
    kind = torch.uint8 if isinstance(encoder, ImageEncoder) else torch.float32
    graph = _exported(_Deployed(model).eval(), torch.zeros(2, *encoder.shape, dtype=kind), name)
    if isinstance(encoder, TableEncoder):
        from .onnx_table import inputs_of

        inputs = inputs_of(encoder.schema)
        graph = _with_table(encoder, graph)
    else:
        shape = ", ".join(map(str, encoder.shape))
        meaning = "decoded and scaled to this size" if isinstance(encoder, ImageEncoder) else "as in the file"
        inputs = [(name, f"{str(kind).removeprefix('torch.')} (n, {shape})", meaning)]
    graph.producer_name = "transferrisk"
    del graph.metadata_props[:]
    onnx.helper.set_model_props(
        graph,
        {"classes": json.dumps(model.class_names), "label": model.origin.label, "algorithm": model.origin.algorithm},
    )
    onnx.checker.check_model(graph)
    write_atomically(path, graph.SerializeToString())
    return inputs


def _with_table(encoder: TableEncoder, network: Any) -> Any:
    """The network behind the encoding of a table's columns."""
    from .onnx_table import own_prefix, preprocessing

    onnx = require("onnx", "onnx")
    if PROBABILITIES in {column.name for column in encoder.schema.columns}:
        raise InputError(f"a column is named {PROBABILITIES!r}, as the output of the file is: fit with another name")
    prefix = own_prefix(encoder.schema)
    before = preprocessing(encoder.schema, OPSET, network.ir_version)
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
    """An onnx.ModelProto of a module, for any number of samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
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
