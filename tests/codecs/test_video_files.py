"""Rows taken from video files: every frame equal to what a plain decoder gives, from wherever it is read."""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from written_videos import (
    CASES,
    HEIGHT,
    NUM_FRAMES,
    OPEN_GOP,
    TURNS,
    WIDTH,
    copy_streams,
    plain_frames,
    set_matrix,
    write_two_sizes,
    write_video,
)

from stepwell.codecs import SequentialCodec, make_codec
from stepwell.codecs.video_files import VideoFile
from stepwell.codecs.video_streams import pack_row, parse_row, stream_of
from stepwell.errors import DecodeError, SchemaError, StepError
from stepwell.files.local_files import OpenFile
from stepwell.references.video_in_files import known_video
from stepwell.references.video_index import make_index
from stepwell.schema import Image, Video

av = pytest.importorskip("av")


DATA = Path(__file__).parents[3] / "shared" / "data" / "video"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared video files are not beside this checkout")


class Column:
    """The rows of a file, as a store holds them."""

    def __init__(self, video: VideoFile) -> None:
        self.rows = [np.frombuffer(row, np.uint8) for row in video.rows(video.feature)]
        codec = make_codec(video.feature)
        assert isinstance(codec, SequentialCodec)
        self.codec = codec
        self.starts = [number for number, row in enumerate(self.rows) if codec.is_sync(row)]

    def read(self, number: int, stop: int | None = None) -> np.ndarray:
        """Return a row, decoded from its run's front that ends before `stop`."""
        start = max(start for start in self.starts if start <= number)
        out = np.empty(self.codec.feature.fixed_shape, np.uint8)
        self.codec.decode_run(self.rows[start : stop or number + 1], [number - start], [out])
        return out

    def is_closed(self, start: int) -> bool:
        """Return whether a run begins with a picture that cuts off all before it."""
        return stream_of("h264", bytes(parse_row(self.rows[start].tobytes()).packets[0]))[0].is_closed

    def runs(self) -> Iterator[tuple[int, int]]:
        yield from zip(self.starts, [*self.starts[1:], len(self.rows)], strict=True)


def check_equals_plain_decoding(path: Path, stream: int = 0, *, num_random: int = 40) -> Column:
    """Compare every frame, run by run, one by one in random order from as little as holds it; return the column."""
    video = VideoFile(path, stream=stream)
    times, frames = plain_frames(path, stream)
    assert video.num_rows == len(frames)
    np.testing.assert_allclose(video.frames["seconds"], times, atol=1e-6)
    column = Column(video)
    assert len(column.rows) == len(frames)
    for start, stop in column.runs():
        outs = list(np.empty((stop - start, *frames.shape[1:]), np.uint8))
        column.codec.decode_run(column.rows[start:stop], range(stop - start), outs)
        np.testing.assert_array_equal(np.stack(outs), frames[start:stop])
    for number in np.random.default_rng(0).permutation(len(frames))[:num_random].tolist():
        np.testing.assert_array_equal(column.read(number), frames[number])
    return column


@needs_data
@pytest.mark.parametrize(("number", "stream"), [(0, 0), (3, 1)])
def test_frames_equal_the_reference_pixels_at_their_reference_times(number: int, stream: int) -> None:
    path = DATA / "nasa_13013.mp4"
    facts = json.loads((DATA / f"{path.name}.stream{number}.all_frames_info.json").read_text())
    video = VideoFile(path, stream=stream)
    np.testing.assert_allclose(video.frames["seconds"], [float(fact["pts_time"]) for fact in facts], atol=1e-6)
    np.testing.assert_allclose(video.frames["duration"], [float(fact["duration_time"]) for fact in facts], atol=1e-6)
    column = Column(video)
    with np.load(DATA / f"nasa_13013.stream{number}.npz") as reference:
        for name in reference.files:
            np.testing.assert_array_equal(column.read(int(name.removeprefix("frame_"))), reference[name])


@needs_data
@pytest.mark.parametrize(
    ("name", "stream"), [("nasa_13013.mp4", 0), ("nasa_13013.mp4", 1), ("test_non_zero_start.mp4", 0)]
)
def test_every_frame_of_the_shared_files_equals_plain_decoding(name: str, stream: int) -> None:
    check_equals_plain_decoding(DATA / name, stream, num_random=6)


@needs_data
def test_times_that_do_not_begin_at_zero_are_those_of_the_file() -> None:
    facts = json.loads((DATA / "test_non_zero_start.mp4.stream0.all_frames_info.json").read_text())
    seconds = np.array([float(fact["pts_time"]) for fact in facts])
    path = DATA / "test_non_zero_start.mp4"
    np.testing.assert_allclose(VideoFile(path).frames["seconds"], seconds, atol=1e-6)
    assert VideoFile(path, start=seconds[3], stop=seconds[7]).num_rows == 4


@pytest.fixture(autouse=True)
def quiet_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVT_LOG", "0")


@pytest.mark.parametrize("name", CASES)
def test_every_frame_equals_plain_decoding(name: str, tmp_path: Path) -> None:
    column = check_equals_plain_decoding(write_video(tmp_path / name, **CASES[name]))
    assert name == "refresh.mp4" or len(column.starts) > 1


def test_edit_list_that_begins_between_keyframes_is_followed(tmp_path: Path) -> None:
    path = write_video(
        tmp_path / "edited.mp4",
        params="bframes=3:b-adapt=0",
        shift=-220,
        container_options={"avoid_negative_ts": "disabled"},
    )
    column = check_equals_plain_decoding(path)
    assert len(column.rows) < NUM_FRAMES
    assert VideoFile(path).frames["seconds"][0] < 0.04


def test_of_an_open_gop_only_its_keyframe_is_stored_twice(tmp_path: Path) -> None:
    path = write_video(tmp_path / "open.mp4", params=OPEN_GOP + "normal")
    column = Column(VideoFile(path))
    with av.open(str(path)) as container:
        num_packets = sum(packet.size > 0 for packet in container.demux(video=0))
    assert len(column.starts) >= 4
    num_stored = sum(len(parse_row(row.tobytes()).packets) for row in column.rows)
    assert num_packets < num_stored < num_packets + len(column.starts)


def test_damage_in_an_open_gop_is_refused_where_its_decoder_notices(tmp_path: Path) -> None:
    """There the decoder goes on after an error, because it takes missing pictures before the run for one."""
    column = Column(VideoFile(write_video(tmp_path / "open.mp4", params=OPEN_GOP + "normal")))
    start, stop = next((start, stop) for start, stop in column.runs() if not column.is_closed(start))
    rng, refused = np.random.default_rng(0), []
    for _ in range(60):
        run = column.rows[start:stop]
        row = parse_row(run[1].tobytes())
        packets = [bytearray(packet) for packet in row.packets]
        packets[0][int(rng.integers(8, len(packets[0])))] ^= 0x55
        run[1] = np.frombuffer(pack_row("h264", [bytes(data) for data in packets], row.frame, is_sync=False), np.uint8)
        try:
            column.codec.decode_run(run, [1], [np.empty((HEIGHT, WIDTH, 3), np.uint8)])
        except DecodeError as error:
            refused.append(str(error))
    assert any("is damaged" in message for message in refused)


class BitReader:
    def __init__(self, data: bytes) -> None:
        self.bits, self.place = "".join(f"{byte:08b}" for byte in data), 0

    def skip(self, count: int) -> None:
        self.place += count

    def flag(self) -> bool:
        self.place += 1
        return self.bits[self.place - 1] == "1"

    def number(self) -> int:
        zeros = self.bits.index("1", self.place) - self.place
        value = int(self.bits[self.place + zeros : self.place + 2 * zeros + 1], 2) - 1
        self.place += 2 * zeros + 1
        return value


def without_usability(parameters: bytes) -> bytes:
    """Return a sequence parameter set of x264's, high profile, without what says by how much pictures are reordered."""
    reader = BitReader(parameters)
    reader.skip(32)
    assert [reader.number() for _ in range(4)] == [0, 1, 0, 0], "number, chroma format, bit depths"
    reader.skip(2)
    assert [reader.number() for _ in range(2)][1] == 0, "order counts in every slice"
    for _ in range(2):  # their size, reference frames
        reader.number()
    reader.skip(1)
    reader.number(), reader.number()  # size in blocks
    assert reader.flag(), "no fields"
    reader.skip(1)
    if reader.flag():
        for _ in range(4):
            reader.number()
    bits = reader.bits[: reader.place] + "01"
    bits += "0" * (-len(bits) % 8)
    return bytes(int(bits[place : place + 8], 2) for place in range(0, len(bits), 8))


def test_stream_that_does_not_say_how_it_reorders_loses_no_frame(tmp_path: Path) -> None:
    path = write_video(tmp_path / "silent.mp4", params="bframes=3:b-pyramid=normal:ref=4:b-adapt=0")
    column, (_, frames) = Column(VideoFile(path)), plain_frames(path)
    for start in column.starts:
        row = parse_row(column.rows[start].tobytes())
        packets = [bytes(packet) for packet in row.packets]
        said = stream_of("h264", packets[0])[0].parameters
        assert said in packets[0]
        packets[0] = packets[0].replace(said, without_usability(said))
        column.rows[start] = np.frombuffer(pack_row("h264", packets, row.frame, is_sync=True), np.uint8)
    for start, stop in column.runs():
        for number in range(start, stop):
            np.testing.assert_array_equal(column.read(number, stop), frames[number])


def test_closed_gops_stay_a_stream_that_ffmpeg_plays(tmp_path: Path) -> None:
    path = write_video(tmp_path / "closed.mp4", params="bframes=3")
    column = Column(VideoFile(path))
    stream = io.BytesIO(b"".join(row.tobytes() for row in column.rows))
    with av.open(stream, format="h264") as container:
        played = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    np.testing.assert_array_equal(np.stack(played), plain_frames(path)[1])


def test_any_front_of_a_run_decodes(tmp_path: Path) -> None:
    path = write_video(tmp_path / "front.mp4", params="bframes=3:b-pyramid=normal:keyint=10")
    column, (_, frames) = Column(VideoFile(path)), plain_frames(path)
    start, stop = next(column.runs())
    for end in range(start + 1, stop + 1):
        np.testing.assert_array_equal(column.read(end - 1, end), frames[end - 1])


def test_range_begins_and_ends_between_keyframes(tmp_path: Path) -> None:
    path = write_video(tmp_path / "range.mp4", params=OPEN_GOP + "normal")
    times, frames = plain_frames(path)
    for first, stop in ((0, 3), (3, 17), (8, 12), (25, 40)):
        end = times[stop] if stop < len(times) else None
        video = VideoFile(path, start=times[first], stop=end)
        assert video.num_rows == stop - first
        column = Column(video)
        assert column.starts[0] == 0
        for number in range(video.num_rows):
            np.testing.assert_array_equal(column.read(number), frames[first + number])


def test_steps_show_the_frame_nearest_to_their_time(tmp_path: Path) -> None:
    path = write_video(tmp_path / "times.mp4", params="bframes=3")
    times, frames = plain_frames(path)
    chosen = [2, 2, 2, 5, 9, 10, 10, 21, 33, 39]
    video = VideoFile(path, timestamps=times[chosen] + 0.004, tolerance=0.005)
    np.testing.assert_allclose(video.frames["seconds"], times[chosen], atol=1e-6)
    column = Column(video)
    for number, frame in enumerate(chosen):
        np.testing.assert_array_equal(column.read(number), frames[frame])


def test_step_without_a_frame_at_its_time_is_named(tmp_path: Path) -> None:
    path = write_video(tmp_path / "times.mp4")
    with pytest.raises(
        StepError, match=r"times\.mp4: step 2 asks for 0\.090000 s, the nearest frame is at 0\.080000 s"
    ):
        VideoFile(path, timestamps=[0.0, 0.04, 0.09])
    with pytest.raises(StepError, match=r"step 1 asks for nan.* the nearest frame is"):
        VideoFile(path, timestamps=[0.0, np.nan])
    with pytest.raises(StepError, match=r"the last frame, behind which the file ends or is cut off, is at 1\.56"):
        VideoFile(path, timestamps=[0.0, 9.0])
    with pytest.raises(StepError, match="not descending"):
        VideoFile(path, timestamps=[0.04, 0.0])
    with pytest.raises(StepError, match=r"no frame between start=100 and stop=None\. It has frames from 0\.0"):
        VideoFile(path, start=100, timestamps=[100.0])


def test_streams_that_are_silent_about_their_colours_do_not_take_over_those_of_others(tmp_path: Path) -> None:
    """A decoder that is kept open keeps what the stream before said."""
    full = Column(VideoFile(write_video(tmp_path / "full.mp4", pixel_format="yuvj420p")))
    silent_path = write_video(tmp_path / "silent.mp4")
    silent, (_, frames) = Column(VideoFile(silent_path)), plain_frames(silent_path)
    full.read(0)
    np.testing.assert_array_equal(silent.read(0), frames[0])


def test_rows_fit_only_a_video_feature_of_their_size(tmp_path: Path) -> None:
    video = VideoFile(write_video(tmp_path / "a.mp4"))
    assert video.feature == Video((HEIGHT, WIDTH, 3))
    for feature in (Image((HEIGHT, WIDTH, 3), codec="jpeg"), Video((WIDTH, HEIGHT, 3))):
        with pytest.raises(SchemaError, match=f"{HEIGHT}x{WIDTH} video"):
            next(video.rows(feature))
    assert len(list(video.rows(Video((HEIGHT, WIDTH))))) == NUM_FRAMES, "as grey"


def test_grey_feature_shows_the_brightness_of_a_colour_file_in_full_range(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4")
    video, (_, frames) = VideoFile(path), plain_frames(path)
    codec = make_codec(Video((HEIGHT, WIDTH)))
    grey = codec.decode(np.frombuffer(next(video.rows(codec.feature)), np.uint8))
    luma = frames[0] @ np.array([0.299, 0.587, 0.114])
    assert np.abs(grey - luma).mean() < 4


def test_what_is_no_video_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        VideoFile(tmp_path / "none.mp4")
    (tmp_path / "text.mp4").write_text("no video")
    with pytest.raises(DecodeError, match=r"text\.mp4: ffmpeg finds no video"):
        VideoFile(tmp_path / "text.mp4")
    path = write_video(tmp_path / "a.mp4")
    with pytest.raises(DecodeError, match="no video stream 1"):
        VideoFile(path, stream=1)
    bare = write_video(tmp_path / "bare.h264", params="bframes=3")
    with pytest.raises(DecodeError, match="without presentation times"):
        VideoFile(bare)
    with pytest.raises(DecodeError, match=r"video of vp8\. Allowed: av1, h264"):
        VideoFile(write_video(tmp_path / "old.webm", library="libvpx"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tolerance": -1.0}, "tolerance=-1.0"),
        ({"tolerance": np.nan}, "tolerance=nan"),
        ({"start": np.nan}, "no frame between start=nan"),
        ({"start": 1.0, "stop": 0.5}, "no frame between start=1.0 and stop=0.5"),
        ({"timestamps": [0.0, 0.08, 0.04]}, r"step 2 is at 0\.04.*the one before at 0\.08"),
        ({"start": None}, "start=None. Allowed: seconds; 0 for all from the beginning"),
        ({"stop": "end"}, "stop='end'. Allowed: seconds, or None"),
        ({"stream": "a"}, "stream='a'. Allowed: the number of a video stream, from 0"),
        ({"stream": -1}, "stream=-1"),
        ({"timestamps": ["now"]}, "Allowed: numbers"),
        ({"timestamps": 0.0}, "one number a step"),
    ],
)
def test_times_that_cannot_be_are_refused_and_say_which(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    path = write_video(tmp_path / "a.mp4")
    with pytest.raises(StepError, match=rf"a\.mp4.*{message}"):
        VideoFile(path, **values)


@pytest.mark.parametrize("suffix", ["avi", "asf"])
def test_format_that_does_not_keep_when_b_frames_are_shown_is_refused_if_there_are_any(
    tmp_path: Path, suffix: str
) -> None:
    with pytest.raises(DecodeError, match=rf"has B-frames.*\({suffix}\)"):
        VideoFile(write_video(tmp_path / f"a.{suffix}", params="bframes=3"))
    check_equals_plain_decoding(write_video(tmp_path / f"b.{suffix}", params="bframes=0"))


def test_names_in_a_file_may_be_of_any_encoding(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv")
    data = path.read_bytes()
    assert b"Lavf" in data
    path.write_bytes(data.replace(b"Lavf", b"L\xe4vf"))
    assert VideoFile(path).num_rows == NUM_FRAMES


def test_damage_anywhere_in_a_file_is_told_with_its_name(tmp_path: Path) -> None:
    path, random = write_video(tmp_path / "a.mp4", params="bframes=3"), np.random.default_rng(3)
    whole = np.frombuffer(path.read_bytes(), np.uint8)
    table = bytes(whole).index(b"moov")
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole[: (table + len(whole)) // 2].tobytes())
    with pytest.raises(DecodeError, match=r"cut\.mp4"):
        VideoFile(cut)
    for number in range(60):
        data = whole.copy()
        data[random.integers(table, len(data), 4)] ^= np.uint8(1 << random.integers(8))
        damaged = tmp_path / f"{number}.mp4"
        damaged.write_bytes(data.tobytes())
        try:
            video = VideoFile(damaged)
            list(video.rows(video.feature))
        except (DecodeError, StepError, SchemaError) as error:
            assert damaged.name in str(error)


def test_frame_without_a_keyframe_before_it_is_refused_and_can_be_left_out(tmp_path: Path) -> None:
    """A file that was cut out of an open GOP begins with such frames."""
    whole = write_video(tmp_path / "whole.mkv", params=OPEN_GOP + "normal")
    path = tmp_path / "cut.mkv"
    with av.open(str(whole)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        packets = [packet for packet in source.demux(video=0) if packet.size]
        keys = [number for number, packet in enumerate(packets) if packet.is_keyframe]
        key = next(key for key in keys if min(packet.pts for packet in packets[key:]) < packets[key].pts)
        for packet in packets[key:]:
            packet.stream = stream
            target.mux(packet)
    feature = Video((HEIGHT, WIDTH, 3))
    with pytest.raises(StepError, match=r"cut\.mkv: .* has no keyframe before it.*Set start"):
        list(VideoFile(path).rows(feature))
    later = VideoFile(path, start=VideoFile(path).frames["seconds"][VideoFile(path).frames["is_keyframe"]][0])
    _, frames = plain_frames(whole)
    np.testing.assert_array_equal(Column(later).read(0), frames[len(frames) - later.num_rows])


def test_file_that_was_changed_since_it_was_looked_at_is_refused(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv", gop=5)
    whole, video = path.read_bytes(), VideoFile(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DecodeError, match=r"a\.mkv.*changed"):
        list(video.rows(video.feature))
    write_video(path, gop=5, times=lambda i: 33 * i)
    with pytest.raises(DecodeError, match=r"a\.mkv.*changed"):
        list(video.rows(video.feature))
    path.write_bytes(whole)
    assert len(list(video.rows(video.feature))) == NUM_FRAMES


def decoded(column: Column, size: tuple[int, int] | None = None) -> np.ndarray:
    """Return all rows, run by run."""
    shape = column.codec.feature.fixed_shape
    outs = np.empty((len(column.rows), *(size or shape[:2]), *shape[2:]), np.uint8)
    for start, stop in column.runs():
        column.codec.decode_run(column.rows[start:stop], range(stop - start), list(outs[start:stop]), size)
    return outs


@pytest.mark.parametrize("name", TURNS)
def test_frames_are_shown_turned_and_mirrored_as_players_do(tmp_path: Path, name: str) -> None:
    matrix, turned = TURNS[name]
    path = write_video(tmp_path / "a.mp4", params="bframes=2", size=(46, 50))
    frames = turned(plain_frames(path)[1])
    video = VideoFile(set_matrix(path, matrix))
    assert video.feature.fixed_shape == frames.shape[1:]
    column = Column(video)
    np.testing.assert_array_equal(decoded(column), frames)
    np.testing.assert_array_equal(column.read(13), frames[13])
    mkv = VideoFile(copy_streams(tmp_path / "a.mkv", path))
    np.testing.assert_array_equal(decoded(Column(mkv)), frames)


@pytest.mark.parametrize("name", TURNS)
def test_turned_frames_are_resized_as_those_that_lie_so(tmp_path: Path, name: str) -> None:
    matrix, turned = TURNS[name]
    path = write_video(tmp_path / "a.mp4")
    plain, size = Column(VideoFile(path)), (20, 30)
    is_swapped = matrix[0] == 0
    expected = turned(decoded(plain, size[::-1] if is_swapped else size))
    np.testing.assert_array_equal(decoded(Column(VideoFile(set_matrix(path, matrix))), size), expected)


def test_grey_feature_shows_turned_frames(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4")
    images = {}
    for matrix in (TURNS["as they lie"][0], TURNS["90 degrees"][0]):
        video = VideoFile(set_matrix(path, matrix))
        codec = make_codec(Video(video.feature.fixed_shape[:2]))
        assert isinstance(codec, SequentialCodec)
        out = np.empty(codec.feature.fixed_shape, np.uint8)
        codec.decode_run([np.frombuffer(row, np.uint8) for row in video.rows(video.feature)][:1], [0], [out])
        images[matrix] = out
    upright, turned = images.values()
    np.testing.assert_array_equal(turned, np.rot90(upright, -1))


def test_matrix_of_the_film_comes_after_that_of_the_track(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4")
    frames = plain_frames(path)[1]
    quarter, mirror = TURNS["90 degrees"], TURNS["mirrored"]
    column = Column(VideoFile(set_matrix(set_matrix(path, quarter[0]), mirror[0], b"mvhd")))
    np.testing.assert_array_equal(decoded(column), mirror[1](quarter[1](frames)))


def test_frames_that_lie_aslant_are_refused_by_name(tmp_path: Path) -> None:
    path = set_matrix(write_video(tmp_path / "a.mp4"), (0.7071, 0.7071, -0.7071, 0.7071))
    with pytest.raises(DecodeError, match=r"a\.mp4: players show its frames turned by 45 degrees .* ffmpeg"):
        VideoFile(path)
    file = OpenFile(str(path))
    with pytest.raises(DecodeError, match="45 degrees"):
        make_index(str(path), file.num_bytes, file.read)


def test_rows_of_one_run_are_turned_alike(tmp_path: Path) -> None:
    path = set_matrix(write_video(tmp_path / "a.mp4"), TURNS["180 degrees"][0])
    column = Column(VideoFile(path))
    row = parse_row(column.rows[1].tobytes())
    column.rows[1] = np.frombuffer(
        pack_row(row.kind, list(map(bytes, row.packets)), row.frame, is_sync=False), np.uint8
    )
    with pytest.raises(DecodeError, match="row 1 is turned otherwise"):
        column.read(1)


def test_best_stream_is_taken_where_none_is_named(tmp_path: Path) -> None:
    small = write_video(tmp_path / "small.mp4", options={"crf": "40"}, size=(32, 48))
    large = write_video(tmp_path / "large.mp4", options={"crf": "5"})
    path = copy_streams(tmp_path / "both.mp4", small, large, best=1)
    with av.open(str(path)) as container:
        assert container.streams.best("video").index == 1
    assert VideoFile(path).feature == VideoFile(path, stream=1).feature == VideoFile(large).feature
    assert VideoFile(path, stream=0).feature == VideoFile(small).feature
    np.testing.assert_array_equal(Column(VideoFile(path)).read(3), plain_frames(large)[1][3])


def test_attached_cover_is_passed_over(tmp_path: Path) -> None:
    cover, film = tmp_path / "cover.mov", write_video(tmp_path / "film.mp4")
    with av.open(str(cover), "w") as container:
        stream = container.add_stream("png", rate=25)
        stream.height, stream.width, stream.pix_fmt = 400, 600, "rgb24"
        image = np.random.default_rng(0).integers(0, 256, (400, 600, 3), np.uint8)
        container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        container.mux(stream.encode(None))
    path = copy_streams(tmp_path / "a.mp4", cover, film, best=1, cover=0)
    with av.open(str(path)) as container:
        numbers = {video.codec.canonical_name: number for number, video in enumerate(container.streams.video)}
    np.testing.assert_array_equal(decoded(Column(VideoFile(path))), plain_frames(path, numbers["h264"])[1])
    with pytest.raises(DecodeError, match="video of png"):
        VideoFile(path, stream=numbers["png"])


@pytest.mark.parametrize("suffix", ["ts", "mp4", "mkv"])
def test_size_that_changes_in_the_middle_is_refused_when_the_file_is_taken_in(tmp_path: Path, suffix: str) -> None:
    path = write_two_sizes(tmp_path / f"a.{suffix}")
    with pytest.raises(DecodeError, match=rf"a\.{suffix}: its frames are 48x64, from .* s on 32x80\. .* ffmpeg"):
        VideoFile(path)
    assert VideoFile(write_two_sizes(path, ((48, 64), (48, 64)))).num_rows == 20


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a video that others refer to."""
    (tmp_path / "set").mkdir()
    path = tmp_path / "set" / "secret.ts"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        for number in range(12):
            image = np.full((32, 48, 3), 20 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        container.mux(stream.encode(None))
    assert VideoFile(path).num_rows == 12
    return path


LISTS = {
    "ffconcat": "ffconcat version 1.0\nfile secret.ts\nfile secret.ts\n",
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:1.2,\nsecret.ts\n#EXT-X-ENDLIST\n",
    "hls of a file address": "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:1.2,\nfile:{}\n#EXT-X-ENDLIST\n",
    "a session": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n"
    "a=rtpmap:96 H264/90000\n",
    "a manifest": '<?xml version="1.0"?>'
    '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
    '<Representation id="1"><BaseURL>secret.ts</BaseURL></Representation></AdaptationSet></Period></MPD>',
}


@pytest.mark.parametrize("text", LISTS.values(), ids=list(LISTS))
@pytest.mark.parametrize("ending", ["mp4", "m3u8", "mkv"])
def test_a_text_that_names_other_files_is_no_video(secret: Path, text: str, ending: str) -> None:
    path = secret.with_name(f"list.{ending}")
    path.write_text(text.replace("{}", str(secret)))
    for read in (lambda: VideoFile(path), lambda: known_video(str(path))):
        with pytest.raises(DecodeError, match="finds no video"):
            read()


def test_a_name_is_a_name_of_a_file_whatever_is_in_it(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(secret.parent)
    for name in ("concat:secret.ts|secret.ts", "subfile,,start,0,end,9999,,:secret.ts", "async:secret.ts", "a:b.mp4"):
        with pytest.raises(FileNotFoundError):
            VideoFile(name)
        Path(name).write_bytes(secret.read_bytes())
        assert VideoFile(name).num_rows == 12


def test_a_fifo_is_no_video(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.mp4")
    with pytest.raises(OSError, match="FIFO"):
        VideoFile(tmp_path / "a.mp4")
    with pytest.raises(DecodeError, match="FIFO"):
        known_video(str(tmp_path / "a.mp4"))
