"""A first fit waits for one kernel to be compiled, and for no other after it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import adam, blobs, mlp
from warpfit import backends
from warpfit.backends.cuda.launch import Kernels
from warpfit.engines.base import TrainingData

X, LABELS = blobs(60)


def watched(cuda: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[Any]]:
    """Return the kernels that are announced from now on, and those that are loaded, all anew."""
    runtime: Any = backends.get(cuda).runtime
    announced: list[Any] = []
    loaded: list[Any] = []
    load = runtime.load

    def loading(name: str, defines: Any) -> Any:
        loaded.append((name, defines))
        return load(name, defines)

    monkeypatch.setattr(Kernels.of(runtime), "_loaded", {})
    monkeypatch.setattr(runtime, "load", loading)
    monkeypatch.setattr(runtime, "compile_ahead", announced.extend)
    return announced, loaded


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("hidden", [(8,), (8, 8)])
def test_all_kernels_of_a_run_are_compiled_at_once(
    cuda: str, hidden: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    announced, loaded = watched(cuda, monkeypatch)
    model = mlp(6, *hidden, 3)
    settings: dict[str, Any] = {"optimizer": adam(model), "epochs": 2, "verbose": False}
    history = wf.fit(model, X, LABELS, device=cuda, batch_size=16, **settings)
    assert history.plan.engine == "one_launch"
    assert loaded
    assert sorted(announced) == sorted(loaded)


def test_the_host_finds_the_largest_of_its_few_numbers(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = TrainingData(-3 * X / abs(X).max(), LABELS)
    there = data.on(cuda)
    runtime: Any = backends.get(cuda).runtime
    monkeypatch.setattr(Kernels.of(runtime), "_loaded", {})
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "load", None)
        assert there.largest_x == pytest.approx(3)
        assert there.largest_y == LABELS.max()
    assert TrainingData(there.x, there.y).largest_x == there.largest_x


def test_rows_on_a_device_go_with_those_that_were_found(cuda: str) -> None:
    data = TrainingData(X, LABELS)
    found = weakref.ref(data)
    there = weakref.ref(data.on(cuda))
    gc.disable()
    try:
        del data
        assert (found(), there()) == (None, None)
    finally:
        gc.enable()


def test_a_device_finds_it_by_kernels_that_are_compiled_at_once(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced, loaded = watched(cuda, monkeypatch)
    data = TrainingData(X, LABELS).on(cuda)
    monkeypatch.setattr("warpfit.engines.base.MAGNITUDE_BYTES", 8)
    assert data.largest_x == abs(X).max()
    assert len(loaded) == 2
    assert announced == loaded


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("restore_best", [False, True])
def test_kernels_of_a_sweeps_shapes_are_compiled_at_once(
    cuda: str, restore_best: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced, loaded = watched(cuda, monkeypatch)

    def build(candidate: dict[str, Any]) -> Any:
        model = mlp(6, candidate["width"], 3)
        return model, adam(model)

    wf.fit_many(
        build,
        X,
        LABELS,
        candidates=[{"width": 8}, {"width": 24}],
        callbacks=[wf.EarlyStopping("loss", patience=1, restore_best=restore_best)],
        epochs=2,
        batch_size=16,
        device=cuda,
        verbose=False,
    )
    announced, loaded = (
        sorted(kernel for kernel in found if kernel[0].startswith("many"))
        for found in (announced, loaded)
    )
    assert len(loaded) == 2
    assert announced == loaded


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_scores_the_fits_of_a_search_is_compiled_with_what_trains_them(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced, loaded = watched(cuda, monkeypatch)
    settings: dict[str, Any] = {"max_iter": 2, "batch_size": 16, "random_state": 0}
    estimator = wf.MLPClassifier(device=cuda, **settings)
    grid = {"hidden_layer_sizes": [(8,), (24,)]}
    rows = X.astype(np.float64)
    wf.SweepCV(estimator, grid, cv=2, refit=False).fit(rows, LABELS)
    names = [name for name, _ in announced]
    assert {"count_correct", "gather_rows", "many_networks"} <= {*names}
    assert any(name.startswith("matmul") for name in names)
    late = {name for name, defines in loaded if (name, defines) not in announced}
    # Rows come to each kernel in its own way; their largest number is the host's to find.
    assert late <= {"copy_strided", "gather_rows"}


def test_what_predicts_a_table_is_compiled_while_its_network_is_trained(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced, loaded = watched(cuda, monkeypatch)
    runtime: Any = backends.get(cuda).runtime
    monkeypatch.setattr(Kernels.of(runtime), "rehearsed", set())
    settings: dict[str, Any] = {"hidden_layer_sizes": 16, "n_epochs": 2, "random_state": 0}
    x = X.astype(np.float64)
    model = wf.TabularRegressor(device=cuda, **settings).fit(x[:50], LABELS[:50])
    trained = len(loaded)
    predicted = model.predict(x[48:])  # about as many rows as validate
    assert len(loaded) > trained
    assert {*loaded} <= {*announced}
    model.set_params(device="cpu")
    np.testing.assert_allclose(predicted, model.predict(x[48:]), rtol=1e-3)


def test_a_rehearsal_computes_nothing_and_is_held_once(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced, loaded = watched(cuda, monkeypatch)
    ops: Any = backends.get(cuda)
    monkeypatch.setattr(Kernels.of(ops.runtime), "rehearsed", set())
    x, asked = ops.asarray(X), []

    def reduced(rehearsing: Any) -> None:
        asked.append(rehearsing.reduce("sum", x).shape)
        rehearsing.reduce("max", x)

    for _ in range(2):
        ops.rehearse("a key", reduced)
    assert asked == [()]
    assert [dict(defines)["OP"] for _, defines in announced] == ["Sum", "Max"]
    assert loaded == []
    with monkeypatch.context() as patched:
        patched.setenv("WARPFIT_AUTOTUNE", "1")  # by which kernels are measured
        ops.rehearse("another key", reduced)
    assert len(asked) == 1
    backends.get("cpu").rehearse("a key", reduced)
    assert len(asked) == 1


@pytest.mark.slow
def test_the_longest_kernel_of_a_sweep_is_the_first(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced, _ = watched(cuda, monkeypatch)

    def build(candidate: dict[str, Any]) -> Any:
        model = mlp(6, *candidate["widths"], 3)
        return model, adam(model)

    candidates = [{"widths": widths} for widths in ((20,), (100,), (60,))]
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 16, "verbose": False}
    wf.fit_many(build, X, LABELS, candidates=candidates, device=cuda, **settings)
    widths = [dict(own).get("WIDTHS", "") for name, own in announced if name.startswith("many")]
    order = [next(width for width in ("100", "60", "20") if width in own) for own in widths]
    assert len(order) == 3
    assert order[0] == "100"


def test_kernels_of_a_sweep_that_no_launch_takes_are_compiled_at_once(
    cuda: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced, loaded = watched(cuda, monkeypatch)

    def build(candidate: dict[str, Any]) -> Any:
        model = mlp(6, candidate["width"], 3)
        return model, adam(model)

    settings: dict[str, Any] = {"epochs": 2, "batch_size": 16, "device": cuda, "verbose": False}
    candidates = [{"width": 8}, {"width": 24}]
    wf.fit_many(build, X, LABELS, candidates=candidates, engine="one_launch", **settings)
    of_runs = {kernel for kernel in loaded if kernel[0].startswith("one_launch")}
    assert len(of_runs) == 2
    assert of_runs <= {*announced}
    assert {*announced} <= {*loaded}
