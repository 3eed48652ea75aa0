"""What a recorder takes as a frame, and what it says of one that does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import StepError
from stepwell.lerobot.frames import FrameReader
from stepwell.schema import Array, Image, Schema, Text

SCHEMA = Schema(
    {
        "observation.images.top": Image((4, 6, 3), codec="png"),
        "observation.state": Array(2),
        "next.reward": Array((), "float32"),
        "next.done": Array((), "bool"),
        "count": Array((2, 3), "int64"),
        "note": Text(),
        "timestamp": Array((), "float32"),
        "task_index": Array((), "int64"),
    }
)
PICTURE = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)


def frame(**changes: Any) -> dict[str, Any]:
    whole = {
        "observation.images.top": PICTURE,
        "observation.state": np.array([0.5, -1], np.float32),
        "next.reward": np.array([2.5], np.float32),
        "next.done": np.array([True]),
        "count": np.arange(6).reshape(2, 3),
        "note": "left hand",
        "task": "push",
    }
    return {**whole, **{name.replace("__", "."): value for name, value in changes.items()}}


def read(**changes: Any) -> dict[str, Any]:
    return FrameReader(SCHEMA).read(frame(**changes))[0]


def test_a_frame_gives_every_feature_and_the_task_apart() -> None:
    step, task = FrameReader(SCHEMA).read(frame())
    assert task == "push"
    assert list(step) == [name for name in SCHEMA if name not in ("timestamp", "task_index")]
    assert step["next.reward"] == np.float32(2.5)
    assert step["next.done"]
    assert np.array_equal(step["observation.images.top"], PICTURE)


def test_a_frame_is_not_changed() -> None:
    given_frame = frame()
    FrameReader(SCHEMA).read(given_frame)
    assert given_frame.keys() == frame().keys()


@pytest.mark.parametrize(
    "scalar", [2.5, np.float32(2.5), np.array(2.5, np.float32), np.array([2.5], np.float32), [2.5], (np.float32(2.5),)]
)
def test_what_lerobot_calls_shape_1_may_be_given_as_a_scalar(scalar: Any) -> None:
    assert read(next__reward=scalar)["next.reward"] == np.float32(2.5)


@pytest.mark.parametrize("shape", [(4, 6, 1), (1, 4, 6)])
@pytest.mark.parametrize("divisor", [1, np.float32(255)])
def test_a_grey_picture_is_one_of_equal_colours(shape: tuple[int, ...], divisor: Any) -> None:
    grey = PICTURE[..., 0]
    given_picture = grey.reshape(shape) if divisor == 1 else grey.reshape(shape) / divisor
    found = read(observation__images__top=given_picture)["observation.images.top"]
    assert np.array_equal(found, np.stack([grey] * 3, axis=-1))


@pytest.mark.parametrize("kind", ["channels first", "float32", "float64", "float16", "first and float", "strided"])
def test_pictures_may_come_as_lerobot_takes_them(kind: str) -> None:
    units = PICTURE / 255
    pictures = {
        "channels first": PICTURE.transpose(2, 0, 1),
        "float32": units.astype(np.float32),
        "float64": units,
        "float16": units.astype(np.float16),
        "first and float": np.ascontiguousarray(units.transpose(2, 0, 1), np.float32),
        "strided": np.repeat(PICTURE, 2, axis=1)[:, ::2],
    }
    found = read(observation__images__top=pictures[kind])["observation.images.top"]
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    assert np.array_equal(found, PICTURE)


def test_pictures_of_pil_and_tensors_may_be_given() -> None:
    pil = pytest.importorskip("PIL.Image")
    torch = pytest.importorskip("torch")
    for picture in (pil.fromarray(PICTURE), torch.from_numpy(PICTURE), torch.from_numpy(PICTURE).permute(2, 0, 1)):
        assert np.array_equal(read(observation__images__top=picture)["observation.images.top"], PICTURE)
    assert np.array_equal(read(observation__state=torch.tensor([1.0, 2.0]))["observation.state"], [1, 2])


@given(st.floats(0, 1, width=32))
def test_a_float_becomes_the_nearest_byte(value: float) -> None:
    found = read(observation__images__top=np.full((4, 6, 3), value, np.float32))["observation.images.top"]
    assert abs(int(found[0, 0, 0]) - value * 255) <= 0.5 + 1e-4


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"observation__state": np.zeros(3, np.float32)}, "'observation.state': got shape (3,)"),
        ({"observation__state": np.zeros(2)}, "'observation.state': got dtype float64, the store has float32"),
        ({"observation__state": None}, "'observation.state': got None"),
        ({"next__reward": np.zeros(2, np.float32)}, "'next.reward': got shape (2,)"),
        ({"next__done": 1.5}, "'next.done'"),
        ({"count": np.zeros((3, 2), np.int64)}, "'count': got shape (3, 2)"),
        ({"note": 5}, "'note': got a int"),
        ({"observation__images__top": PICTURE[:3]}, "'observation.images.top': got shape (3, 6, 3)"),
        ({"observation__images__top": PICTURE.astype(np.int64)}, "'observation.images.top': got dtype int64"),
        ({"observation__images__top": PICTURE / 50}, "'observation.images.top': got floats of 0 to"),
        ({"observation__images__top": np.full((4, 6, 3), np.nan)}, "'observation.images.top': got floats of nan"),
        ({"observation__images__top": "top.png"}, "'observation.images.top': got dtype <U7"),
        ({"observation__images__top": None}, "'observation.images.top': got None"),
        ({"task": 3}, "'task': got a int, the store has text"),
        ({"task": "\ud800"}, "'task': a text with a lone surrogate"),
        ({"wrist": 1}, "'wrist' no feature of the dataset"),
        ({"timestamp": 0.1}, "'timestamp' computed: leave it out"),
        ({"index": 3, "episode_index": 0}, "'index', 'episode_index' computed"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(StepError) as caught:
        read(**changes)
    assert told in str(caught.value)


def test_what_is_missing_is_named() -> None:
    without = {name: value for name, value in frame().items() if name not in ("task", "note")}
    with pytest.raises(StepError, match="'note', 'task' missing"):
        FrameReader(SCHEMA).read(without)


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(StepError, match="got a list"):
        FrameReader(SCHEMA).read([1, 2])  # type: ignore[arg-type]
