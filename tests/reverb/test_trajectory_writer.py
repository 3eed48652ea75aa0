"""Writers by Reverb's names: what items may refer to, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reverb_samples import drained

from stepwell import reverb
from stepwell.reverb import rate_limiters, selectors

Serve = Callable[..., tuple[reverb.Server, reverb.Client]]


def test_values_come_back_as_they_were_given(serve: Serve) -> None:
    _, client = serve(reverb.Table.queue("queue", 10))
    step = {
        "image": np.arange(12, dtype=np.uint8).reshape(2, 2, 3),
        "state": {"position": np.float32(1.5), "flags": [True, np.int8(-3)]},
        "complex": np.array([1 + 2j], np.complex64),
        "empty": np.empty((0, 2), np.float16),
        "text": "words",
        "bytes": b"\0\xff",
    }
    client.insert(step, {"queue": 2.0})
    ((info, data),) = drained(client, "queue")
    assert (info.priority, info.probability, info.table_size, info.times_sampled) == (2.0, 1.0, 1, 1)
    expected = [b"\0\xff", step["complex"], step["empty"], step["image"], True, np.int8(-3), np.float32(1.5), b"words"]
    assert len(data) == len(expected)
    for got, wanted in zip(data, expected, strict=True):
        if isinstance(wanted, bytes):
            assert got.tolist() == [wanted]
        else:
            np.testing.assert_array_equal(got[0], wanted)
            assert got.dtype == np.asarray(wanted).dtype


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_index_of_the_history_gives_what_numpy_gives(serve: Serve, data: st.DataObject) -> None:
    _, client = serve(reverb.Table.queue("queue", 100))
    count = data.draw(st.integers(1, 12))
    index = st.one_of(
        st.integers(-count, count - 1),
        st.lists(st.integers(-count, count - 1), min_size=1, max_size=5),
        st.slices(count),
    )
    with client.trajectory_writer(12) as writer:
        for number in range(count):
            writer.append({"a": np.array([number, -number]), "b": float(number)})
        wanted = []
        for _ in range(data.draw(st.integers(1, 4))):
            first, second = data.draw(index), data.draw(index)
            a = np.stack([np.arange(count), -np.arange(count)], 1)[first]
            b = np.arange(count, dtype=float)[second]
            if 0 in (*np.shape(a)[:1], *np.shape(b)[:1]):
                continue
            columns = {"x": writer.history["a"][first], "y": [writer.history["b"][second]]}
            np.testing.assert_array_equal(columns["x"].numpy(), a)
            assert columns["x"].shape == a.shape
            writer.create_item("queue", 1.0, columns)
            wanted.append((a, b))
    for (_, (x, y)), (a, b) in zip(drained(client, "queue"), wanted, strict=True):
        np.testing.assert_array_equal(x, a)
        np.testing.assert_array_equal(y, b)


def test_strided_reversed_and_repeated_steps_are_the_right_ones(serve: Serve) -> None:
    # Reverb gives other rows here, see the notes on replay semantics
    _, client = serve(reverb.Table.queue("queue", 2000))
    with client.trajectory_writer(8) as writer:
        for number in range(500):
            writer.append({"o": np.int64(number)})
            if number >= 7:
                writer.create_item(
                    "queue", 1.0, [writer.history["o"][[-7, -5, -3, -1]], writer.history["o"][[-1, -1, -2]]]
                )
    samples = drained(client, "queue")
    assert len(samples) == 493
    for number, (_, (strided, repeated)) in enumerate(samples, 7):
        assert strided.tolist() == [number - 6, number - 4, number - 2, number]
        assert repeated.tolist() == [number, number, number - 1]


def test_partial_steps_and_new_columns_stand_where_their_step_does(serve: Serve) -> None:
    _, client = serve(reverb.Table.queue("queue", 10))
    with client.trajectory_writer(10) as writer:
        writer.append({"a": 1}, partial_step=True)
        assert writer.episode_steps == 0
        with pytest.raises(ValueError, match="already been set in the active step"):
            writer.append({"a": 2}, partial_step=True)
        writer.append({"b": 10, "a": None})
        writer.append({"a": 2})
        writer.append({"a": 3, "b": 30, "c": {"d": 300}})
        assert writer.episode_steps == 3
        assert [len(writer.history[name]) for name in "ab"] == [3, 3]
        assert len(writer.history["c"]["d"]) == 3
        with pytest.raises(ValueError, match="has no value"):
            writer.history["b"][:]
        writer.create_item(
            "queue", 1.0, [writer.history["a"][:], writer.history["b"][[0, 2]], writer.history["c"]["d"][-1]]
        )
    ((_, (a, b, d)),) = drained(client, "queue")
    assert (a.tolist(), b.tolist(), int(d)) == ([1, 2, 3], [10, 30], 300)


def test_steps_beyond_those_kept_are_refused(serve: Serve) -> None:
    _, client = serve(reverb.Table.queue("queue", 10))
    with client.trajectory_writer(3) as writer:
        for number in range(5):
            writer.append(number)
        held = writer.history[-3:]
        with pytest.raises(ValueError, match="expired CellRef"):
            writer.history[:]
        writer.append(5)
        with pytest.raises(ValueError, match="expired CellRef"):
            writer.create_item("queue", 1.0, held)
        writer.configure((), num_keep_alive_refs=5, max_chunk_length=None)
        writer.append(6)
        writer.append(7)
        assert writer.history[-5:].numpy().tolist() == [3, 4, 5, 6, 7]


def test_items_over_episodes_count_for_both(serve: Serve) -> None:
    table = reverb.Table("t", selectors.Fifo(), selectors.Fifo(), 100, rate_limiters.MinSize(1))
    _, client = serve(table)
    with client.trajectory_writer(4) as writer:
        for number in range(3):
            writer.append(number)
        writer.end_episode(clear_buffers=False)
        assert writer.episode_steps == 0
        writer.append(3)
        writer.create_item("t", 1.0, writer.history[-3:])
        writer.flush()
        assert client.server_info()["t"].num_episodes == 2
        writer.end_episode()
        writer.append(4)
        assert len(writer.history) == 1
    ((info, (column,)),) = drained(client, "t", 1)
    assert column.tolist() == [1, 2, 3]
    client.mutate_priorities("t", deletes=[info.key])
    assert (client.server_info()["t"].num_episodes, client.server_info()["t"].num_deleted_episodes) == (0, 2)


@pytest.mark.parametrize("priority", [-1.0, float("nan"), float("inf")])
def test_a_bad_priority_is_refused_and_harms_nothing(serve: Serve, priority: float) -> None:
    table = reverb.Table("t", selectors.Prioritized(1.0), selectors.Fifo(), 100, rate_limiters.MinSize(1))
    _, client = serve(table)
    with client.trajectory_writer(1) as writer:
        writer.append(1)
        with pytest.raises(ValueError, match="finite and not negative"):
            writer.create_item("t", priority, writer.history[:])
        writer.create_item("t", 3.0, writer.history[:])
    (sample,) = drained(client, "t", 1)
    with pytest.raises(ValueError, match="finite"):
        client.mutate_priorities("t", {sample.info.key: priority})
    assert drained(client, "t", 1)[0].info.priority == 3.0


def test_what_is_no_item_is_refused_at_once(serve: Serve) -> None:
    signature = {
        "a": reverb.TensorSpec((None, 2), np.dtype(np.float32)),
        "b": reverb.TensorSpec((), np.dtype(np.int64)),
    }
    _, client = serve(reverb.Table.queue("queue", 10, signature=signature))
    with client.trajectory_writer(5) as writer:
        with pytest.raises(RuntimeError):
            writer.history  # noqa: B018
        writer.append({"a": np.zeros(2, np.float32), "b": 1})
        with pytest.raises(ValueError, match=r"wrong dtype provided for column 0 \(path=\('a',\)\)"):
            writer.append({"a": np.zeros(2, np.float64), "b": 1})
        with pytest.raises(ValueError, match=r"incompatible shape provided for column 0 \(path=\('a',\)\)"):
            writer.append({"a": np.zeros(3, np.float32), "b": 1})
        with pytest.raises(TypeError):
            writer.append({"a": np.array(["x", "y"])})
        assert writer.episode_steps == 1
        history = writer.history
        with pytest.raises(TypeError, match="made of columns"):
            writer.create_item("queue", 1.0, {"a": np.zeros(2)})
        with pytest.raises(ValueError, match="could not be found"):
            writer.create_item("other", 1.0, history["a"][:])
        with pytest.raises(ValueError, match="1 columns"):
            writer.create_item("queue", 1.0, {"a": history["a"][:]})
        with pytest.raises(ValueError, match="signature"):
            writer.create_item("queue", 1.0, {"a": history["a"][:], "b": history["b"][:]})
        with pytest.raises(ValueError):
            writer.flush(-1)
        writer.create_item("queue", 1.0, {"a": history["a"][:], "b": history["b"][-1]})
    (sample,) = client.sample("queue", 1, emit_timesteps=False, unpack_as_table_signature=True)
    assert sample.data["a"].shape == (1, 2)
    assert sample.data["b"] == 1


def test_flush_tells_that_a_limiter_holds_items(serve: Serve) -> None:
    _, client = serve(reverb.Table.queue("queue", 2))
    with client.trajectory_writer(1) as writer:
        for number in range(4):
            writer.append(number)
            writer.create_item("queue", 1.0, writer.history[-1:])
        with pytest.raises(reverb.DeadlineExceededError, match="rate limiter"):
            writer.flush(timeout_ms=300)
        writer.flush(2, timeout_ms=60_000)
        samples = [data[0].tolist() for _, data in client.sample("queue", 4, emit_timesteps=False)]
        assert samples == [[0], [1], [2], [3]]
        writer.flush(timeout_ms=60_000)


def test_frames_are_stacked_as_in_the_notebook(serve: Serve) -> None:
    import json
    from pathlib import Path

    path = Path(__file__).parents[3] / "shared/data/reverb/frame_stacking.json"
    if not path.is_file():
        pytest.skip("../shared is not here")
    cases: list[dict[str, Any]] = json.loads(path.read_text())["cases"]
    assert len(cases) == 12
    for case in cases:
        length, stack = case["sequence_length"], case["stack_size"]
        name = case["variant"]
        limiter = rate_limiters.MinSize(10) if name == "seed" else rate_limiters.MinSize(1)
        times = 0 if name == "seed" else 1
        table = reverb.Table("frames", selectors.Fifo(), selectors.Fifo(), 1000, limiter, times)
        if name == "queue":
            table = reverb.Table.queue("frames", 1000)
        _, client = serve(table)
        stride = case["stride"] or 1
        ends = [end for end in range(1, case["frames_written"] + 1) if end >= stack and end % stride == 0]
        frames = {number: np.full((16, 16), number, np.uint8) for number in range(1, case["frames_written"] + 1)}
        if name == "trajectory":
            with client.trajectory_writer(case["frames_written"]) as writer:
                for number, frame in frames.items():
                    writer.append(frame)
                    if number in ends[length - 1 :]:
                        last = ends[ends.index(number) - length + 1 : ends.index(number) + 1]
                        steps = [end - stack + offset for end in last for offset in range(stack)]
                        writer.create_item("frames", 1.0, writer.history[steps])
            got = [sample.data[0].reshape(length, stack, 16, 16) for sample in drained(client, "frames")]
        else:
            with client.writer(max_sequence_length=length) as old:
                for end in ends:
                    old.append(np.stack([frames[end - stack + 1 + offset] for offset in range(stack)]))
                    if ends.index(end) >= length - 1:
                        old.create_item("frames", num_timesteps=length, priority=1.0)
            dataset = reverb.ReplayDataset(
                client, "frames", np.uint8, (length, stack, 16, 16), 10, sequence_length=length, emit_timesteps=False,
                rate_limiter_timeout_ms=500,
            )  # fmt: skip
            assert client.server_info()["frames"].current_size == case["items_in_table_after_write"]
            got = [element.data for element in (dataset.take(2) if name == "seed" else dataset)]
        wanted = [np.array(each) for each in case["samples"]]
        assert len(got) == len(wanted), case["case"]
        for item, values in zip(got, wanted, strict=True):
            assert item.dtype == np.uint8
            np.testing.assert_array_equal(
                item, np.broadcast_to(values.reshape(length, stack)[..., None, None], item.shape)
            )
