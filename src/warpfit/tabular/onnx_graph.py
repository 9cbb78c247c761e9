"""A fitted estimator of tables as an ONNX graph, its preprocessing included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from warpfit.errors import ConfigError
from warpfit.files import PathLike
from warpfit.nn.onnx_graph import Graph
from warpfit.tabular.methods import METHODS
from warpfit.tabular.preprocessing import Categories, Preprocessor
from warpfit.tabular.targets import Classes, Numbers


def write_onnx(estimator: Any, path: PathLike) -> None:
    """Write a fitted estimator's graph to a file; see `BaseTabular.to_onnx`."""
    method, members = METHODS[estimator.method_], estimator.members_
    graph, preprocessor = Graph(), estimator.preprocessor_
    names = _names(estimator, preprocessor)
    inputs = [
        graph.value(name, "STRING" if place in preprocessor.categories else "FLOAT", size)
        for place, (name, size) in enumerate(names)
    ]
    plain, codes = _cells(graph, preprocessor, [name for name, _ in names])
    predicted = [
        _predicted(graph, member.targets, method.onnx(graph, member, plain, codes))
        for member in members
    ]
    targets = members[0].targets
    if isinstance(targets, Classes):
        graph.add("Mean", *predicted, output="probabilities")
        outputs = graph.most_probable(targets.labels, "probabilities")
    else:
        graph.add("Mean", *predicted, output="variable")
        outputs = [graph.value("variable", "FLOAT", targets.num_outputs)]
    _check_names(graph, [name for name, _ in names])
    graph.write(path, type(estimator).__name__, inputs, outputs)


def _names(estimator: Any, preprocessor: Preprocessor) -> list[tuple[str, int]]:
    """Return the name of each input and how many columns it has."""
    num_features = estimator.n_features_in_
    if not preprocessor.categories:
        return [("X", num_features)]
    unnamed = [f"x{place}" for place in range(num_features)]
    return [(str(name), 1) for name in getattr(estimator, "feature_names_in_", unnamed)]


def _check_names(graph: Graph, names: Sequence[str]) -> None:
    taken = {output for node in graph.nodes for output in node.output}
    taken |= {constant.name for constant in graph.constants} | {""}
    for idx, name in enumerate(names):
        if name in taken or name in names[:idx]:
            raise ConfigError(
                f"to_onnx: expected names of columns that name no other value of the graph, got "
                f"{name!r}; fit to a frame that calls it otherwise"
            )


def _cells(graph: Graph, preprocessor: Preprocessor, names: Sequence[str]) -> tuple[str, str]:
    """Return the names of numbers and indicators (N, num_plain) float64, and of codes (N, C)
    int64; none for no columns.
    """
    double, few, many = graph.onnx.TensorProto.DOUBLE, [], []
    numbers = names if names == ["X"] else [names[place] for place in preprocessor.numbers]
    for place, categories in preprocessor.categories.items():
        codes = _codes(graph, categories, names[place])
        if not categories.are_few:
            many.append(codes)
        elif len(categories.texts):
            rows = graph.add("Gather", categories.table, codes)  # (N, 1, columns)
            few.append(graph.add("Flatten", rows, axis=1))
    plain = [graph.add("Cast", name, to=double) for name in numbers] + few
    return _joined(graph, plain), _joined(graph, many)


def _joined(graph: Graph, parts: list[str]) -> str:
    return graph.add("Concat", *parts, axis=1) if parts else ""


def _codes(graph: Graph, categories: Categories, name: str) -> str:
    """Return the codes (N, 1) of texts; 0 for those that are none of the categories."""
    texts = [text.encode() for text in categories.texts]
    return graph.add(
        "LabelEncoder",
        name,
        domain="ai.onnx.ml",
        keys_strings=texts or [b""],
        values_int64s=list(range(1, len(texts) + 1)) or [0],
        default_int64=0,
    )


def _predicted(graph: Graph, targets: Classes | Numbers, outputs: str) -> str:
    """Return the name of probabilities, or of numbers in the units of the targets."""
    if isinstance(targets, Classes):
        return graph.add("Softmax", outputs)
    bounded = graph.add("Max", outputs, graph.floats(targets.low))
    bounded = graph.add("Min", bounded, graph.floats(targets.high))
    scaled = graph.add("Mul", bounded, graph.floats(targets.std))
    return graph.add("Add", scaled, graph.floats(targets.mean))
