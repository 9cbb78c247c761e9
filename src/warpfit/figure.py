"""A figure of matplotlib that shows by itself at the end of a notebook's cell."""

from __future__ import annotations

from matplotlib.figure import Figure

from warpfit.display import png


class ShownFigure(Figure):
    """matplotlib's Figure; IPython shows one only after ``%matplotlib`` or an import of pyplot."""

    def _repr_png_(self) -> bytes:
        return png(self)
