"""Options of codecs are refused when the codec is made: by name, with what was got and what is allowed."""

import sys

import pytest

from stepwell.codecs import make_codec
from stepwell.errors import MissingDependencyError, SchemaError
from stepwell.schema import Array, Bytes, Feature, Image, Text

RGB = (8, 8, 3)


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        (Image(RGB, codec="jpeg", quality=0), "'quality'.*is 0.*1 to 100"),
        (Image(RGB, codec="jpeg", quality=101), "'quality'.*is 101.*1 to 100"),
        (Image(RGB, codec="jpeg", quality=90.5), "'quality'.*is 90.5.*integer"),
        (Image(RGB, codec="jpeg", quality=True), "'quality'.*is True.*integer"),
        (Image(RGB, codec="jpeg", subsampling="4:2:0"), "'subsampling'.*'4:2:0'.*'444', '422', '420'"),
        (Image(RGB, codec="jpeg", subsampling=420), "'subsampling'.*is 420"),
        (Image((8, 8), codec="jpeg", subsampling="444"), "'subsampling'.*'444'.*Allowed: 'gray'"),
        (Image(RGB, codec="jpeg", level=1), "'jpeg' has no option 'level'.*quality, subsampling"),
        (Image(RGB, codec="png", level=10), "'level'.*is 10.*0 to 9"),
        (Image(RGB, codec="png", level=-1), "'level'.*is -1.*0 to 9"),
        (Image(RGB, codec="png", quality=90), "'png' has no option 'quality'.*level"),
        (Array(3, codec="zstd", level=0), "'level'.*is 0.*1 to 22"),
        (Array(3, codec="zstd", level=23), "'level'.*is 23.*1 to 22"),
        (Array(3, codec="zstd", level="3"), "'level'.*is '3'.*integer"),
        (Array((None, 3), level=3), "'raw' has no option 'level'. It has none."),
        (Text(codec="zstd", speed=3), "'zstd' has no option 'speed'"),
    ],
)
def test_wrong_option_is_refused_with_name_value_and_what_is_allowed(feature: Feature, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        make_codec(feature)


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        (Image((8, 8, 4), codec="jpeg"), r'"jpeg" cannot store uint8 \(8, 8, 4\).*"png"'),
        (Image(RGB, "uint16", codec="jpeg"), '"jpeg" cannot store uint16.*"png" for uint16'),
        (Image((8, 8), "float32", codec="jpeg"), '"zstd" for anything else'),
        (Array((8,), "uint8", codec="jpeg"), '"jpeg" cannot store'),
        (Array((None, 8), "uint8", codec="jpeg"), '"jpeg" cannot store'),
        (Array((0, 8), "uint8", codec="jpeg"), "sides of 1"),
        (Array((70_000, 8), "uint8", codec="jpeg"), "sides of 1 to 65500"),
        (Bytes(codec="jpeg"), '"jpeg" cannot store'),
        (Image((8, 8), "float32", codec="png"), '"png" cannot store float32.*codec="zstd" for floats'),
        (Image((8, 8), "int16", codec="png"), '"png" cannot store int16'),
        (Image((8, 8), ">u2", codec="png"), '"png" cannot store'),
        (Array((8, 8, 2), "uint8", codec="png"), '"png" cannot store'),
        (Array((None, 8), "uint8", codec="png"), '"png" cannot store'),
        (Array((8, 0), "uint8", codec="png"), "sides of 1"),
        (Text(codec="png"), '"png" cannot store'),
    ],
)
def test_feature_that_a_codec_cannot_store_is_refused_with_one_that_can(feature: Feature, words: str) -> None:
    with pytest.raises(SchemaError, match=words):
        make_codec(feature)


@pytest.mark.parametrize(
    ("feature", "package", "extra"),
    [
        (Image(RGB, codec="jpeg"), "simplejpeg", "image"),
        (Image(RGB, codec="png"), "imagecodecs", "image"),
        (Text(codec="zstd"), "zstandard", "zstd"),
    ],
)
def test_missing_library_says_the_pip_line(
    feature: Feature, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_codec(feature)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf'{package} is not installed.*"stepwell\[{extra}\]"'):
        make_codec(feature)
