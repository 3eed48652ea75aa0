"""Rows that lie in files of somebody else's: references, and columns of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.codecs.codec import register_codec
from stepwell.errors import DecodeError, EncodeError, SchemaError, StepError
from stepwell.references.file_codec import NumberedFileCodec, file_template, make_references, parse_references
from stepwell.schema import Array, Feature

NUMBERS = st.integers(-(2**31), 2**31 - 1)
TIMES = st.floats(allow_nan=False)


class Bytes:
    """Rows of two bytes: the number of the file and the place."""

    def __init__(self, blobs: Sequence[Any]) -> None:
        self._rows = [bytes([row["file"], int(row["at"])]) for row in parse_references(blobs)]
        self.num_rows = len(self._rows)

    def rows(self, feature: Feature) -> Any:
        return iter(self._rows)


@register_codec
class NumberedCodec(NumberedFileCodec):
    """A row is two numbers: that of its file and its place there; no file is ever read."""

    name = "numbered-for-tests"
    option_names = ("files",)

    def decode(self, blob: Any) -> Any:
        row = parse_references([blob])[0]
        return np.array([row["file"], row["at"]], np.uint8)

    def embedded(self) -> Feature:
        return Array(2, "uint8", codec="zstd")

    def embed(self, blobs: Sequence[Any]) -> Bytes:
        return Bytes(blobs)


def feature(files: Any = "/data/{chunk}/{file}") -> Feature:
    return Array(2, "uint8", codec="numbered-for-tests", files=files)


@settings(max_examples=40)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, TIMES), min_size=1))
def test_references_come_back_as_they_were(rows: list[tuple[int, int, float]]) -> None:
    blobs = make_references(*zip(*rows, strict=True))
    assert {len(blob) for blob in blobs} == {16}
    found = parse_references([np.frombuffer(blob, np.uint8) for blob in blobs])
    assert found.tolist() == rows


def test_one_number_stands_for_all_rows() -> None:
    assert make_references(1, [2, 3], 0.5) == make_references([1, 1], [2, 3], [0.5, 0.5])
    assert len(make_references(1, 2, 3.0)) == 1


def test_row_that_is_no_reference_is_refused() -> None:
    with pytest.raises(DecodeError, match="a row of 3 bytes"):
        parse_references([np.zeros(16, np.uint8), np.zeros(3, np.uint8)])


def test_path_follows_the_template_whatever_is_in_the_directory_s_name() -> None:
    files = file_template("/a {b}/{chunk}/", "chunk-{chunk:03d}/file-{file:03d}.mp4")
    assert NumberedCodec(feature(files)).path_of(2, 17) == "/a {b}/{chunk}/chunk-002/file-017.mp4"


@pytest.mark.parametrize("files", [None, 7, "", "/a/{episode}", "/a/{chunk", "/a/{0}", "/a/{chunk.x}", "/a/{chunk:q}"])
def test_template_that_is_none_is_refused(files: Any) -> None:
    with pytest.raises(SchemaError, match=r"option 'files' .*Allowed: a path with \{chunk\} and \{file\}"):
        NumberedCodec(feature(files))


def test_new_rows_are_refused_and_it_is_said_what_can_be_stored() -> None:
    with pytest.raises(EncodeError, match=r'cannot store new rows.*make_references.*codec="zstd"'):
        NumberedCodec(feature()).encode(np.zeros(2, np.uint8))


def test_store_of_references_is_written_and_read_while_no_file_is_there(tmp_path: Any) -> None:
    store = stepwell.create(tmp_path / "a.well", {"numbers": feature(), "step": Array((), "int64")})
    with store.writer() as writer:
        rows = stepwell.EncodedRows(make_references(0, [1, 1, 2], [4, 5, 6]))
        writer.add_episode({"numbers": rows, "step": np.arange(3)})
    store.close()
    with stepwell.open(tmp_path / "a.well") as again:
        assert again[0]["numbers"].tolist() == [[1, 4], [1, 5], [2, 6]]


def test_row_of_another_size_is_refused_when_it_is_written(tmp_path: Any) -> None:
    store = stepwell.create(tmp_path / "a.well", {"numbers": feature()})
    with store.writer() as writer, pytest.raises(StepError, match="a row of 2 bytes"):
        writer.add_episode({"numbers": stepwell.EncodedRows([b"ab"])})
