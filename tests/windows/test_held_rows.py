"""Rows that are held, or read past the page cache, give the batches that maps give."""

from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import Array, DecodeError, Decoder, Field, LoaderError, Text, View, WindowError
from stepwell.kernels.draws import Draws
from stepwell.store import concatenate, create
from stepwell.testing import tiny_store
from stepwell.windows import HeldRows, WindowReader, aligned_empty

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


FIELDS = {
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
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    path = tmp_path_factory.mktemp("held")
    one = tiny_store(path / "a.well", LENGTHS, schema=SCHEMA, segment_bytes=2000)
    two = tiny_store(path / "b.well", (5, 9), schema={**SCHEMA, "zipped": Array(5, "int16", final=True)}, final=False)
    one.delete_episodes([3])
    one.refresh()
    return View([one, two])


@settings(deadline=None, max_examples=25)
@given(data=st.data(), page_cache=st.booleans(), max_bytes=st.sampled_from([1, 400, 3000, 1 << 20]))
def test_held_rows_give_the_same_batch(view: View, data: Any, page_cache: bool, max_bytes: int) -> None:
    plain = WindowReader(view, FIELDS)
    reader = WindowReader(view, FIELDS, page_cache=page_cache)
    count = plain.index.num_anchors
    positions = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20)))
    held = hold_blocks(reader, positions, max_bytes)
    expected = plain.read(positions, draws=draws_of(positions))
    assert_same(reader.read(positions, held=held, draws=draws_of(positions)), expected)


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_past_the_page_cache_any_batch_is_the_same(view: View, data: Any) -> None:
    plain, reader = WindowReader(view, FIELDS), WindowReader(view, FIELDS, page_cache=False)
    positions = np.array(data.draw(st.lists(st.integers(0, plain.index.num_anchors - 1), min_size=1, max_size=20)))
    expected = plain.read(positions, draws=draws_of(positions))
    assert_same(reader.read(positions, draws=draws_of(positions)), expected)


def test_decoders_make_what_they_say(view: View) -> None:
    reader = WindowReader(view, FIELDS)
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


def test_sequential_rows_are_the_values_that_were_stored(view: View) -> None:
    reader = WindowReader(view, {"running": [0, 1], "action": [0, 1], "running_state": [0, 1], "raw": [0, 1]})
    batch = reader.read(np.arange(reader.index.num_anchors))
    np.testing.assert_array_equal(batch["running"][..., 0], batch["action"])
    np.testing.assert_array_equal(batch["running_state"], batch["raw"][..., :2])


def test_windows_at_hindsight_places_stay_behind_the_anchor_and_within_its_episode(view: View) -> None:
    fields = {
        "future": Field("raw", at="future"),
        "future_action": Field("step_index", at="future"),
        "final": Field("raw", at="final"),
        "any": Field("action", at="episode"),
        "zipped": Field("zipped", [-1, 0], at="final"),
        "here": Field("step_index"),
        "number": Field("episode_index"),
    }
    reader = WindowReader(view.select([2, 4, 5]), fields)
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
    past_cache = WindowReader(view.select([2, 4, 5]), fields, page_cache=False)
    assert_same(past_cache.read(positions, draws=draws_of(positions)), batch)


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


def test_fields_refuse_what_cannot_be(view: View) -> None:
    with pytest.raises(WindowError, match="is not one of anchor, future"):
        Field("raw", at="past")  # type: ignore[arg-type]
    with pytest.raises(WindowError, match="only windows at the anchor"):
        Field("raw", at="future", pad="drop")
    with pytest.raises(WindowError, match=r"no stepwell\.codecs\.Decoder"):
        Field("raw", decoder=print)  # type: ignore[arg-type]
    with pytest.raises(WindowError, match="computed, not stored"):
        WindowReader(view, {"step": Field("step_index", decoder=Doubled())})
    with pytest.raises(WindowError, match="varies in size"):
        WindowReader(view, {"task": Field("task", decoder=Doubled())})


def test_concatenated_runs_still_decode(tmp_path: Any) -> None:
    schema = {"x": Array(2, "int32", codec="running")}
    stores = [
        tiny_store(tmp_path / f"{name}.well", lengths, schema=schema) for name, lengths in (("a", (5, 6)), ("b", (9,)))
    ]
    joined = concatenate(tmp_path / "c.well", stores)
    batch = WindowReader(View(joined), {"x": [0, 1]}).read(np.arange(20))
    assert batch["x"][:, 0, 0].tolist() == [*range(5), *range(100, 106), *range(9)]


def test_spans_are_announced_where_the_files_do_not_fit_in_memory(view: View) -> None:
    positions = np.arange(20)
    small = WindowReader(view, FIELDS, memory_bytes=0)
    assert small.maps.is_announcing
    expected = WindowReader(view, FIELDS).read(positions, draws=draws_of(positions))
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
