"""What a picture file is shows in its head; what no store keeps is refused."""

import numpy as np
import pytest

from stepwell.codecs import make_codec
from stepwell.errors import DecodeError
from stepwell.readers.pictures import picture_codec
from stepwell.schema import Image

pytest.importorskip("simplejpeg")
imagecodecs = pytest.importorskip("imagecodecs")


@pytest.mark.parametrize(
    ("name", "channels", "dtype"),
    [("png", 3, "uint8"), ("png", 1, "uint8"), ("png", 4, "uint8"), ("png", 1, "uint16"), ("jpeg", 3, "uint8")],
)
def test_format_channels_and_depth_are_found(name: str, channels: int, dtype: str):
    file = make_codec(Image((16, 24, channels), dtype, codec=name)).encode(np.zeros((16, 24, channels), dtype))
    codec = picture_codec(np.frombuffer(file, np.uint8))
    assert codec.feature == Image((None, None, channels), dtype, codec=name)


def test_others_are_refused_with_what_they_are():
    with pytest.raises(DecodeError, match="neither PNG nor JPEG: it begins with b'GIF89a"):
        picture_codec(np.frombuffer(b"GIF89a..", np.uint8))
    with pytest.raises(DecodeError, match="neither PNG nor JPEG"):
        picture_codec(np.empty(0, np.uint8))
    grey_and_alpha = imagecodecs.png_encode(np.zeros((4, 5, 2), np.uint8))
    with pytest.raises(DecodeError, match="but of 8-bit"):
        picture_codec(np.frombuffer(grey_and_alpha, np.uint8))
