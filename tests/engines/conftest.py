"""By how many blocks networks run that go layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from warpfit.backends.cuda import one_launch, one_launch_layers
from warpfit.backends.cuda.one_launch_layers import choose_layers
from warpfit.backends.cuda.trained_network import replicas_with_rows


@pytest.fixture
def by_layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets no network run by the kernel for one hidden layer."""
    monkeypatch.setattr(one_launch, "suits", lambda network: False)
    yield
    choose_layers.cache_clear()


@pytest.fixture
def only_cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets networks run by clusters of some sizes only."""

    def only(*sizes: int) -> None:
        monkeypatch.setattr(one_launch_layers, "CLUSTERS", sizes)
        choose_layers.cache_clear()

    return only


@pytest.fixture
def only_replicas(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets networks run by so many clusters only, or as many as there are tiles of rows for."""

    def only(number: int) -> None:
        def numbers(batch: int, *_: int) -> list[int]:
            return [replicas_with_rows(batch, 1, 1000, number)]

        monkeypatch.setattr(one_launch_layers, "_numbers_of_replicas", numbers)
        choose_layers.cache_clear()

    return only
