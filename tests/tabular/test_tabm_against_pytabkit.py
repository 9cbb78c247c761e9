"""Step by step beside pytabkit's TabM and PyTorch's AdamW, in float64.

Both begin with our initial values and have the same batches and dropout masks. What pytabkit 1.7.3
gave is recorded here; where it is installed, it is asked anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from support import small_table
from support.small_table import BATCH, NUM_STEPS, NUM_TRAINED, SEED, SIZES, Task, task_of
from warpfit import backends
from warpfit.losses import MeanSquaredError, SoftmaxCrossEntropy
from warpfit.tabular.piecewise_linear import quantile_edges
from warpfit.tabular.quantiles import QuantilePreprocessor
from warpfit.tabular.tabm_network import TabM, set_initial_values
from warpfit.tabular.tabm_steps import Settings, Steps
from warpfit.tabular.tabm_training import ThreadEpochs
from warpfit.tabular.training import Rows

# Without embeddings as pytabkit has it, with them as TabArena.
KINDS = ("classes", "numbers")
BINS = (0, 8)
EVERY, MEMBERS, HIDDEN = 20, 4, (24, 24, 24)
CLIPPED = 1.0

# pytabkit's losses of every 20th step.
RECORDED: dict[tuple[str, int], list[float]] = {
    ("classes", 0): [
        1.0821839452,
        1.02150839932,
        0.873756181083,
        0.811795237478,
        0.749901406487,
        0.631599336358,
        0.593357678303,
        0.558796362135,
        0.525112742259,
        0.376928842265,
    ],
    ("classes", 8): [
        1.06499364296,
        0.953725028834,
        0.852271125748,
        0.822768318651,
        0.76520469168,
        0.76037318263,
        0.638304216251,
        0.595090121526,
        0.581066648797,
        0.431860657054,
    ],
    ("numbers", 0): [
        0.978787018976,
        0.69600422205,
        0.569907899997,
        0.548869675861,
        0.296920651286,
        0.381843811673,
        0.406562228939,
        0.259024079087,
        0.224456356836,
        0.161791171457,
    ],
    ("numbers", 8): [
        0.907170764171,
        0.646969711231,
        0.585781100826,
        0.559415125454,
        0.332531026258,
        0.300027839347,
        0.272467988519,
        0.220552772018,
        0.16915782779,
        0.135798124158,
    ],
}


def settings_of(num_bins: int) -> Settings:
    return Settings(max_norm=CLIPPED if num_bins else None)


def rows_and_network(task: Task, num_bins: int) -> tuple[Any, TabM]:
    """Return the table as a network's rows, and the network with its initial values."""
    frame = small_table.frame_of(*small_table.numbers_and_codes())
    table = QuantilePreprocessor(frame, np.arange(NUM_TRAINED))
    x = table.transform(frame)[:NUM_TRAINED]
    network = TabM(
        table.columns,
        task.num_outputs,
        are_classes=task.y.ndim == 1,
        num_bins=num_bins,
        hidden=HIDDEN[: 2 if num_bins else 3],
        num_members=MEMBERS,
        dtype="float64",
    )
    set_initial_values(network, x, SEED)
    return x, network


def batches() -> list[Any]:
    """Return the rows of each step, (MEMBERS, BATCH)."""
    random = np.random.default_rng(1)
    return [
        np.array([random.permutation(NUM_TRAINED)[:BATCH] for _ in range(MEMBERS)])
        for _ in range(NUM_STEPS)
    ]


def losses_of_steps(task: Task, num_bins: int) -> Any:
    """Return our loss of each step."""
    x, network = rows_and_network(task, num_bins)
    data = Rows(x, task.targets[:NUM_TRAINED])
    loss = SoftmaxCrossEntropy() if task.y.ndim == 1 else MeanSquaredError()
    steps = Steps(network, loss, settings_of(num_bins), SEED)
    with ThreadPoolExecutor(1) as threads:
        epochs = ThreadEpochs(steps, data, BATCH, SEED, threads)
        return [epochs.step(rows) for rows in batches()]


@pytest.mark.in_turns(2)
@pytest.mark.parametrize(
    ("kind", "num_bins"),
    [
        ("classes", 8),
        ("numbers", 0),
        pytest.param("classes", 0, marks=pytest.mark.slow),
        pytest.param("numbers", 8, marks=pytest.mark.slow),
    ],
)
def test_steps_are_those_recorded_of_pytabkit(kind: str, num_bins: int) -> None:
    found = losses_of_steps(task_of(kind), num_bins)
    np.testing.assert_allclose(found[EVERY - 1 :: EVERY], RECORDED[kind, num_bins], rtol=1e-9)


@pytest.fixture
def torch() -> Iterator[Any]:
    """PyTorch with float64."""
    pytest.importorskip("pytabkit", reason="pytabkit is not installed")
    torch = pytest.importorskip("torch")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield torch
    torch.set_default_dtype(before)


class Theirs:
    """pytabkit's network for the small table, and its optimizer."""

    def __init__(self, torch: Any, task: Task, x: Any, network: TabM) -> None:
        from pytabkit.models.nn_models.tabm import Model, make_parameter_groups

        self.torch, count = torch, network.columns.num_numbers
        self.are_labels, self.num_bins = task.y.ndim == 1, 0
        self.numbers = torch.tensor(x[:, :count])
        self.codes = torch.tensor(x[:, count:]).long()
        self.targets = torch.tensor(task.targets[:NUM_TRAINED])
        bins = embedding = None
        if network.embedding is not None:
            self.num_bins = network.embedding.pieces.shape[1]
            bins = [torch.tensor(each) for each in quantile_edges(x[:, :count], self.num_bins)]
            embedding = {
                "type": "PiecewiseLinearEmbeddings",
                "d_embedding": 16,
                "activation": False,
                "version": "B",
            }
        layers = [layer.weight.shape[1] for layer in network.layers]
        backbone = {"type": "MLP", "n_blocks": len(layers), "d_block": layers[0], "dropout": 0.1}
        self.model = Model(
            n_num_features=count,
            cat_cardinalities=[size + 1 for size in SIZES],
            n_classes=task.num_outputs,
            backbone=backbone,
            bins=bins,
            num_embeddings=embedding,
            arch_type="tabm",
            k=MEMBERS,
            share_training_batches=False,
        )
        settings = settings_of(self.num_bins)
        self.max_norm = settings.max_norm
        self.optimizer = torch.optim.AdamW(
            make_parameter_groups(self.model), lr=settings.lr, weight_decay=settings.weight_decay
        )

    def begin_like(self, network: TabM) -> None:
        """Take over the parameters of a network."""
        values = {
            f"backbone.blocks.{idx}.0.{name}": value
            for idx, layer in enumerate(network.layers)
            for name, value in (
                ("weight", layer.weight.data.T),
                ("r", layer.scale_in.data),
                ("s", layer.scale_out.data),
                ("bias", layer.bias.data),
            )
        }
        values |= {f"output.{name}": each.data for name, each in network.head.named_parameters()}
        if network.embedding is not None:
            values |= {
                "num_module.linear0.weight": network.embedding.weight.data,
                "num_module.linear0.bias": network.embedding.bias.data,
                # 0 at first, wherever a column's last bin stands.
                "num_module.linear.weight": network.embedding.pieces.data,
            }
            assert not network.embedding.pieces.data.any()
        for name, parameter in self.model.named_parameters():
            parameter.data.copy_(self.torch.tensor(np.ascontiguousarray(values.pop(name))))
        assert not values

    def step(self, rows: Any) -> float:
        """Train on some rows (MEMBERS, BATCH), and return the loss."""
        # Theirs has a row of each member after the other.
        places = self.torch.tensor(rows.T.ravel())
        outputs = self.model(self.numbers[places], self.codes[places]).flatten(0, 1)
        functions = self.torch.nn.functional
        loss_of = functions.cross_entropy if self.are_labels else functions.mse_loss
        loss = loss_of(outputs, self.targets[places])
        self.optimizer.zero_grad()
        loss.backward()
        if self.max_norm is not None:
            self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.optimizer.step()
        return float(loss)


def our_dropout(torch: Any, num_layers: int) -> Any:
    """Return what PyTorch's dropout is here: one whose masks are ours."""
    ops, num_calls = backends.get("cpu"), 0

    def dropout(x: Any, p: float, training: bool, inplace: bool) -> Any:
        nonlocal num_calls
        assert training
        step, idx = divmod(num_calls, num_layers)
        num_calls += 1
        ones = np.ones((MEMBERS, x.shape[2]))
        mask, _ = ops.member_relu_forward(
            np.ones((MEMBERS, BATCH, x.shape[2])),
            ones,
            0 * ones,
            ones,
            p=p,
            seed=SEED,
            step=step,
            layer_idx=idx,
        )
        return x * torch.tensor(mask.transpose(1, 0, 2))

    return dropout


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_bins", BINS)
@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_pytabkits(
    kind: str, num_bins: int, torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(kind)
    x, network = rows_and_network(task, num_bins)
    theirs = Theirs(torch, task, x, network)
    theirs.begin_like(network)
    monkeypatch.setattr(
        torch.nn.functional, "dropout", our_dropout(torch, len(list(network.layers)))
    )
    theirs.model.train()
    expected = [theirs.step(rows) for rows in batches()]
    found = losses_of_steps(task, num_bins)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(RECORDED[kind, num_bins], expected[EVERY - 1 :: EVERY], rtol=1e-9)
