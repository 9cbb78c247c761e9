"""The recipe airbench and its peer in PyTorch: the same arithmetic, step by step."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warpfit as wf
from warpfit import nn
from warpfit.training import airbench

torch = pytest.importorskip("torch")

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
BATCH, STEPS, EPOCHS = 4, 3, 1


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The peer's module, whose matrices are float32 and not compiled."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(torch, "compile", lambda function: function)
    module = import_module("peers.torch_airbench")
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.float)
    return module


def copied(model: nn.Sequential, network: Any) -> None:
    """Give the peer's network the weights of ours."""

    def filters(layer: Any) -> Any:
        return torch.from_numpy(layer.weight.data.transpose(3, 2, 0, 1).copy())

    first, *convolutions = [layer for layer in model if isinstance(layer, nn.Conv2d)]
    theirs = [part for group in network.groups for part in (group.first, group.second)]
    with torch.no_grad():
        network.whiten.weight.copy_(filters(first))
        network.whiten.bias.copy_(torch.from_numpy(first.bias.data))
        for layer, other in zip(convolutions, theirs, strict=True):
            other.weight.copy_(filters(layer))
        width = model[-1].weight.shape[0]  # type: ignore[attr-defined]
        head = model[-1].weight.data.T * np.float32(width)  # type: ignore[attr-defined]
        network.head.weight.copy_(torch.from_numpy(head.copy()))


def trainer(peer: Any, network: Any) -> Any:
    """Return the peer's trainer of a network on the CPU, without its data."""
    found = object.__new__(peer.Trainer)
    found.model = found.compiled = network.train()
    found.batch_size, found.steps, found.done = BATCH, STEPS, 0
    # The bias of the first layer follows the schedule of all else, as ours does.
    found.total = found.whitened = EPOCHS * STEPS
    found._make_optimizers()
    found.rates[0] *= airbench.SHARE_OF_FIRST_BIAS
    found.sgd.param_groups[0]["weight_decay"] = 0.0
    return found


@pytest.mark.slow
def test_steps_of_the_recipe_are_the_peers(peer: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((BATCH * STEPS, 25, 25, 3)).astype("float32")
    y = rng.integers(0, 10, len(x))
    wf.manual_seed(0)
    model = airbench.network(3, 10, STEPS)
    airbench.whiten(model, x)
    network = peer.Network()
    copied(model, network)
    theirs = trainer(peer, network)
    rows = torch.from_numpy(x.transpose(0, 3, 1, 2).copy()), torch.from_numpy(y)
    losses = []
    for step in range(EPOCHS * STEPS):
        own = slice(step % STEPS * BATCH, (step % STEPS + 1) * BATCH)
        losses.append(float(theirs._step(rows[0][own], rows[1][own])) / BATCH)
    chain = nn.Sequential(list(model)[2:])  # as augmentation is drawn otherwise
    optimizer = airbench.optimizer_of(model, BATCH)
    history = wf.fit(
        chain,
        x,
        y,
        loss=airbench.LOSS,
        optimizer=optimizer,
        epochs=EPOCHS,
        batch_size=BATCH,
        shuffle=False,
        device="cpu",
        verbose=False,
    )
    np.testing.assert_allclose(history.step_losses, losses, rtol=2e-3)
    assert losses[-1] != pytest.approx(losses[0], rel=0.01)
