"""Windows of an RLDS dataset by tf.data, on behalf of bench_rlds_windows.py: run by an interpreter that has TFDS.

What Octo does by dlimp: files are read in parallel, steps are parsed as columns of an episode and not decoded, windows
are cut by ``tf.gather`` with their edges repeated, episodes are repeated and flattened, windows shuffled in a buffer,
images decoded behind it, batches made. Reads a JSON object a line, {"do": NAME, ...}, and answers each with one.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

AUTOTUNE = tf.data.AUTOTUNE
OPEN: dict[str, Iterator[Any]] = {}


def memory() -> dict[str, int]:
    """Return the bytes of this process's own memory now."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return {"own": next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))}


def open(path: str, offsets: dict[str, list[int]], buffer: int, batch_size: int, epochs: int | None) -> dict[str, Any]:
    """Begin to read, and fill the buffer."""
    OPEN["batches"] = _batches(path, offsets, buffer, batch_size, epochs)
    if epochs is None:
        next(OPEN["batches"])
    return {}


def rate(seconds: float) -> dict[str, Any]:
    """Return windows a second."""
    count, start = 0, time.perf_counter()
    while not count or time.perf_counter() - start < seconds:
        count += len(next(OPEN["batches"])["index"])
    return {"rate": count / (time.perf_counter() - start)}


def windows(out: str) -> dict[str, Any]:
    """Save all windows that are left of the epochs that were asked for."""
    found = list(OPEN["batches"])
    np.savez(out, **{name: np.concatenate([batch[name] for batch in found]) for name in found[0]})
    return {}


def _batches(
    path: str, offsets: dict[str, list[int]], buffer: int, batch_size: int, epochs: int | None
) -> Iterator[dict[str, np.ndarray]]:
    builder = tfds.builder_from_directory(path)
    config = tfds.ReadConfig(
        skip_prefetch=True, num_parallel_calls_for_interleave_files=AUTOTUNE, interleave_cycle_length=16
    )
    decoders = {"steps": tfds.decode.SkipDecoding()}
    episodes = builder.as_dataset(split="train", shuffle_files=True, decoders=decoders, read_config=config)
    options = tf.data.Options()
    options.deterministic = False
    episodes = episodes.with_options(options).repeat(epochs)
    cut = episodes.map(lambda episode: _cut(episode["steps"], offsets), num_parallel_calls=AUTOTUNE)
    flat = cut.interleave(tf.data.Dataset.from_tensor_slices, num_parallel_calls=AUTOTUNE)
    shuffled = flat.shuffle(buffer)
    if any(name.endswith("image") for name in offsets):
        shuffled = shuffled.map(_decoded, num_parallel_calls=AUTOTUNE)
    return iter(shuffled.batch(batch_size).prefetch(1).as_numpy_iterator())


def _cut(steps: dict[str, Any], offsets: dict[str, list[int]]) -> dict[str, Any]:
    """Return the windows of an episode by field, [T, K, ...], and which of their steps are repeated edges."""
    found = {"index": steps["index"]}
    length = tf.shape(steps["index"])[0]
    for name, each in offsets.items():
        place = tf.range(length)[:, None] + tf.constant(each)
        inside = tf.clip_by_value(place, 0, length - 1)
        column = steps
        for part in name.split("."):
            column = column[part]
        found[name] = tf.gather(column, inside)
        found[f"{name}_is_pad"] = place != inside
    return found


def _decoded(window: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tf.map_fn(tf.io.decode_jpeg, value, fn_output_signature=tf.uint8) if value.dtype == tf.string else value
        for name, value in window.items()
    }


def main() -> None:
    """Answer until the input ends."""
    answers = sys.stdout
    # what libraries print is no answer
    sys.stdout = sys.stderr
    known = {function.__name__: function for function in (memory, open, rate, windows)}
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(known[asked.pop("do")](**asked)), file=answers, flush=True)


if __name__ == "__main__":
    main()
