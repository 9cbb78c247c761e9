"""Several ranks that train one network: the numbers of one device, whatever their number."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from support.training import (
    InterruptAt,
    Taped,
    Writing,
    adam,
    assert_same_weights,
    blobs,
    mlp,
    sgd,
)
from warpfit import backends, losses, nn, optim
from warpfit.backends.numpy import NumpyBackend
from warpfit.backends.numpy.threads import ThreadCommunicator
from warpfit.engines import parts
from warpfit.errors import ConfigError, DataError, DivergedError

NUM_ROWS, BATCH = 61, 16  # three batches of 16, and one of 13
SIZES = [2, 3, 8]


def fit(model: nn.Module, x: Any, y: Any, ranks: int = 0, **settings: Any) -> wf.History:
    """Train on the CPU, by so many ranks; 0 is by none but the device's name."""
    asked = {"epochs": 3, "batch_size": BATCH, "seed": 5, "verbose": False}
    device = ["cpu"] * ranks if ranks else "cpu"
    asked["optimizer"] = settings.pop("optimizer", None) or sgd(model)
    return wf.fit(model, x, y, device=device, **(asked | settings))


def dropped() -> nn.Sequential:
    layers = (nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, 3, seed=2, dtype="float64"))
    return nn.Sequential(nn.Linear(6, 8, seed=1, dtype="float64"), *layers)


def images() -> nn.Sequential:
    layers = (nn.Conv2d(1, 3, 3, seed=1, dtype="float64"), nn.ReLU(), nn.RandomFlip(), nn.Flatten())
    return nn.Sequential(nn.RandomShift(1), *layers, nn.Linear(48, 3, seed=2, dtype="float64"))


def normed() -> nn.Sequential:
    first = nn.Linear(6, 8, seed=1, dtype="float64")
    layers = (nn.LayerNorm(8, dtype="float64"), nn.GELU())
    return nn.Sequential(first, *layers, nn.Linear(8, 3, seed=2, dtype="float64"))


def shared() -> nn.Sequential:
    twice = nn.Linear(6, 6, seed=1, dtype="float64")
    last = nn.Linear(6, 3, seed=2, dtype="float64")
    return nn.Sequential(twice, nn.Tanh(), twice, last)


def taped() -> nn.Module:
    return Taped(mlp(6, 8, 3, dtype="float64"))


def small() -> nn.Sequential:
    return mlp(6, 8, 3, dtype="float64")


def assert_like_one_device(
    make: Any, x: Any, y: Any, optimizer: Any = sgd, **settings: Any
) -> None:
    """Assert that ranks come to the numbers of one device, within rounding; and to the same bits
    again.
    """
    one = make()
    opt = optimizer(one)
    expected = fit(one, x, y, optimizer=opt, **settings)
    for size in SIZES:
        models = [make(), make()]
        optimizers = [optimizer(model) for model in models]
        found = [
            fit(model, x, y, size, optimizer=own, **settings)
            for model, own in zip(models, optimizers, strict=True)
        ]
        np.testing.assert_allclose(found[0].step_losses, expected.step_losses, rtol=1e-11)
        assert found[0]["accuracy"] == expected["accuracy"]
        for name, array in models[0].state_dict().items():
            np.testing.assert_allclose(array, one.state_dict()[name], rtol=1e-9, atol=1e-12)
        assert_same_weights(models[0], models[1])  # to the bit
        np.testing.assert_equal(found[0].step_losses, found[1].step_losses)
        assert optimizers[0].step_count == opt.step_count
        for slot, arrays in opt.slots.items():
            for array, own in zip(arrays, optimizers[0].slots[slot], strict=True):
                np.testing.assert_allclose(own, array, rtol=1e-9, atol=1e-12)


def batch_normed() -> nn.Sequential:
    first = nn.Linear(6, 8, seed=1, dtype="float64")
    norms = [
        nn.BatchNorm1d(8, affine=affine, synchronized=True, dtype="float64")
        for affine in (True, False)
    ]
    return nn.Sequential(
        first, norms[0], nn.ReLU(), norms[1], nn.GELU(), nn.Linear(8, 3, seed=2, dtype="float64")
    )


def batch_normed_images() -> nn.Sequential:
    def block(seed: int) -> list[nn.Module]:
        conv = nn.Conv2d(3, 3, 3, padding=1, seed=seed, dtype="float64")
        return [conv, nn.BatchNorm2d(3, momentum=0.3, synchronized=True, dtype="float64")]

    first = nn.Conv2d(1, 3, 3, seed=1, dtype="float64")
    residual = nn.Residual(*block(2), nn.ReLU(), *block(3))
    last = nn.Linear(48, 3, seed=2, dtype="float64")
    return nn.Sequential(first, residual, nn.ReLU(), nn.Flatten(), last)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("make", [small, dropped, normed, shared, taped, batch_normed])
def test_networks(make: Any) -> None:
    assert_like_one_device(make, *blobs(NUM_ROWS, dtype="float64"))


def test_images_are_augmented_by_their_place_in_the_batch() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(NUM_ROWS, 6, 6, 1)), rng.integers(0, 3, NUM_ROWS)
    assert_like_one_device(images, x, y)


def test_images_are_normalised_by_the_whole_batch() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(3, 1, size=(NUM_ROWS, 6, 6, 1)), rng.integers(0, 3, NUM_ROWS)
    assert_like_one_device(batch_normed_images, x, y)


def test_ranks_without_rows_have_the_statistics_of_the_others() -> None:
    x, y = blobs(34, dtype="float64")
    assert_like_one_device(batch_normed, x, y)
    with pytest.raises(ConfigError, match="33 rows in batches of 16 leave 1 among 3 devices"):
        fit(batch_normed(), x[:33], y[:33], 3)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("num_rows", [1, 17, 33, 48])
def test_a_last_batch_that_leaves_some_ranks_without_rows(num_rows: int) -> None:
    x, y = blobs(max(num_rows, 3), dtype="float64")
    assert_like_one_device(small, x[:num_rows], y[:num_rows])


def test_each_rank_gathers_its_own_rows_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    gather = NumpyBackend.gather_rows

    def noting(ops: Any, array: Any, rows: Any, *given: Any) -> Any:
        taken.extend(rows.tolist())
        return gather(ops, array, rows, *given)

    monkeypatch.setattr(NumpyBackend, "gather_rows", noting)
    fit(small(), *blobs(NUM_ROWS, dtype="float64"), 3, epochs=1)
    assert sorted(taken) == sorted(2 * [*range(NUM_ROWS)])  # of x and y


def test_rows_in_their_order_and_one_batch_of_all() -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    assert_like_one_device(small, x, y, shuffle=False, batch_size=500)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("weights", ["sample", "class", "both"])
def test_weights(weights: str) -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    settings: dict[str, Any] = {}
    if weights != "class":
        sample = np.random.default_rng(1).uniform(0, 2, NUM_ROWS)
        sample[:20] = 0
        settings["sample_weight"] = sample
    if weights != "sample":
        settings["class_weight"] = {0: 0.5, 1: 3.0}
    assert_like_one_device(small, x, y, **settings)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    "optimizer",
    [
        adam,
        lambda model: optim.SGD(model.parameters(), lr=0.1, clip_norm=0.05),
        lambda model: optim.SGD(model.parameters(), lr=0.1, momentum=0.9, l2=0.1),
        lambda model: optim.SGD(model.parameters(), lr=optim.ReduceOnPlateau(0.1, patience=1)),
        lambda model: optim.SGD(list(model.parameters())[2:], lr=0.1),
    ],
)
def test_optimizers(optimizer: Any) -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    assert_like_one_device(small, x, y, optimizer, epochs=6)


def test_a_penalty_by_weight_is_by_that_of_the_whole_batch() -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    weight = np.random.default_rng(1).uniform(0, 2, NUM_ROWS)

    def optimizer(model: nn.Module) -> optim.Optimizer:
        spec = optim.SGD(model.parameters(), lr=0.1, l2=0.1).spec
        return optim.Optimizer(model.parameters(), type(spec)(spec.lr, l2=0.1, l2_by_weight=True))

    assert_like_one_device(small, x, y, optimizer, sample_weight=weight)


@pytest.mark.parametrize("loss", ["mse", "huber", losses.Poisson()])
def test_regression(loss: Any) -> None:
    x, _ = blobs(NUM_ROWS, dtype="float64")
    y = abs(x[:, :3])
    one, many = small(), small()
    expected = fit(one, x, y, loss=loss)
    found = fit(many, x, y, 3, loss=loss)
    np.testing.assert_allclose(found.step_losses, expected.step_losses, rtol=1e-11)


def test_gradients_go_in_buckets_that_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    models = [small(), small()]
    fit(models[0], x, y, 2)
    monkeypatch.setattr(parts, "BUCKET_BYTES", 1)
    fit(models[1], x, y, 2)
    assert_same_weights(*models)


def test_products_know_that_sums_run_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    create = backends.create

    def noted(*given: Any, shares_device: bool = False, **named: Any) -> Any:
        asked.append(shares_device)
        return create(*given, shares_device=shares_device, **named)

    monkeypatch.setattr(backends, "create", noted)
    x, y = blobs(NUM_ROWS, dtype="float64")
    for ranks, num_shared in ((1, 0), (2, 2)):
        asked.clear()
        fit(small(), x, y, ranks)
        assert asked.count(True) == num_shared


def test_one_rank_has_the_bits_of_a_device() -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    models = [small(), small()]
    history = fit(models[0], x, y, 1)
    fit(models[1], x, y)
    assert_same_weights(*models)
    assert (history.plan.num_ranks, history.plan.devices) == (1, ("cpu",))


def test_running_statistics_are_the_mean_over_the_ranks() -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    norm = nn.BatchNorm1d(6, momentum=1.0, dtype="float64")
    model = nn.Sequential(norm, nn.Linear(6, 3, seed=1, dtype="float64"))
    fit(model, x[:32], y[:32], 2, shuffle=False, batch_size=16, epochs=1)
    means = [x[16:24].mean(axis=0), x[24:32].mean(axis=0)]
    np.testing.assert_allclose(norm.running_mean.data, np.mean(means, axis=0))
    with pytest.raises(ConfigError, match="17 rows in batches of 16 leave 1 among 2 devices"):
        fit(model, x[:17], y[:17], 2)


def test_the_plan_says_who_trains() -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    plan = fit(small(), x, y, 3).plan
    assert (plan.device, plan.devices, plan.num_ranks) == ("cpu", ("cpu",) * 3, 3)
    assert "3 ranks share each batch" in plan.reason
    assert plan.bytes < fit(small(), x, y, 1).plan.bytes


class Watching(wf.Callback):
    """Notes the threads that call it, and what it sees."""

    def __init__(self, stop_after: int = 0) -> None:
        self.threads: set[int] = set()
        self.losses: list[float] = []
        self.steps, self.stop_after = 0, stop_after

    def on_step(self, step: int, steps_per_epoch: int) -> None:
        self.steps += 1

    def on_epoch_end(self, run: wf.Run) -> None:
        self.threads.add(threading.get_ident())
        self.losses.append(run.report.loss)
        if len(self.losses) == self.stop_after:
            run.stop("enough")


def test_callbacks_are_called_once_by_the_thread_that_asked() -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    watching = Watching(stop_after=2)
    history = fit(small(), x, y, 3, callbacks=[watching], validation_data=(x, y), epochs=9)
    assert (len(history), history.stopped_by, watching.steps) == (2, "enough", 8)
    assert watching.threads == {threading.get_ident()}
    assert watching.losses == history["loss"]
    assert not [thread for thread in threading.enumerate() if "_follow" in thread.name]


@pytest.mark.parametrize(
    ("make", "optimizer"),
    [(small, adam), (batch_normed, lambda model: sgd(model, momentum=0.9))],
)
def test_what_a_callback_writes_is_for_all_ranks(make: Any, optimizer: Any) -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    assert_like_one_device(make, x, y, optimizer, callbacks=[Writing()])


@pytest.mark.parametrize("needs", [{"needs_run": False}, {"needs_model": False}])
def test_so_is_what_one_writes_that_says_it_needs_less(
    needs: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in needs.items():
        monkeypatch.setattr(Writing, name, value)
    x, y = blobs(NUM_ROWS, dtype="float64")
    assert_like_one_device(small, x, y, adam, callbacks=[Writing()])


def test_what_stops_a_run_and_what_is_best_is_of_the_run_that_callbacks_change() -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    stopping = wf.EarlyStopping("val_loss", patience=1)
    callbacks = {"callbacks": [Writing(), stopping], "validation_data": (x[:20], y[:20])}
    assert_like_one_device(small, x, y, adam, epochs=9, **callbacks)
    assert stopping.best_epoch == 2


def test_states_are_sent_only_where_a_callback_of_the_users_may_have_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[int] = []
    broadcast = ThreadCommunicator.broadcast
    monkeypatch.setattr(
        ThreadCommunicator,
        "broadcast",
        lambda ranks, arrays: (sent.append(ranks.rank), broadcast(ranks, arrays))[1],
    )
    x, y = blobs(NUM_ROWS, dtype="float64")
    settings: dict[str, Any] = {"validation_data": (x, y), "verbose": True}
    fit(small(), x, y, 2, callbacks=[wf.EarlyStopping(patience=9)], **settings)
    assert sorted(sent) == [0, 1]
    fit(small(), x, y, 2, callbacks=[Writing()])
    assert sorted(sent) == [0] * 4 + [1] * 4


@pytest.mark.parametrize(("before", "after"), [(2, 3), (1, 8), (3, 0)])
def test_a_checkpoint_is_resumed_by_another_number_of_ranks(
    tmp_path: Path, before: int, after: int
) -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    path = tmp_path / "run.ckpt"
    expected, model = small(), small()
    fit(expected, x, y, optimizer=adam(expected), epochs=6)
    first = small()
    saving = [wf.Checkpoint(path)]
    fit(first, x, y, before, optimizer=adam(first), epochs=3, callbacks=saving)
    history = fit(model, x, y, after, optimizer=adam(model), epochs=6, resume_from=path)
    assert len(history) == 6
    for name, array in model.state_dict().items():
        np.testing.assert_allclose(array, expected.state_dict()[name], rtol=1e-9, atol=1e-12)


def test_ctrl_c_leaves_the_last_whole_epoch() -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    expected, model = small(), small()
    fit(expected, x, y, 3, epochs=2)
    history = fit(model, x, y, 3, epochs=9, callbacks=[InterruptAt(10)])
    assert (len(history), history.stopped_by) == (2, "interrupt")
    assert_same_weights(model, expected)
    assert threading.active_count() < 4 + 3


def test_an_error_of_one_rank_is_that_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = blobs(NUM_ROWS, dtype="float64")
    model = small()
    before = {name: np.array(array) for name, array in model.state_dict().items()}
    found = parts.Reduction.ends

    def ends(reduction: Any) -> Any:
        if reduction._ranks.rank == 2:
            raise DataError("the third rank ends")
        return found(reduction)

    monkeypatch.setattr(parts.Reduction, "ends", ends)
    with pytest.raises(DataError, match="the third rank ends") as raised:
        fit(model, x, y, 3)
    assert raised.value.__notes__ == ["rank 2 of 3 raised it"]
    np.testing.assert_equal(model.state_dict(), before)


def test_a_loss_that_is_not_finite_is_told_as_on_one_device() -> None:
    x, _ = blobs(NUM_ROWS, dtype="float64")
    for ranks in (0, 3):
        model = small()
        with pytest.raises(DivergedError, match="is not finite in epoch 1, step 2"):
            fit(model, x, x[:, :3], ranks, loss="mse", optimizer=sgd(model, lr=1e200))


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ([], "expected names of devices in a list"),
        (["cpu", "auto"], "expected names of devices in a list.*got .'cpu', 'auto'."),
        (["cpu", "gpu"], "expected one device, 'auto', 'cpu'.*got 'gpu'"),
        ([np.zeros((2, 3)), "cpu"], "expected one device, 'auto', 'cpu'.*got an array"),
        (["cpu"] * 17, "expected batches of at least 17 rows, one for each device, got 16"),
        (3, "expected one device, 'auto', 'cpu', 'cuda' or 'cuda:1', ..., got 3"),
    ],
)
def test_what_is_no_list_of_devices(device: Any, message: str) -> None:
    x, y = blobs(NUM_ROWS)
    model = mlp(6, 8, 3)
    with pytest.raises(ConfigError, match=message):
        wf.fit(model, x, y, optimizer="sgd", batch_size=BATCH, device=device, verbose=False)


def test_what_is_for_one_device() -> None:
    x, y = blobs(NUM_ROWS)
    message = "expected one device, 'auto', 'cpu', 'cuda' or 'cuda:1', ..., got 'processes'"
    with pytest.raises(ConfigError, match=message):
        wf.MLPClassifier((4,), device="processes").fit(x, y)
    with pytest.raises(ConfigError, match=message):
        wf.fit_many(lambda _: (small(), "sgd"), x, y, grid={"lr": [0.1]}, device="processes")
