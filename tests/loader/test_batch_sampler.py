"""A DataLoader with a BatchSampler gives the loader's batches, by any number of workers."""

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import Field, pooled, random, weighted
from stepwell.errors import LoaderError, OrderError, StateError, WindowError
from stepwell.loader import Batch, BatchSampler, Loader, WindowDataset
from stepwell.loader.torch_data import BatchIndices
from stepwell.store import Store

from .conftest import make_store, write_episodes


def jitter(array: np.ndarray, draws: Any) -> np.ndarray:
    return array + draws.uniform(size=array.shape[1:])


def shake(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return array + rng.random(len(array))


FIELDS = {
    "number": "number",
    "state": Field("observation.state", [0, 1], transform=jitter),
    "shaken": Field("number", transform=shake),
}


def rows_of(batches: Any) -> list[tuple[Any, ...]]:
    """Return everything that is in batches."""
    return [
        (
            batch.epoch,
            batch.index,
            batch.anchors.tolist(),
            None if batch.valid is None else batch.valid.tolist(),
            {key: np.asarray(value).tolist() for key, value in batch.items()},
        )
        for batch in batches
    ]


def torch_batches(dataset: WindowDataset, sampler: BatchSampler, **options: Any) -> Any:
    data = pytest.importorskip("torch.utils.data")
    return data.DataLoader(dataset, batch_sampler=sampler, collate_fn=dataset.collate, **options)


def asked(sampler: BatchSampler) -> list[list[int]]:
    return [list(indices) for indices in sampler]


@pytest.mark.parametrize("order", ["sequential", "random", pooled("1 MiB", seed=4), weighted(per="episode", seed=2)])
@pytest.mark.parametrize(
    "settings", [{}, {"pad": True}, {"pad": "wrap"}, {"drop_last": True}, {"epochs": 2}, {"epochs": None}], ids=str
)
def test_a_sampler_and_a_dataset_make_the_batches_of_a_loader(store: Store, order: Any, settings: Any) -> None:
    for rank in range(3):
        settings = {**settings, "order": order, "batch_size": 5, "rank": rank, "world_size": 3}
        dataset = WindowDataset(store, FIELDS, seed=9)
        sampler = BatchSampler(dataset, **settings)
        loader = Loader(store, FIELDS, seed=9, **settings)
        if settings.get("epochs", 1) is not None:
            assert len(sampler) == len(loader)
        for _ in range(2):
            made = (dataset.collate(dataset.__getitems__(each)) for each in itertools.islice(sampler, 7))
            assert rows_of(made) == rows_of(itertools.islice(loader, 7))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("workers", "options"),
    [
        (0, {}),
        (1, {}),
        (2, {"persistent_workers": True}),
        (3, {"prefetch_factor": 5}),
        pytest.param(1, {"persistent_workers": True, "multiprocessing_context": "spawn"}, marks=pytest.mark.slow),
    ],
)
def test_batches_are_the_loaders_for_any_number_of_workers(store: Store, workers: int, options: Any) -> None:
    dataset = WindowDataset(store, FIELDS, seed=9, to="torch")
    settings: Any = {"batch_size": 5, "order": "random", "pad": "wrap", "rank": 1, "world_size": 2}
    batches = torch_batches(dataset, BatchSampler(dataset, **settings), num_workers=workers, **options)
    loader = Loader(store, FIELDS, seed=9, to="torch", **settings)
    for epoch in range(3):
        found = list(batches)
        assert rows_of(found) == rows_of(loader)
        assert {(type(batch), batch.epoch) for batch in found} == {(Batch, epoch)}
        assert len(found) == len(batches)


def test_an_order_by_name_has_the_datasets_seed_unless_another_is_given(store: Store) -> None:
    dataset = WindowDataset(store, seed=3)
    assert BatchSampler(dataset, order="random").order == random(3)
    assert BatchSampler(dataset, order="random", seed=4).order == random(4)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_says_what_the_consumer_has_got(store: Store, workers: int) -> None:
    dataset = WindowDataset(store, FIELDS, seed=9)
    sampler = BatchSampler(dataset, 4, order="random", epochs=2)
    batches = torch_batches(dataset, sampler, num_workers=workers)
    whole = rows_of(batches)
    sampler.set_epoch(0)
    for num_taken, batch in enumerate(batches, 1):
        assert rows_of([batch]) == [whole[num_taken - 1]]
        state = sampler.state_dict(num_taken)
        if num_taken in {3, 10, 13, 19}:
            other = BatchSampler(dataset, 4, order="random", epochs=2)
            other.load_state_dict(state)
            assert rows_of(torch_batches(dataset, other, num_workers=1)) == whole[num_taken:]
            loader = Loader(store, FIELDS, seed=9, batch_size=4, order="random", epochs=2)
            loader.load_state_dict(state)
            assert rows_of(loader) == whole[num_taken:]
    assert num_taken == len(sampler) == 20
    assert sampler.state_dict()["epoch"] == 2


def test_an_endless_state_goes_on_at_the_exact_next_batch(store: Store) -> None:
    dataset = WindowDataset(store)
    sampler = BatchSampler(dataset, 5, order="random", epochs=None, rank=1, world_size=3)
    whole = [list(each) for each in itertools.islice(sampler, 30)]
    for num_taken in (1, 2, 3, 11):
        sampler = BatchSampler(dataset, 5, order="random", epochs=None, rank=1, world_size=3)
        iterator = iter(sampler)
        for _ in range(15):
            next(iterator)
        state = sampler.state_dict(num_taken)
        resumed = BatchSampler(dataset, 5, order="random", epochs=None, rank=1, world_size=3)
        resumed.load_state_dict(state)
        assert [list(each) for each in itertools.islice(resumed, 10)] == whole[num_taken : num_taken + 10]


def test_a_state_is_of_no_more_batches_than_were_handed_out(store: Store) -> None:
    sampler = BatchSampler(WindowDataset(store), 5)
    with pytest.raises(OrderError, match="num_taken=1"):
        sampler.state_dict(1)
    assert sampler.state_dict(0) == sampler.state_dict()
    next(iter(sampler))
    assert sampler.state_dict(1) == sampler.state_dict()
    with pytest.raises(OrderError, match="not handed out"):
        sampler.state_dict(2)
    with pytest.raises(OrderError, match="num_taken"):
        sampler.state_dict(-1)


def test_a_state_of_other_anchors_is_refused_with_both_names(store: Store, tmp_path: Path) -> None:
    dataset, other = WindowDataset(store), WindowDataset(make_store(tmp_path / "other.well", (3, 2)))
    state = BatchSampler(other).state_dict()
    with pytest.raises(StateError) as caught:
        BatchSampler(dataset).load_state_dict(state)
    assert dataset.reader.snapshot_id in str(caught.value)
    assert other.reader.snapshot_id in str(caught.value)


def test_every_for_runs_the_next_epoch_and_a_chosen_one_counts_on(store: Store) -> None:
    sampler = BatchSampler(WindowDataset(store), 5, order="random")
    first, second, third = asked(sampler), asked(sampler), asked(sampler)
    assert first != second != third
    sampler.set_epoch(0)
    assert (asked(sampler), asked(sampler)) == (first, second)
    sampler.set_epoch(1)
    later = iter(sampler)
    assert asked(sampler) == second
    assert sampler.epoch == 2
    assert [list(indices) for indices in later] == third


def test_two_iterators_do_not_disturb_each_other(store: Store) -> None:
    sampler = BatchSampler(WindowDataset(store), 5, order="random")
    first, second = asked(sampler), asked(sampler)
    sampler.set_epoch(0)
    one, two = iter(sampler), iter(sampler)
    both = [(list(a), list(b)) for a, b in zip(one, two, strict=True)]
    assert both == list(zip(first, second, strict=True))


def test_a_pickled_sampler_is_where_the_consumer_was(store: Store) -> None:
    sampler = BatchSampler(WindowDataset(store), 5, order="random")
    iterator = iter(sampler)
    taken = [list(next(iterator)) for _ in range(3)]
    rest = [list(each) for each in pickle.loads(pickle.dumps(sampler))]
    assert rest == [list(each) for each in iterator]
    assert sorted(itertools.chain(*taken, *rest)) == list(range(37))


def test_a_sampler_follows_a_dataset_that_is_refreshed(tmp_path: Path) -> None:
    store = make_store(tmp_path / "growing.well", (3, 2))
    dataset = WindowDataset(store)
    sampler = BatchSampler(dataset, 2)
    next(iter(sampler))
    write_episodes(store, (4,), first=2)
    assert (len(sampler), sampler.num_positions) == (3, 5)
    dataset.refresh()
    assert (len(sampler), sampler.num_positions, sampler.epoch) == (5, 9, 1)
    assert sorted(itertools.chain(*asked(sampler))) == list(range(9))


def test_an_endless_sampler_has_no_length(store: Store) -> None:
    sampler = BatchSampler(WindowDataset(store), 5, epochs=None)
    with pytest.raises(TypeError, match="endless"):
        len(sampler)
    assert sampler.num_batches == 8


def test_a_sampler_says_what_it_does(store: Store) -> None:
    text = repr(BatchSampler(WindowDataset(store), 5, order="random", rank=1, world_size=2))
    assert text == "<BatchSampler 37 anchors  batch 5  Random(seed=0)  rank 1 of 2>"


def test_indices_are_a_sequence_of_ints_for_other_datasets(store: Store) -> None:
    data = pytest.importorskip("torch.utils.data")
    sampler = BatchSampler(WindowDataset(store), 5, order="random")
    indices = next(iter(sampler))
    assert isinstance(indices, BatchIndices)
    assert list(indices) == [indices[i] for i in range(len(indices))]
    assert indices[1:3] == list(indices)[1:3]
    assert {type(each) for each in indices} == {int}
    plain = data.TensorDataset(pytest.importorskip("torch").arange(37))
    sampler.set_epoch(0)
    found = [batch[0].tolist() for batch in data.DataLoader(plain, batch_sampler=sampler)]
    sampler.set_epoch(0)
    assert found == asked(sampler)


@pytest.mark.parametrize("wrap", [lambda dataset: dataset.view, list, "Subset"])
def test_what_is_no_dataset_of_windows_is_refused(store: Store, wrap: Any) -> None:
    dataset = WindowDataset(store)
    if wrap == "Subset":
        other: Any = pytest.importorskip("torch.utils.data").Subset(dataset, [1, 2])
    else:
        other = wrap(dataset)
    with pytest.raises(WindowError, match=f"a {type(other).__name__} is no dataset of windows"):
        BatchSampler(other)


def test_an_error_in_a_worker_is_an_error_of_the_loop(store: Store) -> None:
    dataset = WindowDataset(store, {"number": Field("number", transform=lambda values: values / None)})
    with pytest.raises(LoaderError, match="'number'"):
        list(torch_batches(dataset, BatchSampler(dataset, 5), num_workers=1))
