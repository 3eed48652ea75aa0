"""Losses of power while a store is changed, or another is made of it: what was there is there, or what was wanted.

`STEPWELL_POWER_CUTS=200` takes as many images of each moment instead of a few.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, EpisodeData, Store, Text
from stepwell.store import commit
from tests.store.power import Disk

IMAGES = int(os.environ.get("STEPWELL_POWER_CUTS", "1"))
# of the moments before an fsync, where few images are taken
SHARE = 0.3 if IMAGES == 1 else 1.0
OTHER_BOOT = bytes(range(16))
FEATURES = {
    "t": Array((), "int64", final=True),
    "x": Array(150, "float32"),
    "text": Text(),
    "packed": Array((None,), "int64", codec="zstd"),
    "screen": stepwell.Image((8, 8, 1), codec="delta"),
}
Shown = list[Any]


def episode_of(serial: int, length: int) -> dict[str, Any]:
    keys = range(serial, serial + length)
    return {
        "t": np.arange(serial, serial + length + 1),
        "x": np.stack([np.full(150, key, "f4") for key in keys]),
        "text": [f"number {key}" for key in keys],
        "packed": [np.arange(key % 5) + key for key in keys],
        "screen": np.stack([np.full((8, 8, 1), key, "u1") for key in keys]),
    }


def recorded(path: Path, first: int = 0, **options: Any) -> Store:
    """Return a store of some segments, closed and on the disk, of which some episodes are deleted."""
    store = stepwell.create(path, FEATURES, segment_bytes=4000, sync="episode", **options)
    with store.writer() as writer:
        for number in range(5):
            writer.add_episode(episode_of(first + 10 * number, 2 + number % 3), terminated=True, number=number)
    store.delete_episodes([1])
    return store


def shown(store: Store) -> Shown:
    """Return all that a store shows."""
    return [
        [
            {
                name: [np.asarray(value).tolist() for value in episode[name]]
                for name in sorted(store.schema or ())
                if name != "added"
            },
            # without values where the column is not there
            np.asarray(episode["added"]).tolist() if "added" in (store.schema or ()) else None,
            (episode.terminated, episode.truncated, episode.interrupted),
            dict(episode.metadata),
        ]
        for episode in store
    ]


# what is done to a store, or makes another one of it at "made.well"
Operation = Callable[[Store, Path], Any]


def delete(store: Store, _: Path) -> None:
    store.delete_episodes([0, 2])


def compact(store: Store, _: Path) -> None:
    store.compact()


def add_column(store: Store, _: Path) -> None:
    store.add_column("added", Array((), "float64"), lambda episode: np.arange(episode.length) / 2)


def add_encoded_column(store: Store, _: Path) -> None:
    store.add_column("added", Text(), lambda episode: [f"added {t}" for t in range(episode.length)])


def record(store: Store, _: Path) -> None:
    with store.writer() as writer:
        writer.add_episode(episode_of(70, 3), number=7)


def record_again(store: Store, _: Path) -> None:
    with store.writer(key="b") as writer:
        writer.add_episode(episode_of(80, 3), number=8)


def checkpoint(store: Store, target: Path) -> None:
    store.checkpoint(target)


def link(store: Store, target: Path) -> None:
    stepwell.concatenate(target, [store, store])


def copy(store: Store, target: Path) -> None:
    stepwell.concatenate(target, [store, store], link=False)


def convert(store: Store, target: Path) -> None:
    stepwell.convert(store, target, {"x": "zstd"}, workers=0, progress=False)


def write(_: Store, target: Path, **options: Any) -> None:
    episodes = [EpisodeData(episode_of(10 * number, 2), terminated=True) for number in range(3)]
    stepwell.write_episodes(target, episodes, schema=FEATURES, workers=0, chunk_episodes=1, progress=False, **options)


def write_resumably(_: Store, target: Path) -> None:
    write(_, target, resume=True)


def recover(store: Store, _: Path) -> None:
    stepwell.open(store.path)


CHANGES = (delete, compact, add_column, add_encoded_column, record, record_again, recover)
MAKERS = (checkpoint, link, copy, convert, write, write_resumably)
# of which a part may be there
GROWING = (write, write_resumably)


def with_keys(store: Store) -> None:
    for key in ("c", "b", "a"):
        with store.writer(key=key) as writer:
            writer.add_episode(episode_of(ord(key), 2), key=key)


def leave(store: Store) -> None:
    """Leave what a writer leaves that is killed."""
    writer = store.writer()
    writer.add_episode(episode_of(60, 3), number=6)
    segment, writer._segment = writer._segment, None
    segment.close().close()


# of an episode that was being recorded
@pytest.mark.filterwarnings("ignore::stepwell.errors.LeftOutWarning")
@pytest.mark.parametrize("operation", [*CHANGES, *MAKERS], ids=lambda operation: operation.__name__)
def test_a_loss_of_power_leaves_what_was_there_or_what_was_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: Operation
) -> None:
    chance = random.Random(operation.__name__)
    root, images, is_followed = tmp_path / "disk", [], False
    root.mkdir()

    def take(share: float = SHARE) -> None:
        if is_followed and chance.random() < share:
            for _ in range(IMAGES):
                images.append(tmp_path / f"{len(images)}")
                disk.image(images[-1], chance)

    disk = Disk(root, take)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk.fsync)
        store = recorded(root / "a.well")
        if operation is record_again:
            with_keys(store)
        if operation is recover:
            leave(store)
        store.refresh()
        before = shown(store)
        is_followed = True
        operation(store, root / "made.well")
        num_during = len(images)
        for _ in range(3):
            take(1.0)
        disk.close()
    is_maker = operation in MAKERS
    store = stepwell.open(root / "a.well")
    after = shown(stepwell.open(root / "made.well") if is_maker else store)
    assert is_maker or operation in (compact, recover) or after != before
    for number, image in enumerate(images):
        with monkeypatch.context() as patch:
            if number % 2:
                patch.setattr(commit, "boot_id", lambda: OTHER_BOOT)
            check(image, before, after, operation, is_over=number >= num_during)
    print(f"{operation.__name__}: {len(images)} power cuts")


def check(image: Path, before: Shown, after: Shown, operation: Operation, *, is_over: bool) -> None:
    store = stepwell.open(image / "a.well")
    assert store.verify(deep=True).is_ok, str(store.verify(deep=True))
    found = shown(store)
    if operation in CHANGES:
        # what a task of this key left goes before what it records now comes
        allowed = [before, after, [each for each in before if each[-1].get("key") != "b"]]
        assert found == after if is_over else found in allowed
        return
    assert found == before
    path = image / "made.well"
    if not is_over and not (path / "store.json" if operation in GROWING else path).exists():
        return
    if not is_over and operation in GROWING:
        # segments of a store that waits for no disk may be lost, each by itself
        found = shown(stepwell.open(path))
        assert found == [each for each in after if each in found]
        if operation is write:
            return
        if (path / "importing.json").exists():
            write_resumably(store, path)
    made = stepwell.open(path)
    assert shown(made) == after
    assert made.verify(deep=True).is_ok, str(made.verify(deep=True))
