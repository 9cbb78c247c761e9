"""fit_many: candidates × folds → tasks → groups → a runner → outcomes → a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, suppress
from time import perf_counter
from typing import Any

from warpfit import losses
from warpfit.checks import brief, check_count, check_flag, kind_of
from warpfit.engines.base import Plan
from warpfit.errors import ConfigError, DeviceError, WarpfitError
from warpfit.losses.base import LossLike
from warpfit.nn.module import Module
from warpfit.optim.base import Optimizer
from warpfit.random import check_seed, seeded
from warpfit.sweep.candidates import (
    Candidate,
    as_candidates,
    candidate_name,
    error_of_candidate,
    fit_arguments,
)
from warpfit.sweep.folds import SweepData, as_folds
from warpfit.sweep.groups import Group
from warpfit.sweep.halving import Rule, as_halving
from warpfit.sweep.metric import Metric, as_metric, as_scoring
from warpfit.sweep.placing import Places
from warpfit.sweep.planning import SweepPlan, describe
from warpfit.sweep.progress import SweepProgress, tell_no_validation
from warpfit.sweep.records import Collector, Sweep
from warpfit.sweep.runner import Runner
from warpfit.sweep.tasks import FAILED, INTERRUPTED, Outcome, Task
from warpfit.training.arguments import optimizer_of
from warpfit.training.callbacks import Callback
from warpfit.training.inputs import (
    as_rows,
    as_sample_weight,
    check_same_length,
    warn_of_data,
    warn_of_probabilities,
)

Build = Callable[[Candidate], tuple[Module, str | Optimizer]]


def fit_many(
    build: Build,
    x: Any,
    y: Any,
    *,
    grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]] | None = None,
    candidates: Iterable[Candidate] | None = None,
    folds: Any = None,
    loss: LossLike = "cross_entropy",
    epochs: int = 10,
    batch_size: int = 64,
    validation_data: tuple[Any, Any] | None = None,
    class_weight: str | Mapping[int, float] | Sequence[float] | None = None,
    sample_weight: Any = None,
    metric: str | Callable[[Module, Any, Any], float] | None = None,
    halving: Rule | float | None = None,
    device: str | Sequence[str] = "auto",
    precision: str = "auto",
    loss_scale: str | float = "auto",
    engine: str = "auto",
    seed: int = 0,
    shuffle: bool = True,
    report_every: int = 1,
    callbacks: Sequence[Callback] = (),
    executor: Executor | None = None,
    n_jobs: int = -1,
    keep_models: bool = True,
    on_plan: Callable[[SweepPlan], None] | None = None,
    verbose: bool = True,
) -> Sweep:
    """Train a network for every candidate, and for every fold if there are some, and say which is
    best.

    On the CPU each network comes out with the bits that ``warpfit.manual_seed(seed)``, `build` and
    `fit` with one BLAS thread would give it. On a GPU it has the bits that it has when `fit_many`
    trains it alone: kernels that train many networks add up in another order than those of `fit`,
    which train what they do not take. The plan says which.

    Parameters
    ----------
    build : function
        From a candidate, a dict, to a model and its optimizer, or the name of one, new ones at each
        call. It is called once for each candidate, here, before anything trains; layers that are
        given no seed draw theirs from the candidate's.
    x, y : array_like
        As `fit` takes them.
    grid : mapping of str to sequence, or several
        Every combination of the values is a candidate.
    candidates : iterable of dict
        In place of a grid. A candidate's ``batch_size``, ``class_weight``, ``engine``, ``epochs``,
        ``loss``, ``loss_scale``, ``precision``, ``report_every``, ``seed`` and ``shuffle`` also
        stand in for the arguments of these names below; all other names are for `build` alone.
    folds : int, sequence of (train, test), or splitter of scikit-learn, optional
        Each candidate is trained once for each fold, on the rows ``train``, and validated on the
        rows ``test``, both (n,) int64 indices. A number deals the rows out by `seed`, each class
        evenly where y are labels.
    loss, epochs, batch_size, class_weight, sample_weight, precision, loss_scale, engine, seed,
    shuffle, report_every
        As `fit`'s, for all candidates that do not say otherwise. `seed` decides initial values,
        too.
    validation_data : (x, y), optional
        For all networks; not with folds.
    metric : str or function, optional
        What decides: ``'val_accuracy'``, ``'val_loss'``, ``'accuracy'``, ``'loss'``, of the epoch
        whose weights the model has; or the name of a scorer of scikit-learn, such as
        ``'f1_macro'``, or a function of model, x and y, called after training on the validation
        rows, of which more is better. By default the accuracy, where the losses count
        right rows, else the loss; on validation rows, if there are any; without, the ranking is by
        training rows, and does not tell how candidates do on new ones. Candidates are ranked by the
        mean over folds, equal ones by the loss.
    halving : Halving or float, optional
        After some epochs only the best go on; a number is `Halving`'s factor.
    device : str or sequence of str
        As `fit`'s; ``'auto'`` weighs all networks, with `n_jobs` processes, against a GPU that
        compiles a kernel for each kind of them. Several, or all GPUs, ``'cuda:all'``, train shards
        in turn: those of an executor, or here, where a device takes the next when it is free.
    callbacks : sequence of Callback
        Every network has copies of its own: `EarlyStopping` ends each by itself. None that writes a
        file.
    executor : concurrent.futures.Executor, optional
        Trains shards of the networks wherever its workers are, each shard by itself. A process
        pool, Dask's ``client.get_executor()``, mpi4py's ``MPIPoolExecutor``, ... What is sent must
        be picklable: models, optimizers, callbacks and the metric; `build` need not be. Without,
        within `joblib.parallel_config` of a cluster's backend, the cluster's workers do so.
    n_jobs : int
        On the CPU, networks that are trained at the same time, in processes of one BLAS thread
        each; -1 is one a core, fewer if memory has no room for them. Elsewhere, the number of
        shards; -1 is one a worker. 1 is this process, unless there is an executor or several
        devices. Results do not depend on it, but for device 'auto', which may be a GPU in place of
        few processes, and one process where more would take longer.
    keep_models : bool
        Whether all models are kept, or those of the best candidate only.
    on_plan : function, optional
        Called with the plan when everything is checked, before the first network trains.
    verbose : bool
        Whether to show progress: on a terminal and in a notebook a line that moves, elsewhere a
        line now and then, on standard error; and to say so there if candidates are ranked by
        training rows because there are no others.

    Returns
    -------
    Sweep
        After Ctrl-C with what is finished, and `Sweep.interrupted`.

    Raises
    ------
    ShapeError, DTypeError, DataError, ConfigError, DeviceError
        If an argument is not what is described here, or `build` fails, or `fit` could not train
        what it made; the message names the candidate, and nothing was trained then. If all networks
        fail, the first one's error. A network that diverges or fails while others do not has a
        record that says so.

    Examples
    --------
    >>> def build(candidate):
    ...     width = candidate["width"]
    ...     model = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    ...     return model, optim.SGD(model.parameters(), lr=candidate["lr"])
    >>> grid = {"lr": [0.1, 0.5], "width": [8, 16]}
    >>> sweep = wf.fit_many(build, x, y, grid=grid, folds=2, epochs=2, n_jobs=1, device="cpu")
    >>> len(sweep), sorted(sweep.best_candidate)
    (8, ['lr', 'width'])
    """
    start = perf_counter()
    metric, rule = as_scoring(metric), as_halving(halving)
    found = as_candidates(grid, candidates)
    _check_callbacks(callbacks)
    places = Places.of(device, executor, n_jobs)
    verbose, keep_models = check_flag("verbose", verbose), check_flag("keep_models", keep_models)
    _check_listener(on_plan)
    defaults = {
        "loss": loss,
        "epochs": check_count("epochs", epochs, 1 if rule else 0),
        "batch_size": batch_size,
        "class_weight": class_weight,
        "device": places.first,
        "precision": precision,
        "loss_scale": loss_scale,
        "engine": engine,
        "seed": check_seed(seed),
        "shuffle": shuffle,
        "report_every": report_every,
    }
    data = _data(x, y, sample_weight, validation_data, folds, seed)
    folds_of_each: list[int | None] = list(range(len(data.folds))) or [None]
    tasks: Sequence[Task] = _tasks(build, found, defaults, data, folds_of_each, callbacks, metric)
    places, tasks = places.taken_by(tasks)
    names = [candidate_name(candidate) for candidate in found for _ in folds_of_each]
    groups = places.planned(tasks, names)
    _warn(data, groups[0].plan)
    decider = _decider(metric, groups, data, tells=verbose)
    collector = Collector(found, folds_of_each, decider, keep_models)
    plan, interrupted = _trained(groups, places, rule, collector, on_plan, is_shown=verbose)
    _check_any_trained(collector, len(tasks), names)
    return collector.sweep(plan, perf_counter() - start, interrupted)


def _trained(
    groups: Sequence[Group],
    places: Places,
    rule: Rule | None,
    collector: Collector,
    on_plan: Callable[[SweepPlan], None] | None,
    *,
    is_shown: bool,
) -> tuple[SweepPlan, bool]:
    """Train all networks into a collector; return the plan, and whether Ctrl-C came before the
    last.
    """
    runner = places.runner(groups, keeps_models=collector.keeps_models)
    plan = _described(groups, runner, places, collector)
    if on_plan is not None:
        on_plan(plan)
    num_folds = len(collector.folds)
    outcomes = (
        runner.run_in_rungs(groups, rule, collector.metric, num_folds)
        if rule
        else runner.run(groups)
    )
    num_tasks = num_folds * len(collector.candidates)
    with SweepProgress(num_tasks, plan.at_once, collector, is_shown=is_shown) as progress:
        return plan, _collect(outcomes, collector, progress)


def _check_listener(on_plan: Any) -> None:
    if on_plan is not None and not callable(on_plan):
        raise ConfigError(f"expected on_plan to be a function or None, got {brief(on_plan)}")


def _warn(data: SweepData, plan: Plan) -> None:
    """Warn of data, and of a network, that are probably not as intended."""
    warn_of_data(data.x, data.y, plan.loss, plan.network)
    warn_of_probabilities(plan.network, plan.loss)


def _decider(metric: Any, groups: Sequence[Group], data: SweepData, *, tells: bool) -> Metric:
    """Return what candidates are ranked by, and tell if that knows only rows that they train on."""
    has_validation = data.validation is not None or bool(data.folds)
    decider = as_metric(
        metric, (group.plan.loss for group in groups), has_validation=has_validation
    )
    if tells and metric is None and not has_validation:
        tell_no_validation(decider)
    return decider


def _described(
    groups: Sequence[Group], runner: Runner, places: Places, collector: Collector
) -> SweepPlan:
    return describe(
        groups,
        num_candidates=len(collector.candidates),
        num_folds=sum(fold is not None for fold in collector.folds),
        device=", ".join(places.devices),
        at_once=runner.at_once(groups),
        num_bytes=runner.num_bytes(groups),
        reason="; ".join(filter(None, (places.reason, runner.explain(groups)))),
    )


def _collect(outcomes: Iterator[Outcome], collector: Collector, progress: SweepProgress) -> bool:
    """Record all outcomes, and return whether Ctrl-C came before the last."""
    interrupted = False
    with closing(outcomes):  # type: ignore[type-var]
        try:
            for outcome in outcomes:
                interrupted |= outcome.status == INTERRUPTED
                collector.collect(outcome)
                progress.tell(outcome)
        except KeyboardInterrupt as interrupt:
            _collect_rest(outcomes, collector, interrupt)
            return True
    return interrupted


def _collect_rest(outcomes: Any, collector: Collector, interrupt: KeyboardInterrupt) -> None:
    """Record what a runner returns after a Ctrl-C that did not reach it directly."""
    with suppress(KeyboardInterrupt):
        collector.collect(outcomes.throw(interrupt))
        for outcome in outcomes:
            collector.collect(outcome)


def _check_callbacks(callbacks: Any) -> None:
    if not isinstance(callbacks, Sequence) or not all(isinstance(c, Callback) for c in callbacks):
        raise ConfigError(
            f"expected callbacks to be a sequence of Callback objects, got {callbacks!r}"
        )
    for callback in callbacks:
        if callback.writes_file:
            raise ConfigError(
                "expected callbacks that write no file, which all networks would write to, "
                f"got {type(callback).__name__}"
            )


def _data(
    x: Any, y: Any, sample_weight: Any, validation_data: Any, folds: Any, seed: int
) -> SweepData:
    rows, targets = as_rows("x", x), as_rows("y", y)
    check_same_length("y", targets, len(rows))
    weight = as_sample_weight(sample_weight, len(rows), "float64")
    if folds is not None and validation_data is not None:
        raise ConfigError("expected validation_data or folds, got both")
    if validation_data is not None:
        try:
            val_x, val_y = validation_data
        except (TypeError, ValueError):
            raise ConfigError("expected validation_data as a pair (x, y)") from None
        validation_data = as_rows("validation x", val_x), as_rows("validation y", val_y)
    return SweepData(rows, targets, weight, validation_data, as_folds(folds, rows, targets, seed))


def _tasks(
    build: Build,
    candidates: Sequence[Candidate],
    defaults: Mapping[str, Any],
    data: SweepData,
    folds: Sequence[int | None],
    callbacks: Sequence[Callback],
    metric: Any,
) -> list[Task]:
    tasks: list[Task] = []
    seen: set[int] = set()
    for candidate in candidates:
        arguments = fit_arguments(candidate, defaults)
        model, optimizer = _built(build, candidate, arguments)
        own = {id(parameter) for parameter in model.parameters()}
        if not seen.isdisjoint(own):
            raise ConfigError(
                "expected build to make a new model for each candidate, "
                f"got layers of an earlier one for {candidate_name(candidate)}"
            )
        seen |= own
        tasks += [
            Task(
                number=len(tasks) + idx,
                model=model,
                optimizer=optimizer,
                data=data,
                fold=fold,
                arguments=arguments,
                callbacks=callbacks,
                is_shared=len(folds) > 1 or bool(callbacks),
                scoring=metric if callable(metric) else None,
            )
            for idx, fold in enumerate(folds)
        ]
    return tasks


def _built(
    build: Build, candidate: Candidate, arguments: dict[str, Any]
) -> tuple[Module, Optimizer]:
    """Return model and optimizer of a candidate, from the seed that it is to have."""
    try:
        arguments["seed"] = check_seed(arguments["seed"])
        arguments["epochs"] = check_count("epochs", arguments["epochs"], 0)
        arguments["loss"] = losses.resolve(arguments["loss"])
        with seeded(arguments["seed"]):
            return model_and_optimizer(build(dict(candidate)))
    except WarpfitError as error:
        raise error_of_candidate(candidate_name(candidate), error) from error
    except Exception as error:
        raise ConfigError(
            f"candidate {candidate_name(candidate)}: build raised {type(error).__name__}: {error}"
        ) from error


def model_and_optimizer(made: Any) -> tuple[Module, Optimizer]:
    """Return what `build` made, an optimizer for its name, or raise ConfigError."""
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise ConfigError(f"expected build to return (model, optimizer), got {brief(made)}")
    model, optimizer = made
    if not isinstance(model, Module) or not isinstance(optimizer, Optimizer | str):
        raise ConfigError(
            "expected build to return a model and an optimizer of warpfit, got "
            f"{kind_of(model)} and {kind_of(optimizer)}"
        )
    return model, optimizer_of(optimizer, model)


def _check_any_trained(collector: Collector, num_tasks: int, names: Sequence[str]) -> None:
    """Raise the first network's error if all of them failed."""
    outcomes = collector.outcomes
    if len(outcomes) < num_tasks or any(outcome.status != FAILED for outcome in outcomes.values()):
        return
    first = outcomes[0]
    kind = type(first.error) if isinstance(first.error, WarpfitError) else DeviceError
    raise kind(
        f"all {num_tasks} networks failed, the first ({names[0]}) with: {first.message}"
    ) from first.error
