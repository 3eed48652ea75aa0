"""Limits that tables set and writers keep: their page, beside a model; gaps of steps that were dropped."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepwell
from stepwell import Array
from stepwell.errors import RateLimitError, StepError, TableError
from stepwell.store.back_pressure import BackPressure, TableGate, WriterGate
from stepwell.store.layout import locked_store
from stepwell.store.ring import map_clock

SCHEMA = {"x": Array(final=True), "n": Array((), "int64")}


@pytest.fixture
def ring(tmp_path: Path) -> stepwell.Store:
    return stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=10_000)


def gate_of(ring: stepwell.Store, mode: BackPressure = "refuse", *, steps: int = 1, ends: int = 0) -> TableGate:
    return TableGate(str(ring.path), mode, ("replay", "Queue(1)"), step_weight=steps, end_weight=ends)


def writer_gate(ring: stepwell.Store) -> WriterGate:
    return WriterGate(str(ring.path), map_clock(str(ring.path))[1:])


def is_admitted(gate: WriterGate, steps: int = 1, ends: int = 0) -> bool:
    try:
        return gate.admits(steps, ends)
    except RateLimitError:
        return False


@settings(max_examples=60, deadline=None)
@given(
    weights=st.sampled_from([(1, 0), (0, 1), (1, 3)]),
    calls=st.lists(
        st.tuples(st.sampled_from(["write", "look", "join", "leave"]), st.integers(0, 5), st.integers(0, 2))
    ),
)
def test_the_limits_are_those_of_a_model(weights: tuple[int, int], calls: list[tuple[str, int, int]]) -> None:
    ring = stepwell.create(":memory:", SCHEMA, capacity=10_000)
    table = gate_of(ring, steps=weights[0], ends=weights[1])
    writers = [writer_gate(ring)]
    used, limit = 0, 1 << 62
    for call, number, ends in calls:
        if call == "write":
            writer = writers[number % len(writers)]
            assert is_admitted(writer, number + 1, ends) == (used < limit)
            used += (weights[0] * (number + 1) + weights[1] * ends) * (used < limit)
        elif call == "look":
            table.look()
            table.publish(number - 1)
            limit = used + max(weights) * (number - 1)
        elif call == "join":
            writers.append(writer_gate(ring))
        elif len(writers) > 1:
            writers.pop(number % len(writers)).close()
    with locked_store(str(ring.path)):
        # as the garbage collector may do while its thread has the lock
        table.close()
    assert all(is_admitted(writer) for writer in writers)
    assert map_clock(str(ring.path))[1] == 0


def test_of_several_tables_the_strictest_one_counts(ring: stepwell.Store) -> None:
    writer, gates = writer_gate(ring), {mode: gate_of(ring, mode) for mode in ("drop", "refuse")}
    assert writer.admits(1)
    gates["drop"].publish(0)
    assert not writer.admits(2) and writer.num_dropped == gates["refuse"].num_dropped == 2
    gates["refuse"].publish(0)
    with pytest.raises(RateLimitError, match=r"Queue\(1\) of table 'replay'.* Nothing was written"):
        writer.admits(1)
    gates["drop"].publish(9)
    with pytest.raises(RateLimitError):
        writer.admits(1)
    gates["refuse"].close()
    assert writer.admits(1)


def test_a_writer_costs_nothing_before_there_is_a_table(ring: stepwell.Store) -> None:
    with ring.writer() as writer:
        writer.append(x=0, n=0)
        assert not (ring.path / "limits").exists()
        gate = gate_of(ring)
        gate.publish(0)
        with pytest.raises(RateLimitError):
            writer.append(x=0, n=1)
        gate.close()
    assert ring.num_steps == 1


def test_a_store_that_was_copied_with_its_limits_holds_nobody(ring: stepwell.Store, tmp_path: Path) -> None:
    with ring.writer() as writer:
        writer.append(x=0, n=0)
    gate = gate_of(ring)
    gate.publish(0)
    os.system(f"cp -r {ring.path} {tmp_path / 'copy.well'}")
    os.system(f"cp -r {ring.path} {tmp_path / 'other.well'} && rm {tmp_path / 'other.well' / 'limits'}")
    for name in ("copy.well", "other.well"):
        with stepwell.open(tmp_path / name).writer() as writer:
            for n in range(3):
                writer.append(x=0, n=n)
        assert map_clock(str(tmp_path / name))[1] == 0
    gate.close()


def test_a_clock_that_is_damaged_keeps_no_writer_from_recording(ring: stepwell.Store) -> None:
    for word in (-1, 1 << 62, 0xFFFFFFFF):
        with ring.writer() as writer:
            writer.append(x=0, n=0)
            gate = gate_of(ring)
            map_clock(str(ring.path))[1] = word
            for n in range(3):
                writer.append(x=n, n=n)
            gate.close()
    assert ring.num_steps == 12


def test_tables_and_writers_are_bounded_and_places_come_back(ring: stepwell.Store) -> None:
    gates = [gate_of(ring) for _ in range(32)]
    with pytest.raises(TableError, match="32 tables"):
        gate_of(ring)
    gates[3].close()
    gates[3] = gate_of(ring)
    for _ in range(40):
        writer = writer_gate(ring)
        assert writer.admits(1)
        writer.close()
        writer.close()
    gates[3].look()
    gates[3].publish(0)
    assert not is_admitted(writer_gate(ring))
    for gate in gates:
        gate.close()
        gate.close()
    assert is_admitted(writer_gate(ring))


def test_a_page_of_a_later_release_holds_nobody_and_is_not_written(ring: stepwell.Store) -> None:
    gate = gate_of(ring)
    gate.publish(0)
    with (ring.path / "limits").open("r+b") as page:
        page.seek(8)
        page.write(b"\2")
    with ring.writer() as writer:
        writer.append(x=0, n=0)
    with pytest.raises(stepwell.errors.StoreVersionError, match="has version 2"):
        gate_of(ring)
    gate.close()


def test_a_writer_that_may_go_on_asks_the_system_for_nothing(
    ring: stepwell.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, writer = gate_of(ring, "wait"), writer_gate(ring)
    gate.publish(1 << 62)
    assert writer.admits(1)
    for name in ("is_byte_locked", "locked_store", "os", "threading", "time"):
        monkeypatch.delattr(f"stepwell.store.back_pressure.{name}")
    assert writer.admits(10, 2) and writer.admits(1)
    monkeypatch.undo()
    gate.close()


@pytest.fixture
def dropping(ring: stepwell.Store) -> Iterator[TableGate]:
    gate = gate_of(ring, "drop")
    yield gate
    gate.close()


def final_of(episode: stepwell.Episode) -> float | None:
    return float(episode.read_rows("x", episode.length, episode.length + 1)[0]) if episode.has_final else None


def let_in(gate: TableGate, steps: int) -> None:
    gate.look()
    gate.publish(steps)


def test_an_episode_ends_before_what_is_dropped_and_another_one_follows(
    ring: stepwell.Store, dropping: TableGate
) -> None:
    writer = ring.writer()
    let_in(dropping, 2)
    assert [writer.append(x=n, n=n) >= 0 for n in range(4)] == [True, True, False, False]
    assert writer.num_dropped == dropping.num_dropped == 2
    with pytest.raises(StepError, match="an episode is open"):
        writer.add_episode({"x": [0], "n": [0]})
    let_in(dropping, 1)
    assert writer.append(x=4, n=4) >= 0
    assert writer.append_batch({"x": [5, 6], "n": [5, 6]}) == -1
    assert writer.end_episode(terminated=True) == -1
    with pytest.raises(StepError, match="no steps"):
        writer.end_episode()
    assert writer.add_episode({"x": [7, 8], "n": [7, 8]}) == writer.add_one_step_episodes({"x": [9], "n": [9]}) == -1
    let_in(dropping, 1)
    writer.add_episode({"x": [7, 8], "n": [7, 8]}, terminated=True)
    writer.close()
    ring.refresh()
    found = [(e["n"].tolist(), e.interrupted, e.terminated, final_of(e)) for e in ring]
    assert found == [([0, 1], True, False, 2), ([4], True, False, 5), ([7, 8], False, True, None)]
    assert ring.verify(deep=True).is_ok


def test_a_discarded_episode_has_no_part_left_beside_a_gap(ring: stepwell.Store, dropping: TableGate) -> None:
    with ring.writer() as writer:
        for number in (2, 1):
            let_in(dropping, number)
            for n in range(3):
                writer.append(x=n, n=n)
        writer.discard_episode()
        let_in(dropping, 1)
        writer.append(x=7, n=7)
        writer.discard_episode()
        let_in(dropping, 1)
        writer.append(x=8, n=8)
    assert [episode["n"].tolist() for episode in ring] == [[8]]


CALLS = st.one_of(
    st.tuples(st.just("append"), st.just(1)),
    st.tuples(st.just("batch"), st.integers(1, 9)),
    st.tuples(st.just("end"), st.integers(0, 1)),
    st.tuples(st.just("discard"), st.just(0)),
    st.tuples(st.just("let in"), st.integers(-1, 30)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(CALLS, min_size=5, max_size=60))
def test_what_a_writer_keeps_is_what_a_model_keeps(calls: list[tuple[str, int]]) -> None:
    # episodes of more than a few dozen steps are cut
    ring = stepwell.create(":memory:", SCHEMA, capacity=100_000, segment_bytes=200)
    gate = gate_of(ring, "drop")
    room, count, kept, num_dropped = 1 << 60, 0, [], 0
    # of the open episode: its parts, each with its final value, and whether the last one goes on
    parts: list[tuple[list[int], float | None]] = []
    is_open = has_steps = False
    with ring.writer() as writer:
        for call, number in calls:
            if call in ("append", "batch"):
                numbers, has_steps, is_let_in = list(range(count, count + number)), True, room > 0
                count += number
                if is_let_in:
                    parts += [] if is_open else [([], None)]
                    parts[-1][0].extend(numbers)
                    room -= number
                else:
                    num_dropped += number
                    if is_open:
                        parts[-1] = (parts[-1][0], float(numbers[0]))
                is_open = is_let_in
                step = {"x": np.array(numbers, np.float32), "n": np.array(numbers)}
                found = writer.append_batch(step) if call == "batch" else writer.append(x=numbers[0], n=numbers[0])
                assert (found == -1) == (not is_let_in)
            elif call == "end" and has_steps:
                if is_open and number:
                    parts[-1] = (parts[-1][0], -1.0)
                writer.end_episode(final={"x": -1.0} if number else None)
                kept, parts, is_open, has_steps = [*kept, *parts], [], False, False
            elif call == "discard":
                writer.discard_episode()
                parts, is_open, has_steps = [], False, False
            elif call == "let in":
                let_in(gate, number)
                room = number
        assert writer.num_dropped == gate.num_dropped == num_dropped
    gate.close()
    assert joined(ring) == [*kept, *parts]
    assert ring.verify(deep=True).is_ok


@settings(max_examples=40, deadline=None)
@given(
    num_envs=st.integers(1, 4),
    segment_bytes=st.sampled_from([400, 100_000]),
    codec=st.sampled_from(["raw", "zstd"]),
    calls=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.lists(st.booleans(), min_size=4, max_size=4)),
            st.tuples(st.just("end"), st.lists(st.booleans(), min_size=4, max_size=4)),
            st.tuples(st.just("let in"), st.integers(-1, 30)),
        ),
        min_size=5,
        max_size=80,
    ),
)
def test_what_a_vector_writer_keeps_is_what_a_model_keeps(
    num_envs: int, segment_bytes: int, codec: str, calls: list[tuple[str, Any]]
) -> None:
    schema = {**SCHEMA, "env": Array((), "int64", codec=codec)}
    ring = stepwell.create(":memory:", schema, capacity=100_000, segment_bytes=segment_bytes)
    gate = gate_of(ring, "drop")
    room, num_dropped, t = 1 << 60, 0, 0
    kept: list[list[tuple[list[int], float | None]]] = [[] for _ in range(num_envs)]
    is_open = np.zeros(num_envs, np.bool_)
    with ring.vector_writer(num_envs) as writer:
        for call, given_now in calls:
            if call == "let in":
                let_in(gate, given_now)
                room = given_now
                continue
            t += 1
            x = np.full(num_envs, t, np.float32)
            if call == "append":
                ends = np.array(given_now[:num_envs])
                step = {"x": x, "n": np.full(num_envs, t), "env": np.arange(num_envs)}
                ids = writer.append(step, terminated=ends, final={"x": x + 0.5})
                assert ((ids >= 0) == (room > 0)).all()
                if room > 0:
                    room -= num_envs
                    for env in range(num_envs):
                        before = kept[env].pop()[0] if is_open[env] else []
                        kept[env].append(([*before, t], None))
                    is_open[:], final = ~ends, t + 0.5
                else:
                    num_dropped += num_envs
                    # what was open ends before it
                    ends, final = is_open.copy(), float(t)
                    is_open[:] = False
            else:
                ends, final = np.array(given_now[:num_envs]), t + 0.5
                writer.end_episodes(ends, truncated=True, final={"x": x + 0.5})
                ends &= is_open
                is_open &= ~ends
            for env in np.flatnonzero(ends):
                kept[env][-1] = (kept[env][-1][0], final)
        assert writer.num_dropped == gate.num_dropped == num_dropped
    gate.close()
    found: list[list[tuple[list[int], float | None]]] = [[] for _ in range(num_envs)]
    for episode in sorted(ring, key=lambda episode: int(episode["n"][0])):
        episodes = found[int(episode["env"][0])]
        before = episodes.pop()[0] if episode.skipped else []
        episodes.append(([*before, *episode["n"].tolist()], final_of(episode)))
    assert found == kept
    assert ring.verify(deep=True).is_ok


def joined(ring: stepwell.Store) -> list[tuple[list[int], float | None]]:
    """Return the steps and the final value of each episode, with those that the ring cut as one."""
    found: list[tuple[list[int], float | None]] = []
    goes_on = False
    for episode in ring:
        numbers, final = episode["n"].tolist(), final_of(episode)
        if goes_on:
            numbers = found.pop()[0] + numbers
        found.append((numbers, final))
        goes_on = episode.goes_on
    return found


def test_a_vector_step_is_dropped_for_all_environments_that_step(ring: stepwell.Store, dropping: TableGate) -> None:
    def step(n: int) -> dict[str, np.ndarray]:
        return {"x": np.arange(3, dtype=np.float32) + 10 * n, "n": np.full(3, n)}

    mask = np.array([True, True, False])
    with ring.vector_writer(3) as writer:
        let_in(dropping, 6)
        assert [(writer.append(step(n)) >= 0).all() for n in range(3)] == [True, True, False]
        assert writer.num_dropped == 3
        let_in(dropping, 1)
        assert (writer.append(step(3)) >= 0).all()
        assert writer.append(step(4), mask=mask, terminated=mask, final={"x": step(9)["x"]}).tolist() == [-1] * 3
        let_in(dropping, 1)
        writer.append(step(5))
    ring.refresh()
    found = [(e["n"].tolist(), e.interrupted, final_of(e)) for e in ring]
    assert sorted(found, key=str) == sorted(
        [
            *[([0, 1], True, 20.0 + i) for i in range(3)],
            *[([3], True, 40.0 + i) for i in range(2)],
            ([3, 5], True, None),
            *[([5], True, None)] * 2,
        ],
        key=str,
    )
    assert ring.verify(deep=True).is_ok


def test_of_several_vector_steps_those_are_written_that_are_let_in(ring: stepwell.Store) -> None:
    gate, ids = gate_of(ring), np.full((5, 2), -7)
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    done = np.zeros((5, 2), np.bool_)
    done[1, 0] = True
    with ring.vector_writer(2) as writer:
        let_in(gate, 6)
        with pytest.raises(RateLimitError):
            writer.append_batch({"x": x, "n": x.astype(np.int64)}, terminated=done, final={"x": x + 1}, out=ids)
        assert (ids[:3] >= 0).all() and (ids[3:] == -7).all()
        gate.close()
        assert (writer.append_batch({"x": x[3:], "n": x[3:].astype(np.int64)}) >= 0).all()
    assert sorted(episode["n"].tolist() for episode in ring) == [[0, 2], [1, 3, 5, 7, 9], [4, 6, 8]]


def test_a_step_that_waits_is_left_by_an_interrupt_and_nothing_is_written(
    ring: stepwell.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gate_of(ring, "wait")
    gate.publish(0)
    learner = threading.Thread(target=gate.note_draw)
    learner.start()
    learner.join()

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stepwell.store.back_pressure.time.sleep", interrupt)
    writer = ring.writer()
    with pytest.raises(KeyboardInterrupt):
        writer.append(x=0, n=0)
    # closing waits for no table
    writer.close()
    assert ring.num_steps == 0
    gate.close()


def test_who_draws_does_not_wait_for_himself(ring: stepwell.Store) -> None:
    gate, writer = gate_of(ring, "wait"), ring.writer()
    gate.publish(0)
    gate.note_draw()
    with pytest.raises(RateLimitError, match="wait for itself"):
        writer.append(x=0, n=0)
    thread = threading.Thread(target=gate.note_draw)
    thread.start()
    thread.join()
    release = threading.Timer(0.01, gate.close)
    release.start()
    assert writer.append(x=0, n=0) >= 0
    writer.close()
