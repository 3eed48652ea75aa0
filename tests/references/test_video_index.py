"""The index of a file: from its head the same as from all of its packets."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.codecs.video_packets import key_places, packet_table
from stepwell.errors import DecodeError
from stepwell.files.local_files import OpenFile
from stepwell.references.video_index import VideoIndex, exact_index, make_index

av = pytest.importorskip("av")
from written_videos import CASES, OPEN_GOP, needs_heads, write_video  # noqa: E402  needs av

pytestmark = needs_heads

SHARED = Path(__file__).parents[3] / "shared" / "data"
SHARED_FILES = sorted(SHARED.glob("video/*.mp4")) + sorted(SHARED.glob("lerobot/*/videos/**/*.mp4"))
IN_MP4 = [name for name in CASES if name.endswith((".mp4", ".mov"))]
# whose heads do not say everything: fragments
READ_WHOLE = {"fragments.mp4"}


def index_of(path: Path) -> VideoIndex:
    file = OpenFile(str(path))
    return make_index(str(path), file.num_bytes, file.read)


def exact_index_of(path: Path) -> VideoIndex:
    return exact_index(str(path), OpenFile(str(path)).read)


def check_equal(found: VideoIndex, exact: VideoIndex) -> None:
    for name in VideoIndex.__slots__:
        if name != "is_exact":
            np.testing.assert_equal(getattr(found, name), getattr(exact, name), err_msg=name)


def count_tables(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list that grows when all packets of a file are read."""
    read: list[Path] = []

    def noted(path: Path, stream: int) -> Any:
        read.append(path)
        return packet_table(path, stream)

    monkeypatch.setattr("stepwell.references.video_index.packet_table", noted)
    return read


@pytest.fixture(autouse=True)
def quiet_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVT_LOG", "0")


@pytest.mark.parametrize("name", [name for name in IN_MP4 if name != "refresh.mp4"])
def test_index_equals_that_of_all_packets(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = write_video(tmp_path / name, **CASES[name]), count_tables(monkeypatch)
    found = index_of(path)
    assert bool(read) == (name in READ_WHOLE)
    check_equal(found, exact_index_of(path))


@pytest.mark.skipif(not SHARED_FILES, reason="the shared video files are not beside this checkout")
@pytest.mark.parametrize("path", SHARED_FILES, ids=["-".join(path.parts[-3:]) for path in SHARED_FILES])
def test_index_of_a_shared_file_equals_that_of_all_packets(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = count_tables(monkeypatch)
    found = index_of(path)
    assert not read
    check_equal(found, exact_index_of(path))


def test_key_packets_that_h264_only_flags_are_none_of_the_exact_index(tmp_path: Path) -> None:
    path = write_video(tmp_path / "refresh.mp4", **CASES["refresh.mp4"])
    found, exact = index_of(path), exact_index_of(path)
    assert len(found.keys) > len(exact.keys) == 1
    assert exact.is_exact and not found.is_exact


def test_edit_list_that_leaves_frames_out_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"avoid_negative_ts": "disabled"}
    path = write_video(tmp_path / "a.mp4", params="bframes=3:b-adapt=0", shift=-220, container_options=options)
    read = count_tables(monkeypatch)
    found = index_of(path)
    assert read
    check_equal(found, exact_index_of(path))
    with av.open(str(path)) as container:
        times = [float(frame.pts * frame.time_base) for frame in container.decode(video=0)]
    np.testing.assert_allclose(found.seconds, times, atol=1e-9)


@pytest.mark.parametrize("shift", [-40, 90, 1000])
def test_file_that_does_not_begin_at_zero_keeps_its_times(tmp_path: Path, shift: int) -> None:
    path = write_video(tmp_path / "a.mp4", params="bframes=2", shift=shift)
    found = index_of(path)
    check_equal(found, exact_index_of(path))


def test_first_of_several_streams_is_taken(tmp_path: Path) -> None:
    source, path = write_video(tmp_path / "one.mp4", params="bframes=2"), tmp_path / "two.mp4"
    with av.open(str(source)) as first, av.open(str(path), "w") as target:
        video = first.streams.video[0]
        streams = [target.add_stream_from_template(video) for _ in range(2)]
        sound = target.add_stream("aac", rate=8000)
        for packet in list(first.demux(video)):
            if packet.size:
                for stream in streams:
                    packet.stream = stream
                    target.mux(packet)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 8000), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        for packet in sound.encode(frame) + sound.encode(None):
            target.mux(packet)
    found = index_of(path)
    check_equal(found, exact_index_of(path))
    np.testing.assert_array_equal(found.seconds, index_of(source).seconds)


@pytest.mark.parametrize("name", ["open-gop.mkv", "vp9.webm", "mpeg4.avi"])
def test_packets_are_found_where_they_lie_in_other_formats(name: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / name, **CASES[name])
    found, data = index_of(path), path.read_bytes()
    assert found.demuxed is None
    with av.open(str(path)) as container:
        packets = [bytes(packet) for packet in container.demux(video=0) if packet.size]
    places = zip(found.positions.tolist(), found.sizes.tolist(), strict=True)
    assert [data[place : place + size] for place, size in places] == packets


def test_packets_that_lie_in_pieces_are_left_to_ffmpeg(tmp_path: Path) -> None:
    found = index_of(write_video(tmp_path / "a.ts", **CASES["transport.ts"]))
    assert found.demuxed is not None and found.nbytes > found.demuxed.pts.nbytes


def test_what_is_no_video_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"no video at all" * 20)
    with pytest.raises(DecodeError, match=r"a\.mp4: ffmpeg finds no video"):
        index_of(path)


def test_frame_nearest_to_a_time_is_found_and_of_two_the_earlier(tmp_path: Path) -> None:
    index = index_of(write_video(tmp_path / "a.mp4", params=OPEN_GOP + "normal"))
    times = np.array([-5.0, 0.0, 0.019, 0.02, 0.021, 0.04, 0.8, 1e9])
    wanted = [int(np.argmin(np.abs(index.seconds - time))) for time in times]
    assert [index.nearest(float(time)) for time in times] == wanted
    for time in times:
        count, since, until = index.run_around(float(time))
        members = (index.seconds >= since) & (index.seconds < until)
        assert members.sum() == count
        assert members[index.nearest(float(time))]


def test_key_packets_are_those_of_all_packets(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", params=OPEN_GOP + "normal")
    index, table = index_of(path), packet_table(path, 0)
    keys = np.flatnonzero(table.is_key)
    frames = np.arange(len(index.seconds))
    packets = [index.packet_of(int(frame)) for frame in frames]
    assert [index.frame_of(packet) for packet in packets] == frames.tolist()
    places = key_places(keys, table.pts, np.array(packets))
    found = [index.find(float(time)) for time in index.seconds]
    assert found == list(zip(frames.tolist(), packets, keys[places].tolist(), strict=True))


def test_index_takes_about_24_bytes_a_frame(tmp_path: Path) -> None:
    index = index_of(write_video(tmp_path / "a.mp4", gop=2, params="bframes=0:keyint=2"))
    assert index.nbytes <= 24 * len(index.seconds)
