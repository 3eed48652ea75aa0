"""Windows over shared rows: a file read by the description of the format alone gives what a loader gives."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec_reader import SpecFile

import stepwell
from stepwell import Array, Bytes, Field, Image, Text, Video
from stepwell.beton import write_beton
from stepwell.transforms import Resize
from stepwell.windows import View
from stepwell.windows.reader import WindowReader

PAGE = 1 << 16
SCHEMA = {
    "obs": Array((5,), "float32", final=True),
    "action": Array(3, "float64"),
    "pixels": Image((12, 10, 3), final=True),
    "packed": Array((4, 2), "int16", codec="zstd"),
    "half": Array(2, "float16"),
    "reward": Array((), "float32"),
    "count": Array((), "uint64"),
    "done": Array((), "bool"),
    "note": Text(),
    "blob": Bytes(),
}


def record(path, lengths=(9, 1, 30, 4), **options):
    rng = np.random.default_rng(len(lengths))
    store = stepwell.create(path, SCHEMA, fps=10, **options)
    with store.writer() as writer:
        for number, length in enumerate(lengths):
            columns = {
                "obs": rng.normal(size=(length + 1, 5)).astype("f4"),
                "action": rng.normal(size=(length, 3)),
                "pixels": rng.integers(0, 255, (length + 1, 12, 10, 3), dtype=np.uint8),
                "packed": rng.integers(-99, 99, (length, 4, 2)).astype("i2"),
                "half": rng.normal(size=(length, 2)).astype("f2"),
                "reward": rng.normal(size=length).astype("f4"),
                "count": rng.integers(0, 1 << 60, length).astype("u8"),
                "done": rng.random(length) < 0.5,
                "note": ["é" * (t % 4) for t in range(length)],
                "blob": [bytes([number, t])[: t % 3] for t in range(length)],
            }
            writer.add_episode(columns, terminated=True)
    store.refresh()
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    pytest.importorskip("zstandard")
    return record(tmp_path_factory.mktemp("windows") / "a.well")


def assert_windows(path, source, windows, *, masks=False):
    """Assert that a file holds what a reader of the source gives, and obeys the rules; returns it."""
    reader = WindowReader(source if isinstance(source, View) else View(source), windows)
    batch = reader.read(np.arange(reader.index.num_anchors))
    file = SpecFile(path)
    file.check()
    assert file.number == reader.index.num_anchors
    names = {name for _, name, *_ in file.fields}
    batch = {key: values for key, values in batch.items() if masks or not key.endswith("_is_pad")}
    assert {name for name in names if name.endswith("_is_pad")} == {key for key in batch if key.endswith("_is_pad")}
    for number in range(file.number):
        found = file.sample(number)
        for key, values in batch.items():
            if key in found:
                assert_equal(found[key], values[number])
                continue
            for place, value in enumerate(np.ravel(values[number])):
                assert_equal(found[f"{key}_{place}"], value)
    return file


def assert_equal(found, value):
    if isinstance(value, str | bytes):
        assert found == (value.encode() if isinstance(value, str) else value)
    else:
        assert np.array_equal(np.reshape(found, np.shape(value)), value)


def test_without_windows_every_step_is_a_sample(store, tmp_path):
    write_beton(store, tmp_path / "a.beton", workers=1, page_size=PAGE)
    file = assert_windows(tmp_path / "a.beton", store, None)
    kinds = {name: kind for kind, name, *_ in file.fields}
    assert kinds == {
        "obs": 4,
        "action": 4,
        "pixels": 2,
        "packed": 4,
        "half": 4,
        "reward": 0,
        "count": 4,
        "done": 1,
        "note": 3,
        "blob": 3,
    }


WINDOWS = {
    "consecutive": {"obs": range(-3, 1), "action": range(8)},
    "transitions": {"obs": None, "next_obs": Field("obs", 1), "action": None},
    "zeros": {"obs": Field("obs", range(-2, 3), pad="zero"), "pixels": Field("pixels", [-1, 0], pad="zero")},
    "dropped": {"obs": Field("obs", range(-3, 2), pad="drop"), "packed": range(2)},
    "strides": {"obs": [-8, -4, 0], "later": Field("obs", [-4, 0, 4]), "back": Field("action", [2, 1, 0])},
    "uneven": {"obs": [0, 0, 3], "action": [-1, 0, 5]},
    "nested": {"obs": [[-2, -1], [0, 1]], "action": [[0, 2], [1, 4]]},
    "two lengths of one feature": {"short": Field("obs", range(2)), "long": Field("obs", range(4))},
    "rows of their own": {"note": [-1, 0], "blob": Field("blob", [0, 2]), "again": Field("note", 1)},
    "combined": {"both": Field(("obs", "obs"), [0, 1], combine="stack"), "one": Field(("reward",), combine="stack")},
    "computed": {"step_index": None, "episode_index": None, "timestamp": [0, 1], "is_last": None},
    "numbers": {"reward": range(3), "done": [0, 1], "count": [-1, 0], "half": range(2)},
    "far": {"obs": None, "goal": Field("obs", 25)},
    "smaller": {"pixels": Field("pixels", [-1, 0], decoder=Resize((6, 5)))},
}


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_those_of_a_loader(store, tmp_path, name, masks):
    windows = WINDOWS[name]
    write_beton(store, tmp_path / "a.beton", windows=windows, workers=1, page_size=PAGE, masks=masks, align=1)
    assert_windows(tmp_path / "a.beton", store, windows, masks=masks)


@pytest.mark.parametrize("workers", [2, 3])
def test_the_file_is_the_same_for_every_number_of_workers(store, tmp_path, workers, monkeypatch):
    monkeypatch.setattr("stepwell.beton.window_lots.MAX_LOT_ANCHORS", 3)
    windows = {"obs": range(-3, 1), "pixels": [-1, 0], "note": None}
    for number in (0, workers):
        write_beton(store, tmp_path / f"{number}.beton", windows=windows, workers=number, page_size=PAGE)
    assert (tmp_path / "0.beton").read_bytes() == (tmp_path / f"{workers}.beton").read_bytes()
    assert_windows(tmp_path / "0.beton", store, windows)


OFFSETS = st.lists(st.integers(-6, 6), min_size=1, max_size=4) | st.builds(
    lambda first, stride, length: [first + stride * i for i in range(length)],
    st.integers(-9, 9),
    st.sampled_from([-2, -1, 1, 2, 3]),
    st.integers(1, 7),
)
FEATURES = ("obs", "action", "pixels", "packed", "reward", "done")


@settings(max_examples=40)
@given(
    chosen=st.lists(
        st.tuples(st.sampled_from(FEATURES), OFFSETS, st.sampled_from(["edge", "zero"])), min_size=1, max_size=4
    ),
    align=st.sampled_from([1, 8, 64]),
    episodes=st.sets(st.integers(0, 3), min_size=1),
    lot=st.integers(1, 40),
)
def test_any_windows_of_any_episodes_are_those_of_a_loader(store, tmp_path_factory, chosen, align, episodes, lot):
    windows = {f"f{i}": Field(name, offsets, pad=pad) for i, (name, offsets, pad) in enumerate(chosen)}
    path = tmp_path_factory.mktemp("any") / "a.beton"
    view = View(store).select(sorted(episodes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepwell.beton.window_lots.MAX_LOT_ANCHORS", lot)
        write_beton(view, path, windows=windows, workers=0, page_size=PAGE, align=align)
    assert_windows(path, view, windows)


def test_an_episode_longer_than_a_page_is_cut_with_what_windows_need_on_both_sides(tmp_path):
    store = stepwell.create(tmp_path / "long.well", {"x": Array(400, "float32")})
    with store.writer() as writer:
        writer.add_episode({"x": np.random.default_rng(0).normal(size=(300, 400)).astype("f4")})
    store.refresh()
    windows = {"x": range(-4, 4)}
    write_beton(store, tmp_path / "a.beton", windows=windows, workers=0, page_size=PAGE)
    file = assert_windows(tmp_path / "a.beton", store, windows)
    pages = {int(ptr) // PAGE for ptr in file.table[:, 1]}
    # of 40 rows on a page, windows of 8 begin at 33
    assert len(pages) == -(-300 // 33)


def test_windows_share_rows_so_that_a_file_is_hardly_larger_than_the_episodes(tmp_path):
    store = stepwell.create(tmp_path / "many.well", {"x": Array(100, "float32"), "a": Array(25, "float32")})
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for _ in range(20):
            writer.add_episode(
                {"x": rng.normal(size=(200, 100)).astype("f4"), "a": rng.normal(size=(200, 25)).astype("f4")}
            )
    store.refresh()
    windows = {"x": [-1, 0], "a": range(16)}
    write_beton(store, tmp_path / "a.beton", windows=windows, workers=0, page_size=1 << 21)
    file = assert_windows(tmp_path / "a.beton", store, windows)
    rows, one_by_one = 4000 * 500, 4000 * (2 * 400 + 16 * 100)
    ptrs, firsts = np.unique(file.table[:, 1], return_index=True)
    data = (file.table_ptr // (1 << 21) - 1) * (1 << 21)
    assert len(ptrs) == 8000 and len(firsts) == 8000
    assert data < 1.2 * (rows + (1 << 21)) < one_by_one


def test_rows_that_lie_on_one_page_are_stored_once(tmp_path):
    store = stepwell.create(tmp_path / "one.well", {"x": Array(10, "float32")})
    with store.writer() as writer:
        writer.add_episode({"x": np.arange(1000, dtype="f4").reshape(100, 10)})
    store.refresh()
    windows = {"now": Field("x", range(4)), "next": Field("x", range(1, 5))}
    write_beton(store, tmp_path / "a.beton", windows=windows, workers=0, page_size=PAGE)
    file = assert_windows(tmp_path / "a.beton", store, windows)
    spans = file.table[:, 1:]
    used = int((spans[:, 0] + spans[:, 1]).max() - spans[:, 0].min())
    # 100 rows, 3 repeated for the longest window, 1 more for the later one
    assert used == 104 * 40


def test_jpeg_files_go_over_as_they_are_and_are_shared(tmp_path):
    pytest.importorskip("simplejpeg")
    store = stepwell.create(tmp_path / "jpeg.well", {"top": Image((24, 32, 3), codec="jpeg", quality=80)})
    with store.writer() as writer:
        writer.add_episode({"top": np.random.default_rng(0).integers(0, 255, (20, 24, 32, 3), dtype=np.uint8)})
    store.refresh()
    offsets, blobs = store.segments[0].offsets_map("top").astype(int), store.segments[0].blob_map("top")
    files = [blobs[begin:end].tobytes() for begin, end in pairwise(offsets[:21])]
    write_beton(store, tmp_path / "a.beton", windows={"top": [-2, 0]}, workers=0, page_size=PAGE)
    file = SpecFile(tmp_path / "a.beton")
    file.check()
    for number in range(20):
        sample = file.sample(number)
        assert sample == {"top_0": (32, 24, files[max(0, number - 2)]), "top_1": (32, 24, files[number])}
    assert len(set(file.table[:, 1].tolist())) == 20


def test_images_of_any_size_and_modes_are_written(tmp_path):
    simplejpeg = pytest.importorskip("simplejpeg")
    store = stepwell.create(tmp_path / "any.well", {"top": Image((None, None, 3), codec="jpeg")})
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (8 + t, 30 - t, 3), dtype=np.uint8) for t in range(6)]
    with store.writer() as writer:
        writer.add_episode({"top": images})
    store.refresh()
    decoded = store[0]["top"]
    for mode, options in (("raw", {}), ("jpg", {"max_resolution": 20, "quality": 70})):
        write_beton(store, tmp_path / f"{mode}.beton", write_mode=mode, workers=0, page_size=PAGE, **options)
    plain, small = SpecFile(tmp_path / "raw.beton"), SpecFile(tmp_path / "jpg.beton")
    for number in range(6):
        assert np.array_equal(plain.sample(number)["top"], decoded[number])
        width, height, data = small.sample(number)["top"]
        assert max(width, height) == 20 and simplejpeg.decode_jpeg(data).shape == (height, width, 3)


def test_frames_of_a_video_become_pixels(tmp_path):
    pytest.importorskip("av")
    store = stepwell.create(tmp_path / "video.well", {"top": Video((32, 48, 3))})
    ramp = np.add.outer(np.arange(32), np.arange(48))[..., None] + np.zeros(3)
    with store.writer() as writer:
        writer.add_episode({"top": np.stack([ramp + 4 * t for t in range(12)]).astype(np.uint8)})
    store.refresh()
    windows = {"top": [-1, 0], "now": "top"}
    write_beton(store, tmp_path / "a.beton", windows=windows, workers=0, page_size=PAGE)
    assert_windows(tmp_path / "a.beton", store, windows)


def test_steps_of_an_episode_that_is_being_recorded_are_those_whose_windows_are_there(tmp_path):
    store = stepwell.create(tmp_path / "open.well", {"x": Array(2)})
    with store.writer() as writer:
        for step in range(9):
            writer.append({"x": np.full(2, step, "f4")})
        store.refresh()
        windows = {"x": range(-1, 3)}
        write_beton(store, tmp_path / "a.beton", windows=windows, workers=0, page_size=PAGE)
        assert assert_windows(tmp_path / "a.beton", store, windows).number == 7
        writer.end_episode()


def test_several_stores_follow_each_other(tmp_path):
    pytest.importorskip("zstandard")
    view = View([record(tmp_path / "a.well", (5, 3)), record(tmp_path / "b.well", (4,))])
    windows = {"obs": range(2), "store_index": None, "reward": None}
    write_beton(view, tmp_path / "a.beton", windows=windows, workers=0, page_size=PAGE)
    assert_windows(tmp_path / "a.beton", view, windows)


def test_many_segments_are_read(tmp_path):
    pytest.importorskip("zstandard")
    store = record(tmp_path / "a.well", (5, 3, 7), segment_bytes=1)
    assert len(store.segments) == 3
    for windows in (None, {"obs": range(3), "note": [0, 1]}):
        path = tmp_path / f"{windows is None}.beton"
        write_beton(store, path, windows=windows, workers=0, page_size=PAGE)
        assert_windows(path, store, windows)


def test_a_window_larger_than_a_page_names_the_page_that_it_needs(store, tmp_path):
    with pytest.raises(stepwell.FormatError, match=r"sample 0 has \d+ bytes \(300 rows of pixels.*page_size=131072"):
        write_beton(store, tmp_path / "a.beton", windows={"pixels": range(300)}, workers=0, page_size=PAGE)
    assert list(tmp_path.iterdir()) == []
