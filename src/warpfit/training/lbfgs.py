"""Full-batch training by SciPy's L-BFGS-B, with the loss and the gradient of this package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warpfit import backends, losses
from warpfit.backends.transfer import moved
from warpfit.checks import check_count
from warpfit.errors import ConfigError
from warpfit.losses import Loss
from warpfit.nn.module import Module
from warpfit.nn.spec import Call
from warpfit.training.evaluate import network_of
from warpfit.training.inputs import (
    as_rows,
    as_sample_weight,
    check_same_length,
    check_weight_left,
)
from warpfit.training.state import remember_loss

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LBFGSResult:
    """How a minimization ended."""

    loss: float  # with the penalty, at the weights that the model has now
    num_iterations: int
    converged: bool
    message: str  # SciPy's words for why it ended


def fit_lbfgs(
    model: Module,
    x: Any,
    y: Any,
    *,
    loss: str | Loss = "cross_entropy",
    l2: float = 0.0,
    sample_weight: Any = None,
    max_iterations: int = 200,
    max_evaluations: int = 15000,
    tolerance: float = 1e-4,
    on_iteration: Callable[[int, float], None] | None = None,
) -> LBFGSResult:
    """Minimize the mean loss over all rows, and write the weights back into the model.

    The arithmetic of the network is that of the model's dtype where the model lives, L-BFGS itself
    float64 on the host. Dropout layers let everything through.

    Parameters
    ----------
    model : Module
    x : array_like (N, ...)
    y : array_like
        As the loss takes them.
    loss : str or Loss
    l2 : float
        l2 / (2 n) · Σ w² joins the loss, n the number of rows, or the sum of their weights; biases
        are left out. Class weights of the loss do not count there.
    sample_weight : array_like (N,), optional
    max_iterations, max_evaluations : int
        The run ends at either; an iteration takes one evaluation of the loss or a few.
    tolerance : float
        The run ends when no component of the gradient exceeds it.
    on_iteration : function, optional
        Called after each iteration with its number, counted from 1, and the loss.

    Returns
    -------
    LBFGSResult

    Raises
    ------
    ShapeError, DTypeError, DataError, ConfigError
        If an argument is not what is described here.

    References
    ----------
    Byrd, Lu, Nocedal, Zhu: A Limited Memory Algorithm for Bound Constrained Optimization (1995);
    scipy.optimize.minimize, method 'L-BFGS-B'.
    """
    from scipy.optimize import minimize

    objective = _Objective(model, x, y, losses.resolve(loss), l2, sample_weight)
    num_done = 0

    def count(intermediate_result: Any) -> None:
        nonlocal num_done
        num_done += 1
        if on_iteration is not None:
            on_iteration(num_done, float(intermediate_result.fun))

    result = minimize(
        objective,
        objective.packed(),
        method="L-BFGS-B",
        jac=True,
        callback=count,
        options={
            "maxiter": check_count("max_iterations", max_iterations, 1),
            "maxfun": check_count("max_evaluations", max_evaluations, 1),
            "gtol": tolerance,
        },
    )
    objective.unpack(result.x)
    remember_loss(model, objective.loss)
    return LBFGSResult(
        float(result.fun), int(result.nit), bool(result.success), str(result.message)
    )


class _Objective:
    """The penalized loss of a model and its gradient as functions of one vector of weights."""

    def __init__(
        self, model: Module, x: Any, y: Any, loss: Loss, l2: float, sample_weight: Any
    ) -> None:
        rows = as_rows("x", x, dtype=model.dtype)
        network = network_of(model, rows.shape[1:])
        targets = loss.prepare_targets(
            as_rows("y", y, dtype=model.dtype), network.output_shape, model.dtype
        )
        check_same_length("y", targets, len(rows))
        weights = as_sample_weight(sample_weight, len(rows), model.dtype)
        self.ops = backends.create(model.device)
        self.network, self.loss = network.fused, loss
        self.x, self.y = moved(rows, self.ops, model.dtype), moved(targets, self.ops)
        check_weight_left(loss, targets, weights)
        given = {"sample_weight": weights, "class_weight": loss.class_weights()}
        self.weights = {
            name: self.ops.asarray(np.array(each), model.dtype)
            for name, each in given.items()
            if each is not None
        }
        total = len(rows) if weights is None else float(weights.sum(dtype=np.float64))
        self.decay = l2 / total
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ConfigError(
                "expected parameters to train, but all of the model's have requires_grad=False"
            )
        self.arrays = {name: holder.data for name, holder in model.named_arrays().items()}

    def packed(self) -> Vector:
        """Return the model's weights as one vector."""
        return _joined(
            [self.ops.to_numpy(parameter.data) for parameter in self.parameters.values()]
        )

    def unpack(self, vector: Vector) -> None:
        """Set the model's weights."""
        start = 0
        for name, parameter in self.parameters.items():
            part = vector[start : start + parameter.data.size].reshape(parameter.shape)
            start += part.size
            parameter.data = self.arrays[name] = self.ops.asarray(part, str(parameter.dtype))

    def __call__(self, vector: Vector) -> tuple[float, Vector]:
        self.unpack(vector)
        ops = self.ops
        ops.begin_step()
        # What overflows makes the line search take a shorter step.
        with np.errstate(over="ignore", invalid="ignore"):
            outputs, pullback = self.network.vjp(ops, self.arrays, self.x, Call())
            loss, _, loss_gradient = self.loss.vjp(ops, outputs, self.y, **self.weights)
            named = pullback(loss_gradient())
        gradients = [named[name] for name in self.parameters]
        total = float(ops.to_numpy(loss)) + self._penalize(gradients)
        return total, _joined([ops.to_numpy(gradient) for gradient in gradients])

    def _penalize(self, gradients: list[Any]) -> float:
        """Add the penalty's gradient, and return the penalty."""
        pairs = [
            (p.data, g)
            for p, g in zip(self.parameters.values(), gradients, strict=True)
            if p.data.ndim > 1
        ]
        penalty = self.ops.l2_penalty([w for w, _ in pairs], [g for _, g in pairs], self.decay)
        return float(self.ops.to_numpy(penalty))


def _joined(arrays: list[npt.NDArray[Any]]) -> Vector:
    return np.concatenate([np.ravel(array) for array in arrays], dtype=np.float64)
