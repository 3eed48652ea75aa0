"""The loader over real tables and views: what comes in a batch, from where, how often, and what is refused."""

import gc
import os
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import stepwell
from stepwell import Array, Batch, Field, View
from stepwell.errors import LoaderError, OrderError, RateLimitError, StateError, TableError, WindowError
from stepwell.order import sequential, weighted
from stepwell.replay import drawing
from stepwell.replay.limiters import MinSize, SampleToInsertRatio
from stepwell.replay.loader import ReplayLoader
from stepwell.replay.patterns import Pattern
from stepwell.replay.sampling import NO_KEY
from stepwell.replay.selectors import Prioritized
from stepwell.replay.tables import Table
from stepwell.replay.transitions import LearningTargets, transition_fields
from stepwell.store import back_pressure

SCHEMA = {"observation": Array(2, final=True), "reward": Array()}
LENGTHS = (5, 1, 8, 3)


def write(store: stepwell.Store, lengths: tuple[int, ...], first: int = 0) -> None:
    with store.writer() as writer:
        for number, length in enumerate(lengths, first):
            steps = np.arange(length + 1)
            observations = np.stack([np.full(length + 1, number), steps], axis=1).astype(np.float32)
            rewards = (100 * number + steps[:-1]).astype(np.float32)
            writer.add_episode({"observation": observations, "reward": rewards}, truncated=True)
    store.refresh()


@pytest.fixture
def store(tmp_path: Path) -> stepwell.Store:
    made = stepwell.create(tmp_path / "ring.well", SCHEMA)
    write(made, LENGTHS)
    return made


@pytest.fixture
def offline(tmp_path: Path) -> stepwell.Store:
    made = stepwell.create(tmp_path / "offline.well", SCHEMA)
    write(made, (6, 4), first=50)
    return made


@pytest.fixture
def close() -> Iterator[Any]:
    """A list of loaders that are closed when the test is over."""
    loaders: list[ReplayLoader] = []

    def remember(loader: ReplayLoader) -> ReplayLoader:
        loaders.append(loader)
        return loader

    yield remember
    for loader in loaders:
        loader.close()


def identities(batch: Any) -> list[tuple[int, int]]:
    return [(int(episode), int(step)) for episode, step in batch["observation"]]


def test_a_batch_holds_the_fields_and_how_its_rows_were_drawn(store: stepwell.Store) -> None:
    table = Table(store, sampler=Prioritized(1.0))
    batch = next(ReplayLoader(table, {"observation": "observation", "reward": "reward"}, batch_size=16))
    assert batch["reward"].tolist() == [100 * episode + step for episode, step in identities(batch)]
    kinds = {key: str(values.dtype) for key, values in batch.items() if key.startswith("table.")}
    assert kinds == {
        "table.key": "uint64",
        "table.probability": "float64",
        "table.weight": "float32",
        "table.priority": "float64",
        "table.times_sampled": "int32",
        "table.size": "int64",
        "table.source": "int64",
    }
    assert set(batch["table.size"].tolist()) == {sum(LENGTHS)}
    assert np.allclose(batch["table.probability"], 1 / sum(LENGTHS))
    assert (batch["table.weight"] == 1).all()
    # items have keys; anchors are of views
    assert batch.anchors is None


def test_transitions_of_a_table_have_the_right_next_observation(store: stepwell.Store) -> None:
    fields, transform = transition_fields(action={"copy": "reward"}, n_step=2, discount=0.5)
    table = Table(store, pattern=Pattern(ahead=2))
    for batch in [next(ReplayLoader(table, fields, transform=transform, batch_size=64)) for _ in range(3)]:
        for row, (episode, step) in enumerate(identities(batch)):
            length = min(2, LENGTHS[episode] - step)
            assert batch["next_observation"][row].tolist() == [episode, step + length]
            assert batch["discount"][row] == 0.5**length


@pytest.mark.parametrize("threads", [0, 2])
def test_weights_equal_the_formula_with_beta_of_the_rows_drawn_so_far(
    store: stepwell.Store, close: Any, threads: int
) -> None:
    table = Table(store, sampler=Prioritized(1.0))
    loader = close(ReplayLoader(table, {"reward": "reward"}, batch_size=8, beta=(0.4, 1.0, 80), threads=threads))
    batch = next(loader)
    loader.update_priorities(batch, np.arange(1, 9))
    for number in range(1, 15):
        batch = next(loader)
        beta = min(1.0, 0.4 + 0.6 * number * 8 / 80)
        wanted = (batch["table.size"] * batch["table.probability"]) ** -beta
        np.testing.assert_allclose(batch["table.weight"], wanted / wanted.max(), rtol=1e-6)


@pytest.mark.parametrize(("threads", "prefetch"), [(0, 1), (0, 4), (1, 1), (2, 3)])
def test_an_item_of_priority_zero_comes_in_at_most_max_staleness_more_batches(
    store: stepwell.Store, close: Any, threads: int, prefetch: int
) -> None:
    table = Table(store, sampler=Prioritized(1.0))
    loader = close(ReplayLoader(table, {"reward": "reward"}, batch_size=64, threads=threads, prefetch=prefetch))
    for _ in range(3):
        batch = next(loader)
    gone = batch["reward"][0]
    loader.update_priorities(batch, np.where(batch["reward"] == gone, 0.0, 1.0))
    stale = [gone in next(loader)["reward"] for _ in range(loader.max_staleness + 20)]
    assert not any(stale[loader.max_staleness :])
    assert loader.max_staleness == (prefetch - 1 if threads == 0 else max(prefetch, threads))


def test_halves_of_a_batch_come_from_the_table_and_from_the_offline_store(
    store: stepwell.Store, offline: stepwell.Store
) -> None:
    table = Table(store)
    loader = ReplayLoader([table, offline], {"observation": "observation"}, batch_size=20, shares=[1, 1])
    seen: list[tuple[int, int]] = []
    for _ in range(5):
        batch = next(loader)
        episodes = batch["observation"][:, 0]
        assert (episodes[:10] < 50).all()
        assert (episodes[10:] >= 50).all()
        assert batch["table.source"].tolist() == [0] * 10 + [1] * 10
        assert (batch["table.key"][10:] == NO_KEY).all()
        assert (batch["table.weight"] == 1).all()
        seen += identities(batch)[10:]
    # a view is walked through before any of its steps comes again
    assert sorted(seen) == sorted([(50, step) for step in range(6)] * 5 + [(51, step) for step in range(4)] * 5)


def test_uneven_shares_are_exact_over_time(store: stepwell.Store, offline: stepwell.Store) -> None:
    loader = ReplayLoader([Table(store), offline], {"reward": "reward"}, batch_size=10, shares=[0.25, 0.75])
    counts = [int((next(loader)["table.source"] == 0).sum()) for _ in range(40)]
    assert sum(counts) == 100
    assert set(counts) == {2, 3}


def test_shares_by_size_follow_what_the_sources_hold(store: stepwell.Store, offline: stepwell.Store) -> None:
    table = Table(store)
    loader = ReplayLoader([table, offline], {"reward": "reward"}, batch_size=27, shares="size")
    next(loader)
    assert [int((next(loader)["table.source"] == 0).sum()) for _ in range(3)] == [17, 17, 17]


def test_a_view_may_have_an_order_of_its_own(store: stepwell.Store, offline: stepwell.Store) -> None:
    loader = ReplayLoader((offline, sequential()), {"observation": "observation"}, batch_size=4)
    assert identities(next(loader)) == [(50, 0), (50, 1), (50, 2), (50, 3)]
    assert identities(next(loader)) == [(50, 4), (50, 5), (51, 0), (51, 1)]
    assert identities(next(loader)) == [(51, 2), (51, 3), (50, 0), (50, 1)]
    fields = {"observation": "observation"}
    last_dropped = ReplayLoader((View(offline), weighted(drop_last_steps=2)), fields, batch_size=200)
    assert set(identities(next(last_dropped))) == {(50, 0), (50, 1), (50, 2), (50, 3), (51, 0), (51, 1)}


def test_updates_reach_the_items_of_every_table_of_a_mix(store: stepwell.Store, offline: stepwell.Store) -> None:
    first, second = Table(store, "a", sampler=Prioritized(1.0)), Table(offline, "b", sampler=Prioritized(1.0))
    loader = ReplayLoader([first, offline, second], {"reward": "reward"}, batch_size=30)
    batch = next(loader)
    priorities = np.arange(30) + 5.0
    assert loader.update_priorities(batch, priorities) == 20
    after = {}
    for key, priority, source in zip(batch["table.key"], priorities, batch["table.source"], strict=True):
        after[int(source), int(key)] = priority
    batch = next(loader)
    for key, priority, source in zip(batch["table.key"], batch["table.priority"], batch["table.source"], strict=True):
        assert priority == (1.0 if source == 1 else after.get((int(source), int(key)), 1.0))


def test_a_bad_priority_for_one_table_changes_none(store: stepwell.Store, offline: stepwell.Store) -> None:
    first, second = Table(store, "a", sampler=Prioritized(1.0)), Table(offline, "b", sampler=Prioritized(1.0))
    loader = ReplayLoader([first, second], {"reward": "reward"}, batch_size=10)
    batch = next(loader)
    priorities = np.full(10, 7.0)
    priorities[8] = np.nan
    with pytest.raises(TableError, match="nan"):
        loader.update_priorities(batch, priorities)
    assert set(next(loader)["table.priority"].tolist()) == {1.0}
    with pytest.raises(TableError, match="10 rows"):
        loader.update_priorities(batch, priorities[:5])
    with pytest.raises(TableError, match=r"table\.key"):
        loader.update_priorities({}, priorities)


def test_torch_batches_are_tensors_and_take_tensors_as_priorities(store: stepwell.Store) -> None:
    torch = pytest.importorskip("torch")
    table = Table(store, sampler=Prioritized(1.0))
    loader = ReplayLoader(table, {"reward": "reward"}, batch_size=8, to="torch", nested=True, pin_memory=False)
    batch = next(loader)
    assert torch.is_tensor(batch["reward"])
    assert torch.is_tensor(batch["table"]["weight"])
    assert loader.update_priorities(batch, torch.ones(8, requires_grad=True) * 3) == 8
    assert table.info.largest_priority == 3


def test_a_limiter_that_lets_nothing_through_is_an_error_that_may_be_tried_again(
    store: stepwell.Store, close: Any
) -> None:
    for threads in (0, 1):
        table = Table(store, limiter=MinSize(sum(LENGTHS) + 1), seed=threads)
        loader = close(ReplayLoader(table, {"reward": "reward"}, batch_size=4, timeout=0.02, threads=threads))
        for _ in range(2):
            with pytest.raises(RateLimitError, match="replay"):
                next(loader)
    write(store, (1,), first=len(LENGTHS))
    assert len(next(loader)["reward"]) == 4
    assert loader.num_batches == 1


def test_what_is_drawn_ahead_asks_the_limiter_for_no_more_than_it_gives(store: stepwell.Store) -> None:
    # 17 items let 17 + 2 rows be drawn before it waits: two batches of 8, and no third
    table = Table(store, limiter=SampleToInsertRatio(1.0, 1, (-2.0, 100.0)))
    loader = ReplayLoader(table, {"reward": "reward"}, batch_size=8, prefetch=3, timeout=0.01)
    assert [len(next(loader)["reward"]) for _ in range(2)] == [8, 8]
    with pytest.raises(RateLimitError):
        next(loader)


def test_what_is_drawn_ahead_leaves_a_batch_of_a_table_whose_items_run_out(store: stepwell.Store) -> None:
    table = Table.queue(store, max_size=20)
    loader = ReplayLoader(table, {"reward": "reward"}, batch_size=8, prefetch=4, timeout=0.01)
    assert [len(next(loader)["reward"]) for _ in range(2)] == [8, 8]
    with pytest.raises(RateLimitError, match="1 of 8 rows"):
        next(loader)
    unlimited = Table(store, max_times_sampled=2)
    ahead = ReplayLoader(unlimited, {"reward": "reward"}, batch_size=8, prefetch=8, timeout=0.01)
    assert [len(next(ahead)["reward"]) for _ in range(4)] == [8] * 4


def test_threads_say_how_long_they_waited_in_all(store: stepwell.Store, close: Any) -> None:
    table = Table(store, limiter=MinSize(100))
    loader = close(ReplayLoader(table, {"reward": "reward"}, batch_size=4, timeout=0.12, threads=1))
    with pytest.raises(RateLimitError) as caught:
        next(loader)
    assert "0.12 s in all" in caught.value.__notes__[0]


def test_threads_log_a_long_wait_without_a_time_out_once(
    store: stepwell.Store, close: Any, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(back_pressure, "SILENT_SECONDS", 0.05)
    monkeypatch.setattr(drawing, "POLL_SECONDS", 0.02)
    loader = close(ReplayLoader(Table(store, limiter=MinSize(1000)), {"reward": "reward"}, threads=1, timeout=None))

    def write_later() -> None:
        deadline = time.monotonic() + 20
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.1)
        write(store, (1000,))

    actor = threading.Thread(target=write_later)
    with caplog.at_level("WARNING", "stepwell.replay"):
        actor.start()
        next(loader)
        actor.join()
    (message,) = caplog.messages
    assert "MinSize(1000) let 0 of 256 rows" in message


def test_closing_ends_a_thread_that_waits_for_a_limiter(store: stepwell.Store) -> None:
    table = Table(store, limiter=MinSize(1000))
    loader = ReplayLoader(table, {"reward": "reward"}, threads=1)
    consumer = threading.Thread(target=lambda: _ignore(loader))
    consumer.start()
    time.sleep(0.05)
    begun = time.monotonic()
    loader._drawer.stop()
    consumer.join(5)
    assert time.monotonic() - begun < 5
    loader.close()
    with pytest.raises(LoaderError, match="closed"):
        next(loader)


def _ignore(loader: ReplayLoader) -> None:
    with pytest.raises(LoaderError):
        next(loader)


def test_a_loader_that_is_dropped_ends_its_threads(store: stepwell.Store) -> None:
    before = threading.active_count()
    loader = ReplayLoader(Table(store), {"reward": "reward"}, batch_size=4, threads=2)
    next(loader)
    assert threading.active_count() > before
    del loader
    gc.collect()
    assert threading.active_count() == before


def test_the_same_updates_give_the_same_batches_and_threads_draw_in_order(store: stepwell.Store, close: Any) -> None:
    def run(threads: int, prefetch: int) -> list[npt.NDArray[Any]]:
        table = Table(store, seed=3)
        loader = close(ReplayLoader(table, {"reward": "reward"}, batch_size=8, threads=threads, prefetch=prefetch))
        return [next(loader)["reward"] for _ in range(20)]

    wanted = run(0, 1)
    for threads, prefetch in ((0, 1), (0, 5), (1, 1), (3, 4)):
        assert np.array_equal(wanted, run(threads, prefetch))


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
def test_batches_that_are_read_at_once_are_those_that_are_read_one_by_one(store: stepwell.Store, sampler: str) -> None:
    fields = {
        "window": Field("observation", [-1, 0, 1]),
        "goal": Field("observation", at="future"),
        "step": "step_index",
        "reward": Field("reward", transform=lambda values, rng: values + rng.normal(size=len(values))),
    }

    def run(prefetch: int) -> list[Any]:
        table = Table(store, sampler=sampler, seed=3)
        table.update_priorities(table.sample(9).keys, np.arange(1.0, 10.0))
        loader = ReplayLoader(table, fields, batch_size=8, beta=(0.0, 1.0, 100), prefetch=prefetch)
        return [next(loader) for _ in range(12)]

    for alone, together in zip(run(1), run(5), strict=True):
        assert (alone.index, list(alone)) == (together.index, list(together))
        for key, values in alone.items():
            if key != "table.times_sampled":
                np.testing.assert_array_equal(values, together[key], err_msg=key)


def test_a_state_goes_on_with_the_next_batch_of_every_order(store: stepwell.Store, offline: stepwell.Store) -> None:
    def make() -> ReplayLoader:
        sources = [(offline, sequential()), View(offline)]
        return ReplayLoader(sources, {"observation": "observation"}, batch_size=7, shares=[0.3, 0.7], prefetch=3)

    loader = make()
    for _ in range(4):
        next(loader)
    state = loader.state_dict()
    wanted = [identities(next(loader)) for _ in range(5)]
    again = make()
    next(again)
    again.load_state_dict(state)
    assert [identities(next(again)) for _ in range(5)] == wanted
    assert again.num_batches == 9


def test_a_state_of_other_sources_is_refused(store: stepwell.Store, offline: stepwell.Store) -> None:
    state = ReplayLoader(offline, batch_size=4).state_dict()
    for other in (ReplayLoader(store, batch_size=4), ReplayLoader(offline, batch_size=5)):
        with pytest.raises(StateError):
            other.load_state_dict(state)


def test_fields_that_reach_beyond_what_a_pattern_waits_for_are_refused(store: stepwell.Store) -> None:
    with pytest.raises(WindowError, match=r"reaches 3 steps ahead.*ahead=3"):
        ReplayLoader(Table(store), {"observation": Field("observation", range(4))})
    with pytest.raises(WindowError, match="pad='drop'"):
        ReplayLoader(Table(store), {"observation": Field("observation", [0, 1], pad="drop")})
    ReplayLoader(Table(store, pattern=Pattern(ahead=3)), {"observation": Field("observation", range(4))})


def test_items_without_a_pattern_are_not_padded_with_what_comes_later(store: stepwell.Store) -> None:
    table = Table(store, pattern=None, sampler="lifo")
    fields = {"window": Field("observation", range(3))}
    writer = store.writer()
    ids = [writer.append(observation=[9, t], reward=0) for t in range(4)]
    whole = table.create_item(ids[1:])
    loader = ReplayLoader(table, fields, batch_size=1)
    assert next(loader)["window"][0, :, 1].tolist() == [1, 2, 3]
    short = table.create_item(ids[2], length=1)
    with pytest.raises(WindowError, match=r"an item of 1 .* still recorded.*items of 3 steps.*clip=\"item\""):
        next(loader)
    assert next(ReplayLoader(table, fields, batch_size=1, clip="item"))["window_is_pad"].tolist() == [[0, 1, 1]]
    writer.append(observation=[9, 4], reward=0)
    assert next(loader)["window"][0, :, 1].tolist() == [2, 3, 4]
    writer.end_episode(truncated=True, final={"observation": [9, 5]})
    table.delete([*whole, *short])
    table.create_item(ids[3] + 1, length=1)
    batch = next(loader)
    assert batch["window"][0, :, 1].tolist() == [4, 5, 5] and batch["window_is_pad"].tolist() == [[0, 0, 1]]
    writer.close()


def test_a_uniform_table_without_a_pattern_is_not_padded_with_what_comes_later(store: stepwell.Store) -> None:
    table = Table(store, pattern=None)
    with store.writer() as writer:
        ids = [writer.append(observation=[9, t], reward=0) for t in range(4)]
        keys = table.create_item(ids[:3])
        loader = ReplayLoader(table, {"window": Field("observation", range(3))}, batch_size=2)
        for _ in range(3):
            next(loader)
        table.delete(keys)
        table.create_item(ids[3], length=1)
        with pytest.raises(WindowError, match="still recorded"):
            next(loader)
        writer.append(observation=[9, 4], reward=0)
        writer.append(observation=[9, 5], reward=0)
        assert next(loader)["window"][0, :, 1].tolist() == [3, 4, 5]


def test_a_view_that_grew_is_told_from_the_one_of_a_state_and_what_to_do(offline: stepwell.Store) -> None:
    loader = ReplayLoader(View(offline), batch_size=2)
    next(loader)
    state = loader.state_dict()
    second = identities(next(loader))
    write(offline, (3,), first=60)
    with pytest.raises(StateError, match=r"a data set that grew.*View\(store\)\.select.*or go on with a new loader"):
        ReplayLoader(View(offline), batch_size=2).load_state_dict(state)
    again = ReplayLoader(View(offline).select(range(2)), batch_size=2)
    again.load_state_dict(state)
    assert identities(next(again)) == second


def test_windows_clipped_to_items_do_not_leave_them(store: stepwell.Store) -> None:
    table = Table(store, pattern=Pattern(length=2, every=2))
    fields = {"observation": "observation", "window": Field("observation", range(-1, 3)), "last": "is_last"}
    batch = next(ReplayLoader(table, fields, batch_size=100, clip="item"))
    for row, (episode, step) in enumerate(identities(batch)):
        stop = min(step + 2, LENGTHS[episode])
        wanted = [min(max(at, step), stop - 1) for at in range(step - 1, step + 3)]
        assert batch["window"][row, :, 1].tolist() == wanted
        assert batch["window_is_pad"][row].tolist() == [not step <= at < stop for at in range(step - 1, step + 3)]
        assert batch["last"][row] == (step == LENGTHS[episode] - 1)


def test_a_batch_of_episodes_that_are_long_gone_is_drawn_again(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("stepwell.replay.episode_records.LEAST_DROPPED", 1)
    ring = stepwell.create(tmp_path / "small.well", SCHEMA, capacity=40)
    write(ring, (20,))
    table = Table(ring)
    loader = ReplayLoader(table, {"observation": "observation", "step": "step_index"}, batch_size=8, prefetch=2)
    # the files are mapped: they can be read when they are gone
    assert [next(loader)["observation"][0, 0] for _ in range(2)] == [0, 0]
    draw = loader._drawer.draw

    def draw_and_go_round(tickets: Any) -> Any:
        loader._drawer.draw = draw  # type: ignore[method-assign]
        drawn = draw(tickets)
        for number in range(1, 80):
            write(ring, (2,), first=number)
            table.follow()
        assert table.history.base > 0
        return drawn

    loader._drawer.draw = draw_and_go_round  # type: ignore[method-assign]
    loader._source = None
    batch = next(loader)
    assert batch["observation"][:, 0].min() > 0
    assert np.array_equal(batch["observation"][:, 1], batch["step"])


@pytest.mark.parametrize("prefetch", [None, 1, 3])
def test_steps_that_come_later_come_into_batches(store: stepwell.Store, prefetch: int | None) -> None:
    loader = ReplayLoader(Table(store), {"observation": "observation"}, batch_size=200, prefetch=prefetch)
    assert {episode for episode, _ in identities(next(loader))} == set(range(len(LENGTHS)))
    write(store, (9,), first=len(LENGTHS))
    for _ in range(loader.max_staleness):
        next(loader)
    assert len(LENGTHS) in {episode for episode, _ in identities(next(loader))}


def test_only_small_batches_of_views_are_drawn_together_by_default(
    store: stepwell.Store, offline: stepwell.Store
) -> None:
    def together(*sources: Any, **options: Any) -> int:
        return ReplayLoader(list(sources), **options).settings.prefetch

    assert together(offline, View(store), batch_size=8) == 8
    assert together(offline, Table(store), batch_size=8) == 1
    assert together(offline, batch_size=1 << 16) == 1
    assert together(offline, batch_size=8, threads=2) == 1
    assert ReplayLoader(offline).max_staleness == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"batch_size": 0}, OrderError),
        ({"clip": "row"}, OrderError),
        ({"timeout": -1}, TableError),
        ({"timeout": float("nan")}, TableError),
        ({"shares": [1, 1]}, OrderError),
        ({"beta": -1}, TableError),
        ({"threads": -1}, OrderError),
        ({"prefetch": 0}, OrderError),
    ],
)
def test_settings_that_cannot_be_are_refused(store: stepwell.Store, options: dict[str, Any], error: Any) -> None:
    with pytest.raises(error):
        ReplayLoader(Table(store), {"reward": "reward"}, **options)


@pytest.mark.parametrize("sources", [[], ["a"], [("a", sequential())], 3])
def test_what_is_no_source_is_refused(sources: Any) -> None:
    with pytest.raises(OrderError, match="source"):
        ReplayLoader(sources, {"reward": "reward"})


# one thread: of several, any may build the batch that is interrupted
@pytest.mark.parametrize("threads", [0, 1])
def test_ctrl_c_in_a_batch_reaches_the_consumer_and_the_next_call_goes_on(
    store: stepwell.Store, close: Any, threads: int
) -> None:
    interrupts = [KeyboardInterrupt()]

    def interrupted(batch: dict[str, Any]) -> dict[str, Any]:
        if interrupts:
            raise interrupts.pop()
        return batch

    loader = close(
        ReplayLoader(Table(store), {"reward": "reward"}, batch_size=4, threads=threads, transform=interrupted)
    )
    with pytest.raises(KeyboardInterrupt):
        next(loader)
    assert len(next(loader)["reward"]) == 4
    assert loader.num_batches == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_is_told_to_make_a_loader_of_its_own(store: stepwell.Store) -> None:
    loader = ReplayLoader(Table(store), {"reward": "reward"}, batch_size=4)
    next(loader)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            next(loader)
        except LoaderError as error:
            status = 0 if "fork" in str(error) else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    next(loader)


def test_a_batch_of_images_is_decoded_by_threads_into_the_same_batches(tmp_path: Path, close: Any) -> None:
    schema = {"image": stepwell.Image((8, 8, 3), codec="png", final=True), "action": Array()}
    store = stepwell.create(tmp_path / "images.well", schema)
    images = np.random.default_rng(0).integers(0, 255, (21, 8, 8, 3), dtype=np.uint8)
    with store.writer() as writer:
        writer.add_episode({"image": images, "action": np.arange(20, dtype=np.float32)}, truncated=True)
    fields, transform = transition_fields("image", stack=2)
    fields["reward"] = Field("action")
    for threads in (0, 2):
        loader = close(ReplayLoader(Table(store), fields, batch_size=8, transform=transform, threads=threads))
        for _ in range(3):
            batch = next(loader)
            for row, step in enumerate(batch["action"].astype(int)):
                assert np.array_equal(batch["image"][row], images[[max(step - 1, 0), step]])
                assert np.array_equal(batch["next_image"][row], images[[step, step + 1]])


@pytest.mark.parametrize("threads", [0, 2])
def test_several_threads_may_take_from_one_loader(store: stepwell.Store, close: Any, threads: int) -> None:
    loader = close(ReplayLoader(Table(store), {"reward": "reward"}, batch_size=4, threads=threads))
    numbers: list[list[int]] = [[] for _ in range(6)]

    def take(mine: list[int]) -> None:
        mine += [next(loader).index for _ in range(20)]

    consumers = [threading.Thread(target=take, args=(mine,), daemon=True) for mine in numbers]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(60)
    assert sorted(number for mine in numbers for number in mine) == list(range(120))
    assert loader.num_batches == 120


@pytest.mark.parametrize("threads", [0, 1])
def test_closing_ends_threads_that_wait_for_a_limiter(store: stepwell.Store, threads: int) -> None:
    loader = ReplayLoader(Table(store, limiter=MinSize(1000)), {"reward": "reward"}, batch_size=4, threads=threads)
    errors: list[BaseException] = []

    def take() -> None:
        try:
            next(loader)
        except (LoaderError, RateLimitError) as error:
            errors.append(error)

    consumers = [threading.Thread(target=take, daemon=True) for _ in range(3)]
    for consumer in consumers:
        consumer.start()
    time.sleep(0.05)
    loader.close()
    for consumer in consumers:
        consumer.join(60)
    assert len(errors) == 3


N_STEPS = transition_fields(n_step=3, stack=2)
# targets that are made in the call that draws: of one step, of several observations, as columns
ONE_STEP = transition_fields(["observation", "goal"])
AS_COLUMNS = transition_fields({"obs": "observation"}, ["action", "choice"], as_columns=True, discount=0.5)


def walks_and_draws(
    path: Path, *, is_direct: bool, grows: bool, sampler: str, ring: dict[str, int], targets: LearningTargets
) -> list[Batch]:
    """Record episodes and draw between the steps; by the longer ways where that is not so."""
    schema = {"observation": Array(5, final=True), "action": Array(2), "reward": Array()}
    store = stepwell.create(path, {**schema, "goal": Array((2, 3), "uint8"), "choice": Array((), "int64")}, **ring)
    rng = np.random.default_rng(0)
    batches: list[Batch] = []
    with store.writer() as writer:
        table = Table(store, sampler=sampler, max_size=500, pattern=targets.pattern)
        if not grows:
            table.history.grow = lambda: None  # type: ignore[method-assign]
        to: Any = "torch" if targets is AS_COLUMNS and find_spec("torch") else "numpy"
        loader = ReplayLoader(table, targets.fields, batch_size=16, transform=targets.transform, to=to)
        assert loader._direct is not None
        if not is_direct:
            loader._direct = None
        for episode in range(30):
            for step in range(int(rng.integers(1, 60))):
                observation, action = rng.standard_normal(5), rng.standard_normal(2)
                values = {"observation": observation.astype("f4"), "action": action.astype("f4"), "choice": step}
                writer.append(**values, reward=float(step), goal=rng.integers(0, 255, (2, 3)).astype("u1"))
                if step % 7 == 3:
                    batch = next(loader)
                    batches.append(Batch({key: np.asarray(value).copy() for key, value in batch.items()}))
                    loader.update_priorities(batch, np.asarray(batch["reward"]).reshape(-1) ** 2)
            ending = {"terminated": True} if episode % 2 else {"truncated": True}
            writer.end_episode(**ending, final={"observation": rng.standard_normal(5).astype("f4")})
        loader.close()
    return batches


@pytest.mark.parametrize("sampler", ["uniform", "prioritized"])
@pytest.mark.parametrize(
    ("ring", "targets"),
    [
        ({}, ONE_STEP),
        ({"capacity": 300}, N_STEPS),
        ({"capacity": 300, "segment_bytes": 1500}, N_STEPS),
        ({"capacity": 300, "segment_bytes": 1500}, AS_COLUMNS),
    ],
)
def test_batches_drawn_in_one_call_equal_those_drawn_step_by_step(
    tmp_path: Path, sampler: str, ring: dict[str, int], targets: LearningTargets
) -> None:
    ways = [(is_direct, grows) for is_direct in (True, False) for grows in (True, False)]
    runs = [
        walks_and_draws(
            tmp_path / f"{number}.well", is_direct=direct, grows=grows, sampler=sampler, ring=ring, targets=targets
        )
        for number, (direct, grows) in enumerate(ways)
    ]
    assert len(runs[0]) > 50
    for batches in runs[1:]:
        for expected, batch in zip(runs[0], batches, strict=True):
            assert set(batch) == set(expected)
            for key, value in expected.items():
                assert batch[key].dtype == value.dtype
                np.testing.assert_array_equal(batch[key], value, err_msg=key)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_info_says_which_columns_of_the_table_a_batch_holds(store: stepwell.Store, close: Any, prefetch: int) -> None:
    table = Table(store, sampler="prioritized")
    batch = next(close(ReplayLoader(table, {"reward": "reward"}, batch_size=4, info=(), prefetch=prefetch)))
    assert list(batch) == ["reward"]
    loader = close(ReplayLoader(table, {"reward": "reward"}, batch_size=4, info=("weight", "key"), prefetch=prefetch))
    batch = next(loader)
    assert list(batch) == ["reward", "table.key", "table.weight"]
    assert loader.update_priorities(batch, np.ones(4)) == 4
    loader = close(ReplayLoader([table, View(store)], {"reward": "reward"}, batch_size=4, info=("key",)))
    with pytest.raises(TableError, match="name 'source' in info="):
        loader.update_priorities(next(loader), np.ones(4))


@pytest.mark.parametrize("info", ["key", ["keys"], ["key", "reward"]])
def test_info_that_there_is_none_of_is_refused(store: stepwell.Store, info: Any) -> None:
    with pytest.raises(OrderError, match="Allowed: None for all, or some of key, probability"):
        ReplayLoader(Table(store), {"reward": "reward"}, info=info)
