"""The registry, and the round trip of every lossless codec over any feature that it takes."""

from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.codecs import Codec, codec_names, make_codec, register_codec
from stepwell.errors import SchemaError
from stepwell.schema import Array
from stepwell.testing import features, values


def same(a: Any, b: Any) -> bool:
    if isinstance(b, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return type(a) is type(b) and a == b


@settings(max_examples=150)
@given(st.data())
def test_lossless_codecs_give_back_any_value_of_any_feature_bit_for_bit(data: st.DataObject) -> None:
    feature = data.draw(features())
    codec, value = make_codec(feature), data.draw(values(feature))
    blob = np.frombuffer(codec.encode(value), np.uint8)
    assert same(codec.decode(blob), value)
    if not feature.is_ragged:
        out = np.zeros(feature.fixed_shape, feature.np_dtype)
        codec.decode_into(blob, out)
        assert same(out, value)


@pytest.mark.parametrize("name", ["raw", "zstd", "jpeg", "png"])
def test_built_in_codecs_are_known_by_name(name: str) -> None:
    assert name in codec_names()


def test_unknown_codec_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SchemaError, match=r"no codec 'mp3'\. There are: .*jpeg, png, raw, .*zstd"):
        make_codec(Array(2, codec="mp3"))


def test_built_in_name_cannot_be_taken_by_another_codec() -> None:
    class Mine(Codec):
        name: ClassVar[str] = "png"

    with pytest.raises(SchemaError, match="'png' is taken by stepwell"):
        register_codec(Mine)  # type: ignore[type-abstract]


def test_name_of_one_users_codec_cannot_be_taken_by_another() -> None:
    def make(qualname: str) -> type[Codec]:
        return type(
            "Mine",
            (Codec,),
            {"name": "test-twice", "__qualname__": qualname, "__module__": __name__},
        )

    first = make("First")
    assert register_codec(first) is first
    assert register_codec(make("First")) is not first, "the module was reloaded"
    with pytest.raises(SchemaError, match=r"taken by .*\.First"):
        register_codec(make("Second"))
