import numpy as np

from stepwell.kernels.places import EPISODE, HI_FINAL, HI_STEP, LO, PLACE_ROWS, ROW, SEGMENT
from stepwell.replay.item_kernels import TAKEN_KEY, TAKEN_SIZE, TAKEN_WORDS, item_places, take_items
from stepwell.replay.items import Items


def test_places_come_from_the_records_of_the_episodes() -> None:
    records = np.arange(40 * 8, dtype=np.int64).reshape(40, 8)
    episodes, rows = np.random.default_rng(0).integers(100, 140, 50), np.arange(350, 400)
    places = np.empty((PLACE_ROWS, 50), np.int64)
    assert item_places(episodes, rows, records, 100, places) == -1
    for row, expected in {SEGMENT: 0, LO: 2, HI_STEP: 3, HI_FINAL: 4}.items():
        assert places[row].tolist() == records[episodes - 100, expected].tolist()
    assert (places[EPISODE].tolist(), places[ROW].tolist()) == (episodes.tolist(), rows.tolist())


def test_the_first_item_of_an_episode_that_is_not_there_is_named() -> None:
    places, rows = np.empty((PLACE_ROWS, 3), np.int64), np.zeros(3, np.int64)
    records = np.zeros((4, 8), np.int64)
    assert item_places(np.array([10, 9, 8]), rows, records, 10, places) == 1
    assert item_places(np.array([13, 12, 14]), rows, records, 10, places) == 2


def test_the_first_item_whose_step_was_evicted_is_named() -> None:
    places = np.empty((PLACE_ROWS, 3), np.int64)
    records = np.array([[0, 2, 5, 9, 9, 0, 0, 0]])
    assert item_places(np.array([7, 7, 7]), np.array([5, 8, 4]), records, 7, places) == 2


def test_an_item_drawn_twice_in_a_batch_is_counted_twice() -> None:
    items = Items()
    slots = items.insert_run(0, 5, 2, length=2**31 - 1)
    records = np.array([[4, 2, 5, 9, 10, 0, 0, 0]])
    words, halves = np.empty((TAKEN_WORDS, 3), np.int64), np.empty((2, 3), np.int32)
    assert take_items(slots[[1, 0, 1]], items._lines, records, 0, 2, words, halves) == (2, -1)
    assert halves.tolist() == [[2**31 - 1] * 3, [1, 1, 2]]
    assert words[:PLACE_ROWS, 0].tolist() == [0, 4, 6, 5, 9, 10]
    assert words[ROW].tolist() == [6, 5, 6]
    assert words[TAKEN_KEY].tolist() == items.keys_of(slots[[1, 0, 1]]).tolist()
    assert words[TAKEN_SIZE].tolist() == [2, 2, 2]
    # the step of an item that went
    records[0, 2] = 6
    assert take_items(slots[[1, 0, 1]], items._lines, records, 0, 2, words, halves) == (0, 1)
