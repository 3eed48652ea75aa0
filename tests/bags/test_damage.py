"""Recordings that are damaged, or were made to do harm, are told or read right."""

from collections.abc import Callable
from pathlib import Path

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
