from __future__ import annotations

import json
from math import cos, pi
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpfit.errors import ConfigError
from warpfit.optim import (
    Constant,
    Cosine,
    Exponential,
    InverseScaling,
    Linear,
    OneCycle,
    ReduceOnPlateau,
    Schedule,
    Step,
)
from warpfit.optim.schedules import PlateauState, Progress, as_schedule

NAN, INF = float("nan"), float("inf")

ALL = [
    Constant(0.1),
    Step(0.1, every=3, factor=0.5),
    Exponential(0.1, factor=0.9),
    InverseScaling(0.1, power=0.25, per_epoch=40, before=80),
    Cosine(0.1, final_lr=0.01, warmup_epochs=1.5),
    Linear(0.1, final_lr=0.2),
    OneCycle(0.1, rise=0.4, start_divisor=10, final_divisor=100),
    ReduceOnPlateau(0.1, factor=0.5, patience=2, threshold=0.01, cooldown=1, min_lr=0.01),
]


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def rates(schedule: Schedule, epochs: int, steps_per_epoch: int = 1) -> Any:
    total = epochs * steps_per_epoch
    return np.array(
        [schedule.rate(Progress(step, total, steps_per_epoch)) for step in range(total)]
    )


def scales(schedule: ReduceOnPlateau, losses: Any) -> list[float]:
    """Return the scale after each epoch."""
    state, found = PlateauState(), []
    for loss in losses:
        state = schedule.observe(state, float(loss))
        found.append(state.scale)
    return found


def between(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + cos(pi * share))


def cosine_step_by_step(schedule: Cosine, progress: Progress) -> float:
    warmup_steps = min(schedule.warmup_epochs * progress.steps_per_epoch, progress.total_steps)
    if progress.step < warmup_steps:
        return (
            schedule.lr * min(1.0, (progress.step + 1) / warmup_steps)
            if warmup_steps >= 1
            else schedule.lr
        )
    share = (progress.step - warmup_steps) / max(1.0, progress.total_steps - warmup_steps)
    return between(schedule.lr, schedule.final_lr, min(1.0, share))


def one_cycle_step_by_step(schedule: OneCycle, progress: Progress) -> float:
    start, top = schedule.lr / schedule.start_divisor, schedule.rise * progress.total_steps - 1
    if progress.step < top:
        return between(start, schedule.lr, progress.step / top)
    fall = (1 - schedule.rise) * max(1, progress.total_steps)
    return between(
        schedule.lr, start / schedule.final_divisor, min(1.0, (progress.step - top) / fall)
    )


# -- many steps at once
# ------------------------------------------------------------------------------------


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("schedule", [*ALL, Cosine(1), OneCycle(1)], ids=repr)
@given(epochs=st.integers(1, 7), steps_per_epoch=st.integers(1, 9), data=st.data())
@settings(deadline=None)
def test_the_rates_of_many_steps_are_those_of_each(
    schedule: Schedule, epochs: int, steps_per_epoch: int, data: st.DataObject
) -> None:
    total = epochs * steps_per_epoch
    first = data.draw(st.integers(0, total))
    count = data.draw(st.integers(0, total - first))
    steps = [Progress(step, total, steps_per_epoch) for step in range(first, first + count)]
    found = schedule.rates(Progress(first, total, steps_per_epoch), count)
    assert found.dtype == np.float64
    assert found.tolist() == [schedule.rate(progress) for progress in steps]
    assert (found <= schedule.largest * (1 + 1e-15)).all()


@given(
    epochs=st.integers(1, 12),
    steps_per_epoch=st.integers(1, 12),
    warmup_epochs=st.floats(0, 15),
    final_lr=st.floats(0, 0.3),
    rise=st.floats(0.01, 0.99),
)
@settings(deadline=None)
def test_rates_are_python_s_arithmetic_to_the_last_bit(
    epochs: int, steps_per_epoch: int, warmup_epochs: float, final_lr: float, rise: float
) -> None:
    total = epochs * steps_per_epoch
    steps = [Progress(step, total, steps_per_epoch) for step in range(total)]
    cosine, one_cycle = Cosine(0.1, final_lr, warmup_epochs), OneCycle(0.1, rise)
    assert cosine.rates(steps[0], total).tolist() == [cosine_step_by_step(cosine, p) for p in steps]
    assert one_cycle.rates(steps[0], total).tolist() == [
        one_cycle_step_by_step(one_cycle, p) for p in steps
    ]
    assert cosine.rates(steps[0], total).max() <= cosine.largest * (1 + 1e-15)


def test_a_schedule_of_ones_own_needs_its_rate_only() -> None:
    known = dict(Schedule.by_name)

    class Halves(Schedule):
        def rate(self, progress: Progress) -> float:
            return self.lr / 2**progress.step

    assert Halves(1.0).rates(Progress(1, 4, 2), 3).tolist() == [0.5, 0.25, 0.125]
    assert Halves(1.0).largest == 1.0
    assert Schedule.by_name == known  # no file can name it


# -- values
# ------------------------------------------------------------------------------------------------


def test_progress_knows_its_epoch() -> None:
    assert [Progress(step, 6, 2).epoch for step in range(6)] == [0, 0, 1, 1, 2, 2]
    assert Progress(3, 6, 0).epoch == 3


def test_constant() -> None:
    np.testing.assert_array_equal(rates(Constant(0.1), 3, 2), [0.1] * 6)
    assert Constant(0).rate(Progress(0, 1, 1)) == 0


def test_step_drops_after_every_so_many_epochs() -> None:
    found = rates(Step(0.8, every=2, factor=0.5), 5, steps_per_epoch=2)
    np.testing.assert_allclose(found, [0.8] * 4 + [0.4] * 4 + [0.2] * 2)
    np.testing.assert_allclose(rates(Step(1.0), 21)[[0, 9, 10, 19, 20]], [1, 1, 0.1, 0.1, 0.01])


def test_exponential_falls_with_every_epoch() -> None:
    np.testing.assert_allclose(
        rates(Exponential(0.8, factor=0.5), 3, 2), [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]
    )
    np.testing.assert_allclose(rates(Exponential(1.0), 3), [1, 0.95, 0.9025])


def test_inverse_scaling() -> None:
    np.testing.assert_allclose(
        rates(InverseScaling(0.6), 3, 2), np.repeat(0.6 / np.sqrt([1, 2, 3]), 2)
    )
    # scikit-learn's: rows seen are counted, and the first epoch of a run has the rate as it was
    # given.
    counted = InverseScaling(0.6, power=0.25, per_epoch=40, before=80)
    np.testing.assert_allclose(rates(counted, 3), [0.6, 0.6 / 121**0.25, 0.6 / 161**0.25])


def test_cosine() -> None:
    root = np.sqrt(0.5)
    np.testing.assert_allclose(rates(Cosine(1.0), 4), [1, (1 + root) / 2, 0.5, (1 - root) / 2])
    np.testing.assert_allclose(rates(Cosine(1.0, final_lr=0.5), 2), [1, 0.75])
    assert Cosine(1.0, final_lr=0.25).rate(Progress(8, 8, 1)) == 0.25
    assert Cosine(1.0, final_lr=0.25).rate(Progress(9, 8, 1)) == 0.25


def test_cosine_falls_from_step_to_step() -> None:
    found = rates(Cosine(0.1, final_lr=0.01), 10, 7)
    assert found[0] == 0.1
    assert (np.diff(found) < 0).all()
    assert 0.01 < found[-1] < 0.011


def test_cosine_warms_up_in_equal_parts() -> None:
    found = rates(Cosine(1.0, warmup_epochs=2), 6, 2)
    np.testing.assert_allclose(found[:5], [0.25, 0.5, 0.75, 1, 1])
    np.testing.assert_allclose(found[4:], rates(Cosine(1.0), 4, 2))


@pytest.mark.parametrize(
    ("warmup_epochs", "expected"),
    [(0.25, [1, 1]), (0.5, [1, 1]), (0.75, [2 / 3, 1]), (1.25, [0.4, 0.8, 1])],
)
def test_cosine_warms_up_for_parts_of_an_epoch(warmup_epochs: float, expected: list[float]) -> None:
    found = rates(Cosine(1.0, warmup_epochs=warmup_epochs), 100, 2)
    np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-3)


def test_a_warm_up_longer_than_the_run_only_rises() -> None:
    np.testing.assert_allclose(rates(Cosine(1.0, warmup_epochs=100), 4), [0.25, 0.5, 0.75, 1])


@given(
    epochs=st.integers(1, 12),
    steps_per_epoch=st.integers(1, 12),
    warmup_epochs=st.floats(0, 15),
    final_lr=st.floats(0, 0.1),
)
@settings(deadline=None)
def test_cosine_rises_then_falls(
    epochs: int, steps_per_epoch: int, warmup_epochs: float, final_lr: float
) -> None:
    found = rates(Cosine(0.1, final_lr, warmup_epochs), epochs, steps_per_epoch)
    top = int(np.argmax(found))
    assert 0 < found[top] <= 0.1
    assert (np.diff(found[: top + 1]) >= 0).all()
    assert (np.diff(found[top:]) <= 1e-17).all()
    assert (found[top:] >= final_lr).all()


def test_linear() -> None:
    np.testing.assert_allclose(rates(Linear(0.4), 2, 2), [0.4, 0.3, 0.2, 0.1], rtol=1e-15)
    np.testing.assert_allclose(rates(Linear(0.1, 0.3), 4), [0.1, 0.15, 0.2, 0.25], rtol=1e-15)
    assert Linear(0.1, 0.3).largest == 0.3
    assert Linear(0.4).rate(Progress(9, 4, 1)) == 0  # a run that goes on beyond its end
    with pytest.raises(ConfigError, match="Linear: expected final_lr of at least 0"):
        Linear(0.1, -1.0)


def test_one_cycle() -> None:
    found = rates(OneCycle(1.0), 10)
    np.testing.assert_allclose(
        found[:4], [0.04, 0.52, 1, 1 - (1 - 4e-6) * (1 - np.cos(np.pi / 7)) / 2]
    )
    assert found[-1] == pytest.approx(1 / 25 / 1e4)


def test_one_cycle_has_its_ends_and_its_peak() -> None:
    found = rates(OneCycle(0.5, rise=0.25, start_divisor=5, final_divisor=10), 20, 10)
    assert found[0] == pytest.approx(0.1)
    assert found.max() == pytest.approx(0.5)
    assert int(np.argmax(found)) == 49
    assert found[-1] == pytest.approx(0.01)


@given(total=st.integers(1, 200), rise=st.floats(0.01, 0.99))
@settings(deadline=None)
def test_one_cycle_of_any_length_rises_then_falls(total: int, rise: float) -> None:
    found = rates(OneCycle(1.0, rise=rise), total)
    top = int(np.argmax(found))
    assert (np.diff(found[: top + 1]) >= 0).all()
    assert (np.diff(found[top:]) <= 1e-15).all()
    assert found[-1] == pytest.approx(1 / 25 / 1e4)
    assert found[top] <= 1


def test_one_cycle_whose_first_step_is_the_peak() -> None:
    assert rates(OneCycle(1.0, rise=0.1), 10)[0] == 1
    assert rates(OneCycle(1.0, rise=0.5), 2)[0] == 1


# -- ReduceOnPlateau
# ---------------------------------------------------------------------------------------


def test_plateau_waits_then_reduces() -> None:
    schedule = ReduceOnPlateau(1.0, factor=0.5, patience=2)
    assert scales(schedule, [3, 2, 2, 2, 2, 2, 2, 2, 1]) == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]
    assert scales(schedule, [5, 4, 3, 2, 1]) == [1] * 5
    np.testing.assert_array_equal(rates(schedule, 3), [1, 1, 1])


def test_plateau_forgets_bad_epochs_when_the_loss_falls() -> None:
    schedule = ReduceOnPlateau(1.0, patience=1)
    assert scales(schedule, [3, 3, 2, 2, 1, 1]) == [1] * 6


def test_plateau_counts_only_falls_beyond_the_threshold() -> None:
    schedule = ReduceOnPlateau(1.0, factor=0.5, patience=0, threshold=0.1)
    assert scales(schedule, [1, 0.91, 0.89]) == [1, 0.5, 0.5]


def test_plateau_cools_down() -> None:
    schedule = ReduceOnPlateau(1.0, factor=0.5, patience=0, cooldown=2)
    assert scales(schedule, [1] * 8) == [1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125]


def test_plateau_keeps_to_the_lowest_rate() -> None:
    schedule = ReduceOnPlateau(0.2, factor=0.1, patience=0, min_lr=0.05)
    assert scales(schedule, [1, 1, 1]) == [1, 0.25, 0.25]


def test_plateau_never_raises_the_rate() -> None:
    assert scales(ReduceOnPlateau(0.1, patience=0, min_lr=0.5), [1, 1, 1]) == [1, 1, 1]
    assert scales(ReduceOnPlateau(0.0, patience=0), [1, 1]) == [1, 0.1]


def test_plateau_takes_nan_for_no_fall() -> None:
    assert scales(ReduceOnPlateau(1.0, factor=0.5, patience=0), [1, NAN, 0.5]) == [1, 0.5, 0.5]


@pytest.mark.parametrize("schedule", ALL[:-1], ids=lambda schedule: schedule.name)
def test_other_schedules_do_not_look_at_the_loss(schedule: Schedule) -> None:
    state = PlateauState()
    assert schedule.observe(state, 1e9) is state


# -- PyTorch
# -----------------------------------------------------------------------------------------------


def torch_rates(torch: Any, count: int, name: str, lr: float = 0.1, **settings: Any) -> list[float]:
    """Return the first rates that a scheduler of torch.optim.lr_scheduler gives."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler = getattr(torch.optim.lr_scheduler, name)(optimizer, **settings)
    found = []
    for _ in range(count):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(found) < count:
            scheduler.step()
    return found


def test_step_is_pytorchs(torch: Any) -> None:
    expected = torch_rates(torch, 25, "StepLR", step_size=4, gamma=0.3)
    np.testing.assert_allclose(rates(Step(0.1, every=4, factor=0.3), 25), expected, rtol=1e-12)
    np.testing.assert_allclose(rates(Step(0.1, 4, 0.3), 25, 3), np.repeat(expected, 3), rtol=1e-12)


def test_exponential_is_pytorchs(torch: Any) -> None:
    expected = torch_rates(torch, 25, "ExponentialLR", gamma=0.9)
    np.testing.assert_allclose(
        rates(Exponential(0.1, 0.9), 25, 2), np.repeat(expected, 2), rtol=1e-12
    )


@pytest.mark.parametrize("final_lr", [0.0, 0.02])
def test_cosine_is_pytorchs(torch: Any, final_lr: float) -> None:
    expected = torch_rates(torch, 30, "CosineAnnealingLR", T_max=30, eta_min=final_lr)
    np.testing.assert_allclose(rates(Cosine(0.1, final_lr), 10, 3), expected, rtol=1e-9)


@pytest.mark.parametrize("total", [3, 10, 33, 100])
@pytest.mark.parametrize(
    "settings", [{}, {"rise": 0.45, "start_divisor": 10.0, "final_divisor": 50.0}]
)
def test_one_cycle_is_pytorchs(torch: Any, total: int, settings: dict[str, float]) -> None:
    schedule = OneCycle(0.1, **settings)
    expected = torch_rates(
        torch,
        total,
        "OneCycleLR",
        max_lr=0.1,
        total_steps=total,
        pct_start=schedule.rise,
        anneal_strategy="cos",
        cycle_momentum=False,
        div_factor=schedule.start_divisor,
        final_div_factor=schedule.final_divisor,
        three_phase=False,
    )
    np.testing.assert_allclose(rates(schedule, total), expected, rtol=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {"patience": 2},
        {"patience": 0, "factor": 0.5, "cooldown": 3},
        {"patience": 1, "factor": 0.3, "threshold": 0.05, "min_lr": 0.004, "cooldown": 1},
    ],
)
def test_plateau_is_pytorchs(torch: Any, settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    losses = 1 / np.arange(1, 61) + 0.1 * rng.uniform(0, 1, 60)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, eps=0.0, **settings)
    expected = []
    for loss in losses:
        scheduler.step(loss)
        expected.append(optimizer.param_groups[0]["lr"])
    assert len(set(expected)) > 2
    np.testing.assert_allclose(
        0.1 * np.array(scales(ReduceOnPlateau(0.1, **settings), losses)), expected, rtol=1e-12
    )


def test_plateau_defaults_are_pytorchs(torch: Any) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs, ours = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer), ReduceOnPlateau(0.1)
    for name in ("factor", "patience", "threshold", "cooldown"):
        assert getattr(theirs, name) == getattr(ours, name)
    assert theirs.min_lrs == [ours.min_lr]


# -- settings
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(-0.1), r"Constant: expected a learning rate .*, got Constant\(lr=-0.1\)"),
        (lambda: Constant(NAN), "Constant: expected a learning rate that is finite and at least 0"),
        (lambda: Cosine(INF), "Cosine: expected a learning rate that is finite and at least 0"),
        (lambda: Step(0.1, every=0), "Step: expected every of at least 1, got 0"),
        (lambda: Step(0.1, factor=0), r"Step: expected factor in \(0, 1\]"),
        (lambda: Step(0.1, factor=1.5), r"Step: expected factor in \(0, 1\]"),
        (lambda: Exponential(0.1, factor=NAN), r"Exponential: expected factor in \(0, 1\]"),
        (
            lambda: InverseScaling(0.1, power=-1),
            "InverseScaling: expected power of at least 0 and finite, got -1",
        ),
        (
            lambda: InverseScaling(0.1, before=-1),
            "InverseScaling: expected before of at least 0, got -1",
        ),
        (
            lambda: Cosine(0.1, final_lr=-1),
            "Cosine: expected final_lr of at least 0 and finite, got -1",
        ),
        (
            lambda: Cosine(0.1, warmup_epochs=-1),
            "Cosine: expected warmup_epochs of at least 0, got -1",
        ),
        (lambda: OneCycle(0.1, rise=0), r"OneCycle: expected rise in \(0, 1\)"),
        (lambda: OneCycle(0.1, rise=1), r"OneCycle: expected rise in \(0, 1\)"),
        (lambda: OneCycle(0.1, start_divisor=0.5), "expected start_divisor of at least 1"),
        (lambda: OneCycle(0.1, final_divisor=0), "expected final_divisor of at least 1"),
        (lambda: ReduceOnPlateau(0.1, factor=1), r"ReduceOnPlateau: expected factor in \(0, 1\)"),
        (lambda: ReduceOnPlateau(0.1, threshold=1), r"expected threshold in \[0, 1\), got 1"),
        (lambda: ReduceOnPlateau(0.1, threshold=float("nan")), r"threshold in \[0, 1\), got nan"),
        (lambda: ReduceOnPlateau(0.1, patience=-1), "expected patience of at least 0, got -1"),
        (lambda: ReduceOnPlateau(0.1, cooldown=-1), "expected cooldown of at least 0, got -1"),
        (lambda: ReduceOnPlateau(0.1, min_lr=-1), "expected min_lr of at least 0, got -1"),
    ],
)
def test_refuses_settings(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("schedule", ALL, ids=lambda schedule: schedule.name)
def test_round_trip_through_json(schedule: Schedule) -> None:
    assert as_schedule(json.loads(json.dumps(schedule.to_dict()))) == schedule
    assert as_schedule(schedule) is schedule


def test_the_names() -> None:
    assert list(Schedule.by_name) == [schedule.name for schedule in ALL]
    assert list(Schedule.by_name) == [
        "constant",
        "step",
        "exponential",
        "inverse_scaling",
        "cosine",
        "linear",
        "one_cycle",
        "reduce_on_plateau",
    ]


@pytest.mark.parametrize("lr", [0.5, np.float32(0.5), np.array(0.5), "0.5"])
def test_numbers_become_constants(lr: Any) -> None:
    assert as_schedule(lr) == Constant(0.5)


@pytest.mark.parametrize(
    ("lr", "message"),
    [
        ("fast", "expected a learning rate or a schedule, got 'fast'"),
        (None, "expected a learning rate or a schedule, got None"),
        ([0.1, 0.2], r"expected a learning rate or a schedule, got \[0.1, 0.2\]"),
        (Cosine, "expected a learning rate or a schedule, got <class"),
        (-1, "Constant: expected a learning rate that is finite and at least 0"),
        ({}, "expected a schedule among constant, .*, got None"),
        ({"name": "straight"}, "expected a schedule among constant, .*, got 'straight'"),
        ({"name": ["step"]}, r"expected a schedule among constant, .*, got \['step'\]"),
        ({"name": "cosine"}, "expected the settings of the schedule cosine, got {}"),
        ({"name": "cosine", "lr": 0.1, "speed": 1}, "expected the settings of the schedule cosine"),
        ({"name": "cosine", "lr": "fast"}, "Cosine: expected lr to be a number, got 'fast'"),
        (True, "expected a learning rate or a schedule, got True"),
        (
            {"name": "cosine", "lr": -1},
            "Cosine: expected a learning rate that is finite and at least 0",
        ),
    ],
)
def test_as_schedule_refuses(lr: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        as_schedule(lr)
