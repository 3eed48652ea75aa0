"""The reader of docs/format.md, which knows nothing of stepwell, shows of a ring what stepwell does."""

from __future__ import annotations

import re
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell.replay import Pattern, Table
from stepwell.schema import Array, Bytes, Schema
from stepwell.store import Store

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
SCHEMA = Schema({"t": Array((), "int64", final=True), "note": Bytes()})


@pytest.fixture(scope="module")
def read_store() -> Any:
    (code,) = re.findall(r"```python\n((?:(?!```).)*def read_store.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    return namespace["read_store"]


def wait_for_seals() -> None:
    """Wait until no segment moves: the reader looks at each directory once."""
    for thread in threading.enumerate():
        if thread.name == "stepwell-seal":
            thread.join()


# (writer, steps, final row?, ended, discarded or left open)
calls = st.tuples(st.integers(0, 1), st.integers(1, 30), st.booleans(), st.sampled_from(["end", "end", "discard", ""]))


def write(writer: stepwell.Writer, count: int, steps: int, has_final: bool, ending: str) -> None:
    for t in range(count, count + steps):
        writer.append(t=t, note=b"x" * (t % 7))
    if ending == "end":
        writer.end_episode(truncated=True, final={"t": count + steps} if has_final else None)
    elif ending:
        writer.discard_episode()


@settings(deadline=None, max_examples=40)
@given(
    capacity=st.sampled_from([1, 20, 60, "300 B", "900 B", None]),
    recorded=st.lists(calls, min_size=1, max_size=25),
    closed=st.booleans(),
    deleted=st.booleans(),
)
def test_the_reader_of_the_format_shows_the_same_rows_of_a_ring(
    read_store: Any, capacity: Any, recorded: list[Any], closed: bool, deleted: bool
) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        store = stepwell.create(f"{folder}/a.well", SCHEMA, capacity=capacity, segment_bytes=250)
        writers, count = [store.writer(), store.writer()], 0
        for number, steps, has_final, ending in recorded:
            write(writers[number], count, steps, has_final, ending)
            count += steps
        if closed:
            writers[0].close()
        wait_for_seals()
        store.refresh()
        if deleted and len(store) and not store.episodes.is_open[0]:
            store.delete_episodes([0])
            store.refresh()
        check_the_same(read_store, store)
        for writer in writers:
            writer.close()


def check_the_same(read_store: Any, store: Store) -> None:
    ended = [episode for episode in store if not episode.is_open]
    origins = store.episodes.origin[~store.episodes.is_open]
    found = list(read_store(store.path))
    assert [columns["t"].tolist() for _, _, columns in found] == [episode["t"].tolist() for episode in ended]
    assert [columns["note"] for _, _, columns in found] == [episode["note"] for episode in ended]
    assert [episode.goes_on for episode in ended] == [bool(record["cut"] >> 31) for record, _, _ in found]
    assert origins.tolist() == [int(record["origin"]) for record, _, _ in found]


@settings(deadline=None, max_examples=10)
@given(
    capacity=st.sampled_from([20, 60, "300 B"]),
    recorded=st.lists(calls, min_size=1, max_size=25),
    deleted=st.booleans(),
    compacted=st.booleans(),
)
def test_the_reader_of_the_format_and_tables_show_of_copies_what_the_ring_shows(
    read_store: Any, capacity: Any, recorded: list[Any], deleted: bool, compacted: bool
) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        store = stepwell.create(f"{folder}/a.well", SCHEMA, capacity=capacity, segment_bytes=250)
        with store.writer() as first, store.writer() as second:
            count = 0
            for number, steps, has_final, ending in recorded:
                write([first, second][number], count, steps, has_final, ending)
                count += steps
        store.refresh()
        if deleted and len(store):
            store.delete_episodes([-1])
        if not len(store):
            return
        shown = [episode["t"][: episode.length].tolist() for episode in store]
        whole = stepwell.concatenate(f"{folder}/b.well", [store])
        stepwell.convert(store, f"{folder}/c.well", {"t": "zstd"}, workers=1, progress=False)
        twice = stepwell.concatenate(f"{folder}/d.well", [whole, whole])
        for made, times in ((whole, 1), (stepwell.open(f"{folder}/c.well"), 1), (twice, 2)):
            if compacted:
                # something to free: else nothing is written anew
                with made.writer() as writer:
                    write(writer, count, 3, False, "discard")
                made.compact()
            copy = stepwell.open(made.path)
            assert [episode["t"][: episode.length].tolist() for episode in copy] == shown * times
            if copy.schema is not None and copy.schema["t"].is_raw:
                check_the_same(read_store, copy)
            assert copy.verify(deep=True).is_ok
            assert int(copy.statistics(names=["t"])["t"].count) == sum(map(len, (e["t"] for e in copy)))
            assert Table(copy, pattern=Pattern(ahead=0)).size == sum(map(len, shown)) * times
