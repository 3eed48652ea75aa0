import itertools

import numpy as np
import pytest

from stepwell.errors import OrderError
from stepwell.loader import Loader
from stepwell.store import Store


def loaders(store: Store, world_size: int, **settings) -> list[Loader]:
    return [
        Loader(store, {"number": "number"}, order="random", seed=3, rank=rank, world_size=world_size, **settings)
        for rank in range(world_size)
    ]


def valid_numbers(batches) -> list[int]:
    return [n for b in batches for i, n in enumerate(b["number"].tolist()) if b.valid is None or b.valid[i]]


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 37, 50])
def test_evaluation_sees_every_anchor_exactly_once_over_all_ranks(
    store: Store, numbers: list[int], world_size: int, batch_size: int, epochs: int
) -> None:
    for pad in (False, True):
        ranks = [list(r) for r in loaders(store, world_size, batch_size=batch_size, pad=pad, epochs=epochs)]
        assert sorted(valid_numbers(itertools.chain(*ranks))) == sorted(numbers * epochs)
        counts = [len(rank) for rank in ranks]
        assert max(counts) - min(counts) <= (0 if pad else epochs)
        if pad:
            assert {len(b["number"]) for rank in ranks for b in rank} == {batch_size}
            assert all(len(b.valid) == batch_size for rank in ranks for b in rank)
        else:
            assert all(b.valid is None for rank in ranks for b in rank)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_training_gives_every_rank_as_many_full_batches(
    store: Store, numbers: list[int], world_size: int, batch_size: int
) -> None:
    ranks = [list(r) for r in loaders(store, world_size, batch_size=batch_size, drop_last=True, threads=1)]
    full = len(numbers) // (batch_size * world_size)
    assert [len(rank) for rank in ranks] == [full] * world_size
    seen = valid_numbers(itertools.chain(*ranks))
    assert len(seen) == len(set(seen)) == full * batch_size * world_size


@pytest.mark.parametrize("order", ["random", "pooled"])
def test_a_loader_for_a_rank_is_one_made_for_it(store: Store, order: str) -> None:
    settings = {"order": order, "seed": 3, "batch_size": 4, "drop_last": True, "epochs": 2}
    whole = Loader(store, {"number": "number"}, **settings)
    for rank in range(3):
        made = Loader(store, {"number": "number"}, rank=rank, world_size=3, **settings)
        found = [batch["number"].tolist() for batch in whole.for_rank(rank, 3)]
        assert found == [batch["number"].tolist() for batch in made]
    with pytest.raises(OrderError):
        whole.for_rank(3, 3)


def test_a_loader_for_a_rank_goes_on_where_the_loader_is(store: Store) -> None:
    first, second = loaders(store, 2, batch_size=4, drop_last=True)
    batches = iter(first)
    next(batches)
    rest = [batch["number"].tolist() for batch in itertools.islice(second, 1, None)]
    assert [batch["number"].tolist() for batch in first.for_rank(1, 2)] == rest
    # and the loader itself goes on as before
    assert len(list(batches)) == len(rest)


def test_length_is_what_a_rank_gets(store: Store) -> None:
    for settings in ({}, {"pad": True}, {"drop_last": True}):
        for loader in loaders(store, 3, batch_size=4, epochs=2, **settings):
            assert len(loader) == len(list(loader))


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3), (3, 2)])
@pytest.mark.parametrize("settings", [{}, {"pad": True}])
def test_every_anchor_is_seen_once_when_the_number_of_ranks_changes(
    store: Store, numbers: list[int], before: int, after: int, settings: dict
) -> None:
    first = loaders(store, before, batch_size=4, threads=1, **settings)
    iterators = [iter(loader) for loader in first]
    seen = valid_numbers(next(iterator) for iterator in iterators for _ in range(2))
    states = [loader.state_dict() for loader in first]
    assert all(state["consumed"] == states[0]["consumed"] == 8 * before for state in states)
    resumed = loaders(store, after, batch_size=4, threads=2, **settings)
    for loader in resumed:
        loader.load_state_dict(states[0])
    seen += valid_numbers(batch for loader in resumed for batch in loader)
    assert sorted(seen) == numbers


def test_endless_ranks_see_every_anchor_equally_often(store: Store, numbers: list[int]) -> None:
    ranks = loaders(store, 2, batch_size=4, epochs=None)
    seen = valid_numbers(b for rank in ranks for b in itertools.islice(rank, 37))
    assert sorted(seen) == sorted(numbers * 8)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("order", ["sequential", "random", "pooled"])
@pytest.mark.parametrize("settings", [{}, {"pad": True}, {"pad": "wrap"}, {"epochs": None}], ids=str)
def test_every_batch_says_which_anchors_its_rows_are(
    store: Store, numbers: list[int], order: str, threads: int, settings: dict
) -> None:
    fields = {"number": "number", "image": "observation.image"}
    loader = Loader(store, fields, order=order, batch_size=7, rank=1, world_size=2, threads=threads, **settings)
    for batch in itertools.islice(loader, 9):
        assert batch.anchors.dtype == np.int64
        assert [numbers[anchor] for anchor in batch.anchors] == batch["number"].tolist()


def test_anchors_of_tensors_are_an_array_all_the_same(store: Store) -> None:
    pytest.importorskip("torch")
    (batch,) = Loader(store, {"number": "number"}, batch_size=50, to="torch")
    assert type(batch.anchors) is np.ndarray


@pytest.mark.parametrize("order", ["sequential", "random", "pooled"])
@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 7), (2, 4), (3, 5), (8, 4), (8, 7)])
def test_wrapped_batches_repeat_what_the_epoch_began_with(
    store: Store, numbers: list[int], order: str, world_size: int, batch_size: int
) -> None:
    settings = {"order": order, "seed": 3, "batch_size": batch_size, "world_size": world_size, "pad": "wrap"}
    fields = {"number": "number", "image": "observation.image"}
    ranks = [list(Loader(store, fields, rank=rank, threads=2 * (rank % 2), **settings)) for rank in range(world_size)]
    assert len({len(rank) for rank in ranks}) == 1
    rounds = list(zip(*ranks, strict=True))
    valid = [n for batches in rounds for b in batches for n in b["number"][b.valid].tolist()]
    repeats = [n for batches in rounds for b in batches for n in b["number"][~b.valid].tolist()]
    assert sorted(valid) == numbers
    assert repeats == [valid[i % len(valid)] for i in range(-len(valid) % (world_size * batch_size))]
    assert all((b["image"][:, 0, 0, 0] == b["number"] % 251).all() for batches in rounds for b in batches)
