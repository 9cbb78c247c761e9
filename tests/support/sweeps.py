"""Candidates of small networks, and what builds them."""

from __future__ import annotations

from typing import Any

from warpfit import nn, optim
from warpfit.nn import Module
from warpfit.optim import Optimizer


def build(candidate: dict[str, Any]) -> tuple[Module, Optimizer]:
    """Return 6-width-3 with the candidate's rate, momentum, decay, optimizer and dropout."""
    width, dropout = candidate.get("width", 8), candidate.get("dropout", 0.0)
    layers: list[Module] = [nn.Linear(6, width), nn.ReLU()]
    layers += [nn.Dropout(dropout)] if dropout else []
    model = nn.Sequential(*layers, nn.Linear(width, 3))
    rate = candidate.get("lr", 0.1)
    if candidate.get("optimizer") == "adam":
        return model, optim.Adam(model.parameters(), lr=rate)
    momentum, decay = candidate.get("momentum", 0.0), candidate.get("weight_decay", 0.0)
    return model, optim.SGD(model.parameters(), lr=rate, momentum=momentum, weight_decay=decay)
