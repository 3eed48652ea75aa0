"""One feature for images of several kinds; an image file that it does not hold, or that would lose something."""

import numpy as np
import pytest
from kinds_of_images import image_files

from stepwell.codecs.image_files import ImageHead, read_image_head
from stepwell.errors import DecodeError, FormatError
from stepwell.formats.images import ImageKinds, channels_of, check_image, holds, image_feature, image_head
from stepwell.schema import Image

pytest.importorskip("simplejpeg")
pytest.importorskip("imagecodecs")

FILES = image_files(20, 30)


def feature_of(*names):
    kinds = ImageKinds()
    kinds.add(read_image_head(FILES[name].data) for name in names)
    return kinds.feature("image")


@pytest.mark.parametrize(
    ("names", "shape", "codec"),
    [
        (["jpeg grey"], (20, 30, 1), "jpeg"),
        (["jpeg grey", "jpeg cmyk"], (20, 30, 3), "jpeg"),
        (["png grey", "png palette 1"], (20, 30, 3), "png"),
        (["png grey alpha", "png rgb"], (20, 30, 4), "png"),
        (["webp"], (20, 30, 3), "image-file"),
        (["jpeg rgb", "png rgba"], (20, 30, 4), "image-file"),
    ],
)
def test_the_feature_has_the_codec_and_channels_that_all_need(names, shape, codec):
    feature = feature_of(*names)
    assert feature == Image(shape, codec=codec)
    assert all(holds(feature, read_image_head(FILES[name].data)) for name in names)


def test_images_of_several_sizes_are_of_any_size():
    kinds = ImageKinds()
    kinds.add(
        [ImageHead(20, 30, 3, "uint8", "png"), ImageHead(30, 20, 1, "uint8", "png"), ImageHead(9, 9, 1, "uint8", "png")]
    )
    assert kinds.feature("image") == Image((None, None, 3), codec="png")


def test_8_and_16_bits_in_one_column_are_refused():
    with pytest.raises(FormatError, match=r"camera: images of 8 and of 16 bits"):
        kinds = ImageKinds()
        kinds.add(read_image_head(FILES[name].data) for name in ("png grey", "png grey 16"))
        kinds.feature("camera")


@pytest.mark.parametrize("name", ["png rgb", "png rgba", "png grey 16", "jpeg grey", "webp"])
def test_an_image_that_would_lose_something_is_not_held(name):
    assert not holds(Image((None, None, 1), codec="png"), read_image_head(FILES[name].data))


def test_grey_images_may_have_two_dimensions():
    head = read_image_head(FILES["jpeg grey"].data)
    assert holds(Image((24, 32), codec="jpeg"), head)
    assert not holds(Image((24, 32), codec="jpeg"), ImageHead(24, 32, 3, "uint8", "jpeg"))


@pytest.mark.parametrize(
    ("names", "channels", "shape", "codec"),
    [
        (["png rgba", "png grey"], 3, (20, 30, 3), "png"),
        (["png rgb"], 1, (20, 30, 1), "png"),
        (["jpeg rgb"], 4, (20, 30, 4), "image-file"),
        (["webp rgba", "jpeg grey"], 3, (20, 30, 3), "image-file"),
    ],
)
def test_there_are_as_many_channels_as_somebody_asks_for(names, channels, shape, codec):
    kinds = ImageKinds()
    kinds.add(read_image_head(FILES[name].data) for name in names)
    assert kinds.feature("image", channels) == Image(shape, codec=codec)


def test_channels_are_1_3_or_4():
    assert [channels_of(given) for given in (None, "1", 3, " 4")] == [None, 1, 3, 4]
    for given in (2, "rgb", "", True):
        with pytest.raises(FormatError, match=r"channels=.*Allowed: 1, 3, 4"):
            channels_of(given)


def test_the_first_files_of_8_and_of_16_bits_are_named():
    kinds = ImageKinds()
    names = ["png grey", "png rgb", "png grey 16"]
    kinds.add((read_image_head(FILES[name].data) for name in names), ["a.png", "b.png", "c.png"])
    with pytest.raises(FormatError, match=r"in one column \(a\.png has 8, c\.png has 16\)"):
        kinds.feature("camera")


def blob(name: str):
    return np.frombuffer(FILES[name].data, np.uint8)


def column_feature(*names: str, **options: bool):
    return image_feature((image_head(blob(name)) for name in names), "camera", **options)


@pytest.mark.parametrize(
    ("names", "channels", "dtype", "codec"),
    [
        (["png rgb"], 3, "uint8", "png"),
        (["png grey"], 1, "uint8", "png"),
        (["png grey", "png palette 2"], 3, "uint8", "png"),
        (["png rgba", "png rgb"], 4, "uint8", "png"),
        (["png grey 16"], 1, "uint16", "png"),
        (["jpeg grey"], 3, "uint8", "jpeg"),
        (["jpeg cmyk"], 3, "uint8", "jpeg"),
        (["jpeg grey", "png grey"], 3, "uint8", "image-file"),
        (["webp"], 3, "uint8", "image-file"),
        (["webp rgba"], 4, "uint8", "image-file"),
    ],
)
def test_format_channels_and_depth_are_those_that_all_need(names: list[str], channels: int, dtype: str, codec: str):
    feature = column_feature(*names)
    assert feature == Image((20, 30, channels), dtype, codec=codec)
    for name in names:
        check_image(blob(name), feature)


def test_varying_pictures_are_of_any_size_and_format():
    assert column_feature("png rgb", is_varying=True) == Image((None, None, 3), codec="image-file")
    assert column_feature("png grey 16", is_varying=True) == Image((None, None, 1), "uint16", codec="png")


@pytest.mark.parametrize("data", [b"GIF89a..", b"", b"\x89PNG\r\n\x1a\n"], ids=repr)
def test_others_are_refused_with_what_they_begin_with(data: bytes):
    with pytest.raises(DecodeError, match="no JPEG, PNG or WebP file, or cut off: it begins with"):
        image_head(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize(("name", "known"), [("png rgb", "png grey"), ("png rgba", "png rgb"), ("webp", "jpeg rgb")])
def test_what_would_lose_something_or_is_of_another_format_is_refused(name: str, known: str):
    with pytest.raises(DecodeError, match=r"a (png|webp) file of \d channels of uint8, the feature is"):
        check_image(blob(name), column_feature(known))


def test_a_damaged_header_is_refused():
    damaged = blob("png palette 4").copy()
    damaged[18] ^= 1
    with pytest.raises(DecodeError, match="the checksum of its header is wrong"):
        image_head(damaged)
