"""A conversion of a data set, and of the store that is opened in place: the same store, for every reader."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import convert
from stepwell.errors import SchemaError
from stepwell.testing import tiny_lerobot, tiny_store

pytest.importorskip("h5py")
pytest.importorskip("pyarrow")
pytest.importorskip("zarr")
pytest.importorskip("av")
pytest.importorskip("imagecodecs")
pytest.importorskip("simplejpeg")
from reader_sets import classes, d4rl, episodes, minari_arrow, minari_hdf5, robomimic, write_replay
from robot_sets import write_act, write_aloha, write_dqn_replay, write_dreamer_v3, write_maniskill
from test_huggingface import make_table, save_to_disk, write_parquet

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")


def rlds(root: Path) -> str:
    from stepwell.tfds import write_rlds

    write_rlds(tiny_store(root / "t.well", lengths=(4, 6, 5)), root / "set", name="tiny")
    return f"rlds://{next((root / 'set').rglob('dataset_info.json')).parent}"


def webdataset(root: Path) -> str:
    from stepwell.webdataset import write_webdataset

    write_webdataset(tiny_store(root / "t.well", lengths=(4, 6, 5)), root / "set")
    return f"webdataset://{root}/set/*.tar"


def webdataset_episodes(root: Path) -> str:
    from stepwell.webdataset import write_webdataset

    write_webdataset(tiny_store(root / "t.well", lengths=(4, 6, 5)), root / "set", samples="episodes")
    return f"webdataset-episodes://{root}/set/*.tar"


def beton(root: Path) -> str:
    from stepwell.beton import write_beton

    store = tiny_store(root / "t.well", lengths=(4, 6, 5))
    write_beton(store, root / "t.beton", rename={"observation.image": "image", "observation.state": "state"})
    return f"beton://{root}/t.beton"


def lerobot_v2(root: Path) -> str:
    return f"lerobot://{tiny_lerobot(root / 'set', version='v2.1', lengths=[4, 3])}"


def lerobot_v3(root: Path) -> str:
    return f"lerobot://{tiny_lerobot(root / 'set', version='v3.0', lengths=[4, 3])}"


def dqn_replay(root: Path) -> str:
    write_dqn_replay(root / "logs", [5, 3, 8], 40)
    return f"dqn-replay://{root}/logs"


SETS: dict[str, Callable[[Path], Any]] = {
    "lerobot v2.1": lerobot_v2,
    "lerobot v3.0": lerobot_v3,
    "rlds": rlds,
    "webdataset": webdataset,
    "webdataset-episodes": webdataset_episodes,
    "beton": beton,
    "folders, classes": lambda root: f"folders://{classes(root)}",
    "folders, episodes": lambda root: f"folders://{episodes(root)}",
    "minari hdf5": lambda root: f"minari://{minari_hdf5(root)}",
    "minari arrow": lambda root: f"minari://{minari_arrow(root)}",
    "d4rl": lambda root: f"d4rl://{d4rl(root)}",
    "robomimic": lambda root: f"robomimic://{robomimic(root)}",
    "hdf5, act": lambda root: f"hdf5://{write_act(root / 'act')}",
    "hdf5, aloha": lambda root: f"hdf5://{write_aloha(root / 'aloha')}",
    "hdf5, maniskill": lambda root: f"hdf5://{write_maniskill(root / 'demos')}",
    "dreamer": lambda root: f"dreamer://{write_dreamer_v3(root / 'replay')}",
    "dqn-replay": dqn_replay,
    "zarr": lambda root: (write_replay(root / "p.zarr"), f"zarr://{root}/p.zarr")[1],
    "huggingface arrow": lambda root: f"huggingface://{save_to_disk(root / 'set', make_table())}",
    "huggingface parquet": lambda root: f"huggingface://{write_parquet(root / 'set', make_table())}",
}


def feature_bytes(path: Path) -> dict[str, bytes]:
    """Return each feature's bytes, of all segments in order."""
    joined: dict[str, bytes] = {}
    for segment in sorted((path / "segments").iterdir()):
        for file in sorted(segment.glob("*.bin")):
            joined[file.name] = joined.get(file.name, b"") + file.read_bytes()
    return joined


# the store in the cache holds their rows itself: there is nothing to convert
HELD = {"minari hdf5", "minari arrow", "d4rl", "zarr", "huggingface arrow", "huggingface parquet"}
HELD |= {"hdf5, maniskill", "dreamer", "dqn-replay"}


@pytest.mark.parametrize("name", SETS)
def test_both_make_the_same_store(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "source").mkdir()
    source = SETS[name](tmp_path / "source")
    convert(source, tmp_path / "imported.well", workers=1)
    with stepwell.open(source) as in_place:
        if name in HELD:
            with pytest.raises(SchemaError, match="no features to convert"):
                stepwell.convert(in_place, tmp_path / "converted.well", workers=1)
            path = Path(in_place.path)
        else:
            path = stepwell.convert(in_place, tmp_path / "converted.well", workers=1).path
    with stepwell.open(tmp_path / "imported.well") as imported, stepwell.open(path) as converted:
        assert dict(converted.schema or {}) == dict(imported.schema or {})
        assert (converted.fps, converted.metadata) == (imported.fps, imported.metadata)
        for found, wanted in zip(converted, imported, strict=True):
            assert found.metadata == wanted.metadata
            assert (found.terminated, found.truncated) == (wanted.terminated, wanted.truncated)
            for feature in imported.schema or ():
                np.testing.assert_equal(list(found[feature]), list(wanted[feature]), err_msg=feature)
        encoded = [f"{key}.bin" for key, feature in (imported.schema or {}).items() if not feature.is_raw]
    found_bytes, wanted_bytes = feature_bytes(path), feature_bytes(tmp_path / "imported.well")
    for file in encoded:
        assert file in wanted_bytes and found_bytes[file] == wanted_bytes[file], file
