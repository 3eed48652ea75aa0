"""Delta features give what raw ones give: in every order, past the page cache, whole and through decoders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Field, Image, Loader, Order
from stepwell.codecs import Decoder
from stepwell.order import pooled
from stepwell.transforms.cropping import RandomResizedCrop, Resize

LENGTHS = (20, 1, 37)
FEATURES = {
    "raw": Image((24, 30, 3)),
    "delta": Image((24, 30, 3), codec="delta", every=6),
    "raw_depth": Image((24, 30), "uint16"),
    "delta_depth": Image((24, 30), "uint16", codec="delta", compression="lz4"),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> stepwell.Store:
    directory: Path = tmp_path_factory.mktemp("delta")
    store = stepwell.create(directory / "delta.well", FEATURES, segment_bytes=40_000)
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for length in LENGTHS:
            screens = np.tile(rng.integers(0, 256, (24, 30, 3)), (length, 1, 1, 1)).astype(np.uint8)
            screens[:, 2:4] = rng.integers(0, 256, (length, 1, 30, 1))
            depth = screens[..., 0].astype(np.uint16) * 200
            writer.add_episode({"raw": screens, "delta": screens, "raw_depth": depth, "delta_depth": depth})
    store.refresh()
    return store


@pytest.mark.parametrize("page_cache", [True, False])
@pytest.mark.parametrize("order", ["sequential", "random", pooled(bytes="300 KB", blocks=6)], ids=str)
@pytest.mark.parametrize(
    "decoder",
    [None, Resize((10, 12)), Resize((10, 12), interpolation="nearest"), RandomResizedCrop(8, key="same")],
    ids=lambda decoder: type(decoder).__name__,
)
def test_delta_feature_gives_what_a_raw_one_gives(
    store: stepwell.Store, decoder: Decoder | None, order: str | Order, page_cache: bool
) -> None:
    fields = {name: Field(name, [-1, 0, 2], decoder=decoder) for name in FEATURES}
    loader: Any = Loader(store, fields, batch_size=7, order=order, page_cache=page_cache, threads=2)
    number = 0
    for batch in loader:
        np.testing.assert_array_equal(batch["delta"], batch["raw"])
        np.testing.assert_array_equal(batch["delta_depth"], batch["raw_depth"])
        number += len(batch["raw"])
    assert number == sum(LENGTHS)
