"""A shape that a file claims, and whose rows nobody could hold, is an error of ours before memory is taken."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Array, StepwellError
from stepwell.beton import write_beton
from stepwell.tfds import write_rlds, write_tfds
from stepwell.webdataset import write_webdataset

HUGE = 10**10
MOST_BYTES = 256 << 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> stepwell.Store:
    path = tmp_path_factory.mktemp("claimed") / "a.well"
    rows = np.ones((4, 3), "f4")
    with stepwell.create(path, {"action": Array(3), "note": Array((3,), codec="lz4")}) as made, made.writer() as writer:
        writer.add_episode({"action": rows, "note": rows}, truncated=True)
    return stepwell.open(path)


def store_json(store: stepwell.Store, root: Path) -> str:
    from stepwell.json_text import open_json, seal_json

    target = store.checkpoint(root / "b.well")
    path = target / "store.json"
    record = open_json(path.read_bytes())
    text = json.dumps(record).replace('"shape": [3]', f'"shape": [{HUGE}]')
    assert str(HUGE) in text
    path.write_bytes(seal_json(json.loads(text)))
    return str(target)


def features_json(write: Callable[..., Path], name: str) -> Callable[[stepwell.Store, Path], str]:
    def make(store: stepwell.Store, root: Path) -> str:
        place = Path(write(store, root / "set", name="arm", workers=1))
        (path,) = root.rglob("features.json")
        text = path.read_text()
        assert '"3"' in text
        path.write_text(text.replace('"3"', f'"{HUGE}"'))
        return f"{name}://{place}"

    return make


def npy_member(store: stepwell.Store, root: Path) -> str:
    write_webdataset(store, root / "set", rename={"action": "action.npy", "note": "note.npy"}, workers=1)
    (path,) = root.rglob("*.tar")
    data = path.read_bytes()
    # spaces fill the header up
    data = data.replace(b"'shape': (3,), }" + b" " * 10, b"'shape': (10000000000,), }")
    path.write_bytes(data)
    return f"webdataset://{root / 'set'}"


def beton(store: stepwell.Store, root: Path) -> str:
    write_beton(store, root / "a.beton", workers=1)
    data = (root / "a.beton").read_bytes()
    old = (3).to_bytes(8, "little") + bytes(8)
    assert old in data[:8192]
    (root / "a.beton").write_bytes(data[:8192].replace(old, HUGE.to_bytes(8, "little") + bytes(8)) + data[8192:])
    return f"beton://{root / 'a.beton'}"


def zarr(store: stepwell.Store, root: Path) -> str:
    library = pytest.importorskip("zarr")
    group = library.open_group(str(root / "a.zarr"), mode="w", zarr_format=2)
    group.create_array("data/action", shape=(4, HUGE), chunks=(4, HUGE), dtype="f4")
    group.create_array("meta/episode_ends", data=np.array([4]))
    return f"zarr://{root / 'a.zarr'}"


def d4rl(store: stepwell.Store, root: Path) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(root / "a.hdf5", "w") as file:
        file.create_dataset("observations", (4, HUGE), "f4", chunks=(1, 1 << 20))
        file["actions"], file["rewards"] = np.ones((4, 2), "f4"), np.ones(4, "f4")
    return f"d4rl://{root / 'a.hdf5'}"


def robomimic(store: stepwell.Store, root: Path) -> str:
    h5py = pytest.importorskip("h5py")
    with h5py.File(root / "a.hdf5", "w") as file:
        file.create_dataset("data/demo_0/obs/x", (4, HUGE), "f4", chunks=(1, 1 << 20))
        file["data/demo_0/actions"] = np.ones((4, 2), "f4")
    return f"robomimic://{root / 'a.hdf5'}"


MAKERS = {
    "store.json": store_json,
    "rlds": features_json(write_rlds, "rlds"),
    "tfds": features_json(write_tfds, "tfds"),
    "npy": npy_member,
    "beton": beton,
    "zarr": zarr,
    "d4rl": d4rl,
    "robomimic": robomimic,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_shape_of_ten_billion_is_our_error_and_takes_no_memory(
    store: stepwell.Store, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    source = MAKERS[kind](store, tmp_path)
    tracemalloc.start()
    try:
        # a size in numbers: nothing was tried
        with pytest.raises(StepwellError, match=r"0,?000,?000"):
            for episode in stepwell.open(source):
                for name in episode:
                    episode[name]
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
