"""What the defaults promise on MNIST."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.commands import Invoke
from support.mnist import find_mnist

MNIST = find_mnist()


@pytest.mark.slow
@pytest.mark.skipif(MNIST is None, reason="MNIST is not on this machine")
@pytest.mark.parametrize("seed", [0, 1])
def test_the_defaults_reach_97_5_percent_in_five_epochs(
    invoke: Invoke, tmp_path: Path, seed: int
) -> None:
    outcome = invoke("train", "--data-dir", str(MNIST), "--seed", seed, "--out", "run", "--quiet")
    assert outcome.code == 0, outcome
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    assert len(history["epochs"]["epoch"]) <= 5
    assert history["test"]["accuracy"] >= 0.975
    outcome = invoke("evaluate", "run/model.safetensors", "--data-dir", str(MNIST), "--json")
    assert json.loads(outcome.out)["accuracy"] == history["test"]["accuracy"]
