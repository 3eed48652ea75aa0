"""A feature prints as the call that makes it."""

import numpy as np
import pytest

from stepwell.errors import SchemaError
from stepwell.schema import Array, Bytes, Feature, Image, Text, Video


@pytest.mark.parametrize(
    ("feature", "text"),
    [
        (Array(), "Array()"),
        (Array(3), "Array(3)"),
        (Array((), "int64"), 'Array((), "int64")'),
        (Array((None, 3), "float64"), 'Array((None, 3), "float64")'),
        (Array(2, ">f8", names=["x", "y"], final=True), "Array(2, \">f8\", names=('x', 'y'), final=True)"),
        (Array((), np.dtype([("a", "<f4"), ("b", "<i2")])), "Array((), [('a', '<f4'), ('b', '<i2')])"),
        (Array(2, "U20"), 'Array(2, "<U20")'),
        (Image((96, 96, 3)), "Image((96, 96, 3))"),
        (Image((96, 96, 3), codec="jpeg", quality=90), 'Image((96, 96, 3), codec="jpeg", quality=90)'),
        (Image((96, 96), "uint16", codec="png"), 'Image((96, 96), "uint16", codec="png")'),
        (Image((None, None, 3), codec="jpeg"), 'Image((None, None, 3), codec="jpeg")'),
        (Video((96, 128, 3)), "Video((96, 128, 3))"),
        (Video((96, 128), encoder="av1", gop=10), 'Video((96, 128), encoder="av1", gop=10)'),
        (Text(), "Text()"),
        (Bytes(codec="zstd", final=True), 'Bytes(codec="zstd", final=True)'),
    ],
)
def test_a_feature_prints_as_the_call_that_makes_it(feature: Feature, text: str) -> None:
    assert repr(feature) == text
    assert eval(text) == feature


def test_an_option_that_video_has_not_is_refused_with_those_it_has() -> None:
    with pytest.raises(SchemaError, match=r"no option 'quality'\. Allowed: encoder, gop, crf"):
        Video((96, 128, 3), quality=90)


def test_long_options_are_cut() -> None:
    feature = Text(codec="file-span", files="\n".join(f"{n}.txt" for n in range(1000)), root="/data")
    assert repr(feature).startswith('Text(codec="file-span", files="0.txt\\n1.txt\\n') and len(repr(feature)) < 400
    assert repr(feature).endswith('...", root="/data")')
