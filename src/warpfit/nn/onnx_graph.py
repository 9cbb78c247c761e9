"""ONNX graphs and their files, for what puts operators into one: layers, or an estimator."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.errors import ConfigError
from warpfit.extras import needs
from warpfit.files import PathLike, atomic_path
from warpfit.version import __version__

HostArrays = Mapping[str, npt.NDArray[Any]]

# Old enough for the runtimes of years past; all that is needed has been there since.
OPSETS, IR_VERSION = {"": 17, "ai.onnx.ml": 3}, 8
# What protobuf, of which ONNX files are made, takes at most.
MOST_BYTES = (1 << 31) - (1 << 20)


class Graph:
    """Nodes and constants of a graph, added one by one."""

    def __init__(self) -> None:
        with needs("onnx", "to_onnx needs"):
            import onnx
        self.onnx: Any = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._channels_first: dict[str, str] = {}
        self._num_bytes = 0

    def add(self, operator: str, *inputs: Any, output: str = "", **attributes: Any) -> str:
        """Add an operator of named values, arrays and numbers; return the name of its output."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        output = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, names, [output], **attributes))
        return output

    def constant(self, values: Any) -> str:
        """Add an array, or a number in float32; return its name, or raise ConfigError if a file
        cannot hold it.
        """
        array = np.asarray(values, np.float32 if isinstance(values, Real) else None)
        name = f"constant_{len(self.constants)}"
        self._num_bytes += array.nbytes
        if self._num_bytes > MOST_BYTES:
            raise ConfigError(
                f"to_onnx: expected arrays of at most {MOST_BYTES} bytes, as ONNX files hold no "
                f"more, got at least {self._num_bytes}"
            )
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def floats(self, values: Any) -> str:
        """Add an array in float32, and return its name."""
        return self.constant(np.asarray(values, np.float32, order="C"))

    def reshaped(self, x: str, shape: tuple[int, ...]) -> str:
        """Add samples in another shape, and return their name."""
        return self.add("Reshape", x, np.array([0, *shape]))

    def channels_first(self, x: str, num_axes: int) -> str:
        """Return the name of samples with channels before `num_axes` axes, as ONNX has them."""
        if x in self._channels_first:
            return self._channels_first[x]
        return self.add("Transpose", x, perm=[0, num_axes + 1, *range(1, num_axes + 1)])

    def channels_last(self, x: str, num_axes: int) -> str:
        """Return the name of samples with channels after `num_axes` axes, as warpfit has them."""
        y = self.add("Transpose", x, perm=[0, *range(2, num_axes + 2), 1])
        self._channels_first[y] = x
        return y

    def value(self, name: str, kind: str, *sizes: int) -> Any:
        """Return the description of an input or output with rows of these sizes."""
        dtype = getattr(self.onnx.TensorProto, kind)
        return self.onnx.helper.make_tensor_value_info(name, dtype, ["N", *sizes])

    def most_probable(self, classes: npt.NDArray[Any], probabilities: str) -> list[Any]:
        """Add the most probable of classes (C,) as ``label``; return both outputs' descriptions."""
        classes, kind = _as_onnx_has_them(classes)
        place = self.add("ArgMax", probabilities, axis=1, keepdims=0)
        self.add("Gather", classes, place, output="label")
        return [self.value("label", kind), self.value(probabilities, "FLOAT", len(classes))]

    def model(self, name: str, inputs: list[Any], outputs: list[Any]) -> Any:
        """Return the whole model, without the nodes that no output follows from."""
        helper = self.onnx.helper
        nodes, read = [], {output.name for output in outputs}
        for node in reversed(self.nodes):
            if not read.isdisjoint(node.output):
                nodes.append(node)
                read.update(node.input)
        graph = helper.make_graph(nodes[::-1], name, inputs, outputs, initializer=self.constants)
        return helper.make_model(
            graph,
            opset_imports=[
                helper.make_opsetid(domain, OPSETS[domain])
                for domain in sorted({"", *(node.domain for node in nodes)})
            ],
            ir_version=IR_VERSION,
            producer_name="warpfit",
            producer_version=__version__,
        )

    def write(self, path: PathLike, name: str, inputs: list[Any], outputs: list[Any]) -> None:
        """Write the whole model to a file, or raise ConfigError."""
        content = self.model(name, inputs, outputs).SerializeToString()
        with atomic_path(path) as temporary:
            temporary.write_bytes(content)


def _as_onnx_has_them(classes: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], str]:
    """Return classes (C,) in a dtype that ONNX has, and its name there.

    Raises
    ------
    ConfigError
        If there is none.
    """
    if classes.dtype.kind in "iu":
        return classes.astype(np.int64), "INT64"
    if classes.dtype.kind == "b":
        return classes, "BOOL"
    if classes.dtype.kind == "f":
        return classes.astype(np.float64), "DOUBLE"
    if classes.dtype.kind in "UO" and all(isinstance(label, str) for label in classes):
        return classes.astype(object), "STRING"
    raise ConfigError(
        f"to_onnx: expected classes that are numbers or strings, got dtype {classes.dtype}"
    )
