"""Shares of the rows of a batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.errors import OrderError
from stepwell.replay.drawing import checked_shares, deal_rows


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.floats(0.01, 10), min_size=1, max_size=5),
    st.integers(1, 64),
    st.integers(1, 50),
)
def test_after_any_number_of_batches_a_source_has_had_its_share_of_all_rows_within_one(
    weights: list[float], batch_size: int, num_batches: int
) -> None:
    shares = checked_shares(weights, len(weights))
    owed, total = [0.0] * len(shares), np.zeros(len(shares))
    for number in range(1, num_batches + 1):
        rows, owed = deal_rows(shares, owed, batch_size)
        assert sum(rows) == batch_size
        assert min(rows) >= 0
        total += rows
        assert np.abs(total - np.array(shares) * batch_size * number).max() <= 1 + 1e-6


def test_halves_of_an_even_batch_are_equal_in_every_batch() -> None:
    owed = [0.0, 0.0]
    for _ in range(1000):
        rows, owed = deal_rows(checked_shares([1, 1], 2), owed, 256)
        assert rows == [128, 128]


def test_uneven_shares_are_dealt_the_same_way_every_time() -> None:
    def dealt() -> list[list[int]]:
        owed, found = [0.0, 0.0], []
        for _ in range(10):
            rows, owed = deal_rows(checked_shares([0.3, 0.7], 2), owed, 5)
            found.append(rows)
        return found

    assert dealt() == dealt()
    assert sum(rows[0] for rows in dealt()) == 15


@pytest.mark.parametrize("shares", [[1.0], [1.0, -1.0], [0.0, 0.0], [float("nan"), 1.0]])
def test_shares_that_cannot_be_are_refused(shares: list[float]) -> None:
    with pytest.raises(OrderError):
        checked_shares(shares, 2)
