"""What `notebooks/demo.ipynb` shows: a network that is trained again whenever a slider is moved.

`trainer` trains and looks at the result, `figure` draws it, `sliders` puts both behind widgets.
Each works without the next: only `figure` needs matplotlib, only `sliders` ipywidgets.
"""

from __future__ import annotations

from warpfit.apps.notebook.figure import draw
from warpfit.apps.notebook.sliders import Demo
from warpfit.apps.notebook.trainer import DemoRun, DemoSettings, Trainer

__all__ = ["Demo", "DemoRun", "DemoSettings", "Trainer", "draw"]
