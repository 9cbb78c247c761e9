"""Transfers between a model with its optimizer and the state of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from warpfit.backends import Array, Backend
from warpfit.backends.transfer import moved
from warpfit.engines.base import TrainState
from warpfit.engines.state_on_demand import StateOnDemand
from warpfit.errors import ConfigError
from warpfit.losses import Loss
from warpfit.nn.init import InitialValues
from warpfit.nn.module import Buffer, Module, Parameter
from warpfit.optim.base import Optimizer, OptimizerSpec
from warpfit.random import INIT, stream_key


def trained_names(model: Module, optimizer: Optimizer) -> tuple[str, ...]:
    """Return the names of the model's parameters that the optimizer changes, in the optimizer's
    order.

    Parameters with ``requires_grad=False`` are frozen: it holds them, and leaves them as they are.

    Raises
    ------
    ConfigError
        If the optimizer holds a parameter that is not the model's, or none that is to be changed.
    """
    return _trained(_names(model.named_arrays(), optimizer), optimizer)


def _trained(names: Sequence[str], optimizer: Optimizer) -> tuple[str, ...]:
    """Return those of the names of its parameters that the optimizer changes."""
    trained = [name for name, p in zip(names, optimizer.parameters, strict=True) if p.requires_grad]
    if not trained:
        raise ConfigError(
            f"expected parameters to train, but all {len(names)} parameters of the optimizer have "
            "requires_grad=False; set it to True for those that are to change"
        )
    return tuple(trained)


def trained_spec(optimizer: Optimizer) -> OptimizerSpec:
    """Return the settings of the parameters that `trained_names` names."""
    return optimizer.spec.of_some([parameter.requires_grad for parameter in optimizer.parameters])


def _names(holders: Mapping[str, Any], optimizer: Optimizer) -> tuple[str, ...]:
    """Return the names of all parameters that the optimizer holds, in its order."""
    names = {id(holder): name for name, holder in holders.items()}
    foreign = sum(id(parameter) not in names for parameter in optimizer.parameters)
    if foreign:
        raise ConfigError(
            f"expected an optimizer over the model's own parameters, got {foreign} that are not "
            "among them"
        )
    return tuple(names[id(parameter)] for parameter in optimizer.parameters)


def state_of(
    model: Module, optimizer: Optimizer, ops: Backend, precision: str, seed: int
) -> TrainState:
    """Return the initial state of a run: copies in `precision` on the backend's device."""

    def owned(array: Array) -> Array:
        here = moved(array, ops, precision)
        return ops.copy(here) if here is array else here

    holders = model.named_arrays()
    names = _names(holders, optimizer)
    trained = _trained(names, optimizer)

    def slot_of(arrays: list[Array]) -> dict[str, Array]:
        held = zip(names, arrays, strict=True)
        return {name: owned(array) for name, array in held if name in trained}

    def begun(parameter: Parameter) -> Array:
        drawn = _drawn(parameter, ops, precision)
        return owned(parameter.data) if drawn is None else drawn

    parameters = {
        name: begun(each) for name, each in holders.items() if isinstance(each, Parameter)
    }
    if optimizer.slots or len(trained) < len(names):
        slots = {slot: slot_of(arrays) for slot, arrays in optimizer.make_slots().items()}
    else:
        slots = {
            slot: {name: ops.zeros(parameters[name].shape, precision) for name in trained}
            for slot in optimizer.spec.slot_names
        }
    return TrainState(
        parameters=parameters,
        buffers={
            name: owned(each.data) for name, each in holders.items() if isinstance(each, Buffer)
        },
        slots=slots,
        step=optimizer.step_count,
        epoch=0,
        seed=seed,
    )


def compile_ahead_for(model: Module, ops: Backend, precision: str) -> None:
    """Begin to compile what `state_of` takes, beside all that comes before it."""
    parameters = (each for each in model.named_arrays().values() if isinstance(each, Parameter))
    if any(_start_on_gpu(parameter, ops, precision) for parameter in parameters):
        ops.compile_ahead([("initial_values", {})])


def _start_on_gpu(parameter: Parameter, ops: Backend, precision: str) -> InitialValues | None:
    """Return initial values that nobody has asked for yet, and that a GPU draws."""
    start = parameter.promised("data")
    if not isinstance(start, InitialValues) or ops.name == "numpy":
        return None
    return start if start.drawn_within is not None and precision == "float32" else None


def _drawn(parameter: Parameter, ops: Any, precision: str) -> Array | None:
    """Return initial values as a GPU draws them; None if it does not."""
    start = _start_on_gpu(parameter, ops, precision)
    if start is None:
        return None
    from warpfit.backends.cuda.initial_values import draw_initial_values

    array = ops.zeros((1, *start.parameter.shape), "float32")
    if array.size:
        key = np.array([stream_key(start.seed, INIT)], np.uint32)
        bounds = np.array([start.drawn_within])
        draw_initial_values(ops, array, 0, array.size, key, bounds, start.tensor_idx)
    return array[0]


def show(model: Module, state: TrainState) -> None:
    """Give a model a run's arrays, uncopied: it then always has the current state."""
    arrays = state.arrays
    for name, holder in model.named_arrays().items():
        holder.data = arrays[name]


def show_on_demand(model: Module, state: TrainState) -> None:
    """Do what `show` does, with arrays that come to be made when the model's are asked for, if the
    state is such; it has no buffers then.
    """
    if not isinstance(state, StateOnDemand):
        show(model, state)
        return
    for name, parameter in model.named_parameters():
        parameter.promise(partial(_data_of, state, name), "data")


def _data_of(state: TrainState, name: str) -> dict[str, Array]:
    return {"data": state.parameters[name]}


def remember_loss(model: Module, loss: Any) -> None:
    """Set `model.loss` to the loss of its training, unless its class defines it otherwise."""
    if isinstance(model.loss, Loss | str | Mapping | None):
        model.loss = loss


def write_back_on_demand(
    state: TrainState, model: Module, optimizer: Optimizer, loss: Loss
) -> None:
    """Do what `write_back` does, as `show_on_demand` does."""
    if not isinstance(state, StateOnDemand):
        write_back(state, model, optimizer, loss)
        return
    for name, parameter in model.named_parameters():
        parameter.promise(partial(_data_of, state, name), "data")
        parameter.grad = None
    remember_loss(model, loss)
    optimizer.step_count = state.step
    if optimizer.spec.slot_names:
        optimizer.promise(partial(_slots_of, state, model, optimizer), "slots")


def _slots_of(state: TrainState, model: Module, optimizer: Optimizer) -> dict[str, Any]:
    names = _names(model.named_arrays(), optimizer)
    slots = {slot: [arrays[name] for name in names] for slot, arrays in state.slots.items()}
    return {"slots": slots}


def write_back(state: TrainState, model: Module, optimizer: Optimizer, loss: Loss) -> None:
    """Copy a finished run's state and loss to model and optimizer; clear old gradients."""
    holders, now = model.named_arrays(), state.arrays
    names = _names(holders, optimizer)
    for name, holder in holders.items():
        holder.data = now[name]
        if isinstance(holder, Parameter):
            holder.grad = None
    remember_loss(model, loss)
    kept = optimizer.slots  # of frozen parameters
    optimizer.slots = {
        slot: [
            arrays[name] if name in arrays else kept[slot][idx] for idx, name in enumerate(names)
        ]
        for slot, arrays in state.slots.items()
    }
    optimizer.step_count = state.step
