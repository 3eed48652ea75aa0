"""Reading by runs: each is decoded once, and what is damaged is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.codecs import make_codec
from stepwell.errors import CorruptSegmentError, DecodeError
from stepwell.schema import Array
from stepwell.store import Store, create
from stepwell.store.decode import StoredRows
from stepwell.testing import RunningCodec, tiny_store

SHAPE = (2, 3)
RUNNING = Array(SHAPE, "int32", codec="running")


def values(number: int, length: int) -> np.ndarray:
    """Return the rows of an episode; no two rows of any episodes are equal."""
    return (10_000 * number + np.arange(length * 6).reshape(length, *SHAPE)).astype(np.int32)


def test_statistics_are_those_of_a_raw_column(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"front": RUNNING, "raw": Array(SHAPE, "int32")})
    with store.writer() as writer:
        for number in range(4):
            writer.add_episode({"front": values(number, 11), "raw": values(number, 11)})
    found = store.statistics()
    for field in ("count", "min", "max", "mean", "std"):
        assert np.array_equal(getattr(found["front"], field), getattr(found["raw"], field))


def damage(store: Store, row: int) -> None:
    """Make a row of the store's only segment one that cannot be decoded."""
    (segment,) = store.segments
    begin = int(segment.offsets_map("front")[row])
    path = segment.path / "front.bin"
    data = bytearray(path.read_bytes())
    data[begin] ^= 0x40
    path.write_bytes(data)


def test_a_damaged_run_is_one_finding_that_names_its_rows(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"front": RUNNING})
    with store.writer() as writer:
        for number in range(3):
            writer.add_episode({"front": values(number, 10)})
    damage(store, 16)
    (segment,) = store.segments
    with pytest.raises(
        DecodeError,
        match=rf"a.well: episode 1, steps 4 to 7, feature 'front' \(front.bin of segment {segment.name}\): row 2",
    ):
        store[1]["front"]
    assert np.array_equal(store[2]["front"], values(2, 10))
    (found,) = store.verify().findings
    assert "crc32" in found.problem
    (segment.path / "segment.json").unlink()
    found_deep = {finding.file: finding.problem for finding in store.verify(deep=True).findings}
    told = found_deep[f"segments/{segment.name}/front.bin"]
    assert "1 run cannot be decoded" in told
    assert "episode 1 of the segment, steps 4 to 7" in told
    assert "row 2 of a run" in told


def test_an_episode_that_begins_no_run_is_found(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"front": RUNNING})
    with store.writer() as writer:
        for number in range(2):
            writer.add_episode({"front": values(number, 6)})
    (segment,) = store.segments
    begin = int(segment.offsets_map("front")[6])
    path = segment.path / "front.bin"
    data = bytearray(path.read_bytes())
    data[begin] ^= 1
    path.write_bytes(data)
    (segment.path / "segment.json").unlink()
    problems = [finding.problem for finding in store.verify(deep=True).findings if finding.file.endswith("front.bin")]
    assert len(problems) == 1
    assert "row 6, which begins episode 1 of the segment and no run" in problems[0]
    data[0] ^= 1
    path.write_bytes(data)
    with pytest.raises(DecodeError, match=r"episode 0, step 0, .*: no row at or before it begins a run"):
        store[0]["front"]


def test_a_run_is_decoded_once_for_all_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = create(tmp_path / "a.well", {"front": RUNNING})
    with store.writer() as writer:
        writer.add_episode({"front": values(0, 10)})
    calls = []
    decode_run = RunningCodec.decode_run

    def counted(self: Any, blobs: Any, wanted: Any, outs: Any, size: Any = None) -> None:
        calls.append((len(blobs), list(wanted)))
        decode_run(self, blobs, wanted, outs, size)

    monkeypatch.setattr(RunningCodec, "decode_run", counted)
    assert np.array_equal(store.segments[0].read_rows("front", 2, 9), values(0, 10)[2:9])
    assert calls == [(4, [2, 3]), (4, [0, 1, 2, 3]), (1, [0])]


def test_offsets_that_lead_astray_are_an_error_and_no_crash(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"front": RUNNING})
    with store.writer() as writer:
        writer.add_episode({"front": values(0, 10)})
    (segment,) = store.segments
    path = segment.path / "front.npy"
    intact = path.read_bytes()
    errors = 0
    for row in range(1, 11):
        data = bytearray(intact)
        begin = len(intact) - 8 * (11 - row)
        data[begin : begin + 8] = (2**63 + row).to_bytes(8, "little")
        path.write_bytes(data)
        try:
            found = store[0]["front"]
        except (CorruptSegmentError, DecodeError):
            errors += 1
        else:
            assert np.array_equal(found, values(0, 10))
    assert errors >= 9


@pytest.mark.parametrize(
    ("offsets", "size", "wrong"),
    [
        ([0, 5, 4, 9], 9, [1]),
        ([0, 5, 9, 10], 8, [1, 2]),
        ([0, 1 << 63, 1 << 63, 5], 9, [0, 1, 2]),
        ([0, 5, 2**64 - 1, 2**64 - 1], 9, [1, 2]),
        ([0, 10, 10, 10], 9, [0, 1, 2]),
        ([0, 5, 5, 9], 9, []),
    ],
)
def test_a_row_lies_between_offsets_that_rise_within_the_file(offsets: list[int], size: int, wrong: list[int]) -> None:
    stored = StoredRows("x", make_codec(RUNNING), np.array(offsets, np.uint64), np.zeros(size, np.uint8), 3)
    for row in range(3):
        if row in wrong:
            with pytest.raises(CorruptSegmentError, match=rf"x.npy: the offsets of row {row} do not fit x.bin"):
                stored.edges(row, row + 1)
        else:
            assert stored.edges(row, row + 1) == offsets[row : row + 2]


def test_info_tells_what_a_step_takes(tmp_path: Path) -> None:
    store = tiny_store(tmp_path / "a.well", schema={"front": Array((40, 40), "int32", codec="running")})
    row = store.info().features[0]
    assert row.step_bytes is not None
    assert 6401 < row.step_bytes < 6500
    assert str(store.info()).splitlines()[1].endswith("(1.0x)  6.42 kB a step")


def stored_rows(store: Store) -> StoredRows:
    (segment,) = store.segments
    return segment.stored_rows("front")


def test_rows_of_any_choice_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feature = Array(SHAPE, "int32", codec="running", run=9)
    store = create(tmp_path / "a.well", {"front": feature})
    with store.writer() as writer:
        writer.add_episode({"front": values(0, 30)})
    stored = stored_rows(store)
    rng = np.random.default_rng(0)
    # few values at a time: runs are cut, and joined
    for held in (1, 4 * 24, 12 * 24, 1 << 20):
        monkeypatch.setattr("stepwell.store.decode.OUT_BYTES", held)
        for count in (0, 1, 7, 30):
            rows = np.sort(rng.choice(30, count, replace=False))
            found = [row.copy() for row in stored.values(rows.tolist())]
            assert np.array_equal(np.array(found).reshape(-1, *SHAPE), values(0, 30)[rows])


def test_runs_longer_than_a_look_are_found(tmp_path: Path) -> None:
    store = create(tmp_path / "a.well", {"front": Array(SHAPE, "int32", codec="running", run=1000)})
    with store.writer() as writer:
        writer.add_episode({"front": values(0, 1700)})
    stored = stored_rows(store)
    assert [stored.run_of(row) for row in (0, 999, 1000, 1699)] == [(0, 1000)] * 2 + [(1000, 1700)] * 2
    assert np.array_equal(store.segments[0].read_rows("front", 990, 1003), values(0, 1700)[990:1003])
