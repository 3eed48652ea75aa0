"""Order x page cache x threads x codec: every value says which episode and step it is of, and is what a model expects.

The model knows lengths and offsets only; it does not ask the reader. Of FFCV's combinations of the kind several gave
rows of other samples, or uninitialised memory, without a word.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Field, Loader, View
from stepwell.order import Order, mixed, pooled, random, sequential, weighted
from stepwell.windows import WindowReader

LENGTHS = {0: 3, 1: 17, 2: 1, 3: 9, 4: 22, 7: 14, 8: 2}
DELETED = 3
NUM_STEPS = sum(length for episode, length in LENGTHS.items() if episode != DELETED)
HAS_VIDEO = importlib.util.find_spec("av") is not None
# blurs of the encoder; levels of a digit are 16 apart
TOLERANCE = 7

FEATURES: dict[str, stepwell.Feature] = {
    "number": stepwell.Array((), "int64"),
    "state": stepwell.Array(3, "float32", final=True),
    "frames": stepwell.Array((4, 4), "float64"),
    "png": stepwell.Image((6, 5, 3), codec="png", final=True),
    "zstd": stepwell.Array((2, 3), "int32", codec="zstd"),
    "delta": stepwell.Image((8, 9, 3), codec="delta", every=5, final=True),
    "text": stepwell.Text(),
    "points": stepwell.Array((None, 2), "int16"),
}
if HAS_VIDEO:
    FEATURES["video"] = stepwell.Video((32, 32, 3), gop=4, crf=8)
FIELDS: dict[str, Any] = {
    "number": "number",
    "state": Field("state", [-2, 0, 1], pad="zero"),
    # a window as long as most episodes: all those of an episode share its rows
    "frames": Field("frames", range(15)),
    "png": Field("png", [0, 1], pad="zero"),
    "png_past": Field("png", -3),
    "zstd": Field("zstd", [[-1, 0], [0, 1]]),
    "delta": Field("delta", [-1, 0, 2]),
    "text": Field("text", [0, 1]),
    "points": "points",
    "step_index": Field("step_index", [-1, 0]),
}
if HAS_VIDEO:
    FIELDS["video"] = Field("video", [-1, 0])


def digits(numbers: np.ndarray) -> np.ndarray:
    """Return frames of which each quadrant is a hexadecimal digit, uint8 [n, 32, 32, 3]."""
    parts = (numbers[:, None] >> np.array([12, 8, 4, 0]) & 15).astype(np.uint8) * 16
    frames = parts.reshape(-1, 2, 2).repeat(16, 1).repeat(16, 2)
    return np.repeat(frames[..., None], 3, -1)


# of the numbers of steps, int64 [n]: what each feature holds there
VALUES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "number": lambda n: n,
    "state": lambda n: np.stack([n, -n, n % 7], 1).astype(np.float32),
    "frames": lambda n: n[:, None, None] + np.arange(16).reshape(4, 4) / 16,
    "png": lambda n: (n[:, None] * np.arange(1, 91) % 251).astype(np.uint8).reshape(-1, 6, 5, 3),
    "zstd": lambda n: (n[:, None] * np.arange(1, 7)).astype(np.int32).reshape(-1, 2, 3),
    "delta": lambda n: (n[:, None] * np.arange(3, 219) % 241).astype(np.uint8).reshape(-1, 8, 9, 3),
    "step_index": lambda n: n % 1000,
    "video": digits,
}


def text_of(number: int) -> str:
    return f"step {number % 1000} of {number // 1000}" * (number % 3)


def points_of(number: int) -> np.ndarray:
    return np.full((number % 4, 2), number, np.int16)


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    """Two stores of several segments, of which an episode was deleted."""
    folder: Path = tmp_path_factory.mktemp("combinations")
    stores = []
    for name, episodes in (("one", (0, 1, 2, 3, 4)), ("two", (7, 8))):
        store = stepwell.create(folder / f"{name}.well", FEATURES, segment_bytes=20_000)
        with store.writer() as writer:
            for episode in episodes:
                numbers = 1000 * episode + np.arange(LENGTHS[episode] + 1)
                values: dict[str, Any] = {}
                for key, feature in FEATURES.items():
                    own = numbers if feature.final else numbers[:-1]
                    make = {"text": text_of, "points": points_of}.get(key)
                    values[key] = VALUES[key](own) if make is None else [make(n) for n in own.tolist()]
                writer.add_episode(values, terminated=True)
        store.refresh()
        stores.append(store)
    stores[0].delete_episodes([DELETED])
    stores[0].refresh()
    return View(stores)


def check_batch(batch: Any) -> None:
    """Compare a batch with the model; its windows are known by their number."""
    numbers = np.array(batch["number"])
    episodes, steps = numbers // 1000, numbers % 1000
    lengths = np.array([LENGTHS[episode] for episode in episodes.tolist()])
    for key, each in FIELDS.items():
        field = each if isinstance(each, Field) else Field(each)
        offsets = np.asarray(field.offsets or 0)
        feature = FEATURES.get(field.source)
        stops = lengths + (feature is not None and feature.final)
        wanted = steps[:, None] + offsets.reshape(1, -1)
        is_pad = (wanted < 0) | (wanted >= stops[:, None])
        shown = 1000 * episodes[:, None] + np.clip(wanted, 0, stops[:, None] - 1)
        found = batch[key]
        assert found.shape[: 1 + offsets.ndim] == (len(numbers), *offsets.shape)
        if f"{key}_is_pad" in batch:
            np.testing.assert_array_equal(batch[f"{key}_is_pad"].reshape(is_pad.shape), is_pad, err_msg=key)
        if key in ("text", "points"):
            make = text_of if key == "text" else points_of
            for value, number in zip(found.reshape(-1), shown.reshape(-1).tolist(), strict=True):
                np.testing.assert_array_equal(value, make(number))
            continue
        expected = VALUES[field.source](shown.reshape(-1))
        if field.pad == "zero":
            expected[is_pad.reshape(-1)] = 0
        found = found.reshape(expected.shape)
        if field.source == "video":
            assert np.abs(found.astype(int) - expected).max() <= TOLERANCE
        else:
            np.testing.assert_array_equal(found, expected, err_msg=key)


ORDERS: dict[str, Order] = {
    "sequential": sequential(),
    "random": random(1),
    "weighted": weighted(steps=np.arange(1, NUM_STEPS + 1), seed=1),
    "mixed": mixed([1, 2], seed=1),
    "pooled": pooled(150_000, seed=1, blocks=12),
    "pooled, all": pooled(1 << 24, seed=1),
    "pooled, tiny": pooled(85_000, seed=1, blocks=5),
}
ONCE = {"sequential", "random", "pooled", "pooled, all", "pooled, tiny"}


def test_pools_are_of_the_sizes_that_they_are_named_for(view: View) -> None:
    index = WindowReader(view, FIELDS).index
    bound = {name: order.bind(index) for name, order in ORDERS.items() if name.startswith("pooled")}
    assert bound["pooled, tiny"].num_slots <= 5 < len(bound["pooled, tiny"].blocks)
    assert 5 < bound["pooled"].num_slots < len(bound["pooled"].blocks)
    assert bound["pooled, all"].num_slots >= len(bound["pooled, all"].blocks)


@pytest.mark.parametrize("page_cache", [True, False])
@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("name", sorted(ORDERS))
def test_every_value_is_that_of_its_episode_and_step(view: View, name: str, threads: int, page_cache: bool) -> None:
    loader = Loader(view, FIELDS, batch_size=13, order=ORDERS[name], threads=threads, page_cache=page_cache, epochs=2)
    seen: list[int] = []
    for batch in loader:
        check_batch(batch)
        seen += batch["number"].tolist()
    expected = [
        1000 * episode + step for episode, length in LENGTHS.items() for step in range(length) if episode != DELETED
    ]
    assert len(seen) == 2 * NUM_STEPS
    if name in ONCE:
        assert sorted(seen[:NUM_STEPS]) == sorted(seen[NUM_STEPS:]) == expected
    assert (seen[:NUM_STEPS] == expected) == (name == "sequential")


def test_the_model_finds_a_wrong_row(view: View) -> None:
    batch = next(iter(Loader(view, FIELDS, batch_size=13)))
    check_batch(batch)
    for key in set(FIELDS) - {"text", "points"}:
        wrong = {other: value.copy() for other, value in batch.items()}
        wrong[key].reshape(-1)[-1] += 16
        with pytest.raises((AssertionError, KeyError)):
            check_batch(wrong)
