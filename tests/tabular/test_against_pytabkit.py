"""Step by step beside pytabkit's own network and optimizer, in float64.

Both begin with our initial values and have the same batches and dropout masks. What pytabkit 1.7.3
gave is recorded here; where it is installed, it is asked anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support import small_table
from support.small_table import NUM_ROWS, NUM_STEPS, NUM_TRAINED, SEED, SIZES, Task, task_of
from warpfit import backends
from warpfit.tabular.network import RealMLP

KINDS = ("classes", "numbers")
EVERY = 20

# pytabkit's losses of every 20th step.
RECORDED = {
    "classes": [
        1.72479385189,
        0.907794884669,
        0.772295815291,
        0.688389878213,
        0.624325971949,
        0.639017366125,
        0.628825918891,
        0.424717714548,
        0.380045381264,
        0.373423907287,
    ],
    "numbers": [
        1.58163461662,
        0.458041277508,
        0.319792799103,
        0.0558193164483,
        0.0760675639083,
        0.264912044623,
        0.302963004541,
        0.0989574012948,
        0.0161441914984,
        0.0113470860804,
    ],
}


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_recorded_of_pytabkit(kind: str) -> None:
    found = small_table.losses_of_steps(task_of(kind))
    np.testing.assert_allclose(found[EVERY - 1 :: EVERY], RECORDED[kind], rtol=1e-9)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """PyTorch with float64 for float32, which pytabkit asks for here and there."""
    pytest.importorskip("pytabkit", reason="pytabkit is not installed")
    torch = pytest.importorskip("torch")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    yield torch
    torch.set_default_dtype(before)


class Theirs:
    """pytabkit's network for the small table, and its optimizer."""

    def __init__(self, torch: Any, task: Task) -> None:
        from pytabkit.models.alg_interfaces.base import SplitIdxs
        from pytabkit.models.data.data import DictDataset, TensorInfo
        from pytabkit.models.optim.optimizers import get_opt_class
        from pytabkit.models.sklearn.default_params import DefaultParams
        from pytabkit.models.training.nn_creator import NNCreator
        from pytabkit.models.training.scheduling import LearnerProgress

        self.torch = torch
        are_labels = task.y.ndim == 1
        defaults = DefaultParams.RealMLP_TD_CLASS if are_labels else DefaultParams.RealMLP_TD_REG
        numbers, codes = small_table.numbers_and_codes()
        infos = {
            "x_cont": TensorInfo(feat_shape=[numbers.shape[1]]),
            "x_cat": TensorInfo(cat_sizes=[size + 1 for size in SIZES]),
            "y": TensorInfo(cat_sizes=[3]) if are_labels else TensorInfo(feat_shape=[1]),
        }
        values = {"x_cont": numbers, "x_cat": codes, "y": task.y.reshape(NUM_ROWS, -1)}
        data = DictDataset({name: torch.tensor(each) for name, each in values.items()}, infos)
        places = torch.arange(NUM_ROWS)[None]
        split = SplitIdxs(places[:, :NUM_TRAINED], places[:, NUM_TRAINED:], None, 1, [2], 0)
        creator = NNCreator(**defaults)
        creator.setup_from_dataset(data, [split], SimpleNamespace(gpu_devices=[]))
        self.model = creator.create_model(data, [split])
        self.tensors = creator.static_model(data).tensors
        self.hypers = creator.hp_manager
        groups = [{"params": [each], "lr": 0.01} for each in self.model.parameters()]
        self.optimizer = get_opt_class("adam")(groups, self.hypers)
        self.criterion = creator.get_criterions()[0]
        self.learner = SimpleNamespace(progress=LearnerProgress())
        self.learner.progress.max_epochs = 1

    def begin_like(self, network: RealMLP) -> None:
        """Take over the parameters of a network."""
        num_numbers = network.columns.num_numbers
        # Ours has what is made of all numbers after one another; theirs what is made of each.
        made = np.arange(3 * num_numbers).reshape(3, num_numbers).T.ravel()
        places = np.r_[made, made.size : network.columns.num_embedded]
        codes = network.codes.weight.data
        values = {
            "/plr/weight_1": [network.numbers.frequency.data[:, None]],
            "/plr/bias_1": [network.numbers.phase.data[:, None]],
            "/plr/weight_2": [network.numbers.weight.data.transpose(1, 2, 0)],
            "/plr/bias_2": [network.numbers.bias.data.T[:, None]],
            "/tfms/emb": np.split(codes, [SIZES[2] + 1]),
            "layer-0/scale": [network.scale.weight.data[places]],
        }
        for idx, linear in enumerate(network.linears):
            weight = linear.weight.data
            values[f"layer-{idx}/weight"] = [weight if idx else weight[places]]
            values[f"layer-{idx}/bias"] = [linear.bias.data]
        for idx, activation in enumerate(network.activations):
            values[f"layer-{idx}/act"] = [activation.weight.data]
        for parameter in self.model.parameters():
            scope = str(parameter.context.scope)
            (name,) = [name for name in values if scope.endswith(name)]
            own = self.torch.tensor(np.ascontiguousarray(values[name].pop(0)))
            parameter.data.copy_(own.reshape(parameter.shape))
        assert not any(values.values())

    def step(self, rows: Any, t: float) -> float:
        """Train on some rows at a time t in [0, 1), and return the loss."""
        self.learner.progress.epoch_float = t
        self.hypers.update_hypers(self.learner)
        output = self.model({name: each[rows][None] for name, each in self.tensors.items()})
        loss = self.criterion(output["x_cont"], output["y"]).sum()
        loss.backward()
        self.optimizer.step(loss=loss)
        self.optimizer.zero_grad()
        return float(loss)


def our_dropout(torch: Any) -> Any:
    """Return what PyTorch's dropout is here: one whose masks are ours."""
    ops, num_calls = backends.get("cpu"), 0

    def dropout(x: Any, p: float, training: bool) -> Any:
        nonlocal num_calls
        assert training
        step, idx = divmod(num_calls, 3)
        num_calls += 1
        _, mask = ops.dropout_forward(
            np.ones(x.shape[1:]), p=p, seed=SEED, step=step, layer_idx=idx
        )
        return x * torch.tensor(mask)

    return dropout


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_pytabkits(kind: str, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytabkit.models.nn_models import nn

    task = task_of(kind)
    theirs = Theirs(torch, task)
    theirs.begin_like(small_table.rows_and_network(task)[1])
    monkeypatch.setattr(nn, "F", SimpleNamespace(dropout=our_dropout(torch), one_hot=nn.F.one_hot))
    theirs.model.train()
    expected = [
        theirs.step(rows, step / NUM_STEPS) for step, rows in enumerate(small_table.batches())
    ]
    found = small_table.losses_of_steps(task)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(RECORDED[kind], expected[EVERY - 1 :: EVERY], rtol=1e-9)
