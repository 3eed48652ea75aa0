"""Columns of frames in other files are read by windows, pools and stores as columns of their own are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import stepwell
from stepwell import Array, EncodedRows, EncodeError, Field, Image, Loader, LoaderError, View
from stepwell.references.file_codec import make_references
from stepwell.references.file_spans import FileSpans, span_feature
from stepwell.windows import WindowReader

av = pytest.importorskip("av")

SHAPE, FPS, NUM_FRAMES, GOP = (32, 48, 3), 10, 60, 6
# episodes: file, first frame, steps; they lie in the files in another order, and not back to back
EPISODES = ((0, 30, 20), (0, 0, 13), (1, 5, 40), (1, 50, 1), (0, 14, 9))


def write_video(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.height, stream.width, stream.pix_fmt = *SHAPE[:2], "yuv420p"
        stream.codec_context.options = {"x264-params": f"keyint={GOP}:min-keyint={GOP}:bframes=2:threads=1"}
        base = rng.integers(0, 255, (8, 10, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        for number in range(NUM_FRAMES):
            pixels = np.roll(base, 2 * number, 1)[: SHAPE[0], : SHAPE[1]]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), "rgb24")))
        container.mux(stream.encode(None))


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[npt.NDArray[np.uint8]]]:
    """Return a directory of two videos, and their frames."""
    directory, found = tmp_path_factory.mktemp("videos"), []
    for file in range(2):
        write_video(directory / f"{file}.mp4", file)
        with av.open(str(directory / f"{file}.mp4")) as container:
            found.append(np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]))
    return directory, found


@pytest.fixture
def store(frames: Any, tmp_path: Path) -> Iterator[stepwell.Store]:
    files = f"{frames[0]}/{{file}}.mp4"
    schema = {"top": Image(SHAPE, codec="video-file", files=files), "action": Array((), "int64")}
    store = stepwell.create(tmp_path / "a.well", schema, fps=FPS)
    with store.writer() as writer:
        for file, first, steps in EPISODES:
            at = (first + np.arange(steps)) / FPS
            writer.add_episode({"top": EncodedRows(make_references(0, file, at)), "action": np.arange(steps)})
    yield store
    store.close()


def expected(found: list[npt.NDArray[np.uint8]]) -> list[npt.NDArray[np.uint8]]:
    return [found[file][first : first + steps] for file, first, steps in EPISODES]


def check_windows(batch: Any, episodes: list[npt.NDArray[np.uint8]], offsets: list[int]) -> None:
    for episode, step, window in zip(batch["episode_index"], batch["step_index"], batch["top"], strict=True):
        wanted = np.clip(step + np.array(offsets), 0, len(episodes[episode]) - 1)
        np.testing.assert_array_equal(window, episodes[episode][wanted])


OFFSETS = [-7, -1, 0, 2]
FIELDS = {"top": Field("top", OFFSETS), "episode_index": Field("episode_index"), "step_index": Field("step_index")}


def test_episodes_hold_their_frames(store: stepwell.Store, frames: Any) -> None:
    for episode, wanted in zip(store, expected(frames[1]), strict=True):
        np.testing.assert_array_equal(episode["top"], wanted)


@pytest.mark.parametrize("page_cache", [True, False])
def test_windows_show_the_frames_of_their_episode(store: stepwell.Store, frames: Any, page_cache: bool) -> None:
    reader = WindowReader(View(store), FIELDS, page_cache=page_cache)
    rng = np.random.default_rng(0)
    for _ in range(5):
        batch = reader.read(rng.integers(0, reader.index.num_anchors, 16))
        check_windows(batch, expected(frames[1]), OFFSETS)


@pytest.mark.parametrize("order", ["sequential", "random", stepwell.pooled("400 KiB", blocks=4)])
@pytest.mark.parametrize("page_cache", [True, False])
def test_every_order_shows_every_anchor_once(store: stepwell.Store, frames: Any, order: Any, page_cache: bool) -> None:
    seen = []
    for batch in Loader(store, FIELDS, batch_size=8, order=order, page_cache=page_cache):
        check_windows(batch, expected(frames[1]), OFFSETS)
        seen += zip(batch["episode_index"].tolist(), batch["step_index"].tolist(), strict=True)
    assert sorted(seen) == [(e, s) for e, (_, _, steps) in enumerate(EPISODES) for s in range(steps)]


def test_frames_that_are_given_as_arrays_are_refused_and_references_go_on(store: stepwell.Store, frames: Any) -> None:
    with store.writer() as writer:
        with pytest.raises(EncodeError, match="cannot store new rows"):
            writer.append({"top": np.zeros(SHAPE, np.uint8), "action": 0})
        rows = EncodedRows(make_references(0, 1, [0.3, 0.4]))
        writer.add_episode({"top": rows, "action": np.arange(2)})
    np.testing.assert_array_equal(store[len(EPISODES)]["top"], frames[1][1][3:5])


def test_statistics_are_computed_when_they_are_asked_for(store: stepwell.Store, frames: Any) -> None:
    found = store.statistics()["top"]
    pixels = np.concatenate(expected(frames[1])).reshape(-1, 3)
    np.testing.assert_allclose(found.mean, pixels.mean(0), rtol=0.02)


def test_missing_file_is_told_with_episode_and_step(store: stepwell.Store, frames: Any, tmp_path: Path) -> None:
    assert store.verify(deep=True).is_ok
    schema = {"top": Image(SHAPE, codec="video-file", files=f"{tmp_path}/{{file}}.mp4")}
    lost = stepwell.create(tmp_path / "b.well", schema, fps=FPS)
    with lost.writer() as writer:
        writer.add_episode({"top": EncodedRows(make_references(0, 3, [0.0, 0.1]))})
    reader = WindowReader(View(lost), {"top": Field("top", [0])})
    with pytest.raises(LoaderError, match=r"episode 0, step 1.*3\.mp4: there is no such file"):
        reader.read(np.array([1]))
    assert not lost.verify(deep=True).is_ok


def plain_store(tmp_path: Path, name: str, seed: int) -> tuple[stepwell.Store, list[npt.NDArray[np.float32]]]:
    """Return a store of states that are left in a file, with final rows, and the states."""
    feature = Array((4, 3), final=True)
    episodes = [np.random.default_rng((seed, n)).random((n + 2, 4, 3), np.float32) for n in (3, 0, 6, 20)]
    path = tmp_path / f"{name}.bin"
    path.write_bytes(b"x" + b"".join(states.tobytes() for states in episodes))
    left = {"state": span_feature(feature, [str(path)]), "action": span_feature(Array((4, 3)), [str(path)])}
    store, start = stepwell.create(tmp_path / f"{name}.well", left), 1
    with store.writer() as writer:
        for states in episodes:
            offsets = start + 48 * np.arange(len(states))
            columns = {
                key: FileSpans(Array((4, 3), final=key == "state"), [str(path)], 0, offsets[:count], [48] * count)
                for key, count in (("state", len(states)), ("action", len(states) - 1))
            }
            writer.add_episode(columns)
            start += 48 * len(states)
    return store, episodes


@pytest.mark.parametrize("order", ["sequential", "random", stepwell.pooled("4 KiB", blocks=4)])
@pytest.mark.parametrize("page_cache", [True, False])
@pytest.mark.parametrize("pad", ["edge", "zero", "drop"])
def test_plain_rows_of_two_files_are_those_of_their_episodes(
    tmp_path: Path, order: Any, page_cache: bool, pad: Any
) -> None:
    (one, first), (two, second) = (plain_store(tmp_path, name, seed) for seed, name in enumerate(("one", "two")))
    fields = {"state": Field("state", [-2, 0, 1], pad=pad), "action": Field("action", [0, 2], pad=pad)}
    fields |= {key: Field(key) for key in ("store_index", "episode_index", "step_index")}
    view, seen = View([one, two]), 0
    for batch in Loader(view, fields, batch_size=5, order=order, page_cache=page_cache):
        for row, (store, episode, step) in enumerate(zip(*(batch[key] for key in list(fields)[2:]), strict=True)):
            states = (first, second)[store][episode % 4]
            for key, offsets, count in (("state", [-2, 0, 1], len(states)), ("action", [0, 2], len(states) - 1)):
                wanted = step + np.array(offsets)
                inside = np.clip(wanted, 0, count - 1)
                values = states[inside] * (1 if pad != "zero" else (wanted == inside)[:, None, None])
                np.testing.assert_array_equal(batch[key][row], values)
            seen += 1
    assert seen > 10


def test_a_lost_file_of_plain_rows_is_told_with_episode_and_step(tmp_path: Path) -> None:
    store, _ = plain_store(tmp_path, "one", 0)
    (tmp_path / "one.bin").unlink()
    for order in ("random", stepwell.pooled("4 KiB", blocks=4)):
        with pytest.raises(LoaderError, match=r"episode \d+, step \d+.*one\.bin: there is no such file"):
            next(iter(Loader(store, {"state": Field("state", [0])}, batch_size=5, order=order)))
