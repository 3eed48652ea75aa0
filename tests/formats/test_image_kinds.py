"""One feature for images of several kinds: nothing of them is lost in it."""

import pytest

from stepwell.codecs.image_heads import ImageHead, read_image_head
from stepwell.errors import FormatError
from stepwell.formats.image_kinds import ImageKinds, holds
from stepwell.schema import Image
from stepwell.testing import image_files

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
