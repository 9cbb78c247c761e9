"""Kernels that are built ahead: those that runs ask for."""

from __future__ import annotations

from typing import Any

import pytest

import warpfit as wf
from support.training import adam, blobs, mlp
from warpfit import backends
from warpfit.backends.cuda.cards import CARDS, card_of
from warpfit.backends.cuda.launch import Kernels
from warpfit.errors import ConfigError
from warpfit.training import paper

FORM = {"optimizer": "adam", "batch_size": 16, "rows": 60, "features": 6, "outputs": 3}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("is_validated", [False, True])
@pytest.mark.parametrize("hidden", ["8", "8,8"])
def test_what_is_built_is_what_a_run_loads(
    cuda: str, hidden: str, is_validated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime: Any = backends.get(cuda).runtime
    loaded: list[Any] = []
    load = runtime.load
    monkeypatch.setattr(Kernels.of(runtime), "_loaded", {})
    monkeypatch.setattr(runtime, "load", lambda *kernel: loaded.append(kernel) or load(*kernel))
    x, labels = blobs(60)
    model = mlp(6, *map(int, hidden.split(",")), 3)
    history = wf.fit(
        model,
        x,
        labels,
        optimizer=adam(model),
        epochs=2,
        batch_size=16,
        device=cuda,
        engine="one_launch",
        validation_data=(x[:10], labels[:10]) if is_validated else None,
        verbose=False,
    )
    assert history.plan.prepared is not None
    assert history.plan.prepared.validates == is_validated
    monkeypatch.setattr(paper, "_cards_of", lambda _: [card_of(runtime)])
    _, built = paper.kernels_on_paper([{**FORM, "hidden": hidden}])
    assert any(name.startswith("one_launch") for name, _ in loaded)
    assert set(loaded) <= set(built)


def test_the_usual_forms_are_for_every_architecture() -> None:
    for card in CARDS.values():
        arch, kernels = paper.kernels_on_paper(paper.USUAL_FORMS, card.arch.rstrip("a"))
        assert arch == card.arch
        assert any(name.startswith("one_launch") for name, _ in kernels)
        assert len(set(kernels)) == len(kernels)


def test_a_form_that_no_card_takes_is_an_error_and_others_are_left_out() -> None:
    wide, small = {"hidden": "4096,4096"}, {"hidden": "32"}
    with pytest.raises(ConfigError, match="bytes of shared memory for a tile of each layer"):
        paper.kernels_on_paper([wide], "sm_90")
    assert paper.kernels_on_paper([wide, small], "sm_90") == paper.kernels_on_paper(
        [small], "sm_90"
    )
