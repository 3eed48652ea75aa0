"""Stores to write, and what was written, read by pyarrow and av alone."""

import json

import numpy as np

import stepwell
from stepwell import Array, Image, Text, Video

SIZE = (48, 64)
SCHEMA = {
    "observation.state": Array(4, final=True),
    "action": Array(2, names=["left", "right"]),
    "next.reward": Array(),
    "next.done": Array((), "bool"),
    "grid": Array((2, 3), "int64"),
    "note": Text(),
    "camera.png": Image((32, 48, 3), codec="png"),
    "camera.raw": Image((*SIZE, 3)),
    "camera.video": Video((*SIZE, 3)),
}
H264 = {"encoder": "h264"}


def picture(episode, step, size=SIZE):
    """A smooth picture that says where it belongs."""
    rows, columns = np.meshgrid(np.arange(size[0]), np.arange(size[1]), indexing="ij")
    planes = [rows * 2, columns * 2, np.full(size, (40 * episode + 12 * step) % 256)]
    return np.stack(planes, -1).astype(np.uint8)


def episode_columns(episode, length, schema):
    rng = np.random.default_rng(episode)
    columns = {
        "observation.state": rng.normal(size=(length + 1, 4)).astype(np.float32),
        "action": rng.normal(size=(length, 2)).astype(np.float32),
        "next.reward": rng.normal(size=length).astype(np.float32),
        "next.done": np.arange(length) == length - 1,
        "grid": rng.integers(-9, 9, (length, 2, 3)),
        "note": [f"{episode}:{step} – é" for step in range(length)],
        "camera.png": rng.integers(0, 256, (length, 32, 48, 3), dtype=np.uint8),
        "camera.raw": np.stack([picture(episode, step) for step in range(length)]),
        "camera.video": np.stack([picture(episode + 3, step) for step in range(length)]),
    }
    return {name: columns[name] for name in schema}


def make_store(path, lengths=(5, 3, 8), *, names=None, fps=10, first=0, **metadata):
    schema = {name: SCHEMA[name] for name in (SCHEMA if names is None else names)}
    store = stepwell.create(path, schema, fps=fps)
    with store.writer() as writer:
        for episode, length in enumerate(lengths, first):
            told = metadata or {"task": f"task {episode % 2}"}
            writer.add_episode(episode_columns(episode, length, schema), **told)
    store.refresh()
    return store


def read_tables(root, pattern="data/*/*.parquet"):
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa.concat_tables([pq.read_table(path) for path in sorted(root.glob(pattern))])


def read_info(root):
    return json.loads((root / "meta/info.json").read_text(encoding="utf-8"))


def read_video(path):
    """Return (times, frames) of a file: float64 [n] seconds and uint8 [n, H, W, 3]."""
    import av

    with av.open(str(path)) as container:
        # the ranges are named since PyAV before 17 takes every frame for BT.601 where both are left out
        ranges = {"src_color_range": 1, "dst_color_range": 2}
        frames = [
            (frame.time, frame.reformat(format="rgb24", **ranges).to_ndarray()) for frame in container.decode(video=0)
        ]
    return np.array([time for time, _ in frames]), np.stack([pixels for _, pixels in frames])


def read_frames(root, key, row):
    """Return the frames of an episode, by a row of v3.0's table of episodes."""
    chunk, file = row[f"videos/{key}/chunk_index"], row[f"videos/{key}/file_index"]
    times, frames = read_video(root / f"videos/{key}/chunk-{chunk:03d}/file-{file:03d}.mp4")
    wanted = row[f"videos/{key}/from_timestamp"] + np.arange(row["length"]) / read_info(root)["fps"]
    places = np.abs(times[:, None] - wanted).argmin(0)
    assert (np.abs(times[places] - wanted) < 1e-6).all()
    return frames[places]
