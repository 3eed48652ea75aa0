"""Data sets of TFDS that were made to do harm: names of shards and classes, lengths of records, sizes in features."""

import gzip
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from made_sets import episode, simple_tree, write_set

from stepwell.errors import FormatError
from stepwell.testing import check_strangers
from stepwell.tfds.features import Leaf
from stepwell.tfds.framing import framed
from stepwell.tfds.reader import TfdsReader

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


@pytest.mark.parametrize("is_packed", [False, True], ids=["tensor", "file"])
def test_what_is_compressed_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_packed: bool) -> None:
    tree = simple_tree(packed=Leaf("tensor", "uint8", (None,), "zlib"))
    large = episode(1, 0, **{"steps/packed": [zlib.compress(bytes(9_000_000))]})
    path = write_set(tmp_path, tree, {"train": [[large]]})
    if is_packed:
        file = next(path.glob("*.tfrecord-*"))
        file.write_bytes(gzip.compress(framed(bytes(9_000_000))))
    monkeypatch.setenv("STEPWELL_MAX_ROW_BYTES", "1 MB")
    with pytest.raises(FormatError, match="STEPWELL_MAX_ROW_BYTES"):
        TfdsReader(str(path))[0]
    if not is_packed:
        monkeypatch.setenv("STEPWELL_MAX_ROW_BYTES", "1 GB")
        assert len(TfdsReader(str(path))[0].columns["packed"][0]) == 9_000_000
