"""Stores of known values: feature values say store, episode and step, so that a wrong row shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Image, Schema, Store, Text

SCHEMA = Schema(
    {
        "observation": Array(3, "float32", final=True),
        "action": Array((2, 2), "int16"),
        "reward": Array((), "float64"),
        "image": Image((4, 5, 3), codec="png", final=True),
        "words": Text(),
        "points": Array((None, 2), "int32"),
    }
)


def value_of(name: str, episode: int, step: int) -> Any:
    """The value of a feature at a step: distinct for every (feature, episode, step)."""
    number = 1 + episode * 100 + step
    if name == "words":
        return f"{episode}:{step}" * (step % 3)
    if name == "points":
        return np.full((step % 4, 2), number, np.int32)
    feature = SCHEMA[name]
    base = np.arange(int(np.prod(feature.fixed_shape)) or 1).reshape(feature.fixed_shape)
    return (
        ((base + number * 7) % 251).astype(feature.np_dtype)
        if name == "image"
        else (base + number * 100).astype(feature.np_dtype)
    )


def episode_columns(names: Sequence[str], episode: int, length: int, has_final: bool) -> dict[str, Any]:
    columns = {}
    for name in names:
        rows = length + (has_final and SCHEMA[name].final)
        values = [value_of(name, episode, step) for step in range(rows)]
        columns[name] = values if SCHEMA[name].is_ragged else np.stack(values)
    return columns


@pytest.fixture(scope="session")
def make_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Store]:
    """Return a function (lengths, names) -> Store, with a new segment every ``per_segment`` episodes."""

    def make(
        lengths: Sequence[int],
        names: Sequence[str] = ("observation", "action", "reward"),
        *,
        finals: Sequence[bool] | bool = False,
        per_segment: int = 10**9,
        first: int = 0,
        fps: float | None = 10.0,
    ) -> Store:
        path: Path = tmp_path_factory.mktemp("store") / "a.well"
        store = stepwell.create(path, Schema({name: SCHEMA[name] for name in names}), fps=fps)
        is_final = [finals] * len(lengths) if isinstance(finals, bool) else list(finals)
        for begin in range(0, len(lengths), per_segment):
            with store.writer() as writer:
                for i in range(begin, min(begin + per_segment, len(lengths))):
                    columns = episode_columns(names, first + i, lengths[i], is_final[i])
                    writer.add_episode(columns, terminated=i % 2 == 0, truncated=i % 2 == 1, number=first + i)
        store.refresh()
        return store

    return make


@pytest.fixture(scope="session")
def feature_value() -> Callable[[str, int, int], Any]:
    return value_of
