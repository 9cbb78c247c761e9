"""RealMLP as operators of an ONNX graph."""

from __future__ import annotations

from itertools import pairwise
from math import pi, sqrt
from typing import Any

import numpy as np

from warpfit.nn.onnx_graph import Graph
from warpfit.tabular.preprocessing import FARTHEST, LARGEST, Preprocessor


def realmlp_onnx(graph: Graph, member: Any, plain: str, codes: str) -> str:
    """Add a network with its scaling, and return the name of its outputs (N, K).

    Parameters
    ----------
    graph : Graph
    member : Trained
    plain, codes : str
        Names of numbers and indicators (N, num_plain) float64, and of codes (N, C) int64.
    """
    network, columns = member.network, member.preprocessor.columns
    parts = []
    if columns.num_plain:
        x = _scaled(graph, member.preprocessor, plain)
        numbers, indicators = _split(graph, x, columns.num_numbers, columns.num_indicators)
        if numbers:
            parts += [_waves(graph, network.numbers, numbers), numbers]
        parts += [indicators] if indicators else []
    if columns.num_codes:
        parts.append(_embedded(graph, network.codes, codes))
    x = graph.add("Concat", *parts, axis=1)
    x = graph.add("Mul", x, graph.floats(network.scale.weight.numpy()))
    *hidden, last = network.linears
    for linear, activation in zip(hidden, network.activations, strict=True):
        x = _activated(graph, activation, _linear(graph, linear, x))
    return _linear(graph, last, x)


def _scaled(graph: Graph, preprocessor: Preprocessor, plain: str) -> str:
    """Return numbers and indicators as the network takes them, float32; float64 up to then, for
    what is left of large numbers less their centre.
    """
    moved = graph.add("Sub", plain, graph.constant(preprocessor.centre))
    scaled = graph.add("Mul", moved, graph.constant(preprocessor.scale))
    zero = graph.constant(np.float64(0))
    scaled = graph.add("Where", graph.add("IsNaN", scaled), zero, scaled)
    bounds = [graph.constant(np.float64(bound)) for bound in (-FARTHEST, FARTHEST)]
    scaled = graph.add("Clip", scaled, *bounds)
    x = graph.add("Cast", scaled, to=graph.onnx.TensorProto.FLOAT)
    share = graph.add("Div", x, LARGEST)
    spread = graph.add("Sqrt", graph.add("Add", graph.add("Mul", share, share), 1.0))
    return graph.add("Div", x, spread)


def _split(graph: Graph, x: str, *sizes: int) -> list[str]:
    """Return the names of the first columns, and of the others; none for no columns."""
    if 0 in sizes:
        return [x if size else "" for size in sizes]
    axis = graph.constant(np.array([1], np.int64))
    borders = [graph.constant(np.array([end])) for end in (0, *np.cumsum(sizes))]
    return [graph.add("Slice", x, first, end, axis) for first, end in pairwise(borders)]


def _waves(graph: Graph, layer: Any, x: str) -> str:
    """Return the numbers that a periodic embedding makes of x (N, F): (N, 3 F)."""
    column = graph.add("Unsqueeze", x, graph.constant(np.array([2], np.int64)))
    angles = graph.add("Mul", column, graph.floats(layer.frequency.numpy() * (2 * pi)))
    angles = graph.add("Add", angles, graph.floats(layer.phase.numpy()))
    made = graph.add(
        "Einsum",
        graph.add("Cos", angles),
        graph.floats(layer.weight.numpy()),
        equation="nfk,jfk->njf",
    )
    made = graph.add("Add", made, graph.floats(layer.bias.numpy()))
    return graph.add("Flatten", made, axis=1)


def _embedded(graph: Graph, layer: Any, codes: str) -> str:
    places = graph.add("Add", codes, graph.constant(layer.starts.astype(np.int64)))
    rows = graph.add("Gather", graph.floats(layer.weight.numpy()), places)
    return graph.add("Flatten", rows, axis=1)


def _linear(graph: Graph, layer: Any, x: str) -> str:
    weight = layer.weight.numpy() / sqrt(max(1, layer.weight.shape[0]))
    return graph.add("Gemm", x, graph.floats(weight), graph.floats(layer.bias.numpy()))


def _activated(graph: Graph, layer: Any, x: str) -> str:
    y = layer.activation.formula.onnx(graph, x, layer.activation.slope)
    change = graph.add("Mul", graph.add("Sub", y, x), graph.floats(layer.weight.numpy()))
    return graph.add("Add", x, change)
