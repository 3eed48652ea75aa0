"""Images of any size in a store: what is accepted, what comes back, what is told of them."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import stepwell
from stepwell.codecs import make_codec
from stepwell.errors import StepError
from stepwell.schema import Array, Feature, Image
from stepwell.store import EncodedRows, Store
from stepwell.testing import random_array

pytest.importorskip("imagecodecs")

ANY_SIZE = Image((None, None, 3))
LOSSLESS = ("raw", "png", "zstd", "lz4")


def pictures(number: int, feature: Feature = ANY_SIZE, first: int = 0) -> list[npt.NDArray[Any]]:
    return [random_array(feature, seed) for seed in range(first, first + number)]


def make(path: Path, feature: Feature, *, final: bool = True) -> Store:
    store = stepwell.create(path, {"image": feature.with_final(final), "label": Array((), "int64")}, segment_bytes=500)
    with store.writer() as writer:
        for episode, length in enumerate((3, 1, 6)):
            images = pictures(length + final, feature, 10 * episode)
            writer.add_episode({"image": images, "label": np.arange(length)})
        for step, image in enumerate(pictures(4, feature, 90)):
            writer.append(image=image, label=step)
        writer.end_episode(final={"image": pictures(1, feature, 94)[0]} if final else None)
    store.refresh()
    return store


def assert_same(given: Any, expected: Any) -> None:
    assert isinstance(given, list)
    assert [image.dtype for image in given] == [image.dtype for image in expected]
    assert all(np.array_equal(a, b) for a, b in zip(given, expected, strict=True))


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("codec", LOSSLESS)
@pytest.mark.parametrize("shape", [(None, None, 3), (None, None)])
def test_images_come_back_bit_for_bit(tmp_path: Path, shape: tuple[None, ...], codec: str, final: bool) -> None:
    if codec in ("zstd", "lz4"):
        pytest.importorskip({"zstd": "zstandard"}.get(codec, codec))
    feature = Image(shape, "uint16", codec=codec)
    store = make(tmp_path / "a.well", feature, final=final)
    for episode, length in enumerate((3, 1, 6)):
        assert_same(store[episode]["image"], pictures(length + final, feature, 10 * episode))
    assert_same(store[3]["image"], pictures(4 + final, feature, 90))
    assert store.verify(deep=True).is_ok
    assert len(store.segments) > 1
    store.compact()
    assert_same(stepwell.open(store.path)[2]["image"], pictures(6 + final, feature, 20))


def test_images_may_come_as_one_array_where_they_are_alike(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"image": ANY_SIZE})
    images = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    with store.writer() as writer:
        writer.add_episode({"image": images})
    assert_same(store[0]["image"], list(images))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((4, 5), np.uint8), r"got shape \(4, 5\), the store has \(\?, \?, 3\)"),
        (np.zeros((4, 5, 4), np.uint8), r"got shape \(4, 5, 4\), the store has \(\?, \?, 3\)"),
        (np.zeros((4, 5, 3), np.float32), "got dtype float32, the store has uint8"),
        (np.zeros((0, 5, 3), np.uint8), r"got an image of shape \(0, 5, 3\). Allowed: sides of 1 or more"),
        ([], r"Allowed: sides of 1 or more"),
        (None, "got None"),
    ],
)
def test_values_that_are_no_image_are_refused(tmp_path: Path, value: Any, message: str) -> None:
    store = stepwell.create(tmp_path / "a.well", {"image": ANY_SIZE})
    with store.writer() as writer:
        with pytest.raises(StepError, match=message):
            writer.append(image=value)
        with pytest.raises(StepError, match=message):
            writer.add_episode({"image": [np.zeros((2, 2, 3), np.uint8), value]})
    assert len(store) == 0


def test_an_image_of_another_size_than_the_others_is_refused_with_the_feature_that_takes_it(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"image": Image((16, 20, 3))})
    with (
        store.writer() as writer,
        pytest.raises(StepError, match=r"\(16, 20, 3\)\. A feature Image\(\(None, None, 3\)\) takes"),
    ):
        writer.append(image=np.zeros((16, 21, 3), np.uint8))


def test_files_are_stored_as_they_are(tmp_path: Path) -> None:
    feature = Image((None, None, 3), codec="png")
    images, other = pictures(3), make_codec(Image((None, None), codec="png"))
    blobs = [make_codec(feature).encode(image) for image in images]
    store = stepwell.create(tmp_path / "a.well", {"image": feature})
    with store.writer() as writer:
        writer.add_episode({"image": EncodedRows(blobs)})
        with pytest.raises(StepError, match=r"no row of png \?x\?x3 uint8: .*cut off"):
            writer.add_episode({"image": EncodedRows([blobs[0][:20]])})
        writer.add_episode({"image": EncodedRows([other.encode(np.full((4, 5), 7, np.uint8))])})
    assert_same(store[0]["image"], images)
    assert_same(store[1]["image"], [np.full((4, 5, 3), 7, np.uint8)])
    segment = store.segments[0]
    assert bytes(segment.blob_map("image")[: len(blobs[0])]) == blobs[0]


def test_statistics_are_those_of_all_pixels(tmp_path: Path) -> None:
    store = make(tmp_path / "a.well", Image((None, None, 3), codec="png"), final=False)
    pixels = np.concatenate([image.reshape(-1, 3) for episode in store for image in episode["image"]])
    found = store.statistics()["image"]
    assert found.count.tolist() == [len(pixels)] * 3
    np.testing.assert_allclose(found.mean, pixels.mean(axis=0))
    np.testing.assert_allclose(found.std, pixels.std(axis=0))


def test_of_many_images_few_are_counted(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"image": ANY_SIZE})
    with store.writer() as writer:
        writer.add_episode({"image": [np.full((2, 3, 3), k, np.uint8) for k in range(100)]})
    store.refresh()
    assert store.statistics()["image"].count.tolist() == [32 * 6] * 3


def test_a_store_says_that_sizes_vary(tmp_path: Path) -> None:
    store = make(tmp_path / "a.well", Image((None, None, 3), codec="png"))
    (line,) = [line.split() for line in str(store.info()).splitlines() if line.startswith("  image")]
    assert line[:4] == ["image", "png", "?x?x3", "uint8"]
    assert line[-2:] == ["a", "step"]


def test_a_column_of_them_is_added_to_what_is_there(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"label": Array((), "int64")})
    with store.writer() as writer:
        writer.add_episode({"label": np.arange(3)})
        writer.add_episode({"label": np.arange(2)})
    store.refresh()
    store.delete_episodes([0])
    store.refresh()
    feature = Image((None, None, 3), codec="jpeg")
    store.add_column("image", feature, [[np.full((4, 5, 3), 90, np.uint8), np.full((7, 2, 3), 90, np.uint8)]])
    again = stepwell.open(store.path)
    assert [image.shape for image in again[0]["image"]] == [(4, 5, 3), (7, 2, 3)]
    assert again.verify(deep=True).is_ok


def test_a_list_of_images_of_different_sizes_is_known_for_what_it_is(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well")
    images = [np.full((16 + k, 40 - k, 3), k, np.uint8) for k in range(4)]
    with store.writer() as writer:
        writer.add_episode({"image": images, "points": [np.zeros((k, 2)) for k in range(4)], "reward": [0.0] * 4})
    assert dict(store.schema or {}) == {
        "image": ANY_SIZE,
        "points": Array((None, 2), "float64"),
        "reward": Array((), "float64"),
    }
    assert_same(store[0]["image"], images)
