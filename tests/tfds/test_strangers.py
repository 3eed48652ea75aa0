"""Data sets of TFDS that were made to do harm: names of shards and classes, lengths of records, sizes in features."""

import os
from pathlib import Path

import numpy as np
import pytest
from made_sets import episode, simple_tree, write_set

from stepwell.testing import check_strangers
from stepwell.tfds.features import Leaf

# processes are forked beside threads that they do not need
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
COUNT = int(os.environ.get("STEPWELL_STRANGERS", "14"))


def test_evil_copies_do_nothing(tmp_path: Path) -> None:
    from imagecodecs import png_encode

    tree = simple_tree(image=Leaf("image", "uint8", (None, None, 3), image_format="png"))
    rows = [
        episode(2, number, **{"steps/image": [png_encode(np.full((6, 9, 3), step, np.uint8)) for step in range(2)]})
        for number in range(3)
    ]
    path = write_set(tmp_path, tree, {"train": [rows[:2], rows[2:]]})
    assert check_strangers(path, "tfds", count=COUNT, seed=1).errors
