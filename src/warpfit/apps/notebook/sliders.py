"""Widgets that train a network again whenever one of them is moved."""

from __future__ import annotations

import warnings
from base64 import b64encode
from io import BytesIO
from typing import Any

from warpfit.apps.notebook.figure import draw
from warpfit.apps.notebook.trainer import OPTIMIZERS, Choices, DemoRun, DemoSettings, Trainer
from warpfit.errors import ConfigError, DeviceWarning
from warpfit.extras import needs

DPI = 96


class Demo:
    """Sliders for a network and its training, and a picture of what comes out; the last line of a
    cell shows both, its ``widget``.

    The sliders begin with the settings; ``sliders`` has them by the names of `DemoSettings`. The
    value of ``picture`` is that of the last ``run`` as PNG.

    Raises
    ------
    ConfigError
        If ipywidgets or matplotlib is not installed, or the sliders do not have these settings.
    """

    run: DemoRun

    def __init__(
        self, trainer: Trainer | None = None, settings: DemoSettings | None = None
    ) -> None:
        with needs("notebook", "the sliders need"):
            import ipywidgets as widgets
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeviceWarning)  # the picture says where it was trained
            self.trainer = trainer or Trainer()
        self.sliders = _sliders(widgets, self.trainer, settings or DemoSettings())
        self.picture = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        rows = widgets.HBox(
            list(self.sliders.values()),
            layout=widgets.Layout(flex_flow="row wrap", align_items="center"),
        )
        self.widget = widgets.VBox([rows, self.picture])
        for slider in self.sliders.values():
            slider.observe(lambda change: self.train(), names="value")
        self.train()

    @property
    def settings(self) -> DemoSettings:
        """What the sliders say."""
        return DemoSettings(**{name: slider.value for name, slider in self.sliders.items()})

    def train(self) -> DemoRun:
        """Train as the sliders say, and draw what comes out."""
        self.run = self.trainer.train(self.settings)
        self.picture.value = self._as_png()
        return self.run

    def _as_png(self) -> bytes:
        file = BytesIO()
        draw(self.run, self.trainer).savefig(file, format="png", dpi=DPI)
        return file.getvalue()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
        """Return the widgets, and the picture for pages on which none live."""
        bundle: dict[str, Any] = dict(self.widget._repr_mimebundle_(**options) or {})
        return {**bundle, "image/png": b64encode(self.picture.value).decode()}


def _sliders(widgets: Any, trainer: Trainer, settings: DemoSettings) -> dict[str, Any]:
    """Return a slider for each setting; training starts when it is released, not while it moves."""
    choices = trainer.choices
    _check(settings, choices)
    common: dict[str, Any] = {
        "continuous_update": False,
        "style": {"description_width": "initial"},
        "layout": widgets.Layout(width="290px"),
    }
    return {
        "width": widgets.SelectionSlider(
            options=choices.widths, value=settings.width, description="hidden width", **common
        ),
        "depth": widgets.IntSlider(
            settings.depth, 0, choices.largest_depth, description="hidden layers", **common
        ),
        "lr": widgets.FloatLogSlider(
            settings.lr,
            min=-4,
            max=1,
            step=0.25,
            description="learning rate",
            readout_format=".2g",
            **common,
        ),
        "batch_size": widgets.SelectionSlider(
            options=choices.batch_sizes,
            value=settings.batch_size,
            description="batch size",
            **common,
        ),
        "optimizer": widgets.Dropdown(
            options=list(OPTIMIZERS),
            value=settings.optimizer,
            description="optimizer",
            style=common["style"],
            layout=common["layout"],
        ),
    }


def _check(settings: DemoSettings, choices: Choices) -> None:
    """Raise ConfigError unless sliders have the places that settings ask for."""
    for name, value, known in (
        ("width", settings.width, choices.widths),
        ("batch_size", settings.batch_size, choices.batch_sizes),
        ("depth", settings.depth, range(choices.largest_depth + 1)),
    ):
        if value not in known:
            raise ConfigError(f"expected {name} among {', '.join(map(str, known))}, got {value}")
