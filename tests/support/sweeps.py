"""Candidates of small networks, and what builds them."""

from __future__ import annotations

from typing import Any

from warpfit import losses, nn, optim
from warpfit.nn import Module
from warpfit.optim import Optimizer

# What `fit_many` hands to `fit` for a task.
ARGUMENTS: dict[str, Any] = {
    "loss": losses.resolve("cross_entropy"),
    "epochs": 2,
    "batch_size": 8,
    "class_weight": None,
    "device": "cpu",
    "precision": "auto",
    "loss_scale": "auto",
    "engine": "auto",
    "seed": 0,
    "shuffle": True,
}


def build(candidate: dict[str, Any]) -> tuple[Module, Optimizer]:
    """Return 6-width-3 with the candidate's rate, momentum, decay, optimizer and dropout."""
    width = candidate.get("width", 8)
    layers: list[Module] = [nn.Linear(6, width), nn.ReLU()]
    layers += [nn.Dropout(candidate["dropout"])] if "dropout" in candidate else []
    model = nn.Sequential(*layers, nn.Linear(width, 3))
    rate = candidate.get("lr", 0.1)
    if candidate.get("optimizer") == "adam":
        return model, optim.Adam(model.parameters(), lr=rate)
    settings = {name: candidate[name] for name in ("momentum", "weight_decay") if name in candidate}
    return model, optim.SGD(model.parameters(), lr=rate, **settings)
