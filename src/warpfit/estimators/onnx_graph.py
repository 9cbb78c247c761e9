"""A fitted estimator as an ONNX graph, with the inputs and outputs that scikit-learn's converters
give theirs.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit.errors import ConfigError
from warpfit.estimators.fitted import networks_of
from warpfit.estimators.recipes import hidden_activation
from warpfit.extras import needs
from warpfit.files import atomic_path
from warpfit.version import __version__

__all__ = ["write_onnx"]

Array = npt.NDArray[Any]

# Old enough for the runtimes of years past; all that is needed has been there since.
OPSET, IR_VERSION = 17, 8
# What protobuf, of which ONNX files are made, takes at most.
MOST_BYTES = (1 << 31) - (1 << 20)

# `out_activation_` as an operator; 'identity' needs none.
OUTPUT_OPERATORS = {"logistic": "Sigmoid", "softmax": "Softmax", "exp": "Exp"}


def write_onnx(estimator: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator's graph to a file; see `BaseMLP.to_onnx`."""
    num_bytes = 4 * sum(
        array.size
        for network in networks_of(estimator)
        for array in network.coefs_ + network.intercepts_
    )
    if num_bytes > MOST_BYTES:
        raise ConfigError(
            f"to_onnx: expected weights of at most {MOST_BYTES} bytes in float32, as ONNX files "
            f"hold no more, got {num_bytes}"
        )
    content = _Graph(estimator).model().SerializeToString()
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def _onnx() -> Any:
    with needs("onnx", "to_onnx needs"):
        import onnx
    return onnx


class _Graph:
    """Nodes and constants of a graph, added one by one."""

    def __init__(self, estimator: Any) -> None:
        self.onnx = _onnx()
        self.estimator = estimator
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def model(self) -> Any:
        """Return the whole model."""
        helper = self.onnx.helper
        outputs = self._outputs([self._network(network) for network in networks_of(self.estimator)])
        inputs = [self._value("X", "FLOAT", self.estimator.n_features_in_)]
        name = type(self.estimator).__name__
        graph = helper.make_graph(self.nodes, name, inputs, outputs, initializer=self.constants)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="warpfit",
            producer_version=__version__,
        )

    # -- parts of a graph
    # ----------------------------------------------------------------------------------

    def add(self, operator: str, *inputs: str | float, output: str = "", **attributes: Any) -> str:
        """Add an operator of named values and constants, and return the name of its output."""
        names = [value if isinstance(value, str) else self._float(value) for value in inputs]
        output = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, names, [output], **attributes))
        return output

    def _constant(self, values: Any) -> str:
        """Add an array, and return its name."""
        name = f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def _float(self, values: Any) -> str:
        return self._constant(np.asarray(values, np.float32))

    def _value(self, name: str, kind: str, *sizes: int) -> Any:
        """Return the description of an input or output with rows of these sizes."""
        dtype = getattr(self.onnx.TensorProto, kind)
        return self.onnx.helper.make_tensor_value_info(name, dtype, ["N", *sizes])

    # -- networks
    # ------------------------------------------------------------------------------------------

    def _network(self, network: Any) -> str:
        """Add a network, its output activation included, and return the name of what it gives."""
        x = "X"
        layers = list(zip(network.coefs_, network.intercepts_, strict=True))
        for idx, (weights, biases) in enumerate(layers):
            x = self.add("Gemm", x, self._float(weights), self._float(biases))
            if idx < len(layers) - 1:
                activation = hidden_activation(self.estimator.activation)
                x = activation.formula.onnx(self, x, activation.slope)
        return self._output_activation(x)

    def _output_activation(self, z: str) -> str:
        name = self.estimator.out_activation_
        if name == "identity":
            return z
        if name not in OUTPUT_OPERATORS:
            known = ", ".join(("identity", *OUTPUT_OPERATORS))
            raise ConfigError(f"to_onnx: expected out_activation_ among {known}, got {name!r}")
        return self.add(OUTPUT_OPERATORS[name], z)

    # -- outputs
    # -------------------------------------------------------------------------------------------

    def _outputs(self, predicted: list[str]) -> list[Any]:
        """Add the mean of what the networks give, and what follows from it; return the graph's
        outputs.
        """
        estimator = self.estimator
        if not hasattr(estimator, "classes_"):
            self.add("Mean", *predicted, output="variable")
            return [self._value("variable", "FLOAT", estimator.n_outputs_)]
        if estimator.n_outputs_ == 1:
            yes = self.add("Mean", *predicted)
            no = self.add("Sub", 1.0, yes)
            self.add("Concat", no, yes, axis=1, output="probabilities")
        else:
            self.add("Mean", *predicted, output="probabilities")
        if estimator.out_activation_ == "logistic" and estimator.n_outputs_ > 1:
            return self._several_labels()
        return self._one_label()

    def _several_labels(self) -> list[Any]:
        is_there = self.add("Greater", "probabilities", 0.5)
        self.add("Cast", is_there, to=self.onnx.TensorProto.INT64, output="label")
        num_labels = self.estimator.n_outputs_
        return [
            self._value("label", "INT64", num_labels),
            self._value("probabilities", "FLOAT", num_labels),
        ]

    def _one_label(self) -> list[Any]:
        classes, kind = _as_onnx_has_them(self.estimator.classes_)
        if len(classes) == 1:
            classes = np.repeat(classes, 2)  # there are probabilities of two all the same
        place = self.add("ArgMax", "probabilities", axis=1, keepdims=0)
        self.add("Gather", self._constant(classes), place, output="label")
        return [self._value("label", kind), self._value("probabilities", "FLOAT", len(classes))]


def _as_onnx_has_them(classes: Array) -> tuple[Array, str]:
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
