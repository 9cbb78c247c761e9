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
    x = graph.add("Mul", x, network.scale.weight.numpy())
    *hidden, last = network.linears
    for linear, activation in zip(hidden, network.activations, strict=True):
        x = _activated(graph, activation, _linear(graph, linear, x))
    return _linear(graph, last, x)


def _scaled(graph: Graph, preprocessor: Preprocessor, plain: str) -> str:
    """Return numbers and indicators as the network takes them, float32; float64 up to then, for
    what is left of large numbers less their centre.
    """
    scaled = graph.add("Mul", graph.add("Sub", plain, preprocessor.centre), preprocessor.scale)
    scaled = graph.add("Where", graph.add("IsNaN", scaled), np.array(0.0), scaled)
    scaled = graph.add("Clip", scaled, np.array(-FARTHEST), np.array(FARTHEST))
    x = graph.add("Cast", scaled, to=graph.onnx.TensorProto.FLOAT)
    share = graph.add("Div", x, LARGEST)
    spread = graph.add("Sqrt", graph.add("Add", graph.add("Mul", share, share), 1.0))
    return graph.add("Div", x, spread)


def _split(graph: Graph, x: str, *sizes: int) -> list[str]:
    """Return the names of the first columns, and of the others; none for no columns."""
    if 0 in sizes:
        return [x if size else "" for size in sizes]
    borders = [np.array([end]) for end in (0, *np.cumsum(sizes))]
    return [graph.add("Slice", x, *each, np.array([1])) for each in pairwise(borders)]


def _waves(graph: Graph, layer: Any, x: str) -> str:
    """Return the numbers that a periodic embedding makes of x (N, F): (N, 3 F)."""
    column = graph.add("Unsqueeze", x, np.array([2]))
    angles = graph.add("Mul", column, layer.frequency.numpy() * (2 * pi))
    waves = graph.add("Cos", graph.add("Add", angles, layer.phase.numpy()))
    made = graph.add("Einsum", waves, layer.weight.numpy(), equation="nfk,jfk->njf")
    made = graph.add("Add", made, layer.bias.numpy())
    return graph.add("Flatten", made, axis=1)


def _embedded(graph: Graph, layer: Any, codes: str) -> str:
    places = graph.add("Add", codes, layer.starts.astype(np.int64))
    rows = graph.add("Gather", layer.weight.numpy(), places)
    return graph.add("Flatten", rows, axis=1)


def _linear(graph: Graph, layer: Any, x: str) -> str:
    weight = layer.weight.numpy() / sqrt(max(1, layer.weight.shape[0]))
    return graph.add("Gemm", x, weight, layer.bias.numpy())


def _activated(graph: Graph, layer: Any, x: str) -> str:
    y = layer.activation.formula.onnx(graph, x, layer.activation.slope)
    change = graph.add("Mul", graph.add("Sub", y, x), layer.weight.numpy())
    return graph.add("Add", x, change)
