"""Pictures of a run, as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from warpfit.pictures import confusion_svg, curves_svg

COLUMNS = {
    "epoch": [1, 2, 3],
    "loss": [2.0, 1.0, 0.5],
    "val_loss": [1.5, float("nan"), 0.75],
    "accuracy": [0.25, 0.5, 0.75],
    "val_accuracy": [None, 0.5, 0.7],
}


def elements(svg: str, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{tag}"))


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in elements(svg, "text")]


def curves(svg: str) -> list[list[tuple[float, ...]]]:
    """Return the points of each curve, in pixels."""
    return [
        [tuple(map(float, point.split(","))) for point in curve.attrib["points"].split()]
        for curve in elements(svg, "polyline")
    ]


def test_curves_go_where_the_numbers_do() -> None:
    svg = curves_svg(COLUMNS, "digits\n98% right")
    loss, val_loss, accuracy, val_accuracy = curves(svg)
    for curve in (loss, accuracy):
        (first, _), (second, _), (third, _) = curve
        assert third - second == pytest.approx(second - first, abs=0.2)
        assert third - second > 100
    (_, two), (_, one), (_, half) = loss
    assert one - two == pytest.approx(2 * (half - one), abs=0.3)  # y points down
    assert accuracy[0][1] > accuracy[1][1] > accuracy[2][1]
    assert val_loss[-1][1] == pytest.approx((one + half) / 2, abs=0.1)
    assert (len(val_loss), len(val_accuracy)) == (2, 2)  # numbers that are none are left out
    assert len(elements(svg, "circle")) == 10
    assert {"digits", "98% right", "training", "validation", "loss", "accuracy"} <= {*texts(svg)}


def test_ticks_stand_where_their_numbers_are() -> None:
    svg = curves_svg({"epoch": [1, 2, 3], "loss": [0.0, 1.0, 2.0]})
    across, down = (
        {
            float(element.text or ""): float(element.attrib[axis])
            for element in elements(svg, "text")
            if element.attrib["text-anchor"] == anchor
            and (element.text or "").strip("0123456789.") == ""
            and element.text
        }
        for axis, anchor in (("x", "middle"), ("y", "end"))
    )
    (curve,) = curves(svg)
    assert [across[epoch] for epoch in (1, 2, 3)] == [x for x, _ in curve]
    assert [down[loss] for loss in (0, 1, 2)] == pytest.approx([y + 4 for _, y in curve], abs=0.2)
    assert len(down) <= 6


@pytest.mark.parametrize("loss", [[0.5], [0.0], [float("inf")], [-2.0, -2.0], [1e30, 1e-30]])
def test_curves_of_one_epoch_of_equal_and_of_extreme_numbers(loss: list[float]) -> None:
    svg = curves_svg({"epoch": list(range(1, len(loss) + 1)), "loss": loss})
    numbers = [number for curve in curves(svg) for point in curve for number in point]
    assert np.isfinite(numbers).all()
    assert "1" in texts(svg)


def test_a_long_run_is_a_line_without_dots() -> None:
    svg = curves_svg({"epoch": list(range(1, 301)), "loss": [1.0 / n for n in range(1, 301)]})
    assert len(curves(svg)[0]) == 300
    assert not elements(svg, "circle")


def test_a_confusion_matrix_counts_true_classes_in_rows() -> None:
    labels, predicted = np.array([0, 0, 0, 1, 2, 2]), np.array([0, 0, 1, 1, 2, 0])
    svg = confusion_svg(labels, predicted, ["a", "b", "long name"], "title")
    cells = [e for e in elements(svg, "rect") if e.attrib["fill"].startswith("rgb")]
    left, top = (min(float(cell.attrib[axis]) for cell in cells) for axis in "xy")
    size = float(cells[0].attrib["width"])
    numbers = {
        tuple(
            int((float(element.attrib[axis]) - first) // size)
            for axis, first in (("y", top), ("x", left))
        ): element.text
        for element in elements(svg, "text")
        if (element.text or "").isdigit()
    }
    assert numbers == {(0, 0): "2", (0, 1): "1", (1, 1): "1", (2, 0): "1", (2, 2): "1"}
    assert cells[0].attrib["fill"] != cells[1].attrib["fill"]
    assert texts(svg).count("long name") == 2
    assert {"title", "predicted", "true"} <= {*texts(svg)}


def test_a_confusion_matrix_of_many_classes_has_no_numbers() -> None:
    names = [f"class {idx}" for idx in range(40)]
    svg = confusion_svg(np.array([0]), np.array([39]), names)
    assert [text for text in texts(svg) if text] == [
        *(name for name in names for _ in range(2)),
        "predicted",
        "true",
    ]


def test_names_that_are_no_xml_are_told_apart_from_marks() -> None:
    svg = confusion_svg(np.array([0]), np.array([1]), ["<b>&", "nul\0 \ud800"], '"title"')
    assert {"<b>&", "nul? ?", '"title"'} <= {*texts(svg)}
    svg.encode()
    assert "…" in confusion_svg(np.array([0]), np.array([1]), ["x" * 100, "y"])
