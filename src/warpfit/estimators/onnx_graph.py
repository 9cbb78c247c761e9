"""A fitted estimator as an ONNX graph, its inputs and outputs as scikit-learn's converters'."""

from __future__ import annotations

from typing import Any

import numpy as np

from warpfit.errors import ConfigError
from warpfit.estimators.fitted import networks_of
from warpfit.estimators.recipes import hidden_activation
from warpfit.files import PathLike
from warpfit.nn.onnx_graph import Graph

# `out_activation_` as an operator; 'identity' needs none.
OUTPUT_OPERATORS = {"logistic": "Sigmoid", "softmax": "Softmax", "exp": "Exp"}


def write_onnx(estimator: Any, path: PathLike) -> None:
    """Write a fitted estimator's graph to a file; see `BaseMLP.to_onnx`."""
    networks = networks_of(estimator)
    graph = _Graph(estimator)
    outputs = graph.outputs([graph.network(network) for network in networks])
    inputs = [graph.value("X", "FLOAT", estimator.n_features_in_)]
    graph.write(path, type(estimator).__name__, inputs, outputs)


class _Graph(Graph):
    """A graph of an estimator's networks."""

    def __init__(self, estimator: Any) -> None:
        super().__init__()
        self.estimator = estimator

    # -- networks

    def network(self, network: Any) -> str:
        """Add a network, its output activation included, and return the name of what it gives."""
        x = "X"
        layers = list(zip(network.coefs_, network.intercepts_, strict=True))
        for idx, (weights, biases) in enumerate(layers):
            x = self.add("Gemm", x, self.floats(weights), self.floats(biases))
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

    def outputs(self, predicted: list[str]) -> list[Any]:
        """Add the mean of what the networks give, and what follows; return the graph's outputs."""
        estimator = self.estimator
        if not hasattr(estimator, "classes_"):
            self.add("Mean", *predicted, output="variable")
            return [self.value("variable", "FLOAT", estimator.n_outputs_)]
        if estimator.n_outputs_ == 1:
            yes = self.add("Mean", *predicted)
            no = self.add("Sub", 1.0, yes)
            self.add("Concat", no, yes, axis=1, output="probabilities")
        else:
            self.add("Mean", *predicted, output="probabilities")
        if estimator.out_activation_ == "logistic" and estimator.n_outputs_ > 1:
            return self._several_labels()
        classes = estimator.classes_
        if len(classes) == 1:
            classes = np.repeat(classes, 2)  # there are probabilities of two all the same
        return self.most_probable(classes, "probabilities")

    def _several_labels(self) -> list[Any]:
        is_there = self.add("Greater", "probabilities", 0.5)
        self.add("Cast", is_there, to=self.onnx.TensorProto.INT64, output="label")
        num_labels = self.estimator.n_outputs_
        return [
            self.value("label", "INT64", num_labels),
            self.value("probabilities", "FLOAT", num_labels),
        ]
