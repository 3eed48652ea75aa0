"""JPEG, PNG and WebP files in one column: each is read by what it is, all as the feature's channels."""

import tracemalloc

import numpy as np
import pytest
from kinds_of_images import image_files

import stepwell
from stepwell import Field, Loader
from stepwell.codecs import make_codec
from stepwell.codecs.image_files import HEAD_BYTES, ImageHead, read_image_head
from stepwell.errors import DecodeError, SchemaError
from stepwell.schema import Image
from stepwell.store import EncodedRows
from stepwell.transforms import Resize

pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")


FILES = image_files(20, 30)
# lossy files differ by as much; WebP has its colours at half the resolution
ATOL = {"jpeg": 9, "webp": 24}


def row(data):
    return np.frombuffer(data, np.uint8)


def assert_shows(pixels, name):
    kind = FILES[name]
    most = 0 if kind.is_exact else ATOL[name.partition(" ")[0]]
    assert np.abs(pixels.astype(int) - kind.colors).max() <= most, name


@pytest.mark.parametrize("shape", [(20, 30, 3), (None, None, 3)])
@pytest.mark.parametrize("name", FILES)
def test_files_of_every_kind_show_their_colours(shape, name):
    codec, blob = make_codec(Image(shape, codec="image-file")), row(FILES[name].data)
    pixels = codec.decode(blob)
    assert codec.image_size(blob) == (20, 30)
    assert_shows(pixels, name)
    np.testing.assert_array_equal(codec.decode_crop(blob, (3, 4, 10, 11), (10, 11)), pixels[3:13, 4:15])


@pytest.mark.parametrize("name", FILES)
def test_files_without_alpha_are_opaque_where_the_feature_has_it(name):
    pixels = make_codec(Image((None, None, 4), codec="image-file")).decode(row(FILES[name].data))
    assert_shows(pixels[..., :3], name)
    has_alpha = any(word in name for word in ("alpha", "rgba", "transparent"))
    assert (pixels[..., 3] == 255).all() != has_alpha


def test_jpeg_files_are_decoded_as_the_option_says():
    blob = row(FILES["jpeg rgb"].data)
    for dct in ("exact", "fast"):
        own = make_codec(Image((20, 30, 3), codec="jpeg", dct=dct)).decode(blob)
        found = make_codec(Image((20, 30, 3), codec="image-file", dct=dct)).decode(blob)
        np.testing.assert_array_equal(found, own)


@pytest.mark.parametrize("data", [b"", b"GIF89a" + bytes(30), b"BM" + bytes(30), b"RIFF\0\0\0\0WEBPVP8 "], ids=repr)
def test_what_is_no_such_file_is_refused(data):
    for shape in ((20, 30, 3), (None, None, 3)):
        with pytest.raises(DecodeError, match="Allowed: JPEG, PNG and WebP files"):
            make_codec(Image(shape, codec="image-file")).decode(row(data))


@pytest.mark.parametrize("name", FILES)
def test_files_of_another_size_are_refused(name):
    with pytest.raises(DecodeError, match="20x30"):
        make_codec(Image((20, 31, 3), codec="image-file")).decode(row(FILES[name].data))


def test_damaged_webp_files_are_refused_or_read():
    rng = np.random.default_rng(0)
    codec = make_codec(Image((20, 30, 3), codec="image-file"))
    for name in ("webp", "webp lossless", "webp rgba"):
        for _ in range(100):
            corrupt = bytearray(FILES[name].data)
            corrupt[rng.integers(len(corrupt))] ^= 1 << rng.integers(8)
            for blob in (row(bytes(corrupt)), row(FILES[name].data)[: rng.integers(len(corrupt))]):
                try:
                    assert codec.decode(blob).shape == (20, 30, 3)
                except DecodeError:
                    continue


def test_memory_for_what_a_jpeg_or_png_file_cannot_hold_is_never_asked_for():
    codec = make_codec(Image((None, None, 3), codec="image-file"))
    data = FILES["jpeg rgb"].data
    place = data.index(b"\xff\xc0") + 5
    tracemalloc.start()
    with pytest.raises(DecodeError, match="cannot hold"):
        codec.decode(row(data[:place] + b"\xf0\0\xf0\0" + data[place + 4 :]))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_16_bits_are_refused():
    with pytest.raises(SchemaError, match=r'codec "image-file" cannot store uint16.*Use "png"'):
        make_codec(Image((None, None, 3), "uint16", codec="image-file"))


def test_a_store_holds_the_files_as_they_came_and_windows_show_them(tmp_path):
    store = stepwell.create(tmp_path / "a.well", {"image": Image((20, 30, 3), codec="image-file")})
    with store.writer() as writer:
        writer.add_episode({"image": EncodedRows([kind.data for kind in FILES.values()])})
    (batch,) = Loader(store, {"image": "image"}, batch_size=len(FILES), order="sequential")
    for name, pixels in zip(FILES, batch["image"], strict=True):
        assert_shows(pixels, name)
    small = {"image": Field("image", [-1, 0], decoder=Resize(8))}
    (batch,) = Loader(store, small, batch_size=len(FILES), order="random")
    assert batch["image"].shape == (len(FILES), 2, 8, 8, 3)
    assert not store.verify(deep=True).findings


def channels_of(name):
    if "alpha" in name or "rgba" in name:
        return 4
    return 1 if "grey" in name else 3


@pytest.mark.parametrize("name", FILES)
def test_heads_tell_size_channels_depth_and_format(name):
    dtype = "uint16" if " 16" in name else "uint8"
    is_plain = (
        not any(word in name for word in ("palette", "cmyk", "ycck", "grey 1", "grey 2", "grey 4")) or " 16" in name
    )
    wanted = ImageHead(20, 30, channels_of(name), dtype, name.partition(" ")[0], is_plain)
    assert read_image_head(FILES[name].data[:HEAD_BYTES]) == wanted


@pytest.mark.parametrize("name", FILES)
def test_heads_that_are_cut_off_tell_nothing_or_the_same(name):
    whole = read_image_head(FILES[name].data)
    assert {read_image_head(FILES[name].data[:size]) for size in range(200)} <= {None, whole}


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"BM", b"RIFF\0\0\0\0WAVE", b"\xff\xd8\xff\xc0"])
def test_what_is_no_such_file_tells_nothing(data):
    assert read_image_head(data) is None
