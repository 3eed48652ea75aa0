"""The reader against a model: plain numpy, one row at a time, no cleverness."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import Array, Field, LoaderError, Schema, View, WindowError
from stepwell.windows import WindowReader, aligned_empty

LENGTHS = (1, 5, 2, 7, 3, 4)
FINALS = (True, False, True, True, False, True)
ALL = ("observation", "action", "reward", "image", "words", "points")


@pytest.fixture(scope="module")
def stores(make_store):
    """Two stores, each of several segments, with and without final rows."""
    return (
        make_store(LENGTHS, ALL, finals=FINALS, per_segment=2),
        make_store((3, 6), ALL, finals=(False, True), per_segment=1, first=len(LENGTHS)),
    )


EPISODES = [
    (i, length, final) for i, (length, final) in enumerate(zip((*LENGTHS, 3, 6), (*FINALS, False, True), strict=True))
]


def model(fields: dict[str, Field], value_of) -> list[dict[str, Any]]:
    """Every anchor's sample, in order: the whole specification of padding in thirty lines."""
    samples = []
    for episode, length, has_final in EPISODES:
        for anchor in range(length):
            sample: dict[str, Any] | None = {}
            for key, field in fields.items():
                offsets = np.ravel(0 if field.offsets is None else field.offsets)
                cells, marks = [], np.zeros(len(offsets), bool)
                for name in field.sources:
                    end = length + (has_final and name in {"observation", "image"})
                    column = []
                    for k, offset in enumerate(offsets):
                        step = anchor + offset
                        is_pad = not 0 <= step < end
                        marks[k] |= is_pad
                        value = value_of(name, episode, min(max(step, 0), end - 1))
                        if is_pad and field.pad == "zero":
                            value = "" if name == "words" else np.zeros_like(value[:0] if name == "points" else value)
                        column.append(value)
                    cells.append(column)
                if field.pad == "drop" and marks.any():
                    sample = None
                    break
                sample[key] = (cells, marks)
            if sample is not None:
                samples.append(sample)
    return samples


def assert_sample(batch, b: int, key: str, field: Field, expected) -> None:
    cells, marks = expected
    window = batch[key][b]
    shape = field.window_shape
    if field.sources[0] in {"words", "points"}:
        for got, want in zip([window] if shape == () else window.reshape(-1), cells[0], strict=True):
            assert np.array_equal(got, want)
            assert type(got) is type(want)
    else:
        columns = [np.stack(column) for column in cells]
        joined = columns[0]
        if field.combine == "stack":
            joined = np.stack(columns, axis=1)
        elif field.combine == "concat":
            joined = np.concatenate(columns, axis=1)
        assert window.dtype == joined.dtype
        np.testing.assert_array_equal(window, joined.reshape((*shape, *joined.shape[1:])))
    if f"{key}_is_pad" in batch:
        np.testing.assert_array_equal(batch[f"{key}_is_pad"][b], marks.reshape(shape))
    else:
        assert not marks.any()


offsets_lists = st.lists(st.integers(-4, 4), min_size=1, max_size=5)
offsets = st.one_of(
    st.none(),
    st.integers(-3, 3),
    offsets_lists,
    st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=3),
)
sources = st.sampled_from(
    [(name, None) for name in ALL]
    + [
        (("observation", "observation"), "stack"),
        (("action", "action", "action"), "concat"),
        (("image", "image"), "concat"),
    ]
)


@st.composite
def field_sets(draw) -> dict[str, Field]:
    fields = {}
    for number in range(draw(st.integers(1, 3))):
        source, combine = draw(sources)
        pad = draw(st.sampled_from(["edge", "zero", "drop"]))
        fields[f"key{number}"] = Field(source, draw(offsets), pad=pad, combine=combine)
    return fields


@settings(deadline=None, max_examples=120)
@given(fields=field_sets(), data=st.data())
def test_any_fields_equal_the_model(stores, feature_value, fields, data):
    expected = model(fields, feature_value)
    if not expected:
        with pytest.raises(WindowError, match="does not fit episode"):
            WindowReader(View(stores), fields)
        return
    reader = WindowReader(View(stores), fields)
    assert reader.index.num_anchors == len(expected)
    positions = data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1, max_size=8))
    batch = reader.read(positions)
    for b, position in enumerate(positions):
        for key, field in fields.items():
            assert_sample(batch, b, key, field, expected[position][key])


@settings(deadline=None, max_examples=60)
@given(window=offsets_lists)
def test_strided_reversed_and_repeated_offsets_equal_numpy_indexing(stores, window):
    reader = WindowReader(View(stores[0]), {"action": Field("action", window)})
    episode = stores[0][3]["action"]
    first = int(reader.index.anchor_starts[3])
    batch = reader.read(np.arange(first, first + len(episode)))["action"]
    for anchor in range(len(episode)):
        np.testing.assert_array_equal(batch[anchor], episode[np.clip(anchor + np.array(window), 0, len(episode) - 1)])


@settings(deadline=None, max_examples=40)
@given(
    dtype=st.sampled_from(["bool", "u1", ">i4", "<f8", "c16", "S7", "i4,f8", "datetime64[ns]"]),
    shape=st.sampled_from([(), (1,), (3,), (2, 3), (0,), (4096,)]),
    window=offsets_lists,
)
def test_any_dtype_and_row_size(tmp_path_factory, dtype, shape, window):
    import stepwell

    store = stepwell.create(tmp_path_factory.mktemp("dtype") / "a.well", Schema({"x": Array(shape, dtype)}))
    size = 6 * int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 64, size, dtype=np.uint8)
    values = np.frombuffer(raw.tobytes(), dtype).reshape(6, *shape) if size else np.zeros((6, *shape), dtype)
    with store.writer() as writer:
        writer.add_episode({"x": values})
    store.refresh()
    batch = WindowReader(View(store), {"x": Field("x", window)}).read(np.arange(6))["x"]
    rows = np.clip(np.arange(6)[:, None] + np.array(window), 0, 5)
    assert batch.dtype == values.dtype
    assert batch.tobytes() == values[rows].tobytes()


def test_every_valid_anchor_is_read_exactly_once_in_any_order(stores):
    reader = WindowReader(
        View(stores), {"reward": Field("reward", [-1, 0, 1], pad="drop"), "step_id": None, "episode_index": None}
    )
    order = np.random.default_rng(3).permutation(reader.index.num_anchors)
    batch = reader.read(order)
    seen = {(float(rewards[1])) for rewards in batch["reward"]}
    expected = {100.0 * (1 + e * 100 + step) for e, length, _ in EPISODES for step in range(1, length - 1)}
    assert len(order) == len(expected)
    assert seen == expected


def test_window_never_crosses_episode_end(stores):
    reader = WindowReader(View(stores), {"reward": range(-9, 10)})
    batch = reader.read(np.arange(reader.index.num_anchors))
    episodes = (batch["reward"] / 100 - 1) // 100
    assert (episodes == episodes[:, 9:10]).all()


def test_next_observation_of_the_last_step_is_the_final_one(stores, feature_value):
    reader = WindowReader(View(stores[0]), {"next": Field("observation", 1)})
    last = reader.index.anchor_starts[1:] - 1
    batch = reader.read(last)
    for episode, (length, has_final) in enumerate(zip(LENGTHS, FINALS, strict=True)):
        step = length if has_final else length - 1
        np.testing.assert_array_equal(batch["next"][episode], feature_value("observation", episode, step))
        assert batch["next_is_pad"][episode] == (not has_final)


def test_virtual_sources_say_where_a_step_is(stores):
    names = ["step_id", "episode_index", "step_index", "timestamp", "is_first", "is_last", "terminated", "truncated"]
    reader = WindowReader(View(stores[0]), dict.fromkeys(names))
    batch = reader.read(np.arange(reader.index.num_anchors))
    steps = [(e, t, n) for e, n in enumerate(LENGTHS) for t in range(n)]
    assert batch["episode_index"].tolist() == [e for e, _, _ in steps]
    assert batch["step_index"].tolist() == [t for _, t, _ in steps]
    np.testing.assert_array_equal(batch["timestamp"], np.float32([t / 10 for _, t, _ in steps]))
    assert batch["is_first"].tolist() == [t == 0 for _, t, _ in steps]
    assert batch["is_last"].tolist() == [t == n - 1 for _, t, n in steps]
    assert batch["terminated"].tolist() == [t == n - 1 and e % 2 == 0 for e, t, n in steps]
    assert batch["truncated"].tolist() == [t == n - 1 and e % 2 == 1 for e, t, n in steps]
    assert (reader.index.positions_of(batch["step_id"]) == np.arange(len(steps))).all()


def test_virtual_windows_pad_like_any_other(stores):
    fields = {"edge": Field("step_index", [-1, 0]), "zero": Field("episode_index", [0, 1], pad="zero")}
    batch = WindowReader(View(stores[0], [1]), fields).read(np.arange(5))
    assert batch["edge"].tolist() == [[0, 0], [0, 1], [1, 2], [2, 3], [3, 4]]
    assert batch["edge_is_pad"][:, 0].tolist() == [True, False, False, False, False]
    assert batch["zero"].tolist() == [[1, 1], [1, 1], [1, 1], [1, 1], [1, 0]]


def test_outputs_are_aligned_views_of_the_memory_that_was_given(stores):
    reader = WindowReader(View(stores[0]), {"observation": [0, 1], "reward": [0], "words": None})
    memory = aligned_empty(reader.num_bytes(3))
    batch = reader.read([0, 1, 2], memory)
    start, stop = np.lib.array_utils.byte_bounds(memory)
    for key, array in batch.items():
        if key != "words":
            low, high = np.lib.array_utils.byte_bounds(array)
            assert low % 64 == 0
            assert start <= low <= high <= stop
    assert list(batch) == ["observation", "observation_is_pad", "reward", "reward_is_pad", "words"]


@pytest.mark.parametrize(
    "memory",
    [
        np.empty(10, np.uint8),
        np.empty(10_000, np.int8),
        np.empty(20_000, np.uint8)[::2],
        np.frombuffer(bytes(10_000), np.uint8),
    ],
    ids=["small", "int8", "strided", "read-only"],
)
def test_memory_that_does_not_fit_is_refused(stores, memory):
    reader = WindowReader(View(stores[0]), {"observation": [0, 1]})
    with pytest.raises(WindowError, match="does not hold"):
        reader.read([0, 1, 2], memory)


@pytest.mark.parametrize("position", [-1, 22])
def test_position_that_is_no_anchor_is_refused(stores, position):
    reader = WindowReader(View(stores[0]), {"reward": None})
    assert reader.index.num_anchors == 22
    with pytest.raises(WindowError, match=f"position {position} is not one of 22 anchors"):
        reader.read([0, position])


@pytest.mark.parametrize("positions", [[0.5], [[0]], 0, ["a"]])
def test_positions_that_are_no_numbers_are_refused(stores, positions):
    with pytest.raises(WindowError, match="whole numbers"):
        WindowReader(View(stores[0]), {"reward": None}).read(positions)


def test_segment_that_was_removed_is_an_error_that_says_so(make_store):
    import shutil

    store = make_store((3, 4), ("reward",), per_segment=1)
    reader = WindowReader(View(store), {"reward": None})
    shutil.rmtree(store.segments[1].path)
    reader.read([0, 1])
    with pytest.raises(LoaderError, match=r"episode 1, step 2: segment .* was removed since\. Refresh"):
        reader.read([0, 5])


def test_empty_batch_has_the_shapes_of_a_full_one(stores):
    reader = WindowReader(View(stores[0]), {"observation": [0, 1], "image": None, "words": [0]})
    batch = reader.read(np.empty(0, np.int64))
    assert {key: array.shape for key, array in batch.items()} == {
        "observation": (0, 2, 3),
        "observation_is_pad": (0, 2),
        "image": (0, 4, 5, 3),
        "words": (0, 1),
        "words_is_pad": (0, 1),
    }


def test_each_row_of_a_batch_is_decoded_once(stores, monkeypatch):
    from stepwell.codecs import make_codec

    decoded = []
    codec = type(make_codec(stores[0].schema["image"]))
    original = codec.decode_into
    monkeypatch.setattr(
        codec, "decode_into", lambda self, blob, out: (decoded.append(blob.tobytes()), original(self, blob, out))[1]
    )
    reader = WindowReader(View(stores[0]), {"a": Field("image", [-1, 0]), "b": Field("image", [0, 1], pad="zero")})
    first = int(reader.index.anchor_starts[3])
    reader.read(np.arange(first, first + 7))
    # 7 steps and the final one
    assert len(decoded) == len(set(decoded)) == 8


def test_reads_at_once_give_the_same_batches(stores):
    fields = {"observation": [-1, 0], "image": [0, 1]}
    reader = WindowReader(View(stores), fields, max_maps=4)
    rng = np.random.default_rng(0)
    batches = [rng.integers(0, reader.index.num_anchors, 5) for _ in range(40)]
    expected = [{k: v.copy() for k, v in WindowReader(View(stores), fields).read(p).items()} for p in batches]
    wrong: list[int] = []

    def work(offset: int) -> None:
        for i in range(offset, len(batches), 4):
            got = reader.read(batches[i])
            if any(not np.array_equal(got[key], expected[i][key]) for key in got):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_pickled_reader_reads_the_same(stores):
    reader = WindowReader(View(stores).select(slice(1, 7)), {"observation": [-1, 0], "words": None})
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.snapshot_id == reader.snapshot_id
    positions = np.arange(reader.index.num_anchors)
    for (key, a), b in zip(reader.read(positions).items(), copy.read(positions).values(), strict=True):
        assert np.array_equal(a, b), key


def test_none_reads_every_feature_at_the_anchor(stores):
    batch = WindowReader(View(stores[0])).read([4])
    assert list(batch) == list(ALL)
    assert batch["image"].shape == (1, 4, 5, 3)


def test_stores_with_other_codecs_are_read_together(tmp_path, make_store):
    import stepwell

    encoded = make_store((3,), ("image",))
    values = np.arange(2 * 60, dtype=np.uint8).reshape(2, 4, 5, 3)
    raw = stepwell.create(tmp_path / "raw.well", Schema({"image": stepwell.Image((4, 5, 3), final=True)}))
    with raw.writer() as writer:
        writer.add_episode({"image": values})
    raw.refresh()
    for order in ([encoded, raw], [raw, encoded]):
        batch = WindowReader(View(order), {"image": [0, 1]}).read(np.arange(5))["image"]
        start = 3 if order[0] is encoded else 0
        np.testing.assert_array_equal(batch[start, 0], values[0])
        np.testing.assert_array_equal(batch[start, 1], values[1])


@pytest.mark.parametrize(
    ("feature", "fps", "field", "message"),
    [
        (Array(4), 10.0, {"observation": None}, "do not agree on 'observation'"),
        (Array(3, "float32", final=True), 30.0, {"observation": Field("observation", seconds=[0.1])}, "fps differ"),
    ],
)
def test_stores_that_do_not_agree_are_refused(tmp_path, make_store, feature, fps, field, message):
    import stepwell

    other = stepwell.create(tmp_path / "other.well", Schema({"observation": feature}), fps=fps)
    with pytest.raises(WindowError, match=message):
        WindowReader(View([make_store((3,), ("observation",)), other]), field)


def test_damaged_row_is_named_by_store_episode_and_step(make_store):
    store = make_store((3, 4), ("image", "reward"))
    blob = next(store.path.glob("segments/*/image.bin"))
    offsets = np.load(blob.with_name("image.npy"))
    data = bytearray(blob.read_bytes())
    data[int(offsets[5]) : int(offsets[6])] = bytes(int(offsets[6] - offsets[5]))
    blob.write_bytes(data)
    reader = WindowReader(View(store), {"image": [0, 1]})
    reader.read([0, 1])
    with pytest.raises(LoaderError, match=r"a\.well: episode 1, step 2, field 'image'") as caught:
        reader.read([0, 4])
    assert caught.value.__cause__ is not None


def test_damaged_offsets_are_found_before_they_are_followed(make_store):
    store = make_store((3, 4), ("words",))
    path = next(store.path.glob("segments/*/words.npy"))
    offsets = np.load(path, mmap_mode="r+")
    offsets[2] = 1 << 40
    offsets.flush()
    with pytest.raises(LoaderError, match=r"episode 0, step 1.*do not fit words\.bin"):
        WindowReader(View(store), {"words": None}).read([1])


@pytest.mark.parametrize("name", ["reward.npy", "image.bin", "image.npy"])
def test_truncated_file_is_an_error_and_never_a_crash(make_store, name):
    store = make_store((30,), ("image", "reward"))
    path = next(store.path.glob(f"segments/*/{name}"))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)
    with pytest.raises(LoaderError, match="episode 0, step 5"):
        WindowReader(View(store), {"image": None, "reward": None}).read([5])
