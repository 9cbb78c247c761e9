"""By which kernel networks run, by how many blocks, and how many epochs at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from warpfit.backends.cuda import (
    one_launch,
    one_launch_card,
    one_launch_layers,
    one_launch_small_sm90,
)
from warpfit.backends.cuda.one_launch import choose
from warpfit.backends.cuda.one_launch_card import CardLaunch, choose_card
from warpfit.backends.cuda.one_launch_images import ImagesLaunch
from warpfit.backends.cuda.one_launch_layers import choose_layers
from warpfit.backends.cuda.one_launch_small_sm90 import SmallLaunch
from warpfit.backends.cuda.trained_network import TrainedNetwork, replicas_with_rows
from warpfit.engines import launch_plan, launch_run, pace
from warpfit.errors import Obstacle


@pytest.fixture
def without_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets no network run by all clusters of a card, nor as a small one."""

    def refused(*_: Any) -> Obstacle:
        return Obstacle("expected a network for a cluster in this test, got one for another kernel")

    monkeypatch.setattr(one_launch_card, "choose_card", refused)
    monkeypatch.setattr(one_launch_small_sm90, "choose_small", refused)


@pytest.fixture
def by_layers(monkeypatch: pytest.MonkeyPatch, without_card: None) -> Iterator[None]:
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
def only_specialized_cluster(
    monkeypatch: pytest.MonkeyPatch, without_card: None
) -> Iterator[Callable[[int], None]]:
    """Lets networks run by warp-specialized kernels in clusters of one size only."""

    def only(size: int) -> None:
        monkeypatch.setattr(one_launch, "CLUSTERS", (size,))
        choose.cache_clear()

    yield only
    choose.cache_clear()


@pytest.fixture
def only_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Lets networks run by all clusters of a card only: by so many of some blocks of some warps,
    which may be apart; beside rounded weights the rest is as near as it can be, far, or held in
    registers, or all weights are streamed.
    """

    def choose_it(network: Any, card: Any, by_layers: bool) -> CardLaunch:
        return choose_card(network, "sm_90a", card.max_shared_bytes, card.num_multiprocessors)

    def only(
        clusters: int, ranks: int, warps: int, is_apart: bool = False, place: str = "near"
    ) -> None:
        def shape(network: Any, *_: Any, **__: Any) -> CardLaunch:
            number = len(network.widths) - 1
            far, held = (place != "held",) * number, (place == "held",) * number
            is_streamed = place == "streamed"
            return CardLaunch(network, ranks, clusters, far, held, warps, is_apart, is_streamed)

        if place not in ("near", "streamed"):
            monkeypatch.setattr(one_launch_card, "_placed", lambda own, *_: own)

        monkeypatch.setattr(launch_plan, "_chosen", choose_it)
        monkeypatch.setattr(one_launch_card, "_shape", shape)
        choose_card.cache_clear()

    yield only
    choose_card.cache_clear()


@pytest.fixture
def only_small(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Lets networks run by blocks of groups of four warps only: by so many blocks of so many."""

    def only(cluster: int, groups: int) -> None:
        def choose_it(network: Any, *_: Any) -> SmallLaunch:
            return SmallLaunch(network, cluster, groups)

        monkeypatch.setattr(launch_plan, "_chosen", choose_it)

    return only


@pytest.fixture
def only_images(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Lets convolutional networks run by so many blocks at most, of which each with images takes so
    many.
    """

    def only(images: int, multiprocessors: int) -> None:
        def choose_it(network: Any, *_: Any) -> ImagesLaunch:
            return ImagesLaunch(network, images, multiprocessors)

        monkeypatch.setattr(launch_plan, "_chosen", choose_it)

    return only


@pytest.fixture
def only_replicas(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets networks run by so many clusters only, or as many as there are tiles of rows for."""

    def only(number: int) -> None:
        def numbers(network: TrainedNetwork, *_: int) -> list[int]:
            return [replicas_with_rows(-(-network.batch // network.cards), 1, 1000, number)]

        monkeypatch.setattr(one_launch_layers, "_numbers_of_replicas", numbers)
        choose_layers.cache_clear()

    return only


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs of each launch, which may take as long as it likes."""
    found: list[int] = []
    start = launch_run.Run._start

    def noted(run: Any, epochs: int, *others: Any) -> None:
        found.append(epochs)
        start(run, epochs, *others)

    monkeypatch.setattr(launch_run.Run, "_start", noted)
    monkeypatch.setattr(pace, "LAUNCH_SECONDS", np.inf)
    monkeypatch.setattr(pace, "GROWTH", 16)
    return found
