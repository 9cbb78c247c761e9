"""TabM as operators of an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.nn.onnx_graph import Graph
from warpfit.tabular.quantiles import EDGE, LEAST, QuantilePreprocessor
from warpfit.tabular.tabm_network import LEAST_PROBABILITY

# Wichura's algorithm AS 241 (1988): numerators and denominators, from the highest power down, of
# shares at most MIDDLE from a half, and of others from 1e-11 on.
MIDDLE = 0.425
OF_MIDDLE, OF_TAIL = np.array(
    [
        (2509.0809287301227, 33430.57558358813, 67265.7709270087, 45921.95393154987),
        (13731.69376550946, 1971.5909503065513, 133.14166789178438, 3.3871328727963665),
        (5226.495278852854, 28729.085735721943, 39307.89580009271, 21213.794301586597),
        (5394.196021424751, 687.1870074920579, 42.31333070160091, 1.0),
        (0.0007745450142783414, 0.022723844989269184, 0.2417807251774506, 1.2704582524523684),
        (3.6478483247632045, 5.769497221460691, 4.630337846156546, 1.4234371107496835),
        (1.0507500716444169e-09, 0.0005475938084995345, 0.015198666563616457, 0.14810397642748008),
        (0.6897673349851, 1.6763848301838038, 2.053191626637759, 1.0),
    ]
).reshape(2, 2, 8)


def tabm_onnx(graph: Graph, member: Any, plain: str, codes: str) -> str:
    """Add a network with its quantiles; parameters and result are those of `realmlp_onnx`."""
    network, columns = member.network, member.preprocessor.columns
    parts = []
    if columns.num_numbers or not columns.num_codes:
        numbers = normal_numbers(graph, member.preprocessor, plain)
        embedding = network.embedding
        parts.append(_embedded(graph, embedding, numbers) if embedding is not None else numbers)
    if columns.num_codes:
        parts.append(_indicators(graph, columns.num_codes, codes))
    x = graph.add("Concat", *parts, axis=1)
    for layer in network.layers:
        z = graph.add("Mul", x, layer.scale_in.numpy()[:, None])  # (E, N, K)
        z = graph.add("MatMul", z, layer.weight.numpy())
        z = graph.add("Mul", z, layer.scale_out.numpy()[:, None])
        x = graph.add("Relu", graph.add("Add", z, layer.bias.numpy()[:, None]))
    outputs = graph.add("MatMul", x, network.head.weight.numpy())
    outputs = graph.add("Add", outputs, network.head.bias.numpy()[:, None])
    if not network.are_classes:
        return graph.add("ReduceMean", outputs, axes=[0], keepdims=0)
    mean = graph.add("ReduceMean", graph.add("Softmax", outputs), axes=[0], keepdims=0)
    return graph.add("Log", graph.add("Add", mean, LEAST_PROBABILITY))


def _embedded(graph: Graph, layer: Any, x: str) -> str:
    """Return the numbers that a piecewise-linear embedding makes of x (N, F): (N, 16 F)."""
    columns = graph.add("Unsqueeze", graph.add("Transpose", x), np.array([2]))
    shares = graph.add("Mul", columns, layer.factor.data)  # (F, N, bins)
    shares = graph.add("Add", shares, layer.offset.data)
    shares = graph.add("Min", graph.add("Max", shares, layer.low.data), layer.high.data)
    made = graph.add("MatMul", shares, layer.pieces.numpy())
    made = graph.add("Add", made, graph.add("Mul", columns, layer.weight.numpy()[:, None]))
    made = graph.add("Add", made, layer.bias.numpy()[:, None])
    return graph.add("Flatten", graph.add("Transpose", made, perm=[1, 0, 2]), axis=1)


def _indicators(graph: Graph, num_codes: Sequence[int], codes: str) -> str:
    """Return a column for each code of codes (N, C): 1 where a row has it, else 0."""
    own = graph.add("Gather", codes, np.repeat(np.arange(len(num_codes)), num_codes), axis=1)
    is_own = graph.add("Equal", own, np.concatenate([np.arange(count) for count in num_codes]))
    return graph.add("Cast", is_own, to=graph.onnx.TensorProto.FLOAT)


def normal_numbers(graph: Graph, preprocessor: QuantilePreprocessor, plain: str) -> str:
    """Return numbers as `QuantilePreprocessor.scaled` has them, float32; float64 up to then, for
    shares near 0 and 1.
    """
    kept = np.flatnonzero(preprocessor.differ)
    x, edges = graph.add("Gather", plain, kept, axis=1), preprocessor.quantiles[:, kept].T
    shares = _shares(graph, x, edges)
    is_before = graph.add("Less", graph.add("Sub", x, np.array(EDGE)), edges[:, 0])
    shares = graph.add("Where", is_before, np.array(0.0), shares)
    is_after = graph.add("Greater", graph.add("Add", x, np.array(EDGE)), edges[:, -1])
    shares = graph.add("Where", is_after, np.array(1.0), shares)
    normal = _normal(graph, graph.add("Clip", shares, np.array(LEAST), np.array(1 - LEAST)))
    normal = graph.add("Where", graph.add("IsNaN", x), np.array(0.0), normal)
    return graph.add("Cast", normal, to=graph.onnx.TensorProto.FLOAT)


def _shares(graph: Graph, x: str, edges: npt.NDArray[np.float64]) -> str:
    """Return where numbers x (N, F) lie among ascending edges (F, Q): 0 at the first, 1 at the
    last, and where edges are equal halfway between these. Beyond both it may be anything.
    """
    (num_columns, count), step = edges.shape, 1 / max(1, edges.shape[1] - 1)
    width = 1 << (count - 1).bit_length()
    table = np.pad(edges, ((0, 0), (0, width + 1 - count)), constant_values=np.inf)
    equal = [[np.searchsorted(own, own, side) for own in table] for side in ("left", "right")]
    halfway = (np.sum(equal, axis=0) - 1) / 2 * step
    lows, begins = graph.constant(table.ravel()), np.arange(num_columns) * (width + 1)
    place = graph.constant(begins)
    while width := width // 2:  # a binary search for the last edge that is no larger
        further = graph.add("Add", place, np.array(width))
        is_there = graph.add("LessOrEqual", graph.add("Gather", lows, further), x)
        place = graph.add("Where", is_there, further, place)
    low = graph.add("Gather", lows, place)
    high = graph.add("Gather", lows, graph.add("Add", place, np.array(1)))
    part = graph.add("Div", graph.add("Sub", x, low), graph.add("Sub", high, low))
    passed = graph.add("Sub", place, begins)
    passed = graph.add("Cast", passed, to=graph.onnx.TensorProto.DOUBLE)
    between = graph.add("Mul", graph.add("Add", passed, part), np.array(step))
    at_edge = graph.add("Gather", halfway.ravel(), place)
    return graph.add("Where", graph.add("Equal", x, low), at_edge, between)


def _normal(graph: Graph, shares: str) -> str:
    """Return the normal distribution's quantiles at shares from 1e-11 to 1 - 1e-11."""
    off = graph.add("Sub", shares, np.array(0.5))
    r = graph.add("Sub", np.array(MIDDLE**2), graph.add("Mul", off, off))
    middle = graph.add("Mul", off, _ratio(graph, r, OF_MIDDLE))
    tail = graph.add("Min", shares, graph.add("Sub", np.array(1.0), shares))
    r = graph.add("Sqrt", graph.add("Neg", graph.add("Log", tail)))
    far = _ratio(graph, graph.add("Sub", r, np.array(1.6)), OF_TAIL)
    far = graph.add("Mul", graph.add("Sign", off), far)
    is_middle = graph.add("LessOrEqual", graph.add("Abs", off), np.array(MIDDLE))
    return graph.add("Where", is_middle, middle, far)


def _ratio(graph: Graph, x: str, coefficients: npt.NDArray[np.float64]) -> str:
    """Return the ratio of two polynomials of x."""
    (above, below), *others = coefficients.T[:, :, None]
    for each, other in others:
        above = graph.add("Add", graph.add("Mul", above, x), each)
        below = graph.add("Add", graph.add("Mul", below, x), other)
    return graph.add("Div", above, below)
