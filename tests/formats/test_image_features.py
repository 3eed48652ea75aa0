"""What a picture file is shows in its head; what no store keeps, or would lose something, is refused."""

import numpy as np
import pytest
from kinds_of_images import image_files

from stepwell.errors import DecodeError, FormatError
from stepwell.formats.images import check_image, image_feature, image_head
from stepwell.schema import Image

pytest.importorskip("simplejpeg")
pytest.importorskip("imagecodecs")

FILES = {name: np.frombuffer(kind.data, np.uint8) for name, kind in image_files(16, 24).items()}


def feature_of(*names: str, **options: bool):
    return image_feature((image_head(FILES[name]) for name in names), "camera", **options)


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
    feature = feature_of(*names)
    assert feature == Image((16, 24, channels), dtype, codec=codec)
    for name in names:
        check_image(FILES[name], feature)


def test_varying_pictures_are_of_any_size_and_format():
    assert feature_of("png rgb", is_varying=True) == Image((None, None, 3), codec="image-file")
    assert feature_of("png grey 16", is_varying=True) == Image((None, None, 1), "uint16", codec="png")


@pytest.mark.parametrize("data", [b"GIF89a..", b"", b"\x89PNG\r\n\x1a\n"], ids=repr)
def test_others_are_refused_with_what_they_begin_with(data: bytes):
    with pytest.raises(DecodeError, match="no JPEG, PNG or WebP file, or cut off: it begins with"):
        image_head(np.frombuffer(data, np.uint8))


@pytest.mark.parametrize(("name", "known"), [("png rgb", "png grey"), ("png rgba", "png rgb"), ("webp", "jpeg rgb")])
def test_what_would_lose_something_or_is_of_another_format_is_refused(name: str, known: str):
    with pytest.raises(DecodeError, match=r"a (png|webp) file of \d channels of uint8, the feature is"):
        check_image(FILES[name], feature_of(known))


def test_8_and_16_bits_are_refused():
    with pytest.raises(FormatError, match="camera: images of 8 and of 16 bits"):
        feature_of("png rgb", "png rgb 16")


def test_a_damaged_header_is_refused():
    damaged = FILES["png palette 4"].copy()
    damaged[18] ^= 1
    with pytest.raises(DecodeError, match="the checksum of its header is wrong"):
        image_head(damaged)
