"""Recordings of every kind give the same episode: topics at the ticks of a clock, each with its lag."""

import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mcap")
pytest.importorskip("mcap_ros2")
pytest.importorskip("rosbags")
pytest.importorskip("simplejpeg")
from recording_sets import COUNT, START, STEP, jpeg, write_bag, write_bag2, write_mcap, write_ros1_mcap

import stepwell
from stepwell import convert
from stepwell.cli.main import main
from stepwell.errors import FormatError, LeftOutWarning
from stepwell.formats import find_reader, open_reader

KINDS: dict[str, tuple[Callable[[Path], Path], str, bool]] = {
    "mcap, plain": (lambda root: write_mcap(root / "a.mcap"), "mcap", True),
    "mcap, no chunks": (lambda root: write_ros1_mcap(root / "a.mcap", use_chunking=False), "mcap", True),
    "mcap, zstd": (lambda root: write_mcap(root / "a.mcap", "ZSTD"), "mcap", False),
    "mcap, lz4": (lambda root: write_mcap(root / "a.mcap", "LZ4"), "mcap", False),
    "mcap, ros 1": (lambda root: write_ros1_mcap(root / "a.mcap"), "mcap", False),
    "ros 1, plain": (lambda root: write_bag(root / "a.bag"), "rosbag", True),
    "ros 1, bz2": (lambda root: write_bag(root / "a.bag", "BZ2"), "rosbag", False),
    "ros 1, lz4": (lambda root: write_bag(root / "a.bag", "LZ4"), "rosbag", False),
    "ros 2, sqlite3": (lambda root: write_bag2(root / "run"), "rosbag", False),
    "ros 2, mcap": (lambda root: write_bag2(root / "run", "MCAP"), "mcap", True),
}
CLOCK = "clock=/camera/image"
ALIGN = "align=nearest,/arm/joint_states=linear,/say=hold"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))


def check(store: stepwell.Store) -> None:
    episode = store[0]
    steps = np.arange(0, COUNT, 3)
    assert len(store) == 1
    assert episode["timestamp"] == pytest.approx(steps * STEP / 1e9)
    wanted = [
        stepwell.codecs.make_codec(stepwell.Image((48, 64, 3), codec="jpeg")).decode(as_bytes(jpeg(n))) for n in steps
    ]
    assert np.array_equal(episode["camera.image"], np.stack(wanted))
    assert (episode["camera.depth"] == steps[:, None, None]).all()
    assert (episode["camera.bgr"][..., 0] == steps[:, None, None]).all()
    assert (episode["camera.bgr"][..., 1:] == [2, 1]).all()
    # the clock's ticks are three nanoseconds after the joints' messages
    assert episode["arm.joint_states.position"][:, 1] == pytest.approx(2 * (steps + 3 / STEP))
    assert episode["arm.joint_states.lag"] == pytest.approx(3e-9)
    assert episode["count.data"].tolist() == steps.tolist()
    assert episode["say.data"] == [f"word {n // 10 * 10}" for n in steps]
    assert episode["say.lag"] == pytest.approx((steps % 10) * STEP / 1e9, abs=1e-6)
    assert store.fps == pytest.approx(33.333)


def as_bytes(blob: bytes) -> np.ndarray:
    return np.frombuffer(blob, np.uint8)


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_give_the_same_episode(tmp_path: Path, kind: str) -> None:
    write, name, is_plain = KINDS[kind]
    path = write(tmp_path / "set")
    assert find_reader(path).name == name
    # the last joint message comes after the last tick
    store = stepwell.open(f"{name}://{path}?{CLOCK}&{ALIGN}")
    check(store)
    codecs = {feature: store.schema[feature].codec for feature in ("camera.image", "camera.depth", "camera.bgr")}
    assert codecs == {
        "camera.image": "file-span" if is_plain else "jpeg",
        "camera.depth": "file-span" if is_plain else "raw",
        "camera.bgr": "raw",
    }
    convert(f"{name}://{path}?{CLOCK}&{ALIGN}", tmp_path / "a.well", workers=0)
    check(stepwell.open(tmp_path / "a.well"))


@pytest.mark.parametrize("kind", ["mcap, zstd", "ros 1, plain", "ros 2, sqlite3"])
def test_the_command_converts_what_it_recognises(tmp_path: Path, kind: str) -> None:
    path = KINDS[kind][0](tmp_path / "set")
    assert main(["convert", str(path), str(tmp_path / "a.well"), "--workers", "1"]) == 0
    store = stepwell.open(tmp_path / "a.well")
    assert store.metadata[KINDS[kind][1]]["clock"] == "/camera/bgr"
    assert len(store[0]["camera.depth"]) == COUNT // 3


@pytest.mark.parametrize("kind", ["mcap, plain", "ros 1, bz2", "ros 2, sqlite3"])
def test_a_rate_is_a_clock_and_headers_are_times(tmp_path: Path, kind: str) -> None:
    write, name, _ = KINDS[kind]
    options = {"clock": "50", "time": "header", "topics": "/arm/*,/camera/image", "align": {"/camera/image": "hold"}}
    reader = open_reader(write(tmp_path / "set"), name, options)
    assert reader.fps == 50
    episode = reader[0]
    assert episode.metadata["start"] == (START - 500_000) / 1e9
    assert episode.columns["timestamp"][:3] == pytest.approx([0, 0.02, 0.04])
    assert len(episode.columns["timestamp"]) == COUNT // 2
    assert episode.columns["arm.joint_states.lag"] == pytest.approx(0, abs=1e-9)
    assert episode.columns["arm.joint_states.position"][:, 0].tolist() == list(range(0, COUNT, 2))
    assert episode.columns["camera.image.lag"][:4] == pytest.approx([0, 0.02, 0.01, 0])
    again = pickle.loads(pickle.dumps(reader))
    assert np.array_equal(again[0].columns["timestamp"], episode.columns["timestamp"])


def test_publish_times_are_told_by_mcap(tmp_path: Path) -> None:
    reader = open_reader(write_mcap(tmp_path / "a.mcap"), options={"time": "publish", "topics": "/count"})
    assert reader[0].metadata["start"] == (START + 1 - 500_000) / 1e9


def test_json_and_empty_arrays(tmp_path: Path) -> None:
    reader = open_reader(
        write_ros1_mcap(tmp_path / "a.mcap"), options={"topics": "/pose,/arm/joint_states", "clock": "/pose"}
    )
    assert set(reader.schema) == {
        "timestamp", "pose.x", "pose.more.y", "pose.lag", "arm.joint_states.position", "arm.joint_states.lag",
    }  # fmt: skip
    assert reader[0].columns["pose.more.y"].tolist() == [[1, 2.5]] * COUNT
    assert reader[0].columns["pose.x"].tolist() == list(range(COUNT))


def test_a_directory_has_an_episode_a_recording(tmp_path: Path) -> None:
    for name in ("run_10.mcap", "run_2.mcap"):
        write_mcap(tmp_path / "set" / name)
    write_bag2(tmp_path / "set" / "zz", "MCAP")
    store = stepwell.open(f"mcap://{tmp_path}/set?topics=/camera/depth,/count")
    assert [episode.metadata["file"] for episode in store] == ["run_2.mcap", "run_10.mcap", "zz.mcap"]
    assert all((episode["camera.depth"][:, 0, 0] == np.arange(0, COUNT, 3)).all() for episode in store)
    assert store.schema["camera.depth"].codec == "file-span"


def test_files_of_one_recording_are_one_episode(tmp_path: Path) -> None:
    folder = write_bag2(tmp_path / "run", "MCAP")
    write_mcap(folder / "run_1.mcap")
    reader = open_reader(folder, options={"topics": "/count", "clock": "/count"})
    assert len(reader) == 1
    assert reader[0].columns["count.data"].tolist() == np.repeat(np.arange(COUNT), 2).tolist()


def test_older_bags_of_ros_2_take_definitions_of_a_distribution(tmp_path: Path) -> None:
    folder = write_bag2(tmp_path / "run")
    with sqlite3.connect(next(folder.glob("*.db3"))) as database:
        database.execute("UPDATE message_definitions SET encoded_message_definition = ''")
    database.close()
    assert len(open_reader(folder)[0].columns["timestamp"]) == COUNT // 3
    with pytest.raises(FormatError, match=r"distro='ros3'\. Allowed: .*ros2_humble"):
        open_reader(folder, options={"distro": "ros3"})


def test_a_database_alone_is_a_recording(tmp_path: Path) -> None:
    database = next(write_bag2(tmp_path / "run").glob("*.db3"))
    assert find_reader(database).name == "rosbag"
    assert len(open_reader(database)[0].columns["timestamp"]) == COUNT // 3


def test_what_is_not_read_is_left_out_with_a_warning(tmp_path: Path) -> None:
    from mcap.writer import Writer

    with (tmp_path / "a.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start()
        parts = b"Part[] parts\n" + b"=" * 80 + b"\nMSG: tf2_msgs/Part\nint8 x"
        kinds = (
            ("/a", "flatbuffer", "foxglove.Pose", "flatbuffer", b"..."),
            ("/b", "cdr", "std_msgs/msg/Int16", "ros2msg", b"int16 data"),
            ("/c", "cdr", "tf2_msgs/msg/TF", "ros2msg", parts),
        )
        ids = [
            writer.register_channel(name, encoding, writer.register_schema(*each)) for name, encoding, *each in kinds
        ]
        for step in range(4):
            for channel, data in zip(ids, (b"x", b"\0\1\0\0\7\0", b"\0\1\0\0\1\0\0\0\5"), strict=True):
                writer.add_message(channel, step, data, step)
        writer.finish()
    with pytest.warns(LeftOutWarning) as caught:
        reader = open_reader(tmp_path / "a.mcap")
    told = " ".join(str(each.message) for each in caught)
    assert "/a" in told and "flatbuffer by flatbuffer" in told
    assert "/c" in told and "lists of messages" in told
    assert reader[0].columns["b.data"].tolist() == [7] * 4
    with pytest.raises(FormatError, match=r"/a: messages are encoded as flatbuffer by flatbuffer"):
        open_reader(tmp_path / "a.mcap", options={"topics": "/a"})


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"clock": "/nothing"}, r"clock='/nothing'. Allowed: a rate in Hz, or a topic: .*/say \(std_msgs/String, 6\)"),
        ({"clock": "0"}, r"a clock of 0.0 ticks"),
        ({"align": "middle"}, r"align: 'middle'. Allowed: nearest, hold, linear"),
        ({"align": "/no=hold"}, r"there is no topic /no. There are: "),
        ({"topics": "/x*"}, r"topics=\['/x\*'\]: .* has /arm/joint_states"),
        ({"time": "now"}, r"time='now'"),
        ({"ignore": "x"}, r"ignore=\['x'\]"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    with pytest.raises(FormatError, match=told):
        open_reader(write_mcap(tmp_path / "a.mcap"), options=options)


def test_a_wrong_guess_says_so(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "a.bag")
    with pytest.raises(FormatError, match=r"a.bag holds no recordings of mcap: no \.mcap file"):
        open_reader(path, "mcap")
    path.rename(tmp_path / "a.mcap")
    with pytest.raises(FormatError, match=r"a.mcap does not begin as an MCAP file does: b'#ROSBAG"):
        open_reader(tmp_path / "a.mcap", "mcap")


def test_topics_without_a_common_time_are_told(tmp_path: Path) -> None:
    from mcap.writer import Writer

    with (tmp_path / "a.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start()
        good = writer.register_schema("std_msgs/msg/Int16", "ros2msg", b"int16 data")
        for name, time in (("/a", 5), ("/b", 9)):
            writer.add_message(writer.register_channel(name, "cdr", good), time, b"\0\1\0\0\7\0", time)
        writer.finish()
    with pytest.raises(FormatError, match=r"no step at which all topics have a message: /a .* to .* s, /b "):
        open_reader(tmp_path / "a.mcap", options={"align": "hold", "clock": "/a"})
