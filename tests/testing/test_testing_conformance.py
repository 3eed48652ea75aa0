"""The conformance class finds the faults that it is there for."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from stepwell.codecs import Codec, register_codec
from stepwell.codecs.raw import Payload
from stepwell.schema import Array, Feature
from stepwell.testing import CodecConformance


class Plain(Codec):
    """A codec with nothing wrong but that it knows no options and so refuses none."""

    name: ClassVar[str] = "test-plain"

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        self.payload = Payload(feature)

    def encode(self, value: Any) -> bytes:
        return bytes(self.payload.pack(value))

    def decode(self, blob: np.ndarray) -> Any:
        return self.payload.unpack(blob.copy())

    def decode_into(self, blob: np.ndarray, out: np.ndarray) -> None:
        self.payload.unpack_into(blob, out)


@register_codec
class ForgetsLastBit(Plain):
    name: ClassVar[str] = "test-forgets"

    def encode(self, value: Any) -> bytes:
        return super().encode(value & ~1)


@register_codec
class ReturnsTheMap(Plain):
    name: ClassVar[str] = "test-map"

    def decode(self, blob: np.ndarray) -> Any:
        return self.payload.unpack(blob)


@register_codec
class DecodesTwoWays(Plain):
    name: ClassVar[str] = "test-two-ways"

    def decode_into(self, blob: np.ndarray, out: np.ndarray) -> None:
        super().decode_into(blob, out)
        out += 1


@register_codec
class CrashesOnShortRows(Plain):
    name: ClassVar[str] = "test-crash"

    def decode(self, blob: np.ndarray) -> Any:
        return np.frombuffer(blob.tobytes(), self.feature.np_dtype).reshape(self.feature.fixed_shape).copy()

    decode_into = Plain.decode_into


@register_codec
class WritesBeside(Plain):
    name: ClassVar[str] = "test-beside"

    def decode_into(self, blob: np.ndarray, out: np.ndarray) -> None:
        super().decode_into(blob, out)
        if out.base is not None:
            out.base[0] = 0


FAULTS: list[tuple[str, Callable[[CodecConformance], None]]] = [
    ("test-forgets", CodecConformance.test_round_trip_keeps_the_value),
    ("test-map", CodecConformance.test_decode_returns_memory_of_its_own),
    ("test-two-ways", CodecConformance.test_decode_and_decode_into_agree),
    ("test-crash", CodecConformance.test_truncated_row_is_refused),
    ("test-beside", CodecConformance.test_corrupt_row_is_refused_or_harmless),
    ("test-map", CodecConformance.test_unknown_option_is_refused),
]


@pytest.mark.parametrize(("codec", "test"), FAULTS)
def test_conformance_finds_the_fault(codec: str, test: Callable[[CodecConformance], None]) -> None:
    class Conformance(CodecConformance):
        feature = Array(64, "int32", codec=codec)

    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        test(Conformance())


def test_conformance_finds_changes_that_a_codec_claims_to_detect() -> None:
    class Conformance(CodecConformance):
        feature = Array(64, "int32")
        detects_changes = True

    with pytest.raises(AssertionError):
        Conformance().test_corrupt_row_is_refused_or_harmless()


def test_conformance_finds_a_lossy_codec_below_its_bound() -> None:
    class Conformance(CodecConformance):
        feature = Array((32, 32, 3), "uint8", codec="jpeg", quality=1)
        is_lossless = False
        min_psnr_db = 40.0

    with pytest.raises(AssertionError):
        Conformance().test_round_trip_keeps_the_value()
