"""Records of episodes are arrays of one length, and some of them can be taken."""

import pickle

import numpy as np

from stepwell.lerobot.meta_files import EpisodeRecords, VideoSpans


def records() -> EpisodeRecords:
    number = np.arange(4)
    return EpisodeRecords(
        index=number,
        first=np.array([0, 5, 5, 9]),
        stop=np.array([5, 5, 9, 12]),
        data_chunk=number // 2,
        data_file=number % 2,
        tasks=[("a",), (), ("a", "b"), ("b",)],
        videos={"top": VideoSpans(number * 0, number, number * 0.5, number * 0.5 + 0.5)},
        table_length=np.array([5, 0, 4, 3]),
    )


def test_length_is_from_first_to_stop() -> None:
    assert records().length.tolist() == [5, 0, 4, 3]
    assert len(records()) == 4


def test_taking_places_takes_all_of_their_records() -> None:
    some = records().take([3, 1])
    assert [some.index.tolist(), some.first.tolist(), some.stop.tolist()] == [[3, 1], [9, 5], [12, 5]]
    assert [some.data_chunk.tolist(), some.data_file.tolist(), list(some.tasks)] == [[1, 0], [1, 1], [("b",), ()]]
    assert (some.videos["top"].file.tolist(), some.videos["top"].start.tolist()) == ([3, 1], [1.5, 0.5])
    assert len(records().take([])) == 0


def test_records_survive_pickling() -> None:
    copy = pickle.loads(pickle.dumps(records()))
    assert (copy.stop.tolist(), copy.tasks) == ([5, 5, 9, 12], records().tasks)
