"""Packets of video rows in mp4 files: as they are, at exact times, split where they must be."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

av = pytest.importorskip("av")

from stepwell import Video  # noqa: E402
from stepwell.codecs import make_codec  # noqa: E402
from stepwell.codecs.video_encoding import built_in_encoders  # noqa: E402
from stepwell.codecs.video_streams import pack_row, parse_row  # noqa: E402
from stepwell.lerobot.camera_writing import VideoFiles, packets_of  # noqa: E402
from stepwell.lerobot.parquet_writing import FileNumbers  # noqa: E402

from .written import picture, read_video  # noqa: E402

LENGTH = 5


def rows_of(episode=0, *, length=LENGTH, encoder="h264", size=(48, 64), **options):
    codec = make_codec(Video((*size, 3), encoder=encoder, **options)).encoder()
    rows = [row for step in range(length) for row in codec.put(picture(episode, step, size))]
    return [*rows, *codec.end()]


def decoded(rows, size=(48, 64)):
    codec, pictures = make_codec(Video((*size, 3))), []
    starts = [i for i, row in enumerate(rows) if parse_row(row).is_sync] + [len(rows)]
    for start, stop in pairwise(starts):
        outs = [np.empty((*size, 3), np.uint8) for _ in range(start, stop)]
        codec.decode_run([np.frombuffer(row, np.uint8) for row in rows[start:stop]], range(stop - start), outs)
        pictures += outs
    return np.stack(pictures)


def files_at(tmp_path, fps=10, limit_mb=100.0):
    return VideoFiles(lambda chunk, file: tmp_path / f"{chunk}-{file}.mp4", fps, FileNumbers(1000), limit_mb)


@pytest.mark.parametrize("encoder", ["h264", "hevc", "av1"])
def test_files_show_the_very_pictures_that_the_rows_do(tmp_path, encoder):
    if encoder not in built_in_encoders():
        pytest.skip(f"this PyAV cannot encode {encoder}")
    rows = [rows_of(episode, encoder=encoder) for episode in range(2)]
    files = files_at(tmp_path)
    assert [files.add(packets_of(each)) for each in rows] == [(0, 0, 0.0), (0, 0, LENGTH / 10)]
    files.close()
    times, frames = read_video(tmp_path / "0-0.mp4")
    assert np.array_equal(frames, np.concatenate([decoded(each) for each in rows]))
    np.testing.assert_allclose(times, np.arange(2 * LENGTH) / 10, atol=1e-9)
    assert files.facts == {"codec": encoder, "pix_fmt": "yuv420p", "height": 48, "width": 64}


@pytest.mark.parametrize("fps", [1, 10, 30, 59.94, 29.97, 12.5, 1000])
def test_times_are_those_of_a_constant_rate_from_zero(tmp_path, fps):
    rows = rows_of(length=40)
    files = files_at(tmp_path, fps)
    assert files.add(packets_of(rows))[2] == 0.0
    assert files.add(packets_of(rows))[2] == 40 / fps
    files.close()
    with av.open(str(tmp_path / "0-0.mp4")) as container:
        video = container.streams.video[0]
        assert video.start_time == 0 and video.frames == 80
        assert float(video.average_rate) == pytest.approx(fps, rel=1e-9)
        times = [packet.pts * video.time_base for packet in container.demux(video) if packet.size]
    assert times == [number / Fraction(fps).limit_denominator(100_000) for number in range(80)]


def test_each_episode_begins_with_a_key_frame_and_keeps_its_own(tmp_path):
    rows = rows_of(length=5, gop=3)
    files = files_at(tmp_path)
    for _ in range(2):
        files.add(packets_of(rows))
    files.close()
    with av.open(str(tmp_path / "0-0.mp4")) as container:
        keys = [packet.is_keyframe for packet in container.demux(video=0) if packet.size]
    assert keys == [True, False, False, True, False] * 2


def test_a_file_that_would_grow_too_large_is_followed_by_a_new_one(tmp_path):
    episodes = [packets_of(rows_of(episode)) for episode in range(4)]
    limit = (episodes[0].num_bytes + episodes[1].num_bytes + 1) / 2**20
    files = files_at(tmp_path, limit_mb=limit)
    places = [files.add(each)[:2] for each in episodes]
    files.close()
    assert places[0] == places[1] == (0, 0) and places[2] == (0, 1)


@pytest.mark.parametrize("encoder", ["h264", "av1"])
def test_another_stream_begins_a_new_file(tmp_path, encoder):
    if encoder not in built_in_encoders():
        pytest.skip(f"this PyAV cannot encode {encoder}")
    first, other = rows_of(encoder=encoder), rows_of(size=(64, 64), encoder=encoder)
    files = files_at(tmp_path)
    assert [files.add(packets_of(rows))[:2] for rows in (first, other, other)] == [(0, 0), (0, 1), (0, 1)]
    files.close()
    assert np.array_equal(read_video(tmp_path / "0-1.mp4")[1][:LENGTH], decoded(other, (64, 64)))


def test_rows_that_cannot_lie_in_a_file_as_they_are_are_told():
    rows = rows_of(gop=4)
    packets = [bytes(parse_row(row).packets[0]) for row in rows]
    assert packets_of(rows) is not None
    # a run without its beginning; two packets in a row; pictures in another order; two streams; a kind without packets
    joined = [pack_row("h264", packets[:2], 1, is_sync=True), *rows[2:]]
    swapped = [rows[0], pack_row("h264", [packets[1]], 2, is_sync=False), *rows[2:]]
    for wrong in (rows[1:], joined, swapped, [*rows, *rows_of(size=(64, 64))], []):
        assert packets_of(wrong) is None
    assert packets_of([pack_row("mpeg4", [b"\0\0\1\xb6"], 0, is_sync=True)]) is None
