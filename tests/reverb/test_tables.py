"""Tables by Reverb's names: orders, limiters, priorities; a model to compare with."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from reverb_samples import drained

from stepwell import reverb
from stepwell.reverb import rate_limiters, selectors

Serve = Callable[..., tuple[reverb.Server, reverb.Client]]


def insert(client: reverb.Client, table: str, values: list[int], priorities: list[float] | None = None) -> None:
    with client.trajectory_writer(1) as writer:
        for number, value in enumerate(values):
            writer.append(value)
            writer.create_item(table, 1.0 if priorities is None else priorities[number], writer.history[-1:])


def values_of(samples: list[reverb.ReplaySample]) -> list[int]:
    return [int(sample.data[0][0]) for sample in samples]


def table_of(**changes: object) -> reverb.Table:
    made = reverb.Table("t", selectors.Fifo(), selectors.Fifo(), 100, rate_limiters.MinSize(1))
    return made.replace(**changes)


@pytest.mark.parametrize(
    ("sampler", "order"),
    [
        (selectors.Fifo(), [0, 1, 2, 3, 4]),
        (selectors.Lifo(), [4, 3, 2, 1, 0]),
        (selectors.MaxHeap(), [1, 3, 0, 2, 4]),
        (selectors.MinHeap(), [2, 4, 0, 1, 3]),
    ],
)
def test_items_come_in_the_order_of_the_sampler(serve: Serve, sampler: object, order: list[int]) -> None:
    _, client = serve(table_of(sampler=sampler, max_times_sampled=1))
    insert(client, "t", [0, 1, 2, 3, 4], [5, 7, 3, 7, 3])
    samples = drained(client, "t")
    assert values_of(samples) == order
    assert [int(sample.info.table_size) for sample in samples] == [5, 4, 3, 2, 1]
    assert {sample.info.times_sampled for sample in samples} == {1}


@pytest.mark.parametrize(
    ("remover", "left"),
    [
        (selectors.Fifo(), [2, 3, 4]),
        (selectors.Lifo(), [0, 1, 2]),
        (selectors.MaxHeap(), [1, 3, 4]),
        (selectors.MinHeap(), [0, 2, 3]),
    ],
)
def test_the_remover_may_choose_the_newcomer(serve: Serve, remover: object, left: list[int]) -> None:
    _, client = serve(table_of(remover=remover, max_size=3, max_times_sampled=1))
    insert(client, "t", [0, 1, 2, 3, 4], [5, 1, 9, 4, 2])
    assert values_of(drained(client, "t")) == left


def test_probabilities_are_powers_of_priorities(serve: Serve) -> None:
    _, client = serve(table_of(sampler=selectors.Prioritized(0.5)))
    insert(client, "t", [0, 1, 2], [1.0, 4.0, 9.0])
    for sample in drained(client, "t", 50):
        assert sample.info.probability == pytest.approx([1 / 6, 1 / 3, 1 / 2][values_of([sample])[0]])
    keys = {values_of([sample])[0]: sample.info.key for sample in drained(client, "t", 100)}
    assert sorted(keys) == [0, 1, 2]
    client.mutate_priorities("t", {keys[0]: 0.0, keys[1]: 0.0, 12345: 5.0}, deletes=[999])
    assert set(values_of(drained(client, "t", 30))) == {2}
    # deletes come before updates
    client.mutate_priorities("t", {keys[2]: 7.0}, deletes=[keys[2]])
    assert client.server_info()["t"].current_size == 2


def test_limiters_hold_both_sides(serve: Serve) -> None:
    limiter = rate_limiters.SampleToInsertRatio(2.0, 3, 4.0)
    server, client = serve(table_of(rate_limiter=limiter))
    table = server.tables["t"]
    with client.trajectory_writer(1) as writer:
        for number in range(6):
            writer.append(number)
            writer.create_item("t", 1.0, writer.history[-1:])
        with pytest.raises(reverb.DeadlineExceededError):
            writer.flush(timeout_ms=300)
        assert client.server_info()["t"].rate_limiter_info.insert_stats.completed == 5
        assert len(drained(client, "t", 2)) == 2
        writer.flush(timeout_ms=60_000)
    samples = list(client.samples("t", rate_limiter_timeout_ms=200))
    assert 2 + len(samples) == 10
    info = client.server_info()["t"].rate_limiter_info
    assert (info.min_diff, info.max_diff, info.sample_stats.completed) == (2.0, 10.0, 10)
    assert not table.can_sample(1)
    assert table.can_insert(1)


def test_a_draw_that_is_given_up_counts_nothing(serve: Serve) -> None:
    server, client = serve(table_of())
    assert list(client.samples("t", rate_limiter_timeout_ms=100)) == []
    samples = client.samples("t", max_in_flight=5)
    insert(client, "t", [1])
    next(samples)
    samples.close()
    before = client.server_info()["t"].rate_limiter_info.sample_stats.completed
    assert 1 <= before <= 10
    assert server.tables["t"].info.current_size == 1


def test_reset_counts_anew(serve: Serve) -> None:
    _, client = serve(table_of())
    insert(client, "t", [1, 2])
    drained(client, "t", 1)
    client.reset("t")
    info = client.server_info()["t"]
    assert (info.current_size, info.num_episodes, info.num_unique_samples) == (0, 0, 0)
    assert info.rate_limiter_info.insert_stats.completed == 0


def test_steps_go_when_no_item_refers_to_them(serve: Serve) -> None:
    server, client = serve(table_of(max_size=20), table_of(name="u", max_size=2))
    with client.trajectory_writer(2) as writer:
        for number in range(600):
            writer.append(np.full((64, 64), number % 251, np.uint8))
            writer.create_item("t", 1.0, writer.history[-1:])
            if number == 5:
                writer.create_item("u", 1.0, writer.history[-2:])
            if number % 50 == 49:
                writer.flush()
    # 600 steps of 4 KiB make more than three segments of 1 MiB
    assert server.num_segments <= 4
    (sample,) = drained(client, "u", 1)
    assert sample.data[0][:, 0, 0].tolist() == [4, 5]
    client.reset("t")
    (sample,) = drained(client, "u", 1)
    assert sample.data[0][:, 0, 0].tolist() == [4, 5]


@pytest.mark.parametrize("seed", range(3))
def test_tables_do_what_a_model_does(serve: Serve, seed: int) -> None:
    rng = random.Random(seed)
    sizes = {"a": 5, "b": 12}
    _, client = serve(
        table_of(name="a", max_size=5), table_of(name="b", max_size=12, remover=selectors.MinHeap()),
    )  # fmt: skip
    model: dict[str, list[list[float]]] = {"a": [], "b": []}
    with client.trajectory_writer(4) as writer:
        for number in range(120):
            writer.append({"x": number, "y": float(number)})
            table, priority = rng.choice("ab"), float(rng.randrange(1, 1000))
            steps = min(number + 1, rng.randrange(1, 5))
            writer.create_item(table, priority, [writer.history["x"][-steps:], writer.history["y"][-1]])
            model[table].append([number, priority, steps])
            if len(model[table]) > sizes[table]:
                if table == "a":
                    del model[table][0]
                else:
                    model[table].remove(min(model[table], key=lambda item: item[1]))
            if rng.random() < 0.1:
                writer.flush()
                name = rng.choice("ab")
                if model[name]:
                    (sample,) = drained(client, name, 1)
                    # a Fifo sampler gives the oldest
                    number_, priority_, steps_ = model[name][0]
                    assert sample.data[0].tolist() == list(range(int(number_ - steps_ + 1), int(number_ + 1)))
                    assert float(sample.data[1]) == number_
                    if rng.random() < 0.5:
                        client.mutate_priorities(name, deletes=[sample.info.key])
                        del model[name][0]
                    else:
                        assert sample.info.priority == priority_
        writer.flush()
    info = client.server_info()
    assert {name: info[name].current_size for name in "ab"} == {name: len(model[name]) for name in "ab"}


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        reverb.Server([])
    with pytest.raises(ValueError, match="one name"):
        reverb.Server([table_of(), table_of()])
    for changes in ({"name": ""}, {"max_size": 0}, {"max_times_sampled": -1}, {"sampler": "fifo"}, {"rate_limiter": 1}):
        with pytest.raises(ValueError):
            table_of(**changes)
    with pytest.raises(ValueError):
        rate_limiters.SampleToInsertRatio(1.0, 1, 0.5)
    with pytest.raises(ValueError):
        rate_limiters.MinSize(0)


def test_unknown_tables_are_told(serve: Serve) -> None:
    _, client = serve(table_of())
    with pytest.raises(ValueError, match="was not found"):
        next(client.sample("other"))
    for call in (lambda: client.reset("other"), lambda: client.mutate_priorities("other", {1: 1.0})):
        with pytest.raises(ValueError, match="was not found"):
            call()
    with pytest.raises(ValueError, match="was not found"):
        client.insert(1, {"other": 1.0})


def test_segments_are_mapped_again_where_there_are_many(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepwell.reverb import steps

    monkeypatch.setattr(steps, "MAX_MAPS", 2)
    server, client = serve(table_of(max_size=1000, sampler=selectors.Uniform()))
    with client.trajectory_writer(1) as writer:
        for number in range(400):
            writer.append(np.full((128, 128), number % 251, np.uint8))
            writer.create_item("t", 1.0, writer.history[-1:])
            if number % 20 == 19:
                writer.flush()
    assert server.num_segments > 4
    # uniform draws go to all segments, of which two are mapped at a time
    frames = [sample.data[0] for sample in drained(client, "t", 300)]
    assert all((frame == frame[0, 0, 0]).all() for frame in frames)
    assert len({int(frame[0, 0, 0]) for frame in frames}) > 50
