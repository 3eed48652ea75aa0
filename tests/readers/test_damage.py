"""Damaged files of every format are told, or read right: no crash, no hang, no memory that a header merely claims."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.formats import open_reader
from stepwell.testing import check_damage

pytest.importorskip("h5py")
pytest.importorskip("pyarrow")
pytest.importorskip("zarr")
pytest.importorskip("simplejpeg")
pytest.importorskip("imagecodecs")
from reader_sets import write_d4rl, write_minari, write_replay, write_robomimic
from robot_sets import write_act, write_aloha, write_dqn_replay, write_dreamer_v3, write_maniskill
from test_huggingface import make_table, save_to_disk, write_parquet

# zarr warns of names that a damaged archive lists
pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")


def robomimic(root: Path) -> tuple[Path, Path]:
    path = write_robomimic(root / "a.hdf5")
    return path, path


def packed_robomimic(root: Path) -> tuple[Path, Path]:
    path = write_robomimic(root / "a.hdf5", compression="gzip", chunks=True)
    return path, path


def d4rl(root: Path) -> tuple[Path, Path]:
    write_d4rl(root / "a.hdf5")
    return root / "a.hdf5", root / "a.hdf5"


def minari_hdf5(root: Path) -> tuple[Path, Path]:
    source = write_minari(root / "set", "hdf5")
    return source, source / "data" / "main_data.hdf5"


def minari_arrow(root: Path) -> tuple[Path, Path]:
    source = write_minari(root / "set", "arrow")
    return source, source / "data" / "1" / "part-0.arrow"


def minari_metadata(root: Path) -> tuple[Path, Path]:
    source = write_minari(root / "set", "arrow")
    return source, source / "data" / "metadata.json"


def zarr_archive(root: Path) -> tuple[Path, Path]:
    write_replay(root / "p.zarr")
    path = Path(shutil.make_archive(str(root / "p.zarr"), "zip", root / "p.zarr"))
    return path, path


def zarr_metadata(root: Path) -> tuple[Path, Path]:
    write_replay(root / "p.zarr")
    return root / "p.zarr", root / "p.zarr" / "data" / "img" / ".zarray"


def huggingface_arrow(root: Path) -> tuple[Path, Path]:
    source = save_to_disk(root / "set", make_table())
    return source, source / "data-00000-of-00003.arrow"


def huggingface_parquet(root: Path) -> tuple[Path, Path]:
    source = write_parquet(root / "set", make_table())
    return source, source / "data" / "train-00000-of-00001.parquet"


def act(root: Path) -> tuple[Path, Path]:
    return write_act(root / "act", {0: 2, 1: 3}), root / "act" / "episode_1.hdf5"


def aloha(root: Path) -> tuple[Path, Path]:
    return write_aloha(root / "aloha", {0: 2, 1: 3}), root / "aloha" / "episode_1.hdf5"


def maniskill(root: Path) -> tuple[Path, Path]:
    path = write_maniskill(root / "demos")
    return path, path


def maniskill_json(root: Path) -> tuple[Path, Path]:
    path = write_maniskill(root / "demos")
    return path, path.with_suffix(".json")


def dreamer(root: Path) -> tuple[Path, Path]:
    source = write_dreamer_v3(root / "replay")
    return source, next(source.glob("*-id1-*"))


def dqn_replay(root: Path) -> tuple[Path, Path]:
    write_dqn_replay(root / "logs", [5, 3, 8], 40)
    return root / "logs", root / "logs" / "$store$_observation_ckpt.0.gz"


@pytest.mark.parametrize(
    ("make", "name", "count"),
    [
        (act, "hdf5", 25),
        (aloha, "hdf5", 25),
        (maniskill, "hdf5", 25),
        (maniskill_json, "hdf5", 25),
        (dreamer, "dreamer", 100),
        (dqn_replay, "dqn-replay", 100),
        (robomimic, "robomimic", 25),
        (packed_robomimic, "robomimic", 25),
        (d4rl, "d4rl", 40),
        (minari_hdf5, "minari", 25),
        (minari_arrow, "minari", 50),
        (minari_metadata, "minari", 100),
        (zarr_archive, "zarr", 25),
        (zarr_metadata, "zarr", 40),
        (huggingface_arrow, "huggingface", 100),
        (huggingface_parquet, "huggingface", 100),
    ],
)
def test_damage_is_told_or_read_right(
    tmp_path: Path, make: Callable[[Path], tuple[Path, Path]], name: str, count: int
) -> None:
    source, damaged = make(tmp_path)

    def read(_: Path) -> None:
        reader = open_reader(source, name)
        for episode in reader.episodes():
            for column, values in episode.columns.items():
                if hasattr(values, "rows"):
                    list(values.rows(reader.schema[column]))

    read(damaged)
    report = check_damage(damaged, read, count=count, seed=7)
    assert report.errors["FormatError"] > count // 8
