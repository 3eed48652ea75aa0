"""Tables and their batches over a ring whose long episodes are cut in pieces, against plain lists."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Array, Field, Image, Loader
from stepwell.replay import Pattern, ReplayLoader, Table, sequence_fields, transition_fields
from stepwell.replay.patterns import step_index
from stepwell.windows.chains import Chains
from stepwell.windows.reader import PlaceReader
from stepwell.windows.sources import JoinedSources

GAMMA = 0.5
SCHEMA = {
    "observation": Array((), "int64", final=True),
    "screen": Image((4, 4, 3), codec="delta", every=5, final=True),
    "action": Array((), "int64"),
    "reward": Array((), "float64"),
}
SEGMENT_BYTES = 300


def values(number: int) -> dict[str, Any]:
    screen = np.full((4, 4, 3), number % 251, np.uint8)
    return {"observation": number, "screen": screen, "action": number, "reward": float(number % 7)}


class Actors:
    """Writers that record episodes by turns; step t of episode e is the number 1000 e + t."""

    def __init__(self, store: Any, num: int) -> None:
        self.writers = [store.writer() for _ in range(num)]
        self.under_way = list(range(num))
        self.lengths = [0] * num
        self.ended: dict[int, bool] = {}

    def act(self, i: int) -> None:
        self.writers[i].append(**values(1000 * self.under_way[i] + self.lengths[self.under_way[i]]))
        self.lengths[self.under_way[i]] += 1

    def end(self, i: int) -> None:
        episode = self.under_way[i]
        number = values(1000 * episode + self.lengths[episode])
        final = {name: number[name] for name in ("observation", "screen")} if episode % 2 else None
        self.writers[i].end_episode(terminated=episode % 3 == 0, final=final)
        self.ended[episode] = final is not None
        self.under_way[i] = len(self.lengths)
        self.lengths.append(0)

    def close(self) -> None:
        for writer in self.writers:
            writer.close()

    def bounds(self, table: Table) -> dict[int, tuple[int, int]]:
        """Return the first number that is shown, and the one after the last, of each episode, as the table has them."""
        table.follow()
        store = stepwell.open(table.history.store.path, mode="r")
        found: dict[int, list[int]] = {}
        for episode in store:
            found.setdefault(int(episode["action"][0]) // 1000, []).extend(episode["action"].tolist())
        for episode, steps in found.items():
            assert steps == list(range(steps[0], 1000 * episode + self.lengths[episode]))
        return {episode: (steps[0], steps[-1] + 1) for episode, steps in found.items()}


def make(tmp_path: Path, capacity: int = 120) -> Any:
    return stepwell.create(tmp_path / "ring.well", SCHEMA, capacity=capacity, segment_bytes=SEGMENT_BYTES)


def items_of(table: Table) -> dict[int, int]:
    """Return number of the first step to length of every item."""
    table.follow()
    size = table.size
    if not size:
        return {}
    sample = table.sample(60 * size + 200)
    reader = PlaceReader([table.history], {"action": "action"})
    first = reader.read_places([table.places(sample)])["action"]
    found = dict(zip(first.tolist(), sample.lengths.tolist(), strict=True))
    assert len(found) == size
    return found


def expected_items(actors: Actors, bounds: dict[int, tuple[int, int]], pattern: Pattern) -> dict[int, int]:
    found = {}
    for episode, (first, stop) in bounds.items():
        is_ended = episode in actors.ended
        last = stop - 1 + (is_ended and actors.ended[episode])
        for number in range(first, stop):
            if (number - 1000 * episode) % pattern.every:
                continue
            is_whole = number + pattern.length - 1 < stop and number + pattern.reach <= last
            if is_whole or (is_ended and pattern.ends == "keep"):
                found[number] = min(pattern.length, stop - number)
    return found


@pytest.mark.parametrize("num_actors", [1, 3])
@pytest.mark.parametrize(
    "pattern",
    [Pattern(), Pattern(ahead=3), Pattern(length=4, every=3, ahead=2), Pattern(length=9, ends="drop")],
    ids=str,
)
def test_items_over_pieces_are_those_of_whole_episodes(tmp_path: Path, num_actors: int, pattern: Pattern) -> None:
    store = make(tmp_path)
    rng = np.random.default_rng(num_actors)
    table = Table(store, pattern=pattern)
    actors = Actors(store, num_actors)
    # what was there when the table was made is seen at once, the rest as it comes
    for number in range(420):
        i = int(rng.integers(num_actors))
        actors.act(i)
        if rng.random() < 0.012:
            actors.end(i)
        if number % 3 == 0:
            table.follow()
        if number % 60 == 59:
            bounds = actors.bounds(table)
            assert items_of(table) == expected_items(actors, bounds, pattern)
            late = Table(store, pattern=pattern)
            assert items_of(late) == expected_items(actors, bounds, pattern)
    assert any(episode.goes_on for episode in stepwell.open(store.path, mode="r"))
    actors.close()


def test_conditions_over_pieces_look_at_the_last_step_of_an_item(tmp_path: Path) -> None:
    store = make(tmp_path, 1000)
    table = Table(store, pattern=Pattern(length=4, where=[step_index % 10 == 0]))
    actors = Actors(store, 1)
    for _ in range(150):
        actors.act(0)
        table.follow()
    actors.end(0)
    # step 0 is the last one of no item of 4 steps
    items = items_of(table)
    assert items == {number - 3: 4 for number in range(10, 150, 10)}
    actors.close()


@pytest.mark.parametrize(("num_actors", "threads", "prefetch"), [(1, 0, 1), (3, 0, 1), (2, 2, 3)])
@pytest.mark.parametrize(("n_step", "stack"), [(1, 4), (3, 1), (3, 4)])
def test_transitions_over_pieces_are_those_of_whole_episodes(
    tmp_path: Path, num_actors: int, threads: int, prefetch: int, n_step: int, stack: int
) -> None:
    store = make(tmp_path)
    rng = np.random.default_rng(0)
    targets = transition_fields(["observation", "screen"], n_step=n_step, stack=stack, discount=GAMMA)
    table = Table(store, pattern=targets.pattern)
    actors = Actors(store, num_actors)
    for number in range(330):
        i = int(rng.integers(num_actors))
        actors.act(i)
        if rng.random() < 0.015:
            actors.end(i)
        if number % 110 != 109:
            continue
        bounds = actors.bounds(table)
        loader = ReplayLoader(
            table, targets.fields, batch_size=256, transform=targets.transform, threads=threads, prefetch=prefetch
        )
        with loader:
            for _ in range(2):
                check_transitions(next(loader), actors, bounds, n_step, stack)
    actors.close()


def check_transitions(batch: Any, actors: Actors, bounds: dict[int, tuple[int, int]], n_step: int, stack: int) -> None:
    for i, number in enumerate(batch["action"].tolist()):
        episode = number // 1000
        first, stop = bounds[episode]
        is_ended, has_final = episode in actors.ended, actors.ended.get(episode, False)
        last = stop - 1 + has_final
        # without a terminal state rewards count up to the last observation that is known, or one
        has_all = not is_ended or episode % 3 == 0
        steps = min(n_step, stop - number) if has_all else min(n_step, max(last - number, 1))
        if not is_ended:
            assert steps == n_step
        after = min(number + steps, last)
        shape = (stack,) if stack > 1 else ()
        now = np.maximum(np.arange(number - stack + 1, number + 1), first).reshape(shape)
        then = np.clip(np.arange(number + steps - stack + 1, number + steps + 1), first, last).reshape(shape)
        assert batch["observation"][i].tolist() == now.tolist()
        if after == number + steps:
            assert batch["next_observation"][i].tolist() == then.tolist()
            assert batch["next_screen"][i].reshape(*shape, -1)[..., 0].tolist() == (then % 251).tolist()
        assert batch["screen"][i].reshape(*shape, -1)[..., 0].tolist() == (now % 251).tolist()
        is_terminal = is_ended and episode % 3 == 0 and number + steps == stop
        assert batch["terminated"][i] == is_terminal
        assert batch["reward"][i] == pytest.approx(sum(GAMMA**t * ((number + t) % 7) for t in range(steps)))
        is_valid = is_terminal or after == number + steps
        assert batch["is_valid"][i] == is_valid
        if is_valid:
            assert batch["discount"][i] == pytest.approx(0 if is_terminal else GAMMA**steps)
        if stack > 1:
            assert batch["is_whole"][i] == (number - stack + 1 >= first or first == 1000 * episode)
        else:
            assert "is_whole" not in batch


def test_sequences_begin_where_episodes_do_and_where_the_ring_does(tmp_path: Path) -> None:
    store = make(tmp_path)
    targets = sequence_fields(5, 8, discount=GAMMA)
    table = Table(store, pattern=targets.pattern)
    actors = Actors(store, 1)
    for length in (70, 6, 90):
        for _ in range(length):
            actors.act(0)
            table.follow()
        actors.end(0)
    bounds = actors.bounds(table)
    batch = next(ReplayLoader(table, targets.fields, batch_size=2000, transform=targets.transform))
    seen = set()
    for i in range(2000):
        number = int(batch["action"][i, 5])
        seen.add(number)
        episode = number // 1000
        first, stop = bounds[episode]
        last = stop - 1 + actors.ended[episode]
        steps = np.arange(number - 5, number + 8)
        is_real = (steps >= first) & (steps < stop)
        assert batch["action"][i].tolist() == np.clip(steps, first, stop - 1).tolist()
        assert batch["observation"][i].tolist() == np.clip([*steps, number + 8], first, last).tolist()
        begins = [step == max(first, number - 5) for step in steps.tolist()]
        assert batch["is_first"][i].tolist() == begins
        counts = is_real & (steps >= number) & ((steps + 1 <= last) | (episode % 3 == 0))
        assert batch["mask"][i].tolist() == counts.tolist()
        assert batch["is_whole"][i] == (number - 5 >= first or first == 1000 * episode)
    assert min(seen) == min(first for first, _ in bounds.values())


def test_items_that_clip_windows_reach_over_pieces(tmp_path: Path) -> None:
    store = make(tmp_path, 1000)
    table = Table(store, pattern=Pattern(length=6, ahead=0))
    actors = Actors(store, 1)
    for _ in range(150):
        actors.act(0)
        table.follow()
    fields = {"action": Field("action", range(-2, 9)), "index": Field("step_index", range(-2, 9)), "at": "action"}
    loader = ReplayLoader(table, fields, batch_size=1500, clip="item")
    batch = next(loader)
    assert set(batch["at"].tolist()) == set(range(145))
    for i, number in enumerate(batch["at"].tolist()):
        wanted = np.arange(number - 2, number + 9)
        assert batch["action"][i].tolist() == np.clip(wanted, number, number + 5).tolist()
        assert batch["index"][i].tolist() == batch["action"][i].tolist()
        assert batch["action_is_pad"][i].tolist() == ((wanted < number) | (wanted > number + 5)).tolist()
    actors.close()


def test_items_of_ones_own_may_lie_over_pieces(tmp_path: Path) -> None:
    store = make(tmp_path, 1000)
    table = Table(store, pattern=None)
    with store.writer() as writer:
        ids = [writer.append(**values(number)) for number in range(150)]
        breaks = [i for i in range(1, 150) if ids[i] != ids[i - 1] + 1]
        assert breaks
        table.create_item(ids[breaks[0] - 2], length=5)
        batch = next(ReplayLoader(table, {"action": Field("action", range(5))}, batch_size=2))
        assert batch["action"].tolist() == [list(range(breaks[0] - 2, breaks[0] + 3))] * 2
        table.reset()
        table.create_item(ids[breaks[1] - 3 : breaks[1] + 2])
        batch = next(ReplayLoader(table, {"action": Field("action", range(5))}, batch_size=2))
        assert batch["action"].tolist() == [list(range(breaks[1] - 3, breaks[1] + 2))] * 2
        # two steps are there of the last one's three
        table.reset()
        table.create_item(ids[148:149])
        with pytest.raises(stepwell.errors.WindowError, match="still recorded"):
            next(ReplayLoader(table, {"action": Field("action", range(3))}, batch_size=2))
        table.reset()
        table.create_item(ids[breaks[-1] - 1 : breaks[-1]])
        reach = 150 - breaks[-1]
        batch = next(ReplayLoader(table, {"action": Field("action", range(reach + 1))}, batch_size=1))
        assert batch["action"].tolist() == [list(range(breaks[-1] - 1, 150))]
        with pytest.raises(stepwell.errors.WindowError, match="still recorded"):
            next(ReplayLoader(table, {"action": Field("action", range(reach + 2))}, batch_size=1))
        with pytest.raises(stepwell.errors.TableError, match="not in one episode"):
            table.create_item([ids[breaks[0] - 1], ids[breaks[1]]])
        with pytest.raises(stepwell.errors.TableError, match="not committed yet"):
            table.create_item(ids[-3], length=5)


def test_a_table_and_a_view_read_pieces_in_one_batch(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    store, other = make(tmp_path, 1000), make(tmp_path / "other", 1000)
    table = Table(store, pattern=Pattern(ahead=3))
    for each in (store, other):
        actors = Actors(each, 1)
        for _ in range(140):
            actors.act(0)
        actors.end(0)
        actors.close()
    other.refresh()
    fields = {
        "k": "action",
        "store": "store_index",
        "action": Field("action", [-3, 0, 3]),
        "screen": Field("screen", [-3, 3]),
        "ids": Field("step_id", [-1, 1]),
        "last": Field("is_last", [0, 1]),
    }
    ids = [
        {int(e["action"][i]): e.first_step_id + i for e in each for i in range(e.length)}
        for each in (stepwell.open(store.path, mode="r"), other)
    ]
    batch = next(ReplayLoader([table, stepwell.View(other)], fields, batch_size=2000))
    for i, k in enumerate(batch["k"].tolist()):
        assert batch["action"][i].tolist() == [max(k - 3, 0), k, min(k + 3, 139)]
        assert batch["screen"][i, :, 0, 0, 0].tolist() == [max(k - 3, 0), min(k + 3, 139)]
        own = ids[batch["store"][i]]
        assert batch["ids"][i].tolist() == [own[max(k - 1, 0)], own[min(k + 1, 139)]]
        assert batch["last"][i].tolist() == [k == 139, k >= 138]
    assert set(batch["store"].tolist()) == {0, 1}


def test_a_loader_of_a_view_says_which_stacks_are_whole(tmp_path: Path) -> None:
    store = make(tmp_path, 100)
    actors = Actors(store, 1)
    for _ in range(130):
        actors.act(0)
    actors.end(0)
    actors.close()
    store.refresh()
    targets = transition_fields(stack=4, discount=GAMMA)
    (batch,) = Loader(store, targets.fields, batch_size=100, transform=targets.transform)
    assert batch["is_whole"].tolist() == [False] * 3 + [True] * 97
    assert batch["observation"][:5].tolist() == [
        [30, 30, 30, 30],
        [30, 30, 30, 31],
        [30, 30, 31, 32],
        [30, 31, 32, 33],
        [31, 32, 33, 34],
    ]


def test_a_table_resumes_in_the_middle_of_pieces(tmp_path: Path) -> None:
    store = make(tmp_path)
    actors = Actors(store, 1)
    pattern = Pattern(ahead=5)
    table = Table(store, pattern=pattern)
    for number in range(200):
        actors.act(0)
        if number % 7 == 0:
            table.follow()
        if number % 40 == 13:
            table.save_state(tmp_path / "state")
            for _ in range(number % 3 * 5):
                actors.act(0)
            table = Table.resume(store, tmp_path / "state")
            assert items_of(table) == expected_items(actors, actors.bounds(table), pattern)
    actors.close()


class Moving:
    """A history that another thread follows while a batch of it is read: it has other pieces at each look."""

    def __init__(self, history: Any) -> None:
        self._history = history
        self.num_looks = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._history, name)

    @property
    def chains(self) -> Any:
        self.num_looks += 1
        found = self._history.chains
        kept = slice(0 if self.num_looks % 2 else len(found.numbers) // 2, None)
        return Chains(found.numbers[kept], found.pieces[kept], lambda: found.bounds()[kept])


def test_a_batch_that_is_read_while_pieces_come_and_go_takes_them_from_one_look(tmp_path: Path) -> None:
    store = make(tmp_path, 1000)
    actors = Actors(store, 1)
    for _ in range(150):
        actors.act(0)
    table = Table(store, pattern=Pattern(ahead=3))
    moving = Moving(table.history)
    sources = JoinedSources([moving])  # type: ignore[list-item]
    places = table.sample_placed(500)[1]
    _, _, chained = sources.chained(places, [places], 0, 3)
    assert chained is not None
    assert chained.at.max() < len(chained.pieces)
    assert moving.num_looks == 1
    actors.close()
