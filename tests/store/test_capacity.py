"""Capacities: what a user may say, and what is said when it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.errors import SchemaError, StepwellError
from stepwell.json_text import open_json
from stepwell.schema import Array, Schema, Text
from stepwell.store.records import Capacity, fixed_row_bytes

SCHEMA = Schema({"a": Array(4), "b": Text()})


@pytest.mark.parametrize(
    ("given", "steps", "size"),
    [
        (1, 1, None),
        (100_000, 100_000, None),
        (np.int64(7), 7, None),
        ("20 GB", None, 20 * 10**9),
        ("1 KiB", None, 1024),
    ],
)
def test_an_int_is_steps_and_a_text_is_bytes(tmp_path: Path, given: Any, steps: int | None, size: int | None) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA, capacity=given)
    expected = Capacity(steps, "steps") if steps is not None else Capacity(size or 0, "bytes")
    assert store.capacity == expected
    assert stepwell.open(store.path).capacity == expected
    assert open_json((store.path / "store.json").read_bytes())["capacity"] == expected.to_json()


def test_a_store_without_capacity_keeps_everything(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", SCHEMA)
    assert store.capacity is None
    assert open_json((store.path / "store.json").read_bytes())["capacity"] is None
    assert "ring" not in repr(store)


@pytest.mark.parametrize("given", [0, -1, True, 1.5, "", "100", "many", "0 GB", "-1 GB", "20 XB", [3]])
def test_what_is_no_capacity_is_refused_before_anything_is_made(tmp_path: Path, given: Any) -> None:
    with pytest.raises(SchemaError, match=r"capacity=.*Give a number of steps"):
        stepwell.create(tmp_path / "a.well", SCHEMA, capacity=given)
    assert not (tmp_path / "a.well").exists()


def test_bytes_must_hold_one_step(tmp_path: Path) -> None:
    assert fixed_row_bytes(SCHEMA) == 16 + 8
    with pytest.raises(SchemaError, match="a step takes at least 24 bytes"):
        stepwell.create(tmp_path / "a.well", SCHEMA, capacity="23 B")
    stepwell.create(tmp_path / "a.well", SCHEMA, capacity="24 B")


def test_bytes_must_hold_one_step_of_an_inferred_schema(tmp_path: Path) -> None:
    store = stepwell.create(tmp_path / "a.well", capacity="15 B")
    writer = store.writer()
    with pytest.raises(StepwellError, match="a step takes at least 16 bytes"):
        writer.append(x=np.zeros(4, np.float32))
    assert stepwell.open(store.path).schema is None
    writer.append(x=np.zeros(3, np.float32))
    writer.close()
    assert store.num_steps == 1


def test_exist_ok_wants_the_same_capacity_or_none(tmp_path: Path) -> None:
    stepwell.create(tmp_path / "a.well", SCHEMA, capacity=10)
    for given in (10, None, Capacity(10, "steps")):
        assert stepwell.create(tmp_path / "a.well", SCHEMA, capacity=given, exist_ok=True).capacity == Capacity(
            10, "steps"
        )
    with pytest.raises(SchemaError, match="has capacity 10 steps, not 11 steps"):
        stepwell.create(tmp_path / "a.well", SCHEMA, capacity=11, exist_ok=True)
    with pytest.raises(SchemaError, match="has capacity 10 steps, not 1,000 bytes"):
        stepwell.create(tmp_path / "a.well", SCHEMA, capacity="1 kB", exist_ok=True)
    stepwell.create(tmp_path / "b.well", SCHEMA)
    with pytest.raises(SchemaError, match="has capacity None, not 10 steps"):
        stepwell.create(tmp_path / "b.well", SCHEMA, capacity=10, exist_ok=True)


def test_the_line_of_a_ring_says_so(tmp_path: Path) -> None:
    assert "  ring of 100,000 steps  " in repr(stepwell.create(tmp_path / "a.well", SCHEMA, capacity=100_000))
    info = stepwell.create(tmp_path / "b.well", SCHEMA, capacity="20 GB").info()
    assert "  ring of 20.0 GB  " in info.line
    assert info.to_json()["capacity"] == "20.0 GB"
