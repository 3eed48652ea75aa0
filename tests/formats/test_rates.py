"""Formats with a value a step refuse features with a rate by name, and are written without them."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell import SchemaError
from stepwell.tfds import write_rlds, write_tfds
from stepwell.webdataset import write_webdataset
from tests.helpers.rated import Recorded, make


@pytest.mark.parametrize("write", [
    lambda store, path, features: write_webdataset(store, path, features=features),
    lambda store, path, features: write_webdataset(store, path, samples="episodes", features=features),
    lambda store, path, features: write_rlds(store, path, name="x", features=features, workers=1),
    lambda store, path, features: write_tfds(store, path, name="x", features=features, workers=1),
])  # fmt: skip
def test_writers_refuse_features_with_a_rate_and_write_the_others(tmp_path, write):
    recorded = Recorded(3, np.zeros((2, 2), np.float32), np.array([0.0, 0.1]), False)
    store = make(f"{tmp_path}/a.well", [recorded], 10.0, 40.0)
    with pytest.raises(SchemaError, match="'tactile' has a rate"):
        write(store, tmp_path / "out", None)
    write(store, tmp_path / "out", ["step", "action"])
    assert any((tmp_path / "out").rglob("*"))
