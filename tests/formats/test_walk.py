"""The way of an address whose store is in the cache through our code: how many Python calls it takes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from called_files import called_files

import stepwell
from stepwell.beton import write_beton
from stepwell.codecs import make_codec
from stepwell.testing import tiny_lerobot
from stepwell.tfds import write_rlds, write_tfds
from stepwell.webdataset import write_webdataset

pytest.importorskip("imagecodecs")

MOST_CALLS = 105
FEATURES = {
    "image": stepwell.Image((16, 24, 3), codec="png"),
    "state": stepwell.Array(3),
    "action": stepwell.Array(2),
    "task": stepwell.Text(),
}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set of each format."""
    folder = tmp_path_factory.mktemp("sets")
    image = np.zeros((4, 16, 24, 3), np.uint8)
    columns = {"image": image, "state": np.ones((4, 3), np.float32), "action": np.ones((4, 2), np.float32)}
    with stepwell.create(folder / "own.well", FEATURES, fps=10) as store, store.writer() as writer:
        for _ in range(3):
            writer.add_episode({**columns, "task": ["lift"] * 4})
    write_rlds(folder / "own.well", folder / "rlds", name="arm", workers=1)
    write_tfds(folder / "own.well", folder / "tfds", name="arm", workers=1)
    write_webdataset(folder / "own.well", folder / "webdataset", workers=1)
    write_webdataset(folder / "own.well", folder / "webdataset-episodes", samples="episodes", workers=1)
    (folder / "beton").mkdir()
    write_beton(folder / "own.well", folder / "beton" / "arm.beton", workers=1)
    for number in range(6):
        path = folder / "folders" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make_codec(FEATURES["image"]).encode(image[0]))
    return folder


@pytest.mark.parametrize(
    "address",
    [
        "rlds://{}/rlds",
        "tfds://{}/tfds/arm/1.0.0?split=train&verify=no",
        "webdataset://{}/webdataset",
        "webdataset-episodes://{}/webdataset-episodes",
        "beton://{}/beton/arm.beton",
        "folders://{}/folders",
        "lerobot://{}/lerobot",
    ],
)
def test_opening_what_is_in_the_cache_takes_few_calls(
    sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    if address.startswith("lerobot"):
        pytest.importorskip("pyarrow")
        tiny_lerobot(sets / "lerobot", cameras={}, lengths=[5, 7])
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path))
    there = address.format(sets)
    made = stepwell.open(there)
    assert stepwell.open(there).path == made.path and len(made)
    assert len(called_files(lambda: stepwell.open(there))) <= MOST_CALLS
