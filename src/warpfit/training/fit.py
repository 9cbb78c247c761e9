"""fit: data → plan → engine → reports → callbacks, and back into the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from warpfit import backends, losses
from warpfit.backends import Backend
from warpfit.backends.numpy.processes import processes
from warpfit.checks import check_choice, check_count, check_flag
from warpfit.engines.base import Plan, TrainingData
from warpfit.errors import ConfigError, ShapeError
from warpfit.files import PathLike
from warpfit.losses.base import LossLike
from warpfit.nn.module import Module
from warpfit.optim.base import Optimizer
from warpfit.random import check_seed
from warpfit.training.arguments import (
    check_kinds,
    check_scale,
    checked_plan,
    optimizer_of,
    validation_split_off,
)
from warpfit.training.batches import Batches, as_validation_data
from warpfit.training.callbacks import Callback, Checkpoint
from warpfit.training.devices import agreeing, devices_of
from warpfit.training.evaluate import check_model, network_of
from warpfit.training.history import History
from warpfit.training.inputs import (
    as_rows,
    as_sample_weight,
    check_finite,
    check_held,
    check_indices,
    check_same_length,
    check_weight_left,
    resolve_class_weight,
    warn_of_data,
    warn_of_probabilities,
)
from warpfit.training.loop import TrainingLoop, rule_of
from warpfit.training.metrics import Metrics, as_metrics
from warpfit.training.place import ChosenDevice, place_of, widths_of
from warpfit.training.plan import AUTO, ENGINES, resolve_precision
from warpfit.training.precisions import Planner
from warpfit.training.progress import progress
from warpfit.training.run import Run
from warpfit.training.state import compile_ahead_for, state_of, trained_names, trained_spec

BATCH_SIZE = 64


@agreeing
def fit(
    model: Module,
    x: Any,
    y: Any = None,
    *,
    loss: LossLike = "cross_entropy",
    optimizer: str | Optimizer,
    epochs: int = 10,
    batch_size: int = BATCH_SIZE,
    validation_data: tuple[Any, Any] | None = None,
    validation_split: float = 0.0,
    metrics: Sequence[str | Callable[..., Any]] = (),
    class_weight: str | Mapping[int, float] | Sequence[float] | None = None,
    sample_weight: Any = None,
    device: str | Sequence[str] = "auto",
    precision: str = "auto",
    loss_scale: str | float = "auto",
    engine: str = "auto",
    plan: Plan | None = None,
    seed: int = 0,
    shuffle: bool = True,
    report_every: int = 1,
    callbacks: Sequence[Callback] = (),
    resume_from: PathLike | None = None,
    new_data: bool = False,
    verbose: bool = True,
) -> History:
    """Train a model, and write the result back into the model and the optimizer.

    Parameters
    ----------
    model : Module
        A `Sequential` of the package's layers runs on every engine, any other module on
        ``layerwise``. While it trains it holds the run's own arrays, so that callbacks see it as it
        is; afterwards it knows its loss, too.
    x : array_like (N, ...)
        Rows of any numeric dtype; uint8 means x / 255. An array in C order is not copied where the
        device can read it. An array or ``np.memmap`` that the device has no room for stays on the
        host, and ``'one_launch'`` trains on one piece of it after the other.
    y : array_like
        Targets as the loss takes them: integer labels (N,) for ``'cross_entropy'``. Without y, x
        gives batches (x, y): a loader or another iterable that restarts in every epoch, or a
        function that returns an iterator. An epoch is read into memory, and trained on in its
        order, in its batches: of one size, but for a shorter last one (see docs/own-data.md).
    loss : str, Loss or function
        A function of the tensors (outputs, targets) returns the loss of each row as a tensor (N,)
        or (N, ...), or their mean (), which takes no sample weights; its derivative comes from the
        tape. ``'layerwise'`` runs it. Targets are floats, (N, 1) for one output; or labels, int64.
    optimizer : str or Optimizer
        Over the model's parameters, or some of them; the others stay as they are, and so do those
        of its own with ``requires_grad=False``. A name, such as ``'adam'``, is that optimizer with
        its defaults, over all parameters; a second call then begins without the first one's state.
    epochs, batch_size : int
        The last, shorter batch of an epoch counts, divided by its own size.
    validation_data : (x, y), optional
        Evaluated after every reported epoch: in float32, or, where the kernel of ``'one_launch'``
        does it by itself (see docs/one-launch.md), in the precision of training. ``'one_launch'``
        may choose its kernel by whether there are any, so that weights of runs with and without
        differ by rounding. A loader of batches is read once.
    validation_split : float
        Share of the rows, in [0, 1), that is held out and validated on, instead of
        `validation_data`. Which rows follows from `seed`, whatever their order, and of each integer
        label it is the same share; for the last rows, as of a series in time, pass these as
        `validation_data`. The rest is copied. Held-out rows have no sample weights.
    metrics : sequence of str or function
        Names of scikit-learn's scorers, or functions of (y, prediction), of the predicted labels or
        in regression values. They are computed after each reported epoch, unweighted, on the rows
        to validate on, as columns ``'val_f1_macro'`` and so on; without such rows on those to train
        on, as ``'f1_macro'``. To find errors early they are computed once before the first epoch.
    class_weight : 'balanced', {class: weight} or sequence, optional
        For ``'cross_entropy'``.
    sample_weight : array_like (N,), optional
        At least 0; a batch whose weights, those of classes included, sum to 0 has loss 0 and
        gradients of 0.
    device : str
        ``'auto'``, ``'cpu'``, ``'cuda'`` or ``'cuda:1'``, ...: where it is trained, and where the
        model lives afterwards. ``'auto'`` is the first CUDA device, or the CPU where there is none
        and for a short run: of linear layers, without checkpoints, on NumPy's arrays, and expected
        to be done on a CPU before a GPU has compiled its kernel (see docs/engines.md). Several
        devices, ``'cuda:all'`` or ``'processes'`` share each batch (see docs/distributed.md).
    precision : str
        ``'float32'`` or ``'float64'``; on CUDA also ``'tf32'``, ``'float16'`` and ``'bfloat16'``:
        products on tensor cores, with sums and parameters in float32. The model's parameters are
        float64 afterwards for ``'float64'``, else float32. ``'auto'`` is their own dtype, except
        where ``'one_launch'`` or ``'graph'`` runs a model in float32: float16 then, or bfloat16 if
        x exceeds 1024 in magnitude, or the targets of ``'mse'`` do. If such a run overflows, it
        goes back to the last epoch, and on in bfloat16, then float32 (`History.precisions`).
    loss_scale : 'auto', 'dynamic' or float
        For ``'float16'``: what gradients are multiplied by, so that small ones do not underflow; a
        power of two. ``'auto'`` derives it from the batch size, and for ``'mse'`` from what x and
        targets reach. ``'dynamic'`` leaves out a step whose gradients overflow and halves the
        scale, doubles it after 2,000 steps without, and waits for the device at every step.
    engine : str
        ``'layerwise'``; ``'graph'``: the same operations and bits, many steps as one CUDA graph; or
        ``'one_launch'``: many epochs as one kernel, on CUDA in half precision. ``'auto'`` is
        ``'one_launch'`` wherever that runs the model in this precision, else ``'graph'`` where that
        does. The plan, ``history.plan``, says what was taken, and why.
    plan : Plan, optional
        An earlier run's plan, taken in place of everything that a plan holds.
    seed : int
        Of the epoch order, of dropout and of `validation_split`.
    shuffle : bool
        Whether every epoch has its own order; otherwise rows come as they are.
    report_every : int
        Epochs between two reports: validation, callbacks, and entries of the history.
    callbacks : sequence of Callback
    resume_from : path, optional
        A checkpoint of the same run; the weights come out as if it had never stopped. It must be of
        the same x, y and sample weights, and of the same validation rows where a callback or
        the schedule acts by them: digests in the checkpoint tell. Of an array of more than 16 MiB
        they see every k-th row and the last, at most 16 MiB.
    new_data : bool
        Whether to go on from `resume_from` with other data, or more, on purpose: weights, optimizer
        and epochs done are the checkpoint's.
    verbose : bool
        Whether to show progress on standard error: on a terminal a line that moves and one an
        epoch, in a notebook a line that moves, elsewhere a plain line an epoch.

    Returns
    -------
    History

    Raises
    ------
    ShapeError, DTypeError, DataError, ConfigError, DeviceError
        If an argument is not what is described here; nothing has changed then.
    DivergedError
        If the loss or a weight becomes NaN or infinite, in each precision that ``'auto'`` has. Like
        after Ctrl-C, which ends the run without an error, the model has the weights of the last
        whole epoch then; of the last before those that an engine trains at once: a quarter of a
        second's (layer by layer 2 s'), or one if it takes longer, and only where nothing is to be
        done between them that the engine does not do itself: no validation, no metrics, no
        checkpoint, no callback that looks at the run. An engine that hears of Ctrl-C while it
        trains ends after an epoch instead.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    >>> asked = {"optimizer": "adam", "validation_split": 0.2, "metrics": ["f1_macro"]}
    >>> history = wf.fit(model, x, y, epochs=50, **asked)
    >>> history["num_rows"][-1], history["val_f1_macro"][-1] > 0.7, history.plan.engine
    (160, True, 'layerwise')
    """
    check_kinds(plan, callbacks)
    check_flag("verbose", verbose)
    check_model(model)
    optimizer = optimizer_of(optimizer, model)
    batches = Batches(x) if y is None else None
    if batches is not None:
        resumes = resume_from is not None and not new_data
        others = {"sample_weight": sample_weight, "validation_split": validation_split or None}
        batches.check_alone(batch_size, BATCH_SIZE, plan=plan, resumes=resumes, others=others)
        (x, y), batch_size, shuffle = batches.first, batches.size, False
    rows, validation_data = as_rows("x", x, dtype=None), as_validation_data(validation_data)
    if validation_split:
        if validation_data is not None:
            raise ConfigError("expected validation_data or validation_split, got both")
        rows, y, sample_weight, validation_data = validation_split_off(
            rows, y, sample_weight, validation_split, check_seed(seed)
        )
    if plan is None:
        asked: dict[str, Any] = {"loss": loss, "epochs": epochs, "batch_size": batch_size}
        asked |= {"precision": precision, "loss_scale": loss_scale, "engine": engine}
        asked |= {"shuffle": shuffle, "report_every": report_every}
        # A run with checkpoints may become longer: it has the place of a long one.
        lasts = resume_from is not None or any(isinstance(c, Checkpoint) for c in callbacks)
        place = ChosenDevice(device)
        if not lasts:
            place = _place(model, rows, validation_data, device, asked)
        draft = draft_of(model, optimizer, rows, **place._asdict(), **asked)
    else:
        draft = checked_plan(plan, model, optimizer, rows)
    if batches is not None and draft.has_processes:
        raise ConfigError(
            "expected x and y as arrays for device 'processes', got a loader's batches"
        )
    check_finite("x", rows, draft.dtype)
    targets = prepared_targets(draft, y, len(rows))
    if plan is None:
        draft = with_class_weight(draft, class_weight, targets)
    warn_of_data(rows, targets, draft.loss, draft.network)
    warn_of_probabilities(draft.network, draft.loss)
    return _train_draft(
        draft,
        model,
        optimizer,
        rows,
        targets,
        validation_data=validation_data,
        sample_weight=sample_weight,
        seed=seed,
        callbacks=callbacks,
        resume_from=resume_from,
        new_data=new_data,
        verbose=verbose,
        metrics=metrics,
        batches=batches,
    )


def _place(
    model: Module, rows: Any, validation_data: Any, device: Any, asked: Mapping[str, Any]
) -> ChosenDevice:
    """Return where `fit` trains, as far as that is not decided by where its arrays are."""
    batch_size = check_count("batch_size", asked["batch_size"], 1)
    epochs = check_count("epochs", asked["epochs"], 0)
    network = network_of(model, rows.shape[1:])
    if backends.is_device_array(rows) or model.device != "cpu":
        return ChosenDevice(device)
    num_validated = 0
    if isinstance(validation_data, tuple | list) and validation_data:
        with suppress(TypeError, ValueError):  # which `_validation` finds, too, and says more
            num_validated = len(validation_data[0])
    return place_of(
        device,
        widths_of(network),
        num_rows=len(rows),
        batch_size=batch_size,
        epochs=epochs,
        num_validated=num_validated,
        engine=asked["engine"],
        precision=asked["precision"],
    )


def fit_rows(
    model: Module,
    x: Any,
    y: Any,
    *,
    optimizer: Optimizer,
    validation_data: Any,
    class_weight: Any = None,
    sample_weight: Any,
    seed: int,
    callbacks: Sequence[Callback],
    resume_from: PathLike | None = None,
    **drafted: Any,
) -> History:
    """Train a model, as `fit` does, on rows x of finite numbers; none of its warnings of data is
    given.

    Parameters are those of `fit`; `drafted` are those of `draft_of`.
    """
    rows = as_rows("x", x, dtype=None)
    draft = draft_of(model, optimizer, rows, **drafted)
    check_held("x", rows, draft.dtype)
    targets = prepared_targets(draft, y, len(rows))
    return _train_draft(
        with_class_weight(draft, class_weight, targets),
        model,
        optimizer,
        rows,
        targets,
        validation_data=validation_data,
        sample_weight=sample_weight,
        seed=seed,
        callbacks=callbacks,
        resume_from=resume_from,
    )


def _train_draft(
    draft: Plan,
    model: Module,
    optimizer: Optimizer,
    rows: Any,
    targets: Any,
    *,
    validation_data: Any,
    sample_weight: Any,
    seed: int,
    callbacks: Sequence[Callback],
    resume_from: PathLike | None,
    new_data: bool = False,
    verbose: bool = False,
    metrics: Any = (),
    batches: Batches | None = None,
) -> History:
    """Train a model by a draft of its plan, on checked rows and prepared targets, as `fit`."""
    ops = backends.get(draft.device)
    compile_ahead_for(model, ops, draft.dtype)
    data = _training_data(ops, draft, rows, targets, sample_weight)
    state = state_of(model, optimizer, ops, draft.dtype, check_seed(seed))
    validation = _validation(draft, validation_data)
    if draft.has_processes and processes().rank:
        # A rank that follows; only its copy of what `fit` was given trains.
        validation, callbacks, verbose, metrics = None, (), False, ()
    asked = as_metrics(metrics, draft.loss)
    # An engine that stops by itself knows of no metrics, and has the data of all epochs.
    rule = None if asked or batches else rule_of(callbacks, draft.optimizer.lr)
    planner = Planner(state, data, validation, rule)
    run_plan, data, validation = planner.plan(draft)
    measured = Metrics(asked, run_plan, data, validation) if asked else None
    run = Run(run_plan, state, History(), ops, model)
    run.history.plan = run.plan
    run.metrics = measured.directions if measured else {}
    watching = [*callbacks, progress()] if verbose else list(callbacks)
    next_data = partial(batches.next_data, run_plan, data.class_weight) if batches else None
    loop = TrainingLoop(run, optimizer, data, validation, watching, planner, measured, next_data)
    if resume_from is not None:
        loop.resume(resume_from, new_data=new_data)
    loop.carry_out()
    return run.history


def draft_of(
    model: Module,
    optimizer: Optimizer,
    rows: Any,
    *,
    loss: LossLike,
    epochs: int,
    batch_size: int,
    device: Any,
    precision: str,
    loss_scale: str | float,
    engine: str,
    shuffle: bool,
    report_every: int = 1,
    reason: str = "",
) -> Plan:
    """Return the plan of a run as far as `fit`'s arguments say it, for checked rows x; see
    `plan.plan` for the rest.

    Raises
    ------
    ShapeError, ConfigError, DeviceError
        If an argument is not what `fit` takes.
    """
    network = network_of(model, rows.shape[1:])
    check_indices("x", rows, network)
    trained = trained_names(model, optimizer)
    check_scale(loss_scale)
    check_choice("an engine", engine, (AUTO, *ENGINES))
    devices = devices_of(device)
    device = backends.resolve_device(devices.own)
    draft = Plan(
        engine=engine,
        device=device,
        precision=resolve_precision(precision, model.dtype, device),
        network=network,
        loss=losses.resolve(loss),
        optimizer=trained_spec(optimizer),
        batch_size=check_count("batch_size", batch_size, 1),
        epochs=check_count("epochs", epochs, 0),
        trained=trained,
        num_rows=len(rows),
        shuffle=check_flag("shuffle", shuffle),
        report_every=check_count("report_every", report_every, 1),
        loss_scale=loss_scale,
        reason=reason,
    )
    return devices.plan(draft)


def with_class_weight(draft: Plan, class_weight: Any, labels: Any) -> Plan:
    """Return the draft with class weights as `fit` takes them; labels say what is 'balanced'."""
    if class_weight is None:
        return draft
    num_classes = (*draft.network.output_shape, 0)[0]
    return replace(draft, loss=resolve_class_weight(draft.loss, class_weight, labels, num_classes))


def prepared_validation(draft: Plan, x: Any, y: Any) -> Any:
    """Return targets of validation rows as the draft's loss takes them, or raise as `fit`."""
    if x.shape[1:] != draft.network.input_shape:
        raise ShapeError(
            f"expected validation x with rows of shape {draft.network.input_shape}, got "
            f"{x.shape[1:]}"
        )
    check_indices("validation x", x, draft.network)
    targets = draft.loss.prepare_targets(y, draft.network.output_shape, draft.dtype)
    check_same_length("validation y", targets, len(x))
    return targets


def prepared_targets(draft: Plan, y: Any, num_rows: int) -> Any:
    """Return y as the draft's loss takes it, or raise as `fit` does."""
    targets = draft.loss.prepare_targets(
        as_rows("y", y, dtype=draft.dtype), draft.network.output_shape, draft.dtype
    )
    check_same_length("y", targets, num_rows)
    return targets


def _training_data(
    ops: Backend, plan: Plan, rows: Any, targets: Any, sample_weight: Any
) -> TrainingData:
    weights = as_sample_weight(sample_weight, len(rows), plan.dtype)
    check_weight_left(plan.loss, targets, weights)
    class_weight: Any = plan.loss.class_weights()
    if class_weight is not None:
        class_weight = ops.asarray(np.array(class_weight), plan.dtype)
    return TrainingData(rows, targets, weights, class_weight)


def _validation(draft: Plan, validation_data: Any) -> TrainingData | None:
    if validation_data is None:
        return None
    try:
        x, y = validation_data
    except (TypeError, ValueError):
        raise ConfigError("expected validation_data as a pair (x, y)") from None
    rows = as_rows("validation x", x, dtype=draft.dtype)
    targets = prepared_validation(draft, rows, as_rows("validation y", y, dtype=draft.dtype))
    check_weight_left(draft.loss, targets)
    return TrainingData(rows, targets)
