"""What is expected of steps on several cards, beside what they took."""

from __future__ import annotations

from warpfit.training.on_cards import expected_on_cards

WIDE = (4096,) * 5


def test_one_card_has_nothing_to_add_up() -> None:
    found = expected_on_cards(WIDE, 8192, 1, 1)
    assert (found.efficiency, found.nbytes, found.sums, found.hidden) == (1.0, 0, 0.0, 1.0)


def test_more_cards_send_more_and_more_rows_hide_more() -> None:
    two, eight = (expected_on_cards(WIDE, 8192 * count, count, 1) for count in (2, 8))
    num_parameters = 4 * 4096 * 4097
    assert two.alone == eight.alone
    assert (two.nbytes, eight.nbytes) == (4 * num_parameters, 7 * num_parameters)
    assert two.sums < eight.sums
    assert 0.9 < eight.efficiency <= two.efficiency < 1
    few = expected_on_cards(WIDE, 512, 2, 1)
    assert few.efficiency < 0.7 < two.efficiency
    assert few.hidden < two.hidden


def test_a_step_is_at_least_its_sums_and_at_most_all_one_after_the_other() -> None:
    for widths in (WIDE, (784, 8192, 8192, 8192, 10), (10, 20, 3)):
        for rows in (64, 8192):
            found = expected_on_cards(widths, 2 * rows, 2, 2)
            assert max(found.sums, found.alone) < found.seconds < 1.6 * (found.alone + found.sums)
