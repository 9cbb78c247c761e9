"""The demo's picture and sliders, without a notebook."""

from __future__ import annotations

import subprocess
import sys
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from warpfit.apps.notebook import Demo, DemoSettings, Trainer, draw
from warpfit.apps.notebook.trainer import Choices
from warpfit.data import load_dataset
from warpfit.errors import ConfigError

pytest.importorskip("ipywidgets")

QUICK = Choices(widths=(8, 16), batch_sizes=(32, 64), largest_depth=2, epochs=2)
SMALL = DemoSettings(width=16)


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer(device="cpu", choices=QUICK)


@pytest.fixture(scope="module")
def untouched(trainer: Trainer) -> Demo:
    """A demo for tests that move no slider."""
    return Demo(trainer, SMALL)


def texts(figure: Any) -> str:
    import matplotlib.text

    return "\n".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("depth", [0, 2])
def test_the_picture_says_what_was_trained_and_how_well(trainer: Trainer, depth: int) -> None:
    run = trainer.train(DemoSettings(width=8, depth=depth))
    figure = draw(run, trainer)
    figure.savefig(BytesIO(), format="png")
    words = texts(figure)
    assert f"{run.accuracy:.2%} of 359 test digits right" in words
    assert (
        f"{'-'.join(map(str, run.sizes))} ({run.num_parameters:,} parameters), SGD, rate 0.1"
        in words
    )
    assert "CPU, float32, engine layerwise" in words
    assert ("first-layer weights of all 8 units" if depth else "weights of all 10 units") in words


def test_the_picture_has_every_part(trainer: Trainer) -> None:
    run = trainer.train(DemoSettings(width=8))
    figure = draw(run, trainer)
    loss, accuracy, confusion, pictures, table, weights = figure.axes
    assert [line.get_label() for line in loss.lines[1:]] == ["training", "test"]
    assert np.array_equal(loss.lines[0].get_ydata(), run.history.step_losses)
    assert np.array_equal(accuracy.lines[1].get_ydata(), run.history["val_accuracy"])
    assert len(confusion.texts) == np.count_nonzero(run.confusion)
    assert pictures.images[0].get_array().shape == (10, 10 * len(run.samples))
    shades = table.images[0].get_array()
    assert shades.shape == (10, len(run.samples), 3)
    assert shades.min() >= 0
    assert weights.images[0].get_array().shape == (8, 8 * 9 - 1)


def test_a_run_without_a_result_is_a_picture_of_why(trainer: Trainer) -> None:
    run = trainer.train(DemoSettings(lr=1e30))
    words = " ".join(texts(draw(run, trainer)).split())
    assert run.error is not None
    assert " ".join(run.error.split()) in words


def test_a_perfect_network_has_no_mistakes_to_show(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "MISTAKES", 0)
    run = trainer.train(DemoSettings(width=8))
    draw(run, trainer).savefig(BytesIO(), format="png")
    assert len(run.samples) == 10


def test_moving_a_slider_trains_anew(trainer: Trainer) -> None:
    demo = Demo(trainer, SMALL)
    first, picture = demo.run, demo.picture.value
    assert Image.open(BytesIO(picture)).size == (1200, 729)
    demo.sliders["width"].value = 8
    assert demo.run is not first
    assert demo.run.sizes == (64, 8, 10)
    assert demo.picture.value != picture
    demo.sliders["lr"].value = 0.01
    assert demo.run.settings == DemoSettings(width=8, lr=0.01) == demo.settings


def test_sliders_train_when_they_are_let_go(untouched: Demo) -> None:
    sliders = untouched.sliders
    assert set(sliders) == {"width", "depth", "lr", "batch_size", "optimizer"}
    for name in ("width", "depth", "lr", "batch_size"):
        assert not sliders[name].continuous_update


def test_the_demo_shows_as_a_picture_where_there_are_no_widgets(untouched: Demo) -> None:
    bundle = untouched._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["image/png"].startswith("iVBOR")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 9}, "expected width among 8, 16, got 9"),
        ({"batch_size": 1}, "expected batch_size among 32, 64, got 1"),
        ({"depth": 3}, "expected depth among 0, 1, 2, got 3"),
    ],
)
def test_settings_that_no_slider_has(
    trainer: Trainer, change: dict[str, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Demo(trainer, DemoSettings(**{"width": 16, **change}))


def test_without_ipywidgets_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(ConfigError, match=r"pip install 'warpfit\[notebook\]'"):
        Demo()


def test_importing_it_imports_neither_widgets_nor_matplotlib() -> None:
    code = (
        "import sys, warpfit.apps.notebook; print([n for n in ('ipywidgets', "
        "'matplotlib') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_images_may_be_flat() -> None:
    trainer = Trainer(load_dataset("digits", flat=True), device="cpu", choices=QUICK)
    assert trainer.image(0).shape == (8, 8)
