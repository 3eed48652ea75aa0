"""Raw columns that come piece by piece."""

import numpy as np
import pytest

import stepwell
from stepwell import Array
from stepwell.errors import StepError

ROWS = np.arange(40, dtype=np.float32).reshape(20, 2)


class Pieces:
    """Told of 20 rows; gives what it is given."""

    num_rows = 20

    def __init__(self, *pieces):
        self.given = pieces

    def rows(self, feature):
        raise NotImplementedError

    def pieces(self, feature):
        return iter(self.given)


@pytest.fixture
def store(tmp_path):
    return stepwell.create(tmp_path / "x.well", {"a": Array(2), "b": Array((), "int64")})


@pytest.mark.parametrize("cuts", [[], [20], [1], [7, 7, 13]])
def test_pieces_of_any_size_are_the_rows(cuts, store):
    with store.writer() as writer:
        writer.add_episode({"a": Pieces(*np.split(ROWS, cuts)), "b": np.arange(20)})
    np.testing.assert_array_equal(store[0]["a"], ROWS)
    assert store.verify(deep=True).is_ok


def test_a_piece_may_be_overwritten_by_the_next(store):
    class Reusing(Pieces):
        def pieces(self, feature):
            memory = np.empty((5, 2), np.float32)
            for start in range(0, 20, 5):
                memory[...] = ROWS[start : start + 5]
                yield memory

    with store.writer() as writer:
        writer.add_episode({"a": Reusing(), "b": np.arange(20)})
    np.testing.assert_array_equal(store[0]["a"], ROWS)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([ROWS, ROWS[:1]], "has num_rows = 20 and gave 21 rows"),
        ([ROWS[:7]], "has num_rows = 20 and gave 7 rows"),
        ([], "has num_rows = 20 and gave 0 rows"),
        ([ROWS.astype(float)], r"gave float64 \(2,\), the store has raw 2 float32"),
        ([ROWS[:, :1]], r"gave float32 \(1,\)"),
    ],
)
def test_pieces_that_are_not_what_was_told_are_refused_and_leave_nothing(pieces, message, store):
    with store.writer() as writer:
        writer.add_episode({"a": ROWS[:3], "b": np.arange(3)})
        with pytest.raises(StepError, match=message):
            writer.add_episode({"a": Pieces(*pieces), "b": np.arange(20)})
        writer.add_episode({"a": ROWS[5:7], "b": np.arange(2)})
    assert [episode.length for episode in store] == [3, 2]
    np.testing.assert_array_equal(store[1]["a"], ROWS[5:7])


def test_a_final_row_may_be_the_last_one_of_the_pieces(tmp_path):
    store = stepwell.create(tmp_path / "f.well", {"a": Array(2, final=True), "b": Array((), "int64")})
    with store.writer() as writer:
        writer.add_episode({"a": Pieces(ROWS[:8], ROWS[8:]), "b": np.arange(19)})
    assert store[0].length == 19 and store[0].has_final
    np.testing.assert_array_equal(store[0]["a"], ROWS)
