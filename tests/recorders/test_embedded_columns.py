"""Stores whose frames lie in files of somebody else's become stores that need no other files."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conversion_stores import files_of

import stepwell
from stepwell import Array, EncodedRows, Image, Video, convert
from stepwell.errors import SchemaError, WorkerError
from stepwell.references.file_codec import make_references
from stepwell.references.file_spans import make_spans, span_feature

av = pytest.importorskip("av")

SHAPE, FPS, NUM_FRAMES = (32, 48, 3), 10, 40
# steps and the frame that the first one shows; the second has a final row, of the action none
EPISODES = ((12, 3), (9, 20), (1, 0), (15, 24))


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    path = tmp_path / "0.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.height, stream.width, stream.pix_fmt = *SHAPE[:2], "yuv420p"
        stream.codec_context.options = {"x264-params": "keyint=8:bframes=2:threads=1"}
        base = np.random.default_rng(0).integers(0, 255, (6, 16, 3), np.uint8).repeat(8, 0).repeat(8, 1)
        for number in range(NUM_FRAMES):
            pixels = np.ascontiguousarray(np.roll(base, 2 * number, 1)[: SHAPE[0], : SHAPE[1]])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        container.mux(stream.encode(None))
    return path


@pytest.fixture
def store(videos: Path, tmp_path: Path) -> stepwell.Store:
    schema = {
        "top": Image(SHAPE, codec="video-file", files=str(videos), names=["r", "g", "b"], final=True),
        "side": Image(SHAPE, codec="video-file", files=str(videos)),
        "action": Array((), "int64"),
    }
    store = stepwell.create(tmp_path / "a.well", schema, fps=FPS, segment_bytes=1)
    with store.writer() as writer:
        for number, (steps, first) in enumerate(EPISODES):
            seconds = (first + np.arange(steps + (number == 1))) / FPS
            columns = {
                "top": EncodedRows(make_references(0, 0, seconds)),
                "side": EncodedRows(make_references(0, 0, seconds[:steps])),
                "action": np.arange(steps),
            }
            writer.add_episode(columns, number=number)
    return store


def columns_of(store: stepwell.Store) -> list[dict[str, npt.NDArray[Any]]]:
    return [{name: episode[name] for name in store.schema or ()} | episode.metadata for episode in store]


def check_equal(found: stepwell.Store, wanted: list[dict[str, Any]]) -> None:
    np.testing.assert_equal(columns_of(found), wanted)


def test_frames_are_taken_in_without_being_encoded_again_and_need_no_other_file(
    store: stepwell.Store, videos: Path, tmp_path: Path
) -> None:
    wanted = columns_of(store)
    report = convert(store, tmp_path / "b.well", workers=1)
    assert report.features["top"].distortion is None
    assert "video encoder=h264 gop=2" in str(report)
    assert str(tmp_path) not in str(report), "paths are no part of how a feature is stored"
    assert 0 < report.features["top"].bytes_after < videos.stat().st_size * 2
    videos.unlink()
    with stepwell.open(tmp_path / "b.well") as found:
        assert dict(found.schema or {}) == {
            "top": Video(SHAPE, names=["r", "g", "b"], final=True),
            "side": Video(SHAPE),
            "action": Array((), "int64"),
        }
        check_equal(found, wanted)
        assert found.verify(deep=True).is_ok


def test_bytes_are_the_same_for_any_number_of_workers(store: stepwell.Store, tmp_path: Path) -> None:
    found = []
    for workers in (0, 2):
        convert(store, tmp_path / f"{workers}.well", workers=workers)
        with stepwell.open(tmp_path / f"{workers}.well") as target:
            found.append(files_of(target))
    assert found[0] == found[1]


def test_feature_that_is_named_is_encoded_anew(store: stepwell.Store, videos: Path, tmp_path: Path) -> None:
    wanted = columns_of(store)
    report = convert(store, tmp_path / "b.well", {"side": "raw", "top": Video(SHAPE, gop=1)}, workers=1)
    assert report.features["side"].distortion is not None
    assert 25 < (report.features["top"].psnr_db or 0) < 60
    videos.unlink()
    with stepwell.open(tmp_path / "b.well") as found:
        for episode, columns in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(episode["side"], columns["side"])
        top = found.segments[0]
        sizes = np.diff(top.offsets_map("top")[: top.num_rows + 1])
        assert sizes.min() > 0, "each row is a frame of its own"


def test_some_episodes_are_taken_in(store: stepwell.Store, tmp_path: Path) -> None:
    wanted = columns_of(store)
    convert(store, tmp_path / "b.well", {"action": "zstd"}, workers=1, episodes=[1, 3])
    with stepwell.open(tmp_path / "b.well") as found:
        assert found.schema is not None
        assert found.schema["action"].codec == "zstd"
        check_equal(found, [wanted[1], wanted[3]])


def test_references_are_no_codec_to_convert_to(store: stepwell.Store, tmp_path: Path) -> None:
    for given in ("video-file", store.schema["top"]):  # type: ignore[index]
        with pytest.raises(SchemaError, match="feature 'top'"):
            convert(store, tmp_path / "b.well", {"top": given})


def test_file_that_is_missing_is_told_with_the_episode_and_nothing_is_there(
    store: stepwell.Store, videos: Path, tmp_path: Path
) -> None:
    videos.unlink()
    with pytest.raises(WorkerError, match=r"(?s)episode 0.*feature 'top'.*0\.mp4: there is no such file"):
        convert(store, tmp_path / "b.well", workers=1)
    assert not (tmp_path / "b.well").exists()


def test_row_without_a_frame_is_told_with_the_episode(store: stepwell.Store, videos: Path, tmp_path: Path) -> None:
    with store.writer() as writer:
        rows = EncodedRows(make_references(0, 0, [0.0, 0.05]))
        writer.add_episode({"top": rows, "side": rows, "action": np.arange(2)})
    with pytest.raises(WorkerError, match=r"(?s)episode 4.*feature 'top'.*asks for 0\.050000 s"):
        convert(store, tmp_path / "b.well", workers=1)


def test_store_without_such_rows_is_converted_only_by_name(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", {"action": Array((), "int64")})
    with store.writer() as writer:
        writer.add_episode({"action": np.arange(3)})
    with pytest.raises(SchemaError, match="no features to convert"):
        convert(store, tmp_path / "b.well")


@pytest.mark.parametrize("name", ["number", "text"])
def test_a_row_that_is_not_there_is_told_with_its_episode_among_many_that_are_taken_in_at_once(
    tmp_path: Path, name: str
) -> None:
    path, count = tmp_path / "rows.bin", 20
    path.write_bytes(bytes(8 * count))
    features = {"number": Array((), "int64"), "text": stepwell.Text()}
    store = stepwell.create(tmp_path / "a.well", {name: span_feature(features[name], [path])})
    with store.writer() as writer:
        for episode in range(count):
            offset = 8 * episode if episode != 13 else 8 * count
            writer.add_episode({name: EncodedRows([make_spans(0, offset, 8)[0].tobytes()])})
    with pytest.raises(WorkerError, match=f"episode 13 could not be written.*{name}"):
        convert(store, tmp_path / "b.well", workers=1)
    assert not (tmp_path / "b.well").exists()
