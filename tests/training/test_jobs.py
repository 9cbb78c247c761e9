"""What a training does before its data is read."""

from __future__ import annotations

from typing import Any

import pytest

from warpfit.training import jobs
from warpfit.training.settings import TrainSettings


@pytest.mark.parametrize(
    ("settings", "opens"),
    [
        ({"data": "mnist", "epochs": 20}, True),
        ({"data": "mnist", "epochs": 20, "limit": 64}, False),
        ({"data": "digits"}, False),
        ({"data": "digits", "model": "cnn"}, True),
        ({"data": "digits", "device": "cuda"}, True),
        ({"data": "digits", "engine": "graph"}, True),
        ({"data": "table.csv"}, False),
    ],
)
def test_a_gpu_is_opened_ahead_where_the_run_is_known_to_need_it(
    settings: dict[str, Any], opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WARPFIT_DEVICE", raising=False)
    opened: list[str] = []

    def stop(settings: TrainSettings) -> None:
        raise InterruptedError

    monkeypatch.setattr(jobs, "open_ahead", opened.append)
    monkeypatch.setattr(jobs, "opened", stop)
    asked = TrainSettings(**settings)
    with pytest.raises(InterruptedError):
        jobs.prepare(asked)
    assert opened == ([asked.device] if opens else [])
