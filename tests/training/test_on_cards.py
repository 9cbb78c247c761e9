"""What is expected of steps on several GPUs, beside what they took on H200s."""

from __future__ import annotations

import pytest

from warpfit.training.on_cards import expected_on_cards

WIDE = (4096,) * 5


def test_one_card_has_nothing_to_add_up() -> None:
    found = expected_on_cards(WIDE, 8192, 1, 1)
    assert (found.efficiency, found.nbytes, found.sums) == (1.0, 0, 0.0)


def test_more_cards_send_more_and_more_rows_count_less() -> None:
    two, eight = (expected_on_cards(WIDE, 8192 * count, count, 1) for count in (2, 8))
    num_parameters = 4 * 4096 * 4097
    assert two.alone == eight.alone
    assert (two.nbytes, eight.nbytes) == (4 * num_parameters, 7 * num_parameters)
    assert eight.efficiency < two.efficiency < 1
    assert expected_on_cards(WIDE, 512, 2, 1).efficiency < two.efficiency


# Microseconds of a step, 8,192 rows a GPU, sums by NCCL 2.28: docs/log/several-gpus.md.
MEASURED = [
    (WIDE, 1, 4825.0),
    (WIDE, 2, 5896.0),
    (WIDE, 8, 6500.0),
    ((784, 8192, 8192, 8192, 10), 1, 11387.0),
    ((784, 8192, 8192, 8192, 10), 2, 12686.0),
    ((1024,) * 5, 1, 421.0),
    ((1024,) * 5, 2, 628.0),
]


@pytest.mark.parametrize(("widths", "count", "microseconds"), MEASURED)
def test_expected_and_measured(widths: tuple[int, ...], count: int, microseconds: float) -> None:
    found = expected_on_cards(widths, 8192 * count, count, 1)
    assert 0.9 < found.seconds * 1e6 / microseconds < 1.1
