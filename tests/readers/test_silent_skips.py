"""What a reader would leave out of files of others without a word is an error, or a warning that names it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.errors import FormatError, LeftOutWarning
from stepwell.formats import open_reader
from stepwell.testing import check_damage

pytest.importorskip("h5py")
pytest.importorskip("pyarrow")
pytest.importorskip("simplejpeg")
pytest.importorskip("imagecodecs")
import h5py
from reader_sets import d4rl, minari_arrow, minari_hdf5, robomimic
from test_huggingface import make_table, save_to_disk, write_parquet


def huggingface(root: Path) -> Path:
    return save_to_disk(root / "set", make_table())


def read_all(source: Path, name: str) -> list[Any]:
    return [sorted(map(str, episode.columns)) for episode in open_reader(source, name).episodes()]


def in_hdf5(change: Callable[[Any], Any], name: str = "") -> Callable[[Path], None]:
    def apply(source: Path) -> None:
        with h5py.File(source / name if name else source, "r+") as file:
            change(file)

    return apply


def resized(file: Any, name: str, rows: int) -> None:
    values = file[name][:rows]
    del file[name]
    file[name] = values


def in_json(name: str, change: dict[str, Any]) -> Callable[[Path], None]:
    def apply(source: Path) -> None:
        path = source / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **change}))

    return apply


def cut_stream(source: Path) -> None:
    path = source / "data-00002-of-00003.arrow"
    path.write_bytes(path.read_bytes()[:-8])


def join_streams(source: Path) -> None:
    path = source / "data-00000-of-00003.arrow"
    path.write_bytes(path.read_bytes() * 2)


MINARI = "data/main_data.hdf5"
ERRORS: dict[str, tuple[Callable[[Path], Path], str, Callable[[Path], None], str]] = {
    "robomimic: steps": (
        robomimic, "robomimic", in_hdf5(lambda f: f["data/demo_1"].attrs.modify("num_samples", 9)),
        "num_samples says 9",
    ),
    "d4rl: observations": (
        d4rl, "d4rl", in_hdf5(lambda f: resized(f, "observations", 29)), "observations has 29 rows, actions have 30",
    ),
    "d4rl: rewards": (d4rl, "d4rl", in_hdf5(lambda f: resized(f, "rewards", 3)), "rewards has 3 rows"),
    "minari: steps": (
        minari_hdf5, "minari", in_hdf5(lambda f: f["episode_1"].attrs.modify("total_steps", 8), MINARI),
        "total_steps says 8",
    ),
    "minari: an episode": (minari_hdf5, "minari", in_hdf5(lambda f: f.pop("episode_1"), MINARI), "has 2 episodes"),
    "minari: steps of a table": (
        minari_arrow, "minari", in_json("data/1/metadata.json", {"total_steps": 8}), "total_steps 8",
    ),
    "huggingface: a stream that was cut": (huggingface, "huggingface", cut_stream, "does not end where"),
    "huggingface: two streams": (huggingface, "huggingface", join_streams, "does not end where"),
}  # fmt: skip
WARNINGS: dict[str, tuple[Callable[[Path], Path], str, Callable[[Path], None], str]] = {
    "robomimic: total": (
        robomimic, "robomimic", in_hdf5(lambda f: f["data"].attrs.create("total", 99)), "have 18 steps, .* says 99",
    ),
    "robomimic: a masked name": (robomimic, "robomimic", in_hdf5(lambda f: f["data"].pop("demo_10")), "mask: demo_10"),
    "robomimic: another name": (
        robomimic, "robomimic", in_hdf5(lambda f: f.move("data/demo_1", "data/d1")), "data: d1",
    ),
    "robomimic: more in a later one": (
        robomimic, "robomimic", in_hdf5(lambda f: f["data/demo_1"].create_dataset("depth", data=[1.0] * 6)),
        "demo_1: depth: left out",
    ),
    "d4rl: another length": (
        d4rl, "d4rl", in_hdf5(lambda f: resized(f, "infos/qpos", 29)), r"infos.qpos: left out, .* 30 steps",
    ),
    "minari: no space": (
        minari_hdf5, "minari",
        in_hdf5(lambda f: f["episode_0"].create_dataset("observations/depth", data=np.ones(6)), MINARI),
        r"observations.depth: left out",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_counts_that_disagree_are_errors_that_name_them(tmp_path: Path, case: str) -> None:
    make, name, change, told = ERRORS[case]
    source = make(tmp_path)
    change(source)
    with pytest.raises(FormatError, match=told):
        read_all(source, name)


@pytest.mark.parametrize("case", WARNINGS)
def test_what_is_left_out_is_named_by_a_warning(tmp_path: Path, case: str) -> None:
    make, name, change, told = WARNINGS[case]
    source = make(tmp_path)
    change(source)
    with pytest.warns(LeftOutWarning, match=told):
        assert read_all(source, name)


def test_a_split_that_is_listed_and_not_there_is_an_error(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save_to_disk(tmp_path / "set" / split, make_table())
    (tmp_path / "set" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    read_all(tmp_path / "set", "huggingface")
    (tmp_path / "set" / "test" / "state.json").unlink()
    with pytest.raises(FormatError, match="lists the split 'test'"):
        open_reader(tmp_path / "set", "huggingface")


def test_parquet_files_that_their_numbers_skip_are_named_by_a_warning(tmp_path: Path) -> None:
    for number in (0, 2):
        write_parquet(tmp_path / "set", make_table(), f"train-{number:05d}-of-00003.parquet")
    with pytest.warns(LeftOutWarning, match=r"train-00001-of-00003\.parquet is not there"):
        open_reader(tmp_path / "set", "huggingface", {"episode": ""})


@pytest.mark.parametrize(("make", "name"), [(huggingface, "huggingface"), (minari_arrow, "minari")])
def test_damage_loses_no_steps_without_a_word(tmp_path: Path, make: Callable[[Path], Path], name: str) -> None:
    source = make(tmp_path)

    def counts(_: Path) -> list[Any]:
        reader = open_reader(source, name)
        columns = [episode.columns for episode in reader.episodes()]
        return [
            {key: len(list(v.rows(reader.schema[key]))) if hasattr(v, "rows") else len(v) for key, v in each.items()}
            for each in columns
        ]

    good = counts(source)
    report = check_damage(
        source,
        counts,
        count=30,
        seed=3,
        is_right=lambda found: found == good,
        kinds=("cut", "cut page", "joined", "missing"),
    )
    assert report.errors["FormatError"] > 5
