"""Rows that say themselves how large they are take no more memory than a stated limit allows, in every codec."""

import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Bytes, Feature, Image, Loader, Text
from stepwell.codecs import make_codec
from stepwell.codecs.decoded_sizes import check_decoded_bytes, max_row_bytes
from stepwell.errors import DecodeError, StepwellError
from stepwell.formats.arrays import npz_arrays
from stepwell.references.file_spans import make_spans, span_feature

webp_encode = pytest.importorskip("imagecodecs").webp_encode
pytest.importorskip("simplejpeg")

BLACK = np.zeros((2000, 1500, 3), np.uint8)
ROWS: dict[str, tuple[Feature, Any]] = {
    "png": (Image((None, None, 3), codec="png", level=9), BLACK),
    "png16": (Image((None, None), "uint16", codec="png", level=9), BLACK[..., 0].astype("uint16")),
    "jpeg": (Image((None, None, 3), codec="jpeg", quality=1), BLACK),
    "image-file": (Image((None, None, 3), codec="image-file"), BLACK),
    "webp": (Image((None, None, 3), codec="image-file"), BLACK),
    "zstd image": (Image((None, None, 3), codec="zstd"), BLACK),
    "lz4 image": (Image((None, None, 3), codec="lz4"), BLACK),
    "zstd array": (Array((None, 3), codec="zstd"), np.zeros((1_000_000, 3), "f4")),
    "lz4 array": (Array((None, 3), codec="lz4"), np.zeros((1_000_000, 3), "f4")),
    "zstd text": (Text(codec="zstd"), "a" * 9_000_000),
    "zstd bytes": (Bytes(codec="zstd"), b"a" * 9_000_000),
}


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_to(text: str) -> None:
        monkeypatch.setenv("STEPWELL_MAX_ROW_BYTES", text)

    set_to("1 MB")
    return set_to


@pytest.mark.parametrize("name", ROWS)
def test_a_small_row_that_becomes_large_is_refused_before_memory_is_taken(
    name: str, limit: Any, tmp_path: Path
) -> None:
    feature, value = ROWS[name]
    encoded = webp_encode(value, lossless=True) if name == "webp" else make_codec(feature).encode(value)
    blob = np.frombuffer(encoded, np.uint8)
    (tmp_path / "file").write_bytes(blob.tobytes())
    span, row = span_feature(feature, [tmp_path / "file"]), make_spans(0, 0, blob.size)[0]
    for codec, data in ((make_codec(feature), blob), (make_codec(span), row)):
        tracemalloc.start()
        with pytest.raises(DecodeError, match=r"STEPWELL_MAX_ROW_BYTES"):
            codec.decode(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1_000_000
    limit("30 MB")
    found = make_codec(feature).decode(blob)
    assert found == value if isinstance(value, str | bytes) else np.array_equal(found, value) or name == "jpeg"


@pytest.mark.parametrize(
    "feature", [Array(10, codec="zstd"), Array(10, codec="lz4"), Image((4, 4), codec="zstd")], ids=str
)
def test_of_a_fixed_shape_no_more_is_taken_than_it_has(feature: Feature) -> None:
    blob = make_codec(Bytes(codec=feature.codec)).encode(bytes(100_000_000))
    tracemalloc.start()
    with pytest.raises(DecodeError, match="100000000 bytes"):
        make_codec(feature).decode(np.frombuffer(blob, np.uint8))
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()


def test_what_is_stored_at_length_may_be_as_large_as_it_is(limit: Any) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (900, 900, 3), np.uint8)
    for codec in ("png", "zstd", "lz4"):
        made = make_codec(Image((None, None, 3), codec=codec))
        assert np.array_equal(made.decode(np.frombuffer(made.encode(noise), np.uint8)), noise)


def test_episodes_and_batches_say_how_to_allow_a_row(limit: Any, tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"image": ROWS["png"][0]})
    with store.writer() as writer:
        writer.add_episode({"image": [BLACK]})
    with pytest.raises(StepwellError, match="STEPWELL_MAX_ROW_BYTES"):
        store[0]["image"]
    field = stepwell.Field("image", decoder=stepwell.transforms.Resize(8))
    with pytest.raises(StepwellError, match="STEPWELL_MAX_ROW_BYTES"):
        list(Loader(store, {"image": field}, batch_size=1))
    limit("1 GiB")
    assert store[0]["image"][0].shape == BLACK.shape


def test_members_of_npz_files_are_bounded_likewise(limit: Any) -> None:
    file = io.BytesIO()
    np.savez_compressed(file, a=np.zeros(1_000_000))
    with pytest.raises(ValueError, match="STEPWELL_MAX_ROW_BYTES"):
        npz_arrays(file)
    limit("8001 kB")
    assert npz_arrays(file)["a"].shape == (1_000_000,)
    assert zipfile.is_zipfile(file)


def test_the_limit_is_a_size_or_a_number(limit: Any) -> None:
    for text, wanted in (("2 GiB", 2 << 30), ("77", 77), ("", 1 << 30)):
        limit(text)
        assert max_row_bytes() == wanted
    limit("much")
    with pytest.raises(StepwellError, match="STEPWELL_MAX_ROW_BYTES='much'"):
        check_decoded_bytes(1 << 40, 1, "a row")
