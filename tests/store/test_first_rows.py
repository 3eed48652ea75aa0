"""A mistake in a codec of one's own is an error of the first row that is written."""

from typing import Any, ClassVar

import numpy as np
import pytest

import stepwell
from stepwell.codecs import Codec, register_codec
from stepwell.errors import EncodeError, SchemaError


class Wrong(Codec):
    """Give back what the test says."""

    name = "wrong-of-first-rows"
    encoded: ClassVar[Any] = b"row"
    decoded: ClassVar[Any] = None

    def encode(self, value: Any) -> Any:
        return self.encoded

    def decode(self, blob: Any) -> Any:
        return self.decoded


register_codec(Wrong)


@pytest.mark.parametrize(
    ("feature", "encoded", "decoded", "message"),
    [
        ("array", 3, None, "'wrong-of-first-rows' of feature 'state': encode returned a int. It must return bytes"),
        ("array", b"", np.zeros(2, "f4"), r"decode returned float32 \(2,\), where float32 \(3,\) was encoded"),
        ("array", b"", np.zeros(3, "f8"), r"decode returned float64 \(3,\)"),
        ("array", b"", [0.0, 0.0, 0.0], "decode returned a list"),
        ("text", b"", b"text", "decode returned bytes, where text was encoded"),
    ],
)
def test_a_codec_that_does_not_give_back_a_row_is_named_when_the_first_is_written(
    tmp_path, monkeypatch, feature: str, encoded: Any, decoded: Any, message: str
) -> None:
    monkeypatch.setattr(Wrong, "encoded", encoded)
    monkeypatch.setattr(Wrong, "decoded", decoded)
    made = stepwell.Array(3, codec=Wrong.name) if feature == "array" else stepwell.Text(codec=Wrong.name)
    store = stepwell.create(tmp_path / "s.well", {"state": made})
    value = np.zeros(3, "f4") if feature == "array" else "text"
    with store.writer() as writer:
        with pytest.raises(EncodeError, match=message):
            writer.append({"state": value})
        with pytest.raises(EncodeError, match=message):
            writer.add_episode({"state": [value, value]})


def test_a_codec_without_a_name_is_refused() -> None:
    class Nameless(Codec):
        def encode(self, value: Any) -> bytes:
            return b""

        def decode(self, blob: Any) -> Any:
            return None

    with pytest.raises(SchemaError, match="Nameless has no name"):
        register_codec(Nameless)
