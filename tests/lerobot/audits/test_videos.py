"""Each defect of the videos and of the spans in them is found under its code, with the episodes that it touches."""

import shlex
import shutil
import subprocess
from fractions import Fraction

import numpy as np
import pytest

pq = pytest.importorskip("pyarrow.parquet")
av = pytest.importorskip("av")
written_videos = pytest.importorskip("written_videos")

from stepwell.lerobot.auditing import audit  # noqa: E402
from stepwell.testing.lerobot import tiny_lerobot_picture  # noqa: E402

from .damage import change_column, change_json, cut_off, episode_files, found, set_span, tiny_set  # noqa: E402

CAMERA = "observation.images.top"
SIZE = (32, 48)


def tiny(path, version="v3.0", **options):
    return tiny_set(path, version=version, cameras={CAMERA: ("video", SIZE)}, **options)


def videos(root):
    return sorted((root / "videos").rglob("*.mp4"))


def shown(number):
    """The picture of a frame of a whole file of episodes of 5, 7 and 6 steps."""
    episode, step = next((e, number - begin) for e, begin in ((2, 12), (1, 5), (0, 0)) if number >= begin)
    return tiny_lerobot_picture(0, episode, step, SIZE)


def encode(path, count, *, fps=10, picture=shown, times=None, container_options=None, **options):
    """Write an mp4 file anew."""
    with av.open(str(path), "w", container_options=container_options or {}) as container:
        stream = container.add_stream("libx264", rate=fps, options={"bf": "0", "g": "1", **options})
        stream.height, stream.width = picture(0).shape[:2]
        stream.pix_fmt, stream.codec_context.time_base = "yuv420p", Fraction(1, 10_000)
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(picture(number), format="rgb24")
            seconds = number / fps if times is None else times[number]
            frame.pts, frame.time_base = round(seconds * 10_000), Fraction(1, 10_000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


SPANS = {
    "another episode's": ({1: {"from_timestamp": 0.0, "to_timestamp": 0.7}}, {"span-overlap": [0, 1]}),
    "beyond the end": ({2: {"from_timestamp": 1.5, "to_timestamp": 2.1}}, {"span-beyond-end": [2]}),
    "one frame late": ({2: {"from_timestamp": 1.3, "to_timestamp": 1.9}}, {"span-beyond-end": [2]}),
    "before the beginning": ({0: {"from_timestamp": -0.3, "to_timestamp": 0.2}}, {"span-beyond-end": [0]}),
    # the frames up to the next span are as many as rows
    "too long": ({0: {"to_timestamp": 0.9}}, {"span-end": [0]}),
    "too short": ({2: {"to_timestamp": 1.6}}, {"span-end": [2]}),
    "up to the time of the last frame": (
        {0: {"to_timestamp": 0.4}, 1: {"to_timestamp": 1.1}, 2: {"to_timestamp": 1.7}},
        {"span-end": [0, 1, 2]},
    ),
    "beside the grid": ({1: {"from_timestamp": 0.5003, "to_timestamp": 1.2003}}, {"span-grid": [1]}),
    "rounded": ({1: {"from_timestamp": 0.50000001, "to_timestamp": 1.2}}, {}),
}


@pytest.mark.parametrize("name", SPANS)
def test_a_span_that_is_wrong_is_found_alone(name, tmp_path):
    changes, codes = SPANS[name]
    root = tiny(tmp_path)
    for episode, values in changes.items():
        set_span(root, CAMERA, episode, **values)
    assert found(audit(root)) == codes


def test_spans_up_to_the_last_frame_are_a_warning_that_says_how_many_frames_there_are(tmp_path):
    root = tiny(tmp_path)
    set_span(root, CAMERA, 0, to_timestamp=0.4)
    report = audit(root)
    assert report.is_ok
    assert report.findings[0].message == (
        f"{CAMERA}: the span of episode 0 is 4 frames, it has 5 rows and 5 frames up to the next span or the end"
    )


def test_rows_that_are_fewer_than_the_frames_of_their_span_are_an_error(tmp_path):
    root = tiny(tmp_path)
    encode(videos(root)[0], 20)
    set_span(root, CAMERA, 0, to_timestamp=0.7)
    set_span(root, CAMERA, 1, from_timestamp=0.7, to_timestamp=1.4)
    set_span(root, CAMERA, 2, from_timestamp=1.4, to_timestamp=2.0)
    codes = found(audit(root))
    assert codes == {"span-length": [0], "video-unused": []}
    # the next span counts though its episode is not asked for
    chosen = ["totals and statistics of the whole dataset"]
    assert found(audit(root, episodes=[0]), unchecked=chosen) == {"span-length": [0]}


def set_spans(root, starts):
    """Change the starts of the spans of several files, in the files' order."""
    for path in episode_files(root):
        table_starts = dict(zip(episodes_in(path), read_column(path, f"videos/{CAMERA}/from_timestamp"), strict=True))
        wanted = {episode: starts.get(episode, start) for episode, start in table_starts.items()}
        for name, shift in (("from_timestamp", 0.0), ("to_timestamp", None)):
            lengths = dict(zip(wanted, read_column(path, "length"), strict=True))
            values = [start + (lengths[e] / 10 if shift is None else shift) for e, start in wanted.items()]
            change_column(path, f"videos/{CAMERA}/{name}", lambda _, values=values: values)


def episodes_in(path):
    return read_column(path, "episode_index")


def read_column(path, name):
    return pq.read_table(path, columns=[name]).column(name).to_pylist()


def test_several_files_of_a_camera_are_a_warning_that_names_the_reader_that_is_wrong(tmp_path):
    root = tiny(tmp_path, files=2)
    report = audit(root)
    # the first file holds one episode, the second the others
    assert found(report) == {"video-several-files": [1, 2]}
    assert report.is_ok and "StreamingLeRobotDataset" in report.findings[0].advice


def test_spans_that_count_on_from_one_file_to_the_next_are_an_error(tmp_path):
    root = tiny(tmp_path, files=3)
    set_spans(root, {1: 0.5, 2: 1.2})
    assert found(audit(root)) == {"video-several-files": [1, 2], "span-restart": [1, 2]}


def test_a_wrong_file_index_shows_as_frames_in_common(tmp_path):
    root = tiny(tmp_path, files=3, lengths=(6, 6, 6))
    change_column(episode_files(root)[2], f"videos/{CAMERA}/file_index", lambda _: [1])
    assert found(audit(root)) == {"video-several-files": [1, 2], "span-overlap": [1, 2]}


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_a_missing_video_is_named_with_its_episodes(version, tmp_path):
    root = tiny(tmp_path, version, files=3)
    videos(root)[1].unlink()
    several = {"video-several-files": [1, 2]} if version == "v3.0" else {}
    assert found(audit(root)) == {"video-missing": [1], **several}


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_many_missing_videos_are_one_finding(version, tmp_path):
    cameras = {CAMERA: ("video", SIZE), "observation.images.side": ("video", SIZE)}
    root = tiny_set(tmp_path, version=version, files=3, cameras=cameras)
    paths = videos(root)
    for path in paths[:2]:
        path.unlink()
    (finding,) = audit(root).errors
    first = paths[0].relative_to(root)
    assert finding.message == f"observation.images.side: 2 of 6 files are missing, the first is {first}"
    assert finding.command == "" and finding.episodes.tolist() == [0, 1]
    shutil.rmtree(root / "videos")
    (finding,) = audit(root).errors
    assert finding.message == f"6 of 6 files are missing, the first is {first}; there is no directory videos"


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_videos_in_a_directory_of_another_name_are_one_finding_with_the_command_that_mends_it(version, tmp_path):
    root = tiny(tmp_path, version, files=3)
    (root / "videos").rename(root / "video")
    (finding,) = audit(root).errors
    assert finding.code == "video-missing" and finding.episodes.tolist() == [0, 1, 2]
    assert finding.message.startswith(f"{CAMERA}: 3 of 3 files are missing, the first is videos/")
    assert finding.message.endswith("000.mp4 is there: video instead of videos")
    assert f"$ mv {root}/video {root}/videos" in str(audit(root))
    subprocess.run(shlex.split(finding.command), check=True)
    assert audit(root).is_ok


def test_videos_of_another_ending_and_below_another_directory_are_told(tmp_path):
    root = tiny(tmp_path)
    (path,) = videos(root)
    path.rename(path.with_suffix(".mkv"))
    (finding,) = audit(root).errors
    assert finding.message.endswith("file-000.mkv is there: its ending is another than meta/info.json says")
    path.with_suffix(".mkv").rename(path)
    (root / "unpacked").mkdir()
    (root / "videos").rename(root / "unpacked/videos")
    (finding,) = audit(root).errors
    assert finding.message.endswith("file-000.mp4 is there: unpacked instead of the root") and not finding.command


def test_pointers_of_git_lfs_are_one_finding(tmp_path):
    root = tiny(tmp_path, files=3)
    for path in videos(root):
        path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1234\n")
    report = audit(root)
    assert found(report) == {"video-several-files": [1, 2], "video-pointer": [0, 1, 2]}
    assert report.errors[0].command == f"git -C {root} lfs pull"


def test_turned_videos_are_a_warning(tmp_path):
    root = tiny(tmp_path)
    written_videos.set_matrix(videos(root)[0], (-1, 0, 0, -1))
    report = audit(root, deep=True)
    assert found(report) == {"video-rotation": [0, 1, 2]} and report.is_ok
    # the sides change places, too, and info.json tells of those of the frames as they lie
    encode(videos(root)[0], 18)
    written_videos.set_matrix(videos(root)[0], (0, 1, -1, 0))
    assert found(audit(root)) == {"video-rotation": [0, 1, 2], "video-size": [0, 1, 2]}


def test_another_encoding_than_info_json_says_is_a_warning(tmp_path):
    root = tiny(tmp_path)
    change_json(
        root / "meta/info.json", lambda info: info["features"][CAMERA]["info"].update({"video.codec": "libx264"})
    )
    assert found(audit(root)) == {}
    change_json(root / "meta/info.json", lambda info: info["features"][CAMERA]["info"].update({"video.codec": "av1"}))
    report = audit(root)
    assert found(report) == {"video-codec": [0, 1, 2]} and report.is_ok
    assert "file-000.mp4 is h264, av1 in info.json" in report.findings[0].message


def test_a_size_that_changes_in_the_middle_is_found_by_looking_at_every_frame(tmp_path):
    root = tiny(tmp_path, lengths=(10, 10), fps=25)
    written_videos.write_two_sizes(videos(root)[0], (SIZE, (64, 80)))
    errors = {error.code: error.episodes.tolist() for error in audit(root, deep=True).errors}
    assert errors["video-size"] == [1]
    # PyAV before 17 does not show what the head of a file says: its packets are looked at, which refuses the file
    assert errors.keys() <= {"video-size", "video-unreadable"}


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_a_video_without_its_index_is_named_with_its_episodes(version, share, tmp_path):
    root = tiny(tmp_path, version, files=3)
    cut_off(videos(root)[2], share)
    several = {"video-several-files": [1, 2]} if version == "v3.0" else {}
    assert found(audit(root)) == {"video-unreadable": [2], **several}


def test_a_video_whose_index_is_at_its_head_is_found_to_be_cut_off_with_the_episodes_behind(tmp_path):
    root = tiny(tmp_path)
    (path,) = videos(root)
    encode(path, 18, container_options={"movflags": "faststart"})
    assert found(audit(root)) == {}
    cut_off(path, 0.97)
    assert found(audit(root)) == {"video-unreadable": [2]}


def test_a_video_of_too_few_frames_is_found(tmp_path):
    root = tiny(tmp_path)
    encode(videos(root)[0], 16)
    assert found(audit(root)) == {"span-beyond-end": [2]}


def test_frames_of_no_episode_are_a_warning(tmp_path):
    root = tiny(tmp_path)
    encode(videos(root)[0], 21)
    report = audit(root)
    assert found(report) == {"video-unused": []} and report.is_ok
    assert "3 of 21 frames" in report.findings[0].message


@pytest.mark.parametrize("count", [6, 8])
@pytest.mark.parametrize("version", ["v2.0", "v2.1"])
def test_a_video_of_v2_with_another_number_of_frames_than_rows_is_found(version, count, tmp_path):
    root = tiny(tmp_path, version)
    encode(videos(root)[1], count)
    report = audit(root)
    assert found(report) == {"video-frames": [1]}
    assert f"has {count} frames, its episode 7 rows" in report.findings[0].message


def test_a_video_of_another_rate_is_found(tmp_path):
    root = tiny(tmp_path)
    encode(videos(root)[0], 18, fps=15)
    report = audit(root)
    assert found(report) == {"video-fps": [0, 1, 2]}
    assert "15 frames a second, the dataset 10" in report.findings[0].message


def test_a_rate_that_differs_by_a_thousandth_is_found(tmp_path):
    root = tiny(tmp_path)
    encode(videos(root)[0], 18, times=np.arange(18) / 9.99)
    assert found(audit(root)) == {"video-fps": [0, 1, 2]}


def test_frames_at_other_times_are_found(tmp_path):
    root = tiny(tmp_path)
    times = np.arange(18) / 10
    times[9:] += 0.05
    encode(videos(root)[0], 18, times=times)
    report = audit(root)
    assert found(report) == {"video-times": [0, 1, 2]}
    assert "frame 9 of" in report.findings[0].message


def test_a_video_that_begins_later_is_found(tmp_path):
    root = tiny(tmp_path)
    encode(videos(root)[0], 18, times=np.arange(18) / 10 + 0.2)
    assert found(audit(root)) == {"video-start": [0, 1, 2]}


def test_a_video_of_another_size_is_found(tmp_path):
    root = tiny(tmp_path)
    encode(videos(root)[0], 18, picture=lambda number: tiny_lerobot_picture(0, 0, number, (16, 48)))
    report = audit(root)
    assert found(report) == {"video-size": [0, 1, 2]}
    assert "videos of 16 x 48, 32 x 48 in info.json" in report.findings[0].message


def test_episodes_that_do_not_begin_with_a_key_frame_are_a_warning(tmp_path):
    root = tiny(tmp_path)
    encode(videos(root)[0], 18, g="6", keyint_min="6", sc_threshold="0")
    report = audit(root)
    assert found(report) == {"video-no-key": [1]} and report.is_ok


def test_episodes_that_begin_in_an_open_group_are_a_warning(tmp_path):
    root = tiny(tmp_path, lengths=(12, 12, 12))
    options = "open-gop=1:keyint=12:min-keyint=12:bframes=3:b-adapt=0:scenecut=0"
    encode(videos(root)[0], 36, bf="3", **{"x264-params": options})
    report = audit(root)
    assert found(report) == {"video-open-gop": [1, 2]} and report.is_ok


def test_only_the_chosen_episodes_are_looked_at(tmp_path):
    root = tiny(tmp_path, files=3)
    videos(root)[1].unlink()
    chosen = ["totals and statistics of the whole dataset"]
    assert found(audit(root, episodes=[0]), unchecked=chosen) == {}
    assert found(audit(root, episodes=[1]), unchecked=chosen) == {"video-missing": [1]}


@pytest.mark.parametrize("encoder", ["h264", "av1"])
@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_sound_videos_are_decoded_without_a_finding(version, encoder, tmp_path):
    root = tiny(tmp_path, version, encoder=encoder)
    assert found(audit(root, deep=True)) == {}


def test_a_camera_that_hung_and_one_that_was_off_are_named(tmp_path):
    root = tiny(tmp_path, lengths=(5, 5, 8))
    still = tiny_lerobot_picture(0, 0, 3, SIZE)
    black = np.zeros((*SIZE, 3), np.uint8)
    encode(videos(root)[0], 18, picture=lambda n: black if n < 5 else still if n < 10 else shown(n), g="5", crf="30")
    (root / "meta/stats.json").unlink()
    codes = {"camera-black": [0], "camera-frozen": [1], "statistics-missing": []}
    assert found(audit(root, deep=True)) == codes
    assert found(audit(root)) == {"statistics-missing": []}


def test_frames_that_cannot_be_decoded_are_named_with_the_episodes_after_them(tmp_path):
    root = tiny(tmp_path)
    path = videos(root)[0]
    with av.open(str(path)) as container:
        packet = list(container.demux(video=0))[14]
        position, size = packet.pos, packet.size
    data = bytearray(path.read_bytes())
    data[position : position + size] = b"\xff" * size
    path.write_bytes(data)
    assert found(audit(root, deep=True)) == {"video-damaged": [2]}
