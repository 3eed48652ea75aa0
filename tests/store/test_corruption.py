"""A thousand random corruptions: each is found or harmless, none is a crash or a hang."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warm_children

from stepwell.errors import StepwellError
from stepwell.order import sequential
from stepwell.schema import Array, Bytes, Image, Text
from stepwell.store import create, open
from stepwell.testing import smooth_image
from stepwell.windows import View, WindowReader

CORRUPTIONS = 1000
PARTS = 4
SCHEMA = {
    "jpeg": Image((24, 16, 3), codec="jpeg"),
    "png": Image((8, 8), codec="png"),
    "zstd": Array((4, 4), "int32", codec="zstd"),
    "state": Array(3, "float64", final=True),
    "points": Array((None, 2), "int16"),
    "text": Text(),
    "packet": Bytes(codec="zstd"),
}


def write_store(path: Path) -> None:
    store = create(path, SCHEMA, segment_bytes=8000)
    with store.writer() as out:
        for episode in range(6):
            for t in range(2 + episode % 4):
                out.append(
                    {
                        "jpeg": smooth_image(store.schema["jpeg"], t),
                        "png": smooth_image(store.schema["png"], t),
                        "zstd": np.full((4, 4), t, np.int32),
                        "state": np.full(3, t, float),
                        "points": np.full((t, 2), t, np.int16),
                        "text": "ä" * t,
                        "packet": b"x" * t,
                    }
                )
            out.end_episode(final={"state": np.zeros(3)} if episode % 2 else None, number=episode)
    store.delete_episodes([2])


def corrupt(path: Path, rng: random.Random) -> str:
    """Flip a bit, cut, overwrite or lengthen one file of the store; returns which and how."""
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name not in ("lock", "maintenance"))
    file = rng.choice(files)
    data = bytearray(file.read_bytes())
    kind = rng.choice(["flip", "flip", "flip", "cut", "overwrite", "lengthen", "remove"])
    if kind == "flip" and data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif kind == "cut" and data:
        del data[rng.randrange(len(data)) :]
    elif kind == "overwrite" and data:
        start = rng.randrange(len(data))
        for place in range(start, min(len(data), start + rng.randrange(1, 64))):
            data[place] = rng.randrange(256)
    elif kind == "remove" and file.name != "deleted.npy":  # a store without it is one without deletions
        file.unlink()
        return f"{file.relative_to(path)} removed"
    else:
        data += rng.randbytes(rng.randrange(1, 40))
    file.unlink()  # a link of the good store's file
    file.write_bytes(data)
    return f"{file.relative_to(path)} {kind}"


def read_all(path: Path) -> Any:
    """Read every episode, its metadata and every window; the error when stepwell refuses."""
    try:
        store = open(path)
        episodes = [(episode.metadata, {name: as_plain(episode[name]) for name in episode}) for episode in store]
        reader = WindowReader(View(store), {name: range(-1, 2) for name in SCHEMA})
        bound = sequential().bind(reader.index)
        windows = reader.read(bound.positions(0, 0, bound.num_positions))
        return episodes, {key: as_plain(value) for key, value in windows.items()}
    except StepwellError as error:
        return error


def as_plain(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.ravel().tolist()
    if isinstance(value, list):
        return [entry.tobytes() if isinstance(entry, np.ndarray) else entry for entry in value]
    return value.tobytes()


def is_found(path: Path) -> bool:
    try:
        return not open(path, mode="r").verify().is_ok
    except StepwellError:
        return True


def run_part(directory: Path, part: int) -> dict[str, int]:
    rng = random.Random(part)
    write_store(directory / "good.well")
    good = read_all(directory / "good.well")
    assert not isinstance(good, StepwellError)
    counts = {"found": 0, "harmless": 0}
    for number in range(CORRUPTIONS // PARTS):
        path = directory / f"{number}.well"
        shutil.copytree(directory / "good.well", path, copy_function=os.link)
        what = corrupt(path, rng)
        found = is_found(path)
        read = read_all(path)  # must come back with data or a StepwellError, whatever it finds
        if not found:
            assert not isinstance(read, StepwellError), f"{what}: read as {read!r} but verify found nothing"
            assert read == good, f"{what}: other data, and verify found nothing"
        counts["found" if found else "harmless"] += 1
        shutil.rmtree(path)
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_corruption_is_found_or_harmless(part: int, tmp_path: Path) -> None:
    # in a process of its own: a crash must not take the test run with it
    child = warm_children.run(
        [sys.executable, __file__, str(tmp_path), str(part)], capture_output=True, text=True, timeout=200, check=False
    )
    assert child.returncode == 0, child.stderr[-3000:]
    counts = json.loads(child.stdout)
    assert sum(counts.values()) == CORRUPTIONS // PARTS
    assert counts["found"] > 0.9 * CORRUPTIONS / PARTS


if __name__ == "__main__":
    print(json.dumps(run_part(Path(sys.argv[1]), int(sys.argv[2]))))
