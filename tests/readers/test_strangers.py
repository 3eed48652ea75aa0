"""Data sets that were made to do harm: nothing outside is read, nothing hangs, memory is bounded, in every reader."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.errors import FormatError, UntrustedFileError
from stepwell.formats import open_reader
from stepwell.testing import check_strangers

pytest.importorskip("h5py")
pytest.importorskip("pyarrow")
pytest.importorskip("zarr")
pytest.importorskip("simplejpeg")
pytest.importorskip("imagecodecs")
import h5py
from reader_sets import classes, d4rl, episodes, minari_arrow, minari_hdf5, robomimic, write_replay, write_robomimic
from robot_sets import write_act, write_dqn_replay, write_dreamer_v3, write_maniskill
from test_huggingface import make_table, save_to_disk, write_parquet

# zarr warns of names that a damaged archive lists; processes are forked beside threads that they do not need
# what a file lists and does not have is told
pytestmark = pytest.mark.filterwarnings(
    "ignore::zarr.errors.ZarrUserWarning", "ignore::DeprecationWarning", "ignore::stepwell.errors.LeftOutWarning"
)
# all of them: STEPWELL_STRANGERS=1000000
COUNT = int(os.environ.get("STEPWELL_STRANGERS", "7"))


def zarr_directory(root: Path) -> Path:
    write_replay(root / "p.zarr")
    return root / "p.zarr"


def huggingface_arrow(root: Path) -> Path:
    return save_to_disk(root / "set", make_table())


def huggingface_parquet(root: Path) -> Path:
    return write_parquet(root / "set", make_table())


def dqn_replay(root: Path) -> Path:
    write_dqn_replay(root / "logs", [5, 3, 8], 40)
    return root / "logs"


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (robomimic, "robomimic"),
        (d4rl, "d4rl"),
        (minari_hdf5, "minari"),
        (minari_arrow, "minari"),
        (zarr_directory, "zarr"),
        (huggingface_arrow, "huggingface"),
        (huggingface_parquet, "huggingface"),
        (classes, "folders"),
        (episodes, "folders"),
        (lambda root: write_act(root / "act", {0: 2, 1: 2}), "hdf5"),
        (lambda root: write_maniskill(root / "demos").parent, "hdf5"),
        (lambda root: write_dreamer_v3(root / "replay"), "dreamer"),
        (dqn_replay, "dqn-replay"),
    ],
)
def test_evil_copies_do_nothing(tmp_path: Path, make: Callable[[Path], Path], name: str) -> None:
    report = check_strangers(make(tmp_path), name, count=COUNT, seed=5)
    assert report.errors


EXTERNAL: dict[str, Callable[[Any, str], None]] = {
    "link to a group": lambda file, path: file.__setitem__("data", h5py.ExternalLink(path, "/data")),
    "link to a demonstration": lambda file, path: file.__setitem__(
        "data/demo_0", h5py.ExternalLink(path, "/data/demo_0")
    ),
    "link to rows": lambda file, path: file.__setitem__("data/demo_0/actions", h5py.ExternalLink(path, "/secret")),
    "rows in a file": lambda file, path: file.create_dataset(
        "data/demo_0/actions", (4, 2), "f4", external=[(path, 0, h5py.h5f.UNLIMITED)]
    ),
    "rows of another file": lambda file, path: file.create_virtual_dataset("data/demo_0/actions", layout_of(path)),
    "a soft link to a link": lambda file, path: (
        file.__setitem__("away", h5py.ExternalLink(path, "/secret")),
        file.__setitem__("data/demo_0/actions", h5py.SoftLink("/away")),
    ),
}


def layout_of(path: str) -> Any:
    layout = h5py.VirtualLayout((4, 2), "f4")
    layout[...] = h5py.VirtualSource(path, "secret", (4, 2))
    return layout


@pytest.mark.parametrize("make", EXTERNAL.values(), ids=list(EXTERNAL))
@pytest.mark.parametrize("source", ["", "robomimic://"])
def test_no_part_of_an_hdf5_file_is_read_from_another_one(
    tmp_path: Path, make: Callable[[Any, str], None], source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    secret = write_robomimic(tmp_path / "secret.hdf5", numbers=(0, 1, 2, 3))
    with h5py.File(secret, "a") as file:
        file["secret"] = np.ones((4, 2), "f4")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        make(file, str(secret))
    with pytest.raises(UntrustedFileError, match=r"secret\.hdf5', another file, which was not read"):
        if source:
            stepwell.open(f"{source}{tmp_path}/a.hdf5")
        else:
            open_reader(tmp_path / "a.hdf5")


def test_links_and_rows_within_an_hdf5_file_are_read(tmp_path: Path) -> None:
    path, plain = (write_robomimic(tmp_path / name, numbers=(0, 1, 2, 3)) for name in ("a.hdf5", "b.hdf5"))
    with h5py.File(path, "a") as file:
        file["elsewhere"] = file["data/demo_0/actions"][...]
        del file["data/demo_0/actions"]
        file["data/demo_0/actions"] = h5py.SoftLink("/elsewhere")
        rows = file["data/demo_1/actions"].shape
        file.move("data/demo_1/actions", "first")
        layout = h5py.VirtualLayout(rows, "f8")
        layout[...] = h5py.VirtualSource(file["first"])
        file.create_virtual_dataset("data/demo_1/actions", layout)
    for one, other in zip(open_reader(path).episodes(), open_reader(plain).episodes(), strict=True):
        assert np.array_equal(one.columns["actions"], other.columns["actions"])


def test_rows_that_a_chunk_or_an_episode_blows_up_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import zarr

    monkeypatch.setenv("STEPWELL_MAX_ROW_BYTES", "1 MB")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        demo = file.create_group("data/demo_0")
        demo.create_dataset("actions", data=np.ones((900, 1000)), compression="gzip", chunks=(900, 1000))
    root = zarr.open_group(tmp_path / "p.zarr", mode="w", zarr_format=2)
    root.create_array("data/action", data=np.ones((900, 1000)), chunks=(900, 1000))
    root.create_array("meta/episode_ends", data=np.array([900]))
    for name in ("a.hdf5", "p.zarr"):
        with pytest.raises(FormatError, match="STEPWELL_MAX_ROW_BYTES"):
            open_reader(tmp_path / name)[0]
    monkeypatch.setenv("STEPWELL_MAX_ROW_BYTES", "1 GB")
    for name in ("a.hdf5", "p.zarr"):
        open_reader(tmp_path / name)[0]


@pytest.mark.parametrize("part", [{"compressor": {"id": "pickle"}}, {"filters": [{"id": "pickle"}]}])
def test_no_codec_of_zarr_runs_what_it_reads(tmp_path: Path, part: dict[str, Any]) -> None:
    write_replay(tmp_path / "p.zarr")
    path = tmp_path / "p.zarr" / "data" / "img" / ".zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | part))

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "run",)

    for chunk in path.parent.glob("[0-9]*"):
        chunk.write_bytes(pickle.dumps(Evil()))
    with pytest.raises(FormatError):
        open_reader(tmp_path / "p.zarr")[0]
    assert not (tmp_path / "run").exists()


def test_rows_that_a_table_merely_claims_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    from stepwell.lerobot.meta_files import open_parquet

    monkeypatch.setenv("STEPWELL_MAX_ROW_BYTES", "1 MB")
    path = tmp_path / "train.parquet"
    pa.parquet.write_table(pa.table({"x": np.zeros(2_000_000)}), path)
    for read in (open_reader, open_parquet):
        with pytest.raises(FormatError, match=r"claims 2,000,000 rows in .*STEPWELL_MAX_ROW_BYTES"):
            read(path)
    monkeypatch.setenv("STEPWELL_MAX_ROW_BYTES", "1 GB")
    for read in (open_reader, open_parquet):
        read(path)
