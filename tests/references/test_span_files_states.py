"""What files were when references into them were made."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.codecs import make_codec
from stepwell.errors import DecodeError, SchemaError
from stepwell.references import remote_files
from stepwell.references.file_codec import noting_states
from stepwell.references.file_spans import make_spans, span_feature
from stepwell.references.remote_files import remote_states
from stepwell.references.span_files import difference, noted_states, problem_of
from stepwell.schema import Array, Bytes

TIME = 1_763_728_999_123_456_789


@pytest.fixture
def path(tmp_path: Path) -> str:
    place = tmp_path / "a.bin"
    place.write_bytes(bytes(1240))
    os.utime(place, ns=(0, TIME))
    return str(place)


def test_a_file_that_is_as_it_was_differs_in_nothing(path: str) -> None:
    assert difference(path, f"1240 {TIME}") is None
    assert difference(path, "") is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            f"1240 {TIME - 1000}",
            "it had 1,240 bytes, last changed 2025-11-21 12:43:19.123455 UTC; it has 1,240 bytes, ",
        ),
        (f"1241 {TIME}", "it had 1,241 bytes, last changed 2025-11-21 12:43:19.123456 UTC; it has 1,240 bytes, "),
        ("1240 91ab03cd77e2", "it had 1,240 bytes, version 91ab03cd77e2; it has 1,240 bytes, last changed "),
        ("nonsense", "it had version ; it has 1,240 bytes, "),
        ("1240 0", r"it had 1,240 bytes, last changed 1970-01-01 00:00:00 UTC; "),
    ],
)
def test_a_file_that_is_another_is_told_by_what_was_and_what_is(path: str, line: str, told: str) -> None:
    found = difference(path, line)
    assert found is not None and told in found and "Open the data set again" in found


def test_a_file_that_is_lost_is_a_problem_too(path: str) -> None:
    assert problem_of(path, f"1240 {TIME}") is None
    Path(path).unlink()
    assert "there is no such file" in str(problem_of(path, f"1240 {TIME}"))


def test_states_are_of_all_files_or_of_none(path: str) -> None:
    feature = span_feature(Bytes(), [path])
    assert make_codec(noting_states(feature, noted_states([(1240, TIME)]))).decode(make_spans(0, 0, 2)[0]) == b"\0\0"
    with pytest.raises(SchemaError, match="states of 2 files, where 1 are"):
        make_codec(noting_states(feature, noted_states([(1240, TIME), None])))


def test_a_file_that_was_looked_at_is_not_looked_at_for_its_note_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = make_codec(noting_states(span_feature(Array(2), [path]), noted_states([(1240, TIME)])))
    spans, out = make_spans(0, [0, 8], 8), np.empty((2, 2), np.float32)
    codec.decode_rows(spans, out)
    monkeypatch.setattr("stepwell.references.span_files.difference", None)
    codec.decode_rows(spans, out)
    codec.decode(spans[0])


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    fsspec = pytest.importorskip("fsspec")
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("stepwell.references.remote_files._STATES", {})
    return fsspec.filesystem("memory")


@pytest.mark.parametrize("is_read", [False, True])
def test_a_file_of_another_machine_is_told_by_its_version(memory: Any, tmp_path: Path, is_read: bool) -> None:
    address = f"memory://test_file_states/{is_read}.bin"
    memory.pipe(address, b"0123456789")
    state = remote_states([address])[0]
    line = f"{state.num_bytes} {state.version}"
    codec = make_codec(noting_states(span_feature(Bytes(), [address]), line))
    if is_read:
        assert codec.decode(make_spans(0, 2, 3)[0]) == b"234"
    memory.pipe(address, b"abcdefghij")
    # as another process does, or one that opens the data set again
    remote_states([address])
    if is_read:
        for path in (tmp_path / "cache" / "remote").glob("*.bin"):
            path.unlink()
    with pytest.raises(DecodeError, match=rf"{is_read}\.bin: the file is another one.*it had 10 bytes, version"):
        codec.decode(make_spans(0, 2, 3)[0])


def test_a_file_that_goes_from_the_cache_before_it_is_used_is_fetched_again(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = "memory://test_file_states/small_cache.bin"
    memory.pipe(address, bytes(range(16)))
    codec = make_codec(span_feature(Bytes(), [address]))
    numbers = make_codec(span_feature(Array(2, "int8"), [address]))
    fetched, gone, local_path = [], [1, 2, 3], remote_files.local_path

    def unlucky(path: str) -> str:
        found = local_path(path)
        fetched.append(found)
        if gone and gone.pop():
            Path(found).unlink()
        return found

    monkeypatch.setattr(remote_files, "local_path", unlucky)
    assert codec.decode(make_spans(0, 2, 3)[0]) == bytes([2, 3, 4]) and len(fetched) == 4
    out = np.zeros((1, 2), np.int8)
    gone.extend([1, 2])
    numbers.decode_rows(make_spans(0, 4, 2), out)
    assert out.tolist() == [[4, 5]] and len(fetched) == 7
    gone.extend([1] * 100)
    with pytest.raises(DecodeError, match="goes from the cache as soon as it is there"):
        make_codec(span_feature(Bytes(), [address])).decode(make_spans(0, 2, 3)[0])
