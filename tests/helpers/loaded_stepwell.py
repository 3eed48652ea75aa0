"""What the process of `warm_children` loads, once for all children: stepwell, its kernels, and a use of them."""

import contextlib
import tempfile
from pathlib import Path

import numpy as np

import stepwell
import stepwell.cli.main
import stepwell.lerobot
import stepwell.recorders
import stepwell.replay
import stepwell.testing

with contextlib.suppress(ImportError):
    import pyarrow.parquet  # noqa: F401
with tempfile.TemporaryDirectory() as folder:
    store = stepwell.create(Path(folder) / "a.well", {"a": stepwell.Array(), "b": stepwell.Text()})
    with store.writer() as writer:
        writer.add_episode({"a": np.zeros(4, np.float32), "b": ["", "a", "b", "c"]})
    store = stepwell.open(store.path)
    assert len(list(stepwell.Loader(store, {"a": [0, 1]}, batch_size=2, order="random", threads=0))) == 2
    store.close()
