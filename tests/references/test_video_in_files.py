"""Frames of video files, read where they lie: equal to what a plain decoder gives, from wherever they are read."""

import os
import shutil
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from written_videos import (
    CASES,
    HEIGHT,
    NUM_FRAMES,
    OPEN_GOP,
    TURNS,
    WIDTH,
    copy_streams,
    needs_heads,
    plain_frames,
    set_matrix,
    write_video,
)

from stepwell.codecs import (
    SequentialCodec,
    make_codec,
    video_decoding,
)
from stepwell.errors import DecodeError, EncodeError, SchemaError
from stepwell.references import video_in_files
from stepwell.references.file_codec import make_references, noted_dataset
from stepwell.references.video_in_files import VideoFileCodec, forget_changed, known_video
from stepwell.schema import Array, Feature, Image, Video

av = pytest.importorskip("av")
pytest.importorskip("av")


SHAPE = (HEIGHT, WIDTH, 3)
Blobs = list[npt.NDArray[np.uint8]]


@pytest.fixture(autouse=True)
def quiet_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVT_LOG", "0")


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of 0-0.mp4 to 0-2.mp4: a key every ten, B-frames, open GOPs."""
    directory = tmp_path_factory.mktemp("videos")
    write_video(directory / "0-0.mp4", params="bframes=0:keyint=10:min-keyint=10:scenecut=0")
    write_video(directory / "0-1.mp4", params="bframes=3:keyint=10:min-keyint=10:scenecut=0")
    write_video(directory / "0-2.mp4", params=OPEN_GOP + "normal")
    return directory


def feature(files: Path, shape: tuple[int, ...] = SHAPE, **options: Any) -> Feature:
    template = str(files) if files.suffix else f"{files}/{{chunk}}-{{file}}.mp4"
    return Image(shape, codec="video-file", files=template, **options)


def codec_of(files: Path, **options: Any) -> VideoFileCodec:
    codec = make_codec(feature(files, **options))
    assert isinstance(codec, VideoFileCodec)
    return codec


def blobs_of(at: npt.ArrayLike, file: npt.ArrayLike = 0) -> Blobs:
    return [np.frombuffer(row, np.uint8) for row in make_references(0, file, at)]


def column(blobs: Blobs) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    offsets = np.cumsum([0, *map(len, blobs)]).astype(np.uint64)
    return offsets, np.concatenate(blobs)


def read(codec: VideoFileCodec, blobs: Blobs, wanted: Sequence[int] | None = None, **options: Any) -> npt.NDArray[Any]:
    wanted = range(len(blobs)) if wanted is None else wanted
    outs = np.zeros((len(wanted), *options.pop("shape", SHAPE)), np.uint8)
    codec.decode_run(blobs, wanted, list(outs), **options)
    return outs


@pytest.mark.parametrize("name", CASES)
def test_every_frame_equals_plain_decoding(name: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / name, **CASES[name])
    times, frames = plain_frames(path)
    codec, blobs = codec_of(path, shape=frames.shape[1:]), blobs_of(times)
    np.testing.assert_array_equal(read(codec, blobs, shape=frames.shape[1:]), frames)
    for number in np.random.default_rng(0).permutation(len(frames))[:12].tolist():
        np.testing.assert_array_equal(codec.decode(blobs[number]), frames[number])


@pytest.mark.parametrize("name", TURNS)
def test_frames_are_turned_and_mirrored_as_players_do(name: str, tmp_path: Path) -> None:
    matrix, turned = TURNS[name]
    path = write_video(tmp_path / "a.mp4", params="bframes=2")
    times, frames = plain_frames(path)
    frames = turned(frames)
    set_matrix(path, matrix)
    for file in (path, copy_streams(tmp_path / "a.mkv", path)):
        codec = codec_of(file, shape=frames.shape[1:])
        np.testing.assert_array_equal(read(codec, blobs_of(times), shape=frames.shape[1:]), frames)
        video = codec.embed(blobs_of(times))
        own, rows = make_codec(codec.embedded()), list(video.rows(codec.embedded()))
        assert isinstance(own, SequentialCodec)
        out = np.empty(frames.shape[1:], np.uint8)
        own.decode_run([np.frombuffer(row, np.uint8) for row in rows[:4]], [3], [out])
        np.testing.assert_array_equal(out, frames[3])


def test_best_stream_is_shown(tmp_path: Path) -> None:
    small = write_video(tmp_path / "small.mp4", options={"crf": "40"}, size=(32, 48))
    large = write_video(tmp_path / "large.mp4", options={"crf": "5"})
    path = copy_streams(tmp_path / "both.mp4", small, large, best=1)
    times, frames = plain_frames(path, 1)
    np.testing.assert_array_equal(read(codec_of(path), blobs_of(times)), frames)


def test_file_whose_packets_ffmpeg_puts_together_is_noticed_when_it_changes(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.ts", **CASES["transport.ts"])
    times, frames = plain_frames(path)
    codec, blobs = codec_of(path), blobs_of(times)
    np.testing.assert_array_equal(codec.decode(blobs[20]), frames[20])
    write_video(path, params="bframes=0")
    times, frames = plain_frames(path)
    np.testing.assert_array_equal(codec.decode(blobs_of(times)[20]), frames[20])


def test_edit_list_that_leaves_frames_out_is_followed(tmp_path: Path) -> None:
    options = {"avoid_negative_ts": "disabled"}
    path = write_video(tmp_path / "a.mp4", params="bframes=3:b-adapt=0", shift=-220, container_options=options)
    times, frames = plain_frames(path)
    np.testing.assert_array_equal(read(codec_of(path), blobs_of(times)), frames)


@pytest.mark.parametrize("file", [0, 1, 2])
def test_any_rows_in_one_call_show_their_frames(videos: Path, file: int) -> None:
    times, frames = plain_frames(videos / f"0-{file}.mp4")
    codec, rng = codec_of(videos), np.random.default_rng(file)
    for _ in range(10):
        shown = rng.integers(0, NUM_FRAMES, 12)
        blobs = blobs_of(times[shown] + rng.uniform(-9e-5, 9e-5, 12), file)
        wanted = np.flatnonzero(rng.random(12) < 0.6).tolist() or [0]
        np.testing.assert_array_equal(read(codec, blobs, wanted), frames[shown[wanted]])


def test_rows_of_several_files_are_read_in_one_call(videos: Path) -> None:
    decoded = [plain_frames(videos / f"0-{file}.mp4") for file in range(3)]
    file = np.array([0, 1, 2, 1, 0, 2, 2])
    shown = np.array([3, 3, 3, 20, 39, 0, 0])
    blobs = blobs_of([decoded[one][0][frame] for one, frame in zip(file, shown, strict=True)], file)
    wanted = [decoded[one][1][frame] for one, frame in zip(file, shown, strict=True)]
    np.testing.assert_array_equal(read(codec_of(videos), blobs), np.stack(wanted))


@pytest.mark.parametrize("file", [0, 1, 2])
def test_images_are_resized_as_those_of_a_stores_own_video(videos: Path, file: int) -> None:
    own, codec = make_codec(Video(SHAPE)), codec_of(videos)
    times, _ = plain_frames(videos / f"0-{file}.mp4")
    blobs = blobs_of(times[:8], file)
    rows = [np.frombuffer(row, np.uint8) for row in codec.embed(blobs).rows(codec.embedded())]
    for size in ((24, 32), (HEIGHT, WIDTH), (60, 100)):
        outs = np.zeros((2, *size, 3), np.uint8)
        own.decode_run(rows, [0, 5], list(outs), size)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(read(codec, blobs, [0, 5], size=size, shape=(*size, 3)), outs)


def test_run_holds_the_rows_whose_frames_are_decoded_together(videos: Path) -> None:
    codec = codec_of(videos)
    for file in (0, 1):
        times, _ = plain_frames(videos / f"0-{file}.mp4")
        offsets, blob = column(blobs_of(times, file))
        for row in range(NUM_FRAMES):
            assert codec.run_of(offsets, blob, row, 0, NUM_FRAMES) == (row // 10 * 10, row // 10 * 10 + 10)
        assert codec.run_of(offsets, blob, 15, 12, 17) == (12, 17)


def test_run_ends_where_the_file_or_the_time_is_another(videos: Path) -> None:
    codec = codec_of(videos)
    times, _ = plain_frames(videos / "0-0.mp4")
    # an episode of 25 rows, one of 5 rows earlier in the file, one of another file
    at = np.concatenate([times[:25], times[2:7], times[5:8]])
    offsets, blob = column(blobs_of(at, np.repeat([0, 0, 1], [25, 5, 3])))
    runs = [codec.run_of(offsets, blob, row, 0, len(at)) for row in range(len(at))]
    assert runs == [(0, 10)] * 10 + [(10, 20)] * 10 + [(20, 25)] * 5 + [(25, 30)] * 5 + [(30, 33)] * 3


def test_run_ends_where_a_row_has_no_value(videos: Path) -> None:
    codec = codec_of(videos)
    times, _ = plain_frames(videos / "0-0.mp4")
    blobs = blobs_of(times[:8])
    blobs[4] = np.zeros(0, np.uint8)
    offsets, blob = column(blobs)
    assert codec.run_of(offsets, blob, 2, 0, 8) == (0, 4)
    assert codec.run_of(offsets, blob, 4, 0, 8) == (4, 5)
    assert codec.run_of(offsets, blob, 6, 0, 8) == (5, 8)


def test_rows_that_show_frames_again_and_again_fall_into_runs_that_hold_them(videos: Path) -> None:
    times, frames = plain_frames(videos / "0-2.mp4")
    codec, rng = codec_of(videos), np.random.default_rng(0)
    shown = np.sort(rng.integers(0, NUM_FRAMES, 300))
    blobs = blobs_of(times[shown], 2)
    offsets, blob = column(blobs)
    row = 0
    while row < len(blobs):
        first, stop = codec.run_of(offsets, blob, row, 0, len(blobs))
        assert first <= row < stop
        outs = read(codec, blobs[first:stop], range(row - first, stop - first))
        np.testing.assert_array_equal(outs, frames[shown[row:stop]])
        row = stop


def test_run_of_a_file_that_cannot_be_read_is_the_row_alone(tmp_path: Path) -> None:
    offsets, blob = column(blobs_of([0.0, 0.1, 0.2]))
    assert codec_of(tmp_path).run_of(offsets, blob, 1, 0, 3) == (1, 2)


def test_row_far_from_every_frame_is_refused_unless_the_tolerance_allows_it(videos: Path) -> None:
    blobs = blobs_of([0.04, 0.095, np.nan])
    with pytest.raises(DecodeError, match=r"0-0\.mp4: no frame at 0\.095000 s, the nearest is frame 2 at 0\.080000 s"):
        read(codec_of(videos), blobs, [0, 1])
    _, frames = plain_frames(videos / "0-0.mp4")
    np.testing.assert_array_equal(read(codec_of(videos, tolerance=0.01501), blobs, [0, 1]), frames[[1, 2]])
    with pytest.raises(DecodeError, match=r"0-0\.mp4: no frame at nan s"):
        read(codec_of(videos, tolerance=10.0), blobs, [0, 2])


def test_file_that_is_missing_is_named(videos: Path) -> None:
    with pytest.raises(DecodeError, match=r"0-7\.mp4: there is no such file\. Copy or download it again"):
        read(codec_of(videos), blobs_of([0.0], 7))
    with pytest.raises(DecodeError, match=r"0-7\.mp4: there is no such file"):
        codec_of(videos).embed(blobs_of([0.0], 7))


@needs_heads
def test_file_that_is_cut_off_shows_what_it_has_and_names_the_frame_that_it_has_not(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", params="bframes=0", container_options={"movflags": "faststart"})
    times, frames = plain_frames(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    codec, blobs = codec_of(path), blobs_of(times)
    np.testing.assert_array_equal(codec.decode(blobs[2]), frames[2])
    cut = rf"the file is cut off: \d+ bytes are needed, it has {path.stat().st_size}"
    with pytest.raises(DecodeError, match=r"a\.mp4: frame 39 at 1\.560000 s cannot be decoded: " + cut):
        codec.decode(blobs[39])


def test_damage_is_refused_with_the_file_and_the_frame_or_harmless(videos: Path, tmp_path: Path) -> None:
    times, frames = plain_frames(videos / "0-0.mp4")
    data, rng, refused = (videos / "0-0.mp4").read_bytes(), np.random.default_rng(0), 0
    path = tmp_path / "a.mp4"
    for _ in range(30):
        place = int(rng.integers(60, len(data) - 3000))
        path.write_bytes(data[:place] + rng.bytes(4) + data[place + 4 :])
        codec, blobs = codec_of(path), blobs_of(times)
        for number in (0, 13, 39):
            try:
                shown = codec.decode(blobs[number])
                assert shown.shape == SHAPE
            except DecodeError as error:
                refused += 1
                assert str(path) in str(error)
    assert refused
    path.write_bytes(data)
    np.testing.assert_array_equal(codec_of(path).decode(blobs_of(times)[13]), frames[13])


@pytest.mark.parametrize("name", ["b-frames.mp4", "hevc.mp4", "fragments.mp4"])
def test_damage_of_the_head_is_refused_with_the_file_or_harmless(name: str, tmp_path: Path) -> None:
    data, path = write_video(tmp_path / name, **CASES[name]).read_bytes(), tmp_path / "damaged.mp4"
    offsets, blob = column(blobs := blobs_of([0.0, 0.4, 1.56]))
    rng, refused = np.random.default_rng(1), 0
    for _ in range(60):
        damaged = bytearray(data)
        for place in rng.integers(max(0, data.rfind(b"moov")), len(data), 2).tolist():
            damaged[place] = int(rng.integers(256))
        path.write_bytes(damaged)
        codec = codec_of(path)
        for row in range(3):
            first, stop = codec.run_of(offsets, blob, row, 0, 3)
            assert first <= row < stop
            try:
                codec.decode(blobs[row])
            except DecodeError as error:
                refused += 1
                assert str(path) in str(error)
    assert refused


def test_file_that_was_replaced_is_read_anew(videos: Path, tmp_path: Path) -> None:
    path = tmp_path / "0-0.mp4"
    shutil.copy(videos / "0-0.mp4", path)
    times, _ = plain_frames(path)
    codec = codec_of(tmp_path)
    codec.decode(blobs_of(times)[3])
    write_video(tmp_path / "new.mp4", params="bframes=2", times=lambda number: 40 * number + 10)
    (tmp_path / "new.mp4").replace(path)
    times, frames = plain_frames(path)
    np.testing.assert_array_equal(codec_of(tmp_path).decode(blobs_of(times)[3]), frames[3])
    # who began before the file was replaced finds nothing at the new times, and looks again
    np.testing.assert_array_equal(codec.decode(blobs_of(times)[7]), frames[7])


def test_file_that_was_overwritten_is_read_anew(videos: Path, tmp_path: Path) -> None:
    path = tmp_path / "0-0.mp4"
    shutil.copy(videos / "0-0.mp4", path)
    codec_of(tmp_path).decode(blobs_of([0.04])[0])
    path.write_bytes((videos / "0-2.mp4").read_bytes())
    times, frames = plain_frames(path)
    np.testing.assert_array_equal(read(codec_of(tmp_path), blobs_of(times)), frames)


def test_threads_read_the_same_frames(videos: Path) -> None:
    decoded = [plain_frames(videos / f"0-{file}.mp4") for file in range(3)]
    codec, failed = codec_of(videos), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(25):
            file, shown = int(rng.integers(3)), rng.integers(0, NUM_FRAMES, 3)
            times, frames = decoded[file]
            if not np.array_equal(read(codec, blobs_of(times[shown], file)), frames[shown]):
                failed.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_child_of_a_fork_reads_the_same_frames(videos: Path) -> None:
    times, frames = plain_frames(videos / "0-1.mp4")
    codec, blobs = codec_of(videos), blobs_of(times, 1)
    read(codec, blobs)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(read(codec, blobs), frames) else 1)
    np.testing.assert_array_equal(read(codec, blobs), frames)
    assert os.waitpid(child, 0)[1] == 0


def test_files_of_one_kind_share_a_decoder(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        shutil.copy(videos / "0-0.mp4", tmp_path / f"0-{number}.mp4")
    opened = []
    make = video_decoding.FrameDecoder

    def counted(*key: Any) -> Any:
        opened.append(key)
        return make(*key)

    monkeypatch.setattr(video_decoding, "FrameDecoder", counted)
    monkeypatch.setattr(video_decoding, "_OPEN", video_decoding._OpenDecoders())
    codec = codec_of(tmp_path)
    for number in range(12):
        codec.decode(blobs_of([0.4], number)[0])
    assert len(opened) == 1


def test_indices_are_kept_within_their_bytes(videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = video_in_files._VIDEOS
    for number in range(6):
        shutil.copy(videos / "0-0.mp4", tmp_path / f"0-{number}.mp4")
    codec = codec_of(tmp_path)
    codec.decode(blobs_of([0.0], 0)[0])
    one = video_in_files.known_video(str(tmp_path / "0-0.mp4")).index.nbytes
    monkeypatch.setattr(kept, "max_size", 3 * one)
    for number in range(6):
        codec.decode(blobs_of([0.4], number)[0])
    assert kept.size <= 3 * one
    assert len(kept) == 3


def test_grey_feature_shows_the_brightness(videos: Path) -> None:
    codec = codec_of(videos, shape=(HEIGHT, WIDTH))
    assert codec.embedded() == Video((HEIGHT, WIDTH))
    _, frames = plain_frames(videos / "0-0.mp4")
    brightness = frames[5] @ np.array([0.299, 0.587, 0.114])
    assert np.abs(codec.decode(blobs_of([0.2])[0]) - brightness).mean() < 4


def test_feature_of_another_size_than_the_file_is_refused(videos: Path) -> None:
    codec = codec_of(videos, shape=(HEIGHT, WIDTH + 2, 3))
    with pytest.raises(DecodeError, match=r"0-0\.mp4: frame 5 at 0\.200000 s .*a frame of 48x64, where .* is 48x66"):
        codec.decode(blobs_of([0.2])[0])


@pytest.mark.parametrize("file", [0, 1, 2])
def test_embedded_rows_show_the_same(videos: Path, file: int) -> None:
    times, frames = plain_frames(videos / f"0-{file}.mp4")
    codec = codec_of(videos)
    shown = np.array([12, 13, 14, 14, 19, 20, 21, 30, 3, 4])
    rows = codec.embed(blobs_of(times[shown], file))
    assert rows.num_rows == len(shown)
    check_embedded(codec, rows, frames[shown])


def test_rows_of_several_files_are_embedded_one_after_the_other(videos: Path) -> None:
    decoded = [plain_frames(videos / f"0-{file}.mp4") for file in range(2)]
    codec = codec_of(videos)
    blobs = blobs_of(decoded[0][0][7:14], 0) + blobs_of(decoded[1][0][7:14], 1)
    check_embedded(codec, codec.embed(blobs), np.concatenate([decoded[0][1][7:14], decoded[1][1][7:14]]))
    assert codec.embed([]).num_rows == 0


def check_embedded(codec: VideoFileCodec, rows: Any, frames: npt.NDArray[Any]) -> None:
    own: Any = make_codec(codec.embedded())
    blobs = [np.frombuffer(row, np.uint8) for row in rows.rows(codec.embedded())]
    assert len(blobs) == len(frames)
    offsets, blob = column(blobs)
    for row, frame in enumerate(frames):
        first, stop = own.run_of(offsets, blob, row, 0, len(blobs))
        out = np.zeros(frame.shape, np.uint8)
        own.decode_run(blobs[first:stop], [row - first], [out])
        np.testing.assert_array_equal(out, frame)


@pytest.mark.parametrize("tolerance", [-1.0, "1e-4", True, float("nan"), None])
def test_tolerance_that_is_no_time_is_refused(tmp_path: Path, tolerance: Any) -> None:
    with pytest.raises(SchemaError, match=r"option 'tolerance' .*Allowed: seconds"):
        codec_of(tmp_path, tolerance=tolerance)


def test_feature_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match='codec "video-file" cannot store float32'):
        make_codec(Array((4, 4), codec="video-file", files=f"{tmp_path}/{{chunk}}-{{file}}.mp4"))
    with pytest.raises(SchemaError, match="has no option 'gop'"):
        codec_of(tmp_path, gop=2)


def test_new_frames_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EncodeError, match=r"cannot store new rows.*Video\(\(48, 64, 3\)\)"):
        codec_of(tmp_path).encoder()


@pytest.fixture
def path(tmp_path: Path) -> str:
    # the directory of a test that passed is removed, and the next may get its name: what is known is known by path
    return str(write_video(tmp_path / f"{uuid.uuid4()}.mp4", params="bframes=2"))


def count_indices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    make = video_in_files.make_index

    def noted(path: str, *rest: Any) -> Any:
        made.append(path)
        return make(path, *rest)

    monkeypatch.setattr(video_in_files, "make_index", noted)
    return made


def test_index_is_made_once_for_all_threads(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, found = count_indices(monkeypatch), []
    threads = [threading.Thread(target=lambda: found.append(known_video(path))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [path]
    assert all(video is found[0] for video in found)


def test_file_is_looked_at_again_only_for_who_comes_later(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, made, blobs = codec_of(Path(path)), count_indices(monkeypatch), blobs_of([0.0])
    first.decode(blobs[0])
    Path(path).write_bytes(Path(path).read_bytes() + bytes(8))
    first.decode(blobs[0])
    assert len(made) == 1
    later = codec_of(Path(path))
    later.decode(blobs[0])
    assert len(made) == 2
    first.decode(blobs[0])
    later.decode(blobs[0])
    assert len(made) == 2


@pytest.mark.parametrize("is_known_to_another", [False, True])
def test_frames_of_a_data_set_that_took_the_place_of_another_are_refused(
    videos: Path, tmp_path: Path, is_known_to_another: bool
) -> None:
    def make(root: Path, name: str) -> str:
        root.mkdir()
        (root / "info.json").write_text(name)
        for number in range(2):
            shutil.copyfile(videos / "0-0.mp4", root / f"0-{number}.mp4")
        return noted_dataset(str(root), "info.json")

    noted = make(tmp_path / "set", "old")
    codec, times = codec_of(tmp_path / "set", dataset=noted), plain_frames(videos / "0-0.mp4")[0]
    before = read(codec, blobs_of(times, 0), [3])[0]
    (tmp_path / "set").rename(tmp_path / "before")
    other = make(tmp_path / "set", "other")
    if is_known_to_another:
        read(codec_of(tmp_path / "set", dataset=other), blobs_of(times, 1), [3])
    with pytest.raises(DecodeError, match="was edited in place, or replaced, after it was opened"):
        read(codec, blobs_of(times, 1), [3])
    # which is another process's, too
    with pytest.raises(DecodeError, match="Open it again"):
        read(codec_of(tmp_path / "set", dataset=noted), blobs_of(times, 1), [3])
    assert (read(codec_of(tmp_path / "set", dataset=other), blobs_of(times, 1), [3])[0] == before).all()


def test_frames_of_a_data_set_that_grew_or_was_copied_back_are_shown(videos: Path, tmp_path: Path) -> None:
    root, info = tmp_path / "set", tmp_path / "set" / "info.json"
    root.mkdir()
    info.write_text("old")
    shutil.copyfile(videos / "0-0.mp4", root / "0-0.mp4")
    noted, times = noted_dataset(str(root), "info.json"), plain_frames(videos / "0-0.mp4")[0]
    info.write_text("grown")
    read(codec_of(root, dataset=noted), blobs_of(times), [3])
    noted = noted_dataset(str(root), "info.json")
    shutil.copytree(root, tmp_path / "copy")
    root.rename(tmp_path / "away")
    (tmp_path / "copy").rename(root)
    read(codec_of(root, dataset=noted), blobs_of(times), [3])


@pytest.mark.parametrize("dataset", [3, "", "[]", '["a", "b", 1, 2]', '["a", "b", 1, 2, 3.0]', "{"])
def test_a_noted_data_set_is_checked(path: str, dataset: Any) -> None:
    with pytest.raises(SchemaError, match="noted_dataset"):
        codec_of(Path(path), dataset=dataset)


def test_file_that_changed_is_forgotten_and_others_are_not(path: str) -> None:
    assert not forget_changed(path)
    first = known_video(path)
    assert not forget_changed(path)
    Path(path).write_bytes(Path(path).read_bytes() + bytes(8))
    assert forget_changed(path)
    assert known_video(path) is not first
    Path(path).unlink()
    assert not forget_changed(path), "what is open can still be read"


@pytest.mark.parametrize("gap", [0, video_in_files.MAX_GAP_BYTES])
def test_packets_are_the_same_whether_they_are_read_together_or_one_by_one(
    path: str, gap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video_in_files, "MAX_GAP_BYTES", gap)
    video = known_video(path)
    data, index = Path(path).read_bytes(), video.index
    numbers = [0, 3, 4, NUM_FRAMES - 1]
    wanted = [data[index.positions[n] : index.positions[n] + index.sizes[n]] for n in numbers]
    wanted = [index.samples.packets([sample], is_key=place == 0)[0] for place, sample in enumerate(wanted)]
    assert video.packets(numbers) == wanted


def test_file_that_was_changed_since_is_not_read(path: str) -> None:
    video = known_video(path)
    np.testing.assert_equal(len(video.packets([0, 1])), 2)
    other = Path(path).with_name("b.mp4")
    other.write_bytes(bytes(10_000))
    other.replace(path)
    # a file that is open is read on; one that has to be opened again must be the same
    video_in_files.open_file(path, video_in_files.state_of(path))
    with pytest.raises(DecodeError, match="the file was changed while it was read"):
        video.packets([0, 1])


def test_file_that_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(DecodeError, match=r"none\.mp4: there is no such file"):
        known_video(str(tmp_path / "none.mp4"))
    with pytest.raises(DecodeError, match=f"{tmp_path}: cannot be read"):
        known_video(str(tmp_path))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> video_in_files.KeptFrames:
    """Keep frames for one test."""
    frames = video_in_files.KeptFrames()
    frames.max_bytes = 1 << 20
    monkeypatch.setattr(video_in_files, "KEPT", frames)
    return frames


@pytest.mark.parametrize("max_bytes", [0, 1 << 20])
@pytest.mark.parametrize("name", CASES)
def test_frames_in_any_order_equal_plain_decoding(
    name: str, max_bytes: int, tmp_path: Path, kept: video_in_files.KeptFrames
) -> None:
    kept.max_bytes = max_bytes
    path = write_video(tmp_path / name, **CASES[name])
    times, frames = plain_frames(path)
    shape = frames[0].shape
    codec = make_codec(feature(path, shape))
    assert isinstance(codec, VideoFileCodec)
    for row in np.random.default_rng(0).permutation(np.tile(np.arange(len(times)), 3)).tolist():
        found = read(codec, blobs_of(times), [row], shape=shape)
        np.testing.assert_array_equal(found[0], frames[row])


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of packets that were decoded, a call each."""
    numbers: list[int] = []
    decode = video_decoding.FrameDecoder.decode

    def count(self: Any, packets: Any, *arguments: Any) -> set[int]:
        numbers.append(len(packets))
        return decode(self, packets, *arguments)

    monkeypatch.setattr(video_decoding.FrameDecoder, "decode", count)
    return numbers


def test_each_run_is_decoded_a_few_times_while_its_frames_are_kept(
    videos: Path, kept: video_in_files.KeptFrames, decoded: list[int]
) -> None:
    times, frames = plain_frames(videos / "0-0.mp4")
    codec, blobs = codec_of(videos), blobs_of(times)
    order = np.random.default_rng(0).permutation(len(times)).tolist()
    for row in order:
        np.testing.assert_array_equal(read(codec, blobs, [row])[0], frames[row])
    once, decoded[:] = sum(decoded), []
    kept.max_bytes = 0
    kept.frames.clear()
    for row in order:
        read(codec, blobs, [row])
    assert once < 0.6 * sum(decoded)


def test_a_later_epoch_decodes_nothing_where_all_frames_are_kept(
    videos: Path, kept: video_in_files.KeptFrames, decoded: list[int]
) -> None:
    times, frames = plain_frames(videos / "0-0.mp4")
    codec, blobs = codec_of(videos), blobs_of(times)
    for row in range(len(times)):
        read(codec, blobs, [row])
    decoded.clear()
    for row in np.random.default_rng(1).permutation(len(times)).tolist():
        np.testing.assert_array_equal(read(codec, blobs, [row])[0], frames[row])
    np.testing.assert_array_equal(read(codec, blobs, list(range(len(times)))), frames)
    assert not decoded


def test_frames_that_were_shown_give_way_to_those_on_the_way(videos: Path, kept: video_in_files.KeptFrames) -> None:
    times, _ = plain_frames(videos / "0-0.mp4")
    codec, blobs = codec_of(videos), blobs_of(times)
    read(codec, blobs, [7])
    on_the_way = {packet for _, packet in kept.frames} - {7}
    assert 7 in {packet for _, packet in kept.frames} and len(on_the_way) >= 5
    # room for as many as were on the way: the one that was shown goes first, one that is shown later does not come in
    kept.max_bytes = kept._num_bytes * len(on_the_way) // len(kept.frames)
    read(codec, blobs, [0])
    read(codec, blobs, [len(times) - 1])
    assert kept._num_bytes <= kept.max_bytes
    assert {packet for _, packet in kept.frames}.isdisjoint({7, len(times) - 1})


def test_no_more_is_kept_than_allowed(videos: Path, kept: video_in_files.KeptFrames) -> None:
    times, frames = plain_frames(videos / "0-0.mp4")
    codec, blobs = codec_of(videos), blobs_of(times)
    kept.max_bytes = 5 * HEIGHT * WIDTH * 2
    read(codec, blobs, [8])
    assert 3 <= len(kept.frames) <= 6
    for row in range(len(times)):
        np.testing.assert_array_equal(read(codec, blobs, [row])[0], frames[row])
        assert kept._num_bytes <= kept.max_bytes


def test_kept_frames_of_a_file_that_changed_are_not_shown(
    videos: Path, tmp_path: Path, kept: video_in_files.KeptFrames
) -> None:
    path = tmp_path / "0-0.mp4"
    shutil.copyfile(videos / "0-0.mp4", path)
    times, _ = plain_frames(path)
    read(codec_of(path), blobs_of(times), [9])
    other = write_video(tmp_path / "other.mp4", params="bframes=0:keyint=10:min-keyint=10:scenecut=0:crf=40")
    other.replace(path)
    assert forget_changed(str(path))
    np.testing.assert_array_equal(read(codec_of(path), blobs_of(times), [5])[0], plain_frames(path)[1][5])


def test_threads_share_what_is_kept(videos: Path, kept: video_in_files.KeptFrames) -> None:
    times, frames = plain_frames(videos / "0-1.mp4")
    codec, blobs = codec_of(videos), blobs_of(times, 1)
    kept.max_bytes = 12 * HEIGHT * WIDTH * 2
    wrong: list[int] = []

    def go(seed: int) -> None:
        for row in np.random.default_rng(seed).integers(0, len(times), 150).tolist():
            if not np.array_equal(read(codec, blobs, [row])[0], frames[row]):
                wrong.append(row)

    threads = [threading.Thread(target=go, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
