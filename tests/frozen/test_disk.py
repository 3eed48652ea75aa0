"""What writing, and each way of writing anew, leaves on the disk."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import warm_children

import stepwell
from stepwell import Array, EpisodeData, Store, write_episodes

from .disk import describe
from .expectations import check
from .recordings import FEATURES, LENGTHS, LOSSY, make, record, step

SMALL = {"key": FEATURES["key"], "state": FEATURES["state"], "zpoints": FEATURES["zpoints"], "delta": FEATURES["delta"]}


@pytest.mark.parametrize("by_step", [True, False], ids=["append", "add_episode"])
@pytest.mark.parametrize("sync", ["none", "episode", "step"])
def test_every_codec_is_written_as_it_was(tmp_path: Path, sync: str, by_step: bool) -> None:
    record(make(tmp_path / "a.well", {**FEATURES, **LOSSY}, sync="none"), sync=sync, by_step=by_step)
    check("disk-codecs", describe(tmp_path / "a.well"))


def discard(store: Store) -> None:
    with store.writer() as writer:
        writer.append(step(SMALL, 1))
        writer.discard_episode()
        writer.append(step(SMALL, 2))


def killed(store: Store) -> None:
    """Leave an open episode behind, as a process that is killed does, and recover it."""
    script = (
        "import os, signal, sys, stepwell\n"
        "import numpy as np\n"
        "writer = stepwell.open(sys.argv[1]).writer()\n"
        "for t in range(3):\n"
        "    image = np.full((6, 5, 3), t, 'u1')\n"
        "    writer.append(key=np.int64(t), state=np.full(3, t, 'f4'), zpoints=np.arange(t), delta=image)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    warm_children.run([sys.executable, "-c", script, str(store.path)], check=False)
    stepwell.open(store.path)


def keyed(store: Store) -> None:
    for key in ("b", "a", "b"):
        record(store, first=20 if key == "a" else 30, lengths=(2,), key=key)


def delete(store: Store) -> None:
    store.delete_episodes([1, 2])


def compact(store: Store) -> None:
    delete(store)
    store.compact()


def add_column(store: Store) -> None:
    store.add_column("return", Array((), "float64"), lambda episode: np.arange(episode.length) / 2)
    store.add_column("zkey", Array((), "int64", codec="zstd"), lambda episode: episode["key"][: episode.length])


WAYS: dict[str, Callable[[Store], None]] = {
    each.__name__: each for each in (discard, killed, keyed, delete, compact, add_column)
}


@pytest.mark.parametrize("way", sorted(WAYS))
def test_a_store_that_is_changed_is_written_as_it_was(tmp_path: Path, way: str) -> None:
    # small segments: an episode or two in each
    store = make(tmp_path / "a.well", SMALL, segment_bytes=900)
    record(store)
    WAYS[way](store)
    assert store.verify(deep=True).findings == ()
    check(f"disk-{way}", describe(tmp_path / "a.well"))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_processes_write_is_as_it_was(tmp_path: Path, workers: int) -> None:
    keys = [np.arange(100 * number, 100 * number + 4) for number in range(5)]
    episodes = [EpisodeData({"key": each}, terminated=True, metadata={"first": int(each[0])}) for each in keys]
    write_episodes(
        tmp_path / "a.well",
        episodes,
        schema={"key": Array((), "int64")},
        workers=workers,
        chunk_episodes=2,
        progress=False,
        start_method="fork",
    )
    check("disk-write-episodes", describe(tmp_path / "a.well"))


@pytest.mark.parametrize("how", ["concatenate", "link", "checkpoint", "convert"])
def test_a_store_that_is_made_of_others_is_written_as_it_was(tmp_path: Path, how: str) -> None:
    stores = []
    for number in range(2):
        store = make(tmp_path / f"{number}.well", SMALL, segment_bytes=900)
        record(store, first=10 * number)
        store.delete_episodes([number])
        stores.append(store)
    target = tmp_path / "made.well"
    match how:
        case "concatenate" | "link":
            stepwell.concatenate(target, stores, link=how == "link", metadata={"of": "two"})
        case "checkpoint":
            stores[0].checkpoint(target)
        case _:
            stepwell.convert(stores[0], target, {"state": "zstd"}, workers=0, progress=False)
    assert stepwell.open(target, mode="r").verify(deep=True).findings == ()
    check(f"disk-{how}", describe(target))


@pytest.mark.parametrize("capacity", [9, "900 B"], ids=["steps", "bytes"])
def test_a_ring_is_written_as_it_was(tmp_path: Path, capacity: int | str) -> None:
    store = make(tmp_path / "a.well", SMALL, capacity=capacity)
    record(store, lengths=(*LENGTHS, 6, 2))
    store.refresh()
    found = describe(tmp_path / "a.well")
    found["shown"] = [episode["key"].tolist() for episode in store]
    check(f"disk-ring-{'steps' if capacity == 9 else 'bytes'}", found)
