"""What image files say of themselves in their first bytes."""

import pytest

from stepwell.codecs.image_files import HEAD_BYTES, ImageHead, read_image_head
from stepwell.testing import image_files

pytest.importorskip("imagecodecs")

FILES = image_files(20, 30)


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
