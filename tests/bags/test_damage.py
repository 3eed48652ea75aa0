"""Recordings that are damaged, or were made to do harm, are told or read right."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stepwell.errors import FormatError
from stepwell.formats import open_reader
from stepwell.testing import check_damage, check_strangers

pytest.importorskip("mcap_ros2")
pytest.importorskip("rosbags")
pytest.importorskip("simplejpeg")
from recording_sets import write_bag, write_bag2, write_mcap

# what of a recording is left out is told
pytestmark = pytest.mark.filterwarnings("ignore::stepwell.errors.LeftOutWarning", "ignore::DeprecationWarning")


def sqlite(root: Path) -> tuple[Path, Path]:
    folder = write_bag2(root / "run")
    return folder, next(folder.glob("*.db3"))


def metadata(root: Path) -> tuple[Path, Path]:
    folder = write_bag2(root / "run")
    return folder, folder / "metadata.yaml"


def alone(write: Callable[[Path], Path]) -> Callable[[Path], tuple[Path, Path]]:
    def make(root: Path) -> tuple[Path, Path]:
        path = write(root)
        return path, path

    return make


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (alone(lambda root: write_mcap(root / "a.mcap")), "mcap"),
        (alone(lambda root: write_mcap(root / "a.mcap", "ZSTD")), "mcap"),
        (alone(lambda root: write_mcap(root / "a.mcap", "LZ4")), "mcap"),
        (alone(lambda root: write_bag(root / "a.bag")), "rosbag"),
        (alone(lambda root: write_bag(root / "a.bag", "BZ2")), "rosbag"),
        (sqlite, "rosbag"),
        (metadata, "rosbag"),
    ],
)
def test_damage_is_told_or_read_right(tmp_path: Path, make: Callable[[Path], tuple[Path, Path]], name: str) -> None:
    source, damaged = make(tmp_path)

    def read(_: Path) -> None:
        reader = open_reader(source, name)
        for episode in reader.episodes():
            for column, values in episode.columns.items():
                if hasattr(values, "rows"):
                    list(values.rows(reader.schema[column]))

    read(damaged)
    report = check_damage(damaged, read, count=8, seed=7)
    assert report.errors["FormatError"]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda root: write_mcap(root / "a.mcap"), "mcap"),
        (lambda root: write_bag(root / "a.bag"), "rosbag"),
        (lambda root: write_bag2(root / "run"), "rosbag"),
    ],
)
def test_evil_copies_do_nothing(tmp_path: Path, make: Callable[[Path], Path], name: str) -> None:
    check_strangers(make(tmp_path), name, count=7, seed=5)


def test_a_file_that_is_cut_off_says_how_to_go_on(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap")
    data = path.read_bytes()
    for size in (len(data) // 2, len(data) // 3):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError, match=r"a.mcap is cut off: .*mcap recover"):
            open_reader(path)


def test_names_of_files_in_metadata_lead_nowhere(tmp_path: Path) -> None:
    folder = write_bag2(tmp_path / "set" / "run")
    next(folder.glob("*.db3")).rename(tmp_path / "secret.db3")
    text = (folder / "metadata.yaml").read_text()
    (folder / "metadata.yaml").write_text(text.replace("run.db3", "../../secret.db3"))
    with pytest.raises(FormatError):
        open_reader(folder, "rosbag")
    (folder / "run.db3.zstd").write_bytes(b"x")
    with pytest.raises(FormatError, match=r"run.db3.zstd is compressed as a whole"):
        open_reader(folder, "rosbag")


def write_json(path: Path, *texts: str) -> Path:
    from mcap.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        channel = writer.register_channel("/pose", "json", writer.register_schema("pose", "jsonschema", b"{}"))
        for number, text in enumerate(texts):
            writer.add_message(channel, 1000 * number, text.encode(), 1000 * number)
        writer.finish()
    return path


@pytest.mark.parametrize("value", ["1" + "0" * 30, "[1" + "0" * 30 + "]", "null", "{}", "[[1]]", "[]"])
def test_values_that_no_feature_holds_are_left_out_and_told(tmp_path: Path, value: str) -> None:
    with pytest.raises(FormatError, match="no topic that can be read"):
        open_reader(write_json(tmp_path / "a.mcap", f'{{"x": {value}}}'))


@pytest.mark.parametrize("sec", ["NaN", "null", "1" + "0" * 30])
def test_stamps_that_are_no_times_are_errors(tmp_path: Path, sec: str) -> None:
    path = write_json(tmp_path / "a.mcap", f'{{"x": 1, "timestamp": {{"sec": {sec}, "nsec": 0}}}}')
    with pytest.raises(FormatError, match=r"a.mcap, /pose"):
        open_reader(f"mcap://{path}?time=header")


def test_a_clock_that_is_not_kept_counts_in_the_same_time(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap")
    for time in ("publish", "header"):
        options = f"clock=/camera/image&topics=/arm/joint_states&time={time}"
        (episode,) = open_reader(f"mcap://{path}?{options}").episodes()
        assert np.abs(episode.columns["arm.joint_states.lag"]).max() < 1e-6


def test_a_message_shorter_than_its_head_is_an_error(tmp_path: Path) -> None:
    from stepwell.bags.mcap_files import MAGIC, RECORD

    records = (0x04, bytes.fromhex("0000 0000") + b"\1\0\0\0t\4\0\0\0json\0\0\0\0"), (0x05, bytes(3)), (0x0F, bytes(4))
    (tmp_path / "a.mcap").write_bytes(MAGIC + b"".join(RECORD.pack(code, len(data)) + data for code, data in records))
    with pytest.raises(FormatError, match="a message of 3 bytes"):
        open_reader(tmp_path / "a.mcap")
