"""A store to convert, and what of two stores shall be the same."""

import numpy as np

import stepwell

SHAPE = (16, 24, 3)
LENGTHS = (5, 1, 8, 3)


def smooth_images(count, seed):
    """Images that move a little from step to step: [count, 16, 24, 3]."""
    y, x = np.mgrid[: SHAPE[0], : SHAPE[1]]
    base = np.stack([y * 8, x * 5, x + y], axis=-1)
    return np.stack([((base + 2 * t + 20 * seed) // 2 % 128 + 40).astype(np.uint8) for t in range(count)])


def record(path, codec="raw", *, segment_bytes=1, lengths=LENGTHS, **options):
    """Return a store with an image, a fixed, a ragged and a text feature; some episodes have a final row."""
    schema = {
        "camera": stepwell.Image(SHAPE, codec=codec, final=True, names=["r", "g", "b"], **options),
        "action": stepwell.Array(2),
        "points": stepwell.Array((None, 3), codec="zstd", final=True),
        "task": stepwell.Text(),
    }
    store = stepwell.create(path, schema, fps=10, metadata={"robot": "arm"}, segment_bytes=segment_bytes)
    rng = np.random.default_rng(0)
    with store.writer() as writer:
        for number, length in enumerate(lengths):
            rows = length + (number % 2 == 0)
            columns = {
                "camera": smooth_images(rows, number),
                "action": rng.random((length, 2), np.float32),
                "points": [rng.random((t % 3, 3), np.float32) for t in range(rows)],
                "task": [f"task {t}" for t in range(length)],
            }
            writer.add_episode(columns, terminated=number == 0, truncated=number == 1, number=number)
    return store


def content(store, *, without=()):
    """Return all that a person can see of a store's episodes, as bytes and plain values."""
    return [
        {
            "ends": (episode.length, episode.has_final, episode.terminated, episode.truncated, episode.interrupted),
            "metadata": episode.metadata,
            **{name: plain(episode[name]) for name in store.schema if name not in without},
        }
        for episode in store
    ]


def plain(column):
    if isinstance(column, np.ndarray):
        return column.shape, column.tobytes()
    return [value.tobytes() if isinstance(value, np.ndarray) else value for value in column]


def files_of(store):
    """Every byte of the store's segments, by the file's path."""
    return {
        str(file.relative_to(store.path)): file.read_bytes()
        for segment in store.segments
        for file in sorted(segment.path.iterdir())
    }


def blobs_of(store, name):
    """Return a feature's encoded rows, segment after segment."""
    return b"".join((segment.path / f"{name}.bin").read_bytes() for segment in store.segments)
