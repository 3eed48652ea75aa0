import pickle

import numpy as np

from stepwell.loader.torch_data import BatchIndices
from stepwell.order import Partition


def test_what_goes_to_a_worker_is_small_and_arrives_whole() -> None:
    many = np.arange(4096)
    indices = BatchIndices(many[256:512], Partition(1000, 256).batch(1, epoch=7), 1)
    sent = pickle.dumps(indices)
    assert len(sent) < 8 * 256 + 800
    found = pickle.loads(sent)
    assert (list(found), found.share, found.number) == (list(range(256, 512)), indices.share, 1)


def test_indices_are_plain_ints_by_place_and_in_slices() -> None:
    indices = BatchIndices(np.array([5, 7, 9]), Partition(3, 3).batch(0), 0)
    assert [indices[0], indices[-1], indices[1:], list(reversed(indices)), 7 in indices] == [
        5,
        9,
        [7, 9],
        [9, 7, 5],
        True,
    ]
    assert {type(number) for number in [*indices, *indices[:], indices[0]]} == {int}
