"""Blocks hold all that the windows of their anchors reach, within the target, and are cut at sync rows."""

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array, DecodeError, Decoder, Field, LoaderError, Schema, Store, Text, View, WindowError
from stepwell.codecs import make_codec
from stepwell.kernels.draws import Draws
from stepwell.store import concatenate, create
from stepwell.testing import tiny_store
from stepwell.testing.codecs import RunningCodec
from stepwell.windows import Blocks, HeldRows, WindowReader, aligned_empty
from stepwell.windows.blocks import cut_blocks, piece_bytes
from stepwell.windows.computed import window_rows
from stepwell.windows.plans import (
    PIECE_ANCHOR,
    PIECE_FIRST,
    PIECE_HI_FINAL,
    PIECE_HI_STEP,
    PIECE_LAST,
    PIECE_LO,
    PIECE_SEGMENT,
    Reach,
    SyncRows,
    reaches,
)

Int64s = npt.NDArray[np.int64]


def reader_of(stores: Any, fields: dict[str, Any]) -> WindowReader:
    return WindowReader(stores if isinstance(stores, View) else View(stores), fields)


def reaches_of(reader: WindowReader) -> tuple[Reach, ...]:
    return reaches(reader.fields.values())


def check(reader: WindowReader, blocks: Blocks, max_bytes: int) -> None:
    """Compare blocks with the index, anchor by anchor."""
    index = reader.index
    anchors = np.arange(index.num_anchors)
    held = reaches_of(reader)
    # a partition of the anchors into blocks, and of each block into pieces
    assert blocks.starts[0] == 0
    assert blocks.starts[-1] == len(anchors)
    assert (np.diff(blocks.starts) > 0).all()
    assert blocks.piece_starts[0] == 0
    assert blocks.piece_starts[-1] == len(blocks.pieces)
    assert np.array_equal(blocks.pieces[blocks.piece_starts[:-1], PIECE_ANCHOR], blocks.starts[:-1])
    assert np.array_equal(blocks.block_of(anchors), np.repeat(np.arange(len(blocks)), np.diff(blocks.starts)))
    check_pieces(reader, blocks, anchors)
    sizes = [int(piece_bytes(held, blocks.pieces[blocks.pieces_of(m)]).sum()) for m in range(len(blocks))]
    assert (blocks.max_bytes, blocks.num_bytes) == (max(sizes, default=0), sum(sizes))
    check_sizes(blocks, sizes, held, max_bytes, reader.view.num_episodes)


def check_pieces(reader: WindowReader, blocks: Blocks, anchors: Int64s) -> None:
    places = reader.index.places(anchors)
    numbers = blocks.piece_of(anchors)
    assert np.array_equal(
        np.repeat(np.arange(len(blocks)), np.diff(blocks.piece_starts))[numbers], blocks.block_of(anchors)
    )
    for number in range(len(blocks.pieces)):
        piece, mine = blocks.pieces[number], places[:, numbers == number]
        # rows that follow each other, in one segment
        assert set(mine[1]) == {piece[PIECE_SEGMENT]}
        assert np.array_equal(mine[2], np.arange(piece[PIECE_FIRST], piece[PIECE_LAST] + 1))
        assert (piece[PIECE_LO], piece[PIECE_HI_STEP], piece[PIECE_HI_FINAL]) == (mine[3, 0], mine[4, -1], mine[5, -1])
    first_rows = {reach.name: reach.rows(blocks.pieces) for reach in reaches_of(reader)}
    for field in reader.fields.values():
        for source in field.sources:
            if source.name in first_rows:
                rows, _ = window_rows(field, source.is_final, places)
                first, stop = (bound[numbers][:, None] for bound in first_rows[source.name])
                assert ((first <= rows) & (rows < stop)).all()


def check_sizes(blocks: Blocks, sizes: Sequence[int], held: Sequence[Reach], max_bytes: int, num_episodes: int) -> None:
    counts = np.diff(blocks.starts)
    beyond = sum((max(reach.last, 0) - min(reach.first, 0)) * reach.row_bytes for reach in held)
    row_bytes = sum(reach.row_bytes for reach in held)
    most = max(1, -(-beyond // max(row_bytes, 1)))
    slack = beyond + most * row_bytes + 64 * len(held)
    assert all(
        size <= max_bytes or (size <= slack and count <= most) for size, count in zip(sizes, counts, strict=True)
    )
    # two that follow each other would not have fitted into one, but for what is rounded up for each episode
    assert all(a + b + 64 * len(held) * num_episodes > max_bytes for a, b in pairwise(sizes))


FIELDS = [
    {"observation": "observation"},
    {"observation": range(-1, 3), "action": range(4)},
    {"observation": Field("observation", range(-2, 2), pad="drop"), "image": [-3, 0]},
    {"later": Field("observation", [3, 5]), "action": Field("action", [-2], pad="zero")},
    {"image": Field("image", [0, 1], pad="drop"), "words": "words"},
    {"words": "words", "step": "step_index"},
]


@pytest.fixture(scope="module")
def view(make_store: Callable[..., Store]) -> View:
    names = ("observation", "action", "image", "words")
    finals = [False, True, False, False, True, True, False]
    first = make_store([5, 30, 9, 6, 1, 2, 17], names, finals=finals, per_segment=3)
    second = make_store([12, 7, 7], names, first=7)
    first.delete_episodes([2])
    first.refresh()
    return View([first, second])


@settings(deadline=None, max_examples=60)
@given(number=st.integers(0, len(FIELDS) - 1), max_bytes=st.integers(1, 6000), data=st.data())
@example(number=1, max_bytes=1, data=None)
@example(number=3, max_bytes=10**9, data=None)
def test_blocks_hold_what_windows_reach_in_any_view(view: View, number: int, max_bytes: int, data: Any) -> None:
    chosen = view
    if data is not None and data.draw(st.booleans()):
        some = data.draw(st.lists(st.integers(0, view.num_episodes - 1), unique=True, min_size=1))
        lengths = view.column("length")[some]
        chosen = view.select(some) if lengths.max() > 4 else view
    reader = reader_of(chosen, FIELDS[number])
    check(reader, reader.index.blocks(max_bytes), max_bytes)


def test_an_index_cuts_the_same_target_once(view: View) -> None:
    index = reader_of(view, FIELDS[1]).index
    assert index.blocks(500) is index.blocks(500)
    assert len(index.blocks(500)) > len(index.blocks(1000))


def test_steps_that_follow_each_other_are_one_piece_and_final_rows_part_them(make_store: Callable[..., Store]) -> None:
    together = reader_of(make_store([4, 5, 6]), {"action": "action"}).index.blocks(10**6)
    assert (len(together), len(together.pieces)) == (1, 1)
    apart = reader_of(make_store([4, 5, 6], finals=True), {"action": "action"}).index.blocks(10**6)
    assert (len(apart), len(apart.pieces)) == (1, 3)
    segments = reader_of(make_store([4, 5, 6], per_segment=1), {"action": "action"}).index.blocks(10**6)
    assert (len(segments), len(segments.pieces)) == (1, 3)


def test_rows_that_go_on_in_another_segment_are_another_piece(make_store: Callable[..., Store]) -> None:
    # rows 0..3 of the first segment, and 4..9 of the second
    view = View(make_store([4, 5, 4, 6], per_segment=2)).select([0, 3])
    reader = reader_of(view, {"action": "action"})
    blocks = reader.index.blocks(10**6)
    assert blocks.pieces[:, [PIECE_SEGMENT, PIECE_FIRST, PIECE_LAST]].tolist() == [[0, 0, 3], [1, 4, 9]]
    check(reader, blocks, 10**6)


def test_long_episodes_are_cut_into_equal_parts(make_store: Callable[..., Store]) -> None:
    # 12 bytes a row, and up to 63 to the next multiple of 64: at most 21 rows in 320
    blocks = reader_of(make_store([100]), {"observation": "observation"}).index.blocks(320)
    assert np.diff(blocks.starts).tolist() == [20] * 5


def test_windows_longer_than_the_target_load_no_row_more_than_about_twice(make_store: Callable[..., Store]) -> None:
    reader = reader_of(make_store([400]), {"observation": range(-20, 20)})
    blocks = reader.index.blocks(100)
    (reach,) = reaches_of(reader)
    first, stop = reach.rows(blocks.pieces)
    assert (stop - first).sum() <= 2 * 400 + 40


def test_a_view_without_episodes_or_anchors_has_no_blocks(make_store: Callable[..., Store]) -> None:
    store = make_store([4, 5])
    blocks = reader_of(View(store).select([]), {"action": "action"}).index.blocks(100)
    assert (len(blocks), len(blocks.pieces), blocks.max_bytes) == (0, 0, 0)
    assert blocks.starts.tolist() == blocks.piece_starts.tolist() == [0]


def test_an_episode_under_way_is_held_as_far_as_it_is_committed(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "live.well", Schema({"x": Array(4)}))
    fields = {"x": range(-1, 2)}
    with store.writer() as writer:
        for _ in range(9):
            writer.append(x=np.zeros(4, np.float32))
        writer.end_episode()
        for _ in range(11):
            writer.append(x=np.zeros(4, np.float32))
        writer.flush()
        store.refresh()
        reader = reader_of(store, fields)
        assert reader.index.num_anchors == 9 + 10
        for max_bytes in (1, 100, 300, 10**6):
            check(reader, reader.index.blocks(max_bytes), max_bytes)


def test_blocks_of_a_billion_anchors_take_memory_for_blocks_only() -> None:
    anchor_starts = np.array([0, 10**9], np.int64)
    records = np.array([[0, 0, 0, 10**9, 10**9]], np.int64)
    reach = Reach("x", 0, 3, False, 8, False, False, (1,), np.dtype(np.int64), None)
    blocks = cut_blocks(anchor_starts, records, [reach], 10**8)
    assert 80 <= len(blocks) <= 81
    assert blocks.max_bytes <= 10**8


SYNC_FEATURE = Array(8, "int16", codec="running", run=5)


class FakeSegment:
    """A segment of encoded rows, as `Segment` hands them out."""

    def __init__(self, lengths: Sequence[int], feature: stepwell.Feature = SYNC_FEATURE) -> None:
        codec = make_codec(feature)
        assert isinstance(codec, RunningCodec)
        encoder = codec.encoder()
        rows: list[bytes] = []
        for length in lengths:
            for step in range(length):
                rows += encoder.put(np.full(8, step, np.int16))
            rows += encoder.end()
        self.name = "00000000-fake"
        self.is_removed = False
        self._offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.uint64)
        self._blob = np.frombuffer(b"".join(rows), np.uint8)
        self.is_sync = np.array([row[0] & 1 for row in rows], np.bool_)

    def offsets_map(self, name: str) -> npt.NDArray[np.uint64]:
        if self.is_removed:
            raise FileNotFoundError(name)
        return self._offsets

    def blob_map(self, name: str) -> npt.NDArray[np.uint8]:
        return self._blob


class FakePart:
    def __init__(self, segment: FakeSegment, feature: stepwell.Feature = SYNC_FEATURE) -> None:
        self.segments = [segment]
        self.store = FakeStore(Schema({"x": feature}))


class FakeStore:
    path = "fake.well"

    def __init__(self, schema: Schema) -> None:
        self.schema = schema


def sync_cut(
    lengths: Sequence[int], first: int, last: int, max_bytes: int, run: int = 5
) -> tuple[Blocks, FakeSegment, tuple[Int64s, Int64s]]:
    """Cut episodes of a sequential column, 16 bytes a row; return also the rows that each piece reaches."""
    feature = Array(8, "int16", codec="running", run=run)
    segment = FakeSegment(lengths, feature)
    reach = Reach("x", first, last, False, 16, True, True, (8,), np.dtype(np.int16), None)
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    zeros = np.zeros(len(lengths), np.int64)
    records = np.stack([zeros, starts[:-1], starts[:-1], starts[1:], starts[1:]], axis=1)
    rows = SyncRows("x", [FakePart(segment, feature)])  # type: ignore[list-item]
    blocks = cut_blocks(starts, records, [reach], max_bytes, rows)
    return blocks, segment, reach.rows(blocks.pieces)


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    offsets=st.tuples(st.integers(-6, 3), st.integers(0, 6)),
    max_bytes=st.integers(1, 1200),
    run=st.integers(1, 12),
)
def test_every_block_begins_to_reach_at_a_sync_row(
    lengths: list[int], offsets: tuple[int, int], max_bytes: int, run: int
) -> None:
    first, last = offsets[0], max(offsets)
    blocks, segment, (first_rows, stop_rows) = sync_cut(lengths, first, last, max_bytes, run)
    begins = first_rows[blocks.piece_starts[:-1]]
    assert segment.is_sync[begins].all()
    assert blocks.starts[-1] == sum(lengths)
    # no more than the target, or what windows reach beyond a run or beyond themselves
    beyond = max(last, 0) - min(first, 0)
    most = max(max_bytes, 16 * (max(run, beyond, 1) + run + beyond) + 64)
    assert blocks.max_bytes <= most
    assert (stop_rows > first_rows).all()


def test_a_cut_goes_back_to_the_nearest_sync_row() -> None:
    # 16 bytes a row, room for 12 rows: 13 anchors would not fit; sync rows are the multiples of 5
    blocks, _, _ = sync_cut([30], 0, 0, 16 * 12 + 63)
    assert blocks.starts.tolist() == [0, 10, 20, 30]
    # windows that reach 2 back: the first row reached is a sync row
    blocks, _, (first_rows, _) = sync_cut([30], -2, 0, 16 * 14 + 63)
    assert (blocks.starts - 2)[1:-1].tolist() == first_rows[1:].tolist()
    assert set(first_rows % 5) == {0}


def test_a_run_longer_than_the_target_is_not_cut() -> None:
    blocks, _, _ = sync_cut([60], 0, 0, 16 * 4, run=20)
    assert blocks.starts.tolist() == [0, 20, 40, 60]
    assert blocks.max_bytes == 320


@pytest.mark.parametrize("is_live", [False, True])
def test_blocks_of_a_store_begin_at_its_sync_rows(tmp_path: Path, is_live: bool) -> None:
    store = stepwell.create(tmp_path / "runs.well", Schema({"x": SYNC_FEATURE}))
    writer = store.writer()
    for length in (33, 4, 41):
        for step in range(length):
            writer.append(x=np.full(8, step, np.int16))
        if length < 41 or not is_live:
            writer.end_episode()
    writer.flush() if is_live else writer.close()
    store.refresh()
    reader = reader_of(store, {"x": range(-1, 2)})
    for max_bytes in (1, 150, 300, 600):
        blocks = reader.index.blocks(max_bytes)
        check_pieces(reader, blocks, np.arange(reader.index.num_anchors))
        (reach,) = reaches_of(reader)
        assert reach.is_sequential
        first, _ = reach.rows(blocks.pieces[blocks.piece_starts[:-1]])
        steps = first - blocks.pieces[blocks.piece_starts[:-1], PIECE_LO]
        assert set(steps % 5) == {0}
        assert len(blocks) > 1
    writer.close()


def test_a_store_that_has_the_column_in_another_codec_is_cut_anywhere() -> None:
    rows = SyncRows("x", [FakePart(FakeSegment([9]), Array(8, "int16")), FakePart(FakeSegment([9]))])  # type: ignore[list-item]
    assert rows.around(0, 7, 0, 9) == (7, 8)
    assert rows.around(1, 7, 0, 9) == (5, 9)
    assert rows.around(1, 3, 0, 9) == (0, 5)


def test_a_segment_that_is_gone_is_named_with_what_to_do() -> None:
    segment = FakeSegment([9])
    segment.is_removed = True
    with pytest.raises(LoaderError, match=r"fake\.well: segment 00000000-fake was removed since\. Refresh"):
        SyncRows("x", [FakePart(segment)]).around(0, 3, 0, 9)  # type: ignore[list-item]


def test_a_segment_that_is_too_short_is_named_with_what_to_do(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "runs.well", Schema({"x": SYNC_FEATURE}))
    with store.writer() as writer:
        writer.add_episode({"x": np.zeros((60, 8), np.int16)})
    (segment,) = store.segments
    os.truncate(segment.path / "x.npy", 128)
    with pytest.raises(LoaderError, match=rf"runs\.well: x\.npy of segment {segment.name}: .* Run \"stepwell verify"):
        reader_of(store, {"x": [0]}).index.blocks(150)


SCHEMA = {
    "raw": Array(3, "int32", final=True),
    "action": Array((), "float64"),
    "zipped": Array(5, "int16", codec="zstd", final=True),
    "zipped_action": Array((2, 2), "int64", codec="zstd"),
    "running": Array(4, "int32", codec="running"),
    "running_state": Array(2, "int32", codec="running", final=True),
    "task": Text(),
}
LENGTHS = (7, 1, 12, 4, 30)


class Doubled(Decoder):
    """Twice the first two elements."""

    def output(self, feature: Any) -> Any:
        return (2,), np.dtype(np.int64)

    def convert(self, pixels: Any, out: Any, draw: Any) -> None:
        out[...] = 2 * pixels[:2]


class Shifted(Decoder):
    """The row plus a number that each window draws."""

    is_random: ClassVar[bool] = True
    key = "shift"

    def output(self, feature: Any) -> Any:
        return feature.fixed_shape, np.dtype(np.float64)

    def draw(self, feature: Any, draws: Draws) -> Any:
        return draws.integers(0, 1000)

    def convert(self, pixels: Any, out: Any, draw: Any) -> None:
        out[...] = pixels + draw / 1000


FIELDS_ROWS = {
    "raw": Field("raw", [-2, 0, 5]),
    "action": Field("action", range(4), pad="zero"),
    "zipped": Field("zipped", [[-1, 0], [0, 1]]),
    "late": Field("zipped_action", 3),
    "running": Field("running", range(-3, 2)),
    "running_state": Field("running_state", [4, -4], pad="zero"),
    "next": Field("zipped", 1),
    "doubled": Field("zipped", [0, 1], decoder=Doubled()),
    "doubled_raw": Field("raw", [0, 1], decoder=Doubled()),
    "doubled_run": Field("running", [-1, 0], pad="zero", decoder=Doubled()),
    "shifted": Field("zipped", [-1, 0], decoder=Shifted()),
    "shifted_raw": Field("raw", decoder=Shifted()),
    "shifted_run": Field("running", [0, 2], decoder=Shifted()),
    "task": Field("task", [0, 1]),
    "step": Field("step_index", [-1, 0]),
}


def draws_of(positions: Any) -> Any:
    return lambda purpose: Draws.of(np.array([len(purpose), 1], np.uint64), np.asarray(positions))


def assert_same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert list(a) == list(b)
    for key, value in a.items():
        assert value.dtype == b[key].dtype
        np.testing.assert_array_equal(value, b[key], err_msg=key)


def hold_blocks(reader: WindowReader, positions: np.ndarray, max_bytes: int) -> HeldRows:
    """Load all blocks, and say where each anchor is."""
    blocks, loader = reader.index.blocks(max_bytes), reader.row_loader
    table = loader.new_table(len(blocks.pieces))
    memory = []
    for number, (piece, size) in enumerate(zip(blocks.pieces, loader.num_bytes(blocks.pieces), strict=True)):
        memory.append(aligned_empty(int(size)))
        table.addresses[:, number] = loader.load(piece, memory[-1])
    return HeldRows(table, blocks.piece_of(positions), memory)


@pytest.fixture(scope="module")
def view_of_rows(tmp_path_factory: pytest.TempPathFactory) -> View:
    path = tmp_path_factory.mktemp("held")
    one = tiny_store(path / "a.well", LENGTHS, schema=SCHEMA, segment_bytes=2000)
    two = tiny_store(path / "b.well", (5, 9), schema={**SCHEMA, "zipped": Array(5, "int16", final=True)}, final=False)
    one.delete_episodes([3])
    one.refresh()
    return View([one, two])


@settings(deadline=None, max_examples=25)
@given(data=st.data(), page_cache=st.booleans(), max_bytes=st.sampled_from([1, 400, 3000, 1 << 20]))
def test_held_rows_give_the_same_batch(view_of_rows: View, data: Any, page_cache: bool, max_bytes: int) -> None:
    plain = WindowReader(view_of_rows, FIELDS_ROWS)
    reader = WindowReader(view_of_rows, FIELDS_ROWS, page_cache=page_cache)
    count = plain.index.num_anchors
    positions = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20)))
    held = hold_blocks(reader, positions, max_bytes)
    expected = plain.read(positions, draws=draws_of(positions))
    assert_same(reader.read(positions, held=held, draws=draws_of(positions)), expected)


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_past_the_page_cache_any_batch_is_the_same(view_of_rows: View, data: Any) -> None:
    plain, reader = WindowReader(view_of_rows, FIELDS_ROWS), WindowReader(view_of_rows, FIELDS_ROWS, page_cache=False)
    positions = np.array(data.draw(st.lists(st.integers(0, plain.index.num_anchors - 1), min_size=1, max_size=20)))
    expected = plain.read(positions, draws=draws_of(positions))
    assert_same(reader.read(positions, draws=draws_of(positions)), expected)


def test_decoders_make_what_they_say(view_of_rows: View) -> None:
    reader = WindowReader(view_of_rows, FIELDS_ROWS)
    positions = np.arange(reader.index.num_anchors)
    batch = reader.read(positions, draws=draws_of(positions))
    np.testing.assert_array_equal(batch["doubled"][:, 1], 2 * batch["next"][:, :2])
    shift = batch["shifted"] - batch["zipped"][:, 0]
    assert shift.max() < 1
    # one draw a window, the same for all its steps and for all fields that share the key
    assert np.unique(shift.reshape(len(shift), -1), axis=1).shape[0] == len(shift)
    np.testing.assert_allclose(shift.reshape(len(shift), -1), np.repeat(shift[:, :1, 0], 10, 1))
    np.testing.assert_allclose(batch["shifted_raw"] - batch["raw"][:, 1], np.repeat(shift[:, 0, :1], 3, 1))
    assert len(np.unique(np.round(shift[:, 0, 0], 6))) > len(shift) // 2


def test_sequential_rows_are_the_values_that_were_stored(view_of_rows: View) -> None:
    reader = WindowReader(view_of_rows, {"running": [0, 1], "action": [0, 1], "running_state": [0, 1], "raw": [0, 1]})
    batch = reader.read(np.arange(reader.index.num_anchors))
    np.testing.assert_array_equal(batch["running"][..., 0], batch["action"])
    np.testing.assert_array_equal(batch["running_state"], batch["raw"][..., :2])


def test_windows_at_hindsight_places_stay_behind_the_anchor_and_within_its_episode(view_of_rows: View) -> None:
    fields = {
        "future": Field("raw", at="future"),
        "future_action": Field("step_index", at="future"),
        "final": Field("raw", at="final"),
        "any": Field("action", at="episode"),
        "zipped": Field("zipped", [-1, 0], at="final"),
        "here": Field("step_index"),
        "number": Field("episode_index"),
    }
    reader = WindowReader(view_of_rows.select([2, 4, 5]), fields)
    positions = np.arange(reader.index.num_anchors)
    batch = reader.read(positions, draws=draws_of(positions))
    _, _, _, lo, hi_step, _ = reader.index.places(positions)
    last = hi_step - 1 - lo
    step = batch["future"][:, 0] % 100
    assert ((step > batch["here"]) | (batch["here"] == last)).all() and (step <= last).all()
    np.testing.assert_array_equal(step, batch["future_action"])
    assert len(np.unique(step - batch["here"])) > 5
    assert ((batch["any"] % 100 >= 0) & (batch["any"] % 100 <= last)).all()
    np.testing.assert_array_equal(batch["zipped"][:, 1, 0], batch["final"][:, 0])
    again = reader.read(positions, draws=draws_of(positions))
    assert_same(batch, again)
    past_cache = WindowReader(view_of_rows.select([2, 4, 5]), fields, page_cache=False)
    assert_same(past_cache.read(positions, draws=draws_of(positions)), batch)


@pytest.mark.parametrize(("least", "most"), [(0, None), (0, 0), (0, 3), (2, 4), (5, None), (40, 50)])
def test_windows_are_put_so_many_steps_after_the_anchor(view_of_rows: View, least: int, most: int | None) -> None:
    fields = {
        "there": Field("step_index", at=(least, most)),
        "here": Field("step_index"),
        "raw": Field("raw", at=(least, most)),
    }
    reader = WindowReader(view_of_rows.select([2, 4, 5]), fields)
    positions = np.tile(np.arange(reader.index.num_anchors), 40)
    batch = reader.read(positions, draws=draws_of(np.arange(len(positions))))
    _, _, _, lo, hi_step, _ = reader.index.places(positions)
    first = np.minimum(batch["here"] + least, hi_step - 1 - lo)
    last = hi_step - 1 - lo if most is None else np.minimum(batch["here"] + most, hi_step - 1 - lo)
    for here in np.unique(positions):
        own = positions == here
        # of few places all are drawn
        wanted = np.arange(first[own][0], last[own][0] + 1)
        found = np.unique(batch["there"][own])
        assert np.isin(found, wanted).all() and (len(wanted) > 6 or len(found) == len(wanted))
    np.testing.assert_array_equal(batch["raw"][:, 0] % 100, batch["there"])


def test_a_row_that_cannot_be_decoded_is_named_by_whoever_holds_it(tmp_path: Any) -> None:
    store = tiny_store(tmp_path / "bad.well", (4, 6), schema={"x": Array(2, "int32", codec="failing", at=103)})
    reader = WindowReader(View(store), {"x": [0, 1]})
    with pytest.raises(LoaderError, match=r"bad.well: episode 1, step 3.*x.bin of segment.*told to fail at 103"):
        hold_blocks(reader, np.arange(10), 1 << 20)
    with pytest.raises(LoaderError, match=r"episode 1, step 3, field 'x' \(x.bin of segment .*told to fail"):
        reader.read([7])
    with pytest.raises(LoaderError, match=r"episode 1, step 3"):
        WindowReader(View(store), {"x": [0, 1]}, page_cache=False).read([7])


def test_a_damaged_run_is_named_by_the_first_row_that_it_spoils(tmp_path: Any) -> None:
    store = tiny_store(tmp_path / "bad.well", (4, 12), schema={"x": Array(64, "int32", codec="running")})
    (segment,) = store.segments
    blob, offsets = segment.path / "x.bin", segment.offsets_map("x").astype(int)
    data = bytearray(blob.read_bytes())
    data[offsets[4 + 6]] = 0
    blob.write_bytes(data)
    reader = WindowReader(View(store), {"x": 0})
    for page_cache in (True, False):
        with pytest.raises(LoaderError, match=r"episode 1, step [67]") as error:
            WindowReader(View(store), {"x": range(3)}, page_cache=page_cache).read([4 + 5])
        assert isinstance(error.value.__cause__, DecodeError)
    assert reader.read([4 + 2])["x"][0, 0] == 102


def test_reading_past_the_cache_says_when_a_file_is_too_short(tmp_path: Any) -> None:
    store = tiny_store(tmp_path / "short.well", (40,), schema={"x": Array(512, "float64")})
    reader = WindowReader(View(store), {"x": 0}, page_cache=False)
    reader.read([0])
    path = store.segments[0].path / "x.npy"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 8)
    with pytest.raises(LoaderError, match=r"short.well.*x.npy of segment.*bytes"):
        reader.read([39])


def test_fields_refuse_what_cannot_be(view_of_rows: View) -> None:
    with pytest.raises(WindowError, match="is not one of anchor, future"):
        Field("raw", at="past")  # type: ignore[arg-type]
    for at in [(1,), (2, 1), (-1, None), (0, 1.5), (True, 2)]:
        with pytest.raises(WindowError, match="steps after the anchor"):
            Field("raw", at=at)  # type: ignore[arg-type]
    with pytest.raises(WindowError, match="only windows at the anchor"):
        Field("raw", at="future", pad="drop")
    with pytest.raises(WindowError, match=r"no stepwell\.codecs\.Decoder"):
        Field("raw", decoder=print)  # type: ignore[arg-type]
    with pytest.raises(WindowError, match="computed, not stored"):
        WindowReader(view_of_rows, {"step": Field("step_index", decoder=Doubled())})
    with pytest.raises(WindowError, match="varies in size"):
        WindowReader(view_of_rows, {"task": Field("task", decoder=Doubled())})


def test_concatenated_runs_still_decode(tmp_path: Any) -> None:
    schema = {"x": Array(2, "int32", codec="running")}
    stores = [
        tiny_store(tmp_path / f"{name}.well", lengths, schema=schema) for name, lengths in (("a", (5, 6)), ("b", (9,)))
    ]
    joined = concatenate(tmp_path / "c.well", stores)
    batch = WindowReader(View(joined), {"x": [0, 1]}).read(np.arange(20))
    assert batch["x"][:, 0, 0].tolist() == [*range(5), *range(100, 106), *range(9)]


def test_spans_are_announced_where_the_files_do_not_fit_in_memory(view_of_rows: View) -> None:
    positions = np.arange(20)
    small = WindowReader(view_of_rows, FIELDS_ROWS, memory_bytes=0)
    assert small.maps.is_announcing
    expected = WindowReader(view_of_rows, FIELDS_ROWS).read(positions, draws=draws_of(positions))
    assert_same(small.read(positions, held=hold_blocks(small, positions, 400), draws=draws_of(positions)), expected)


class Encoded(Decoder):
    """One where the encoded row was given, two where it was decoded whole before."""

    def output(self, feature: Any) -> Any:
        return (), np.dtype(np.int64)

    def convert(self, pixels: Any, out: Any, draw: Any) -> None:
        out[...] = 2

    def decode(self, codec: Any, blob: Any, out: Any, draw: Any) -> None:
        out[...] = 1


def test_a_decoder_is_given_encoded_rows_also_beside_a_field_of_whole_ones(tmp_path: Any) -> None:
    store = create(tmp_path / "a.well", {"x": Array(3, "int64", codec="zstd")})
    with store.writer() as writer:
        writer.add_episode({"x": np.arange(18).reshape(6, 3)})
    fields = {"whole": Field("x", [0, 1]), "part": Field("x", [0, 1], decoder=Encoded())}
    assert WindowReader(View(store), fields).read([0, 3, 5])["part"].tolist() == [[1, 1]] * 3
