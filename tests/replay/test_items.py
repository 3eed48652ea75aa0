import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.kernels.places import EPISODE, ROW
from stepwell.replay.item_kernels import MAX_GENERATION, TAKEN_KEY, TAKEN_PRIORITY
from stepwell.replay.items import Items

# of episodes of which nothing was evicted
RECORDS = np.zeros((16, 8), np.int64)


@dataclass
class Entry:
    """An item of the model."""

    episode: int
    row: int
    length: int
    priority: float
    times_sampled: int = 0


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "run", "remove", "evict", "update", "take"]),
        st.integers(0, 9),
        st.integers(0, 12),
        st.integers(0, 6),
    ),
    max_size=40,
)


def insert_one(items: Items, episode: int = 0, row: int = 0, priority: float = 1.0) -> npt.NDArray[np.int64]:
    return items.insert(np.array([episode]), np.array([row]), np.array([1]), np.array([priority]))


def check(items: Items, model: dict[int, Entry], gone: set[int]) -> None:
    assert len(items) == len(model)
    keys = np.array(list(model), np.uint64)
    slots = items.slots_of(keys)
    assert items.slots.tolist() == slots.tolist()
    assert items.keys_of(slots).tolist() == keys.tolist()
    assert (items.slots_of(np.array(list(gone), np.uint64)) == -1).all()
    for slot, entry in zip(slots.tolist(), model.values(), strict=True):
        assert (items.episode[slot], items.row[slot], items.length[slot]) == (entry.episode, entry.row, entry.length)
        assert (items.priority[slot], items.times_sampled[slot]) == (entry.priority, entry.times_sampled)


@settings(deadline=None, max_examples=60)
@given(changes=CHANGES, base=st.sampled_from([0, 7, 10**9]))
def test_items_are_what_a_plain_dict_says(changes: list[tuple[str, int, int, int]], base: int) -> None:
    items, model, gone, number = Items(max_size=4), dict[int, Entry](), set[int](), itertools.count(1)
    for what, a, row, num in changes:
        episode, priority = base + a * 30, next(number) / 2
        keys, new = list(model), list[Entry]()
        some = [keys[(a + i * row) % len(keys)] for i in range(num)] if keys else []
        slots = items.slots_of(np.array(some, np.uint64))
        if what == "insert":
            new = [Entry(episode - i, (row * (i + 1)) % 13, i + 1, priority + i) for i in range(min(num, a + 1))]
            columns = [(entry.episode, entry.row, entry.length, entry.priority) for entry in new]
            table = np.array(columns).reshape(-1, 4)
            slots = items.insert(*table[:, :3].astype(np.int64).T, table[:, 3])
        elif what == "run":
            new = [Entry(episode, row + i * 2, 3, priority) for i in range(num)]
            slots = items.insert_run(episode, row, num, every=2, length=3, priority=priority)
        elif what == "remove":
            assert items.remove(slots) == len(set(some))
            gone |= set(some)
        elif what == "evict":
            slots = items.evict(episode, row)
            before = sorted(entry.row for entry in model.values() if entry.episode == episode and entry.row < row)
            assert items.row[slots].tolist() == before
            gone |= set(items.keys_of(slots).tolist())
            items.remove(slots)
        elif what == "update":
            items.update(slots, priority + np.arange(num, dtype=float)[: len(slots)])
            for i, key in enumerate(some):
                model[key].priority = priority + i
        else:
            words, halves, num_first, _ = items.take(slots, RECORDS, 0)
            assert num_first == len({key for key in some if not model[key].times_sampled})
            for i, key in enumerate(some):
                entry = model[key]
                entry.times_sampled += 1
                taken = words[[TAKEN_KEY, EPISODE, ROW], i].tolist()
                assert taken == [key, entry.episode, entry.row]
                assert words[TAKEN_PRIORITY].view(np.float64)[i] == entry.priority
                assert halves[:, i].tolist() == [entry.length, entry.times_sampled]
        if new:
            model |= dict(zip(items.keys_of(slots).tolist(), new, strict=True))
        model = {key: entry for key, entry in model.items() if key not in gone}
        check(items, model, gone)


def test_eviction_finds_items_that_were_created_in_any_order() -> None:
    items, rng = Items(), np.random.default_rng(2)
    rows, episodes = rng.permutation(400) // 2, rng.integers(0, 3, 400)
    slots = items.insert(episodes, rows, np.ones(400, np.int64), np.ones(400))
    items.remove(slots[::3])
    left = np.arange(400) % 3 != 0
    for first_row in (0, 1, 50, 51, 200):
        found = items.evict(np.arange(3), np.full(3, first_row))
        assert sorted(found.tolist()) == sorted(slots[left & (rows < first_row)].tolist())
        in_order = np.lexsort((items.row[found], items.episode[found]))
        assert in_order.tolist() == list(range(len(found)))
        items.remove(found)
        left &= rows >= first_row
    assert len(items) == 0


def test_an_episode_without_items_has_nothing_to_evict() -> None:
    items = Items()
    insert_one(items, episode=5)
    assert items.evict(np.array([0, 4, 6, 10**12]), np.full(4, 100)).tolist() == []


def test_a_key_of_an_item_that_is_gone_never_hits_the_newcomer_in_its_slot() -> None:
    items, keys = Items(max_size=1), list[int]()
    for i in range(50):
        slots = insert_one(items, row=i)
        assert slots.tolist() == [0]
        assert (items.slots_of(np.array(keys, np.uint64)) == -1).all()
        keys.extend(items.keys_of(slots).tolist())
        items.remove(slots)
    assert len(set(keys)) == 50
    # the key that the slot's next item will have is not one yet
    assert items.slots_of(np.array([keys[-1] + (1 << 32)], np.uint64)).tolist() == [-1]


def test_a_slot_whose_generations_are_used_up_is_never_used_again() -> None:
    items = Items(max_size=3)
    slots = insert_one(items)
    items.generation[slots] = MAX_GENERATION - 1
    key = items.keys_of(slots)
    items.remove(slots)
    others = items.insert_run(0, 0, 4)
    assert slots[0] not in others.tolist()
    assert items.slots_of(key).tolist() == [-1]
    assert items.slots_of(key + np.uint64(1 << 32)).tolist() == [-1]
    assert len(items) == 4


def test_keys_that_never_were_are_found_nowhere() -> None:
    items = Items(max_size=2000)
    items.insert_run(0, 0, 3)
    assert items.slots_of(np.array([3, 1500, 2**32 - 1, 2**64 - 1], np.uint64)).tolist() == [-1] * 4


def test_memory_grows_by_doubling_up_to_one_item_more_than_the_table_holds() -> None:
    items, capacities = Items(max_size=5000), list[int]()
    for i in range(51):
        items.insert_run(0, 100 * i, 100)
        capacities.append(items.capacity)
    assert sorted(set(capacities)) == [1024, 2048, 4096, 5001, 5100]


def test_all_that_is_told_of_an_item_survives_growth() -> None:
    items = Items(max_size=100_000)
    slots = items.insert_run(3, 0, 1000, length=9, priority=0.25)
    items.take(slots[:7], RECORDS, 0)
    keys = items.keys_of(slots)
    items.insert_run(4, 0, 50_000)
    assert items.slots_of(keys).tolist() == slots.tolist()
    assert items.times_sampled[slots].sum() == 7
    assert items.evict(3, 10).tolist() == slots[:10].tolist()


def test_sequence_counts_inserts_and_touched_updates_as_well() -> None:
    items = Items()
    slots = items.insert_run(0, 0, 3)
    items.update(slots[[1, 0, 1]], np.ones(3))
    late = insert_one(items)
    assert items.sequence[[*slots, *late]].tolist() == [0, 1, 2, 3]
    assert items.touched[[*slots, *late]].tolist() == [4, 5, 2, 6]
    assert items.num_inserted == 4


def test_a_window_of_episodes_follows_them_without_growing() -> None:
    items = Items(max_size=10)
    for episode in range(20_000):
        items.insert_run(episode, 0, 2)
        assert len(items.evict(episode, 5)) == 2
        if episode:
            items.remove(items.evict(episode - 1, 5))
    assert len(items) == 2
    assert len(items._ends) <= 128


def test_clear_removes_all_and_keys_stay_gone() -> None:
    items = Items()
    keys = items.keys_of(items.insert_run(0, 0, 5))
    items.clear()
    assert (len(items), items.slots.tolist(), items.evict(0, 99).tolist()) == (0, [], [])
    items.insert_run(0, 0, 5)
    assert (items.slots_of(keys) == -1).all()
