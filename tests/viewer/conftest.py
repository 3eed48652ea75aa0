"""What tests of the page and of its endpoints share."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell


@pytest.fixture
def damaged_store(tmp_path: Path) -> Any:
    """Return a store of one episode of three PNG images, the second of which is damaged."""
    pytest.importorskip("simplejpeg", reason="needs simplejpeg")
    store = stepwell.create(tmp_path / "d.well", {"image": stepwell.Image((16, 16, 3), codec="png")})
    with store.writer() as writer:
        writer.add_episode({"image": np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)})
    (file,) = store.path.rglob("image.bin")
    begin, end = store.segments[0].stored_rows("image").edges(1, 2)
    data = bytearray(file.read_bytes())
    data[begin + 60 : end - 12] = bytes(end - begin - 72)
    file.write_bytes(data)
    return stepwell.open(store.path, mode="r")
