import itertools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell import Field, View
from stepwell.errors import StateError
from stepwell.loader import Loader
from stepwell.order import weighted
from stepwell.store import Store

from .conftest import make_store


def add_noise(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return array + rng.random(array.shape)


FIELDS = {"number": "number", "noisy": Field("number", transform=add_noise)}


def make(store: Store, **changes) -> Loader:
    return Loader(store, FIELDS, **{"batch_size": 4, "order": "random", "seed": 5, **changes})


def dump(batches) -> list:
    return [(b.epoch, b.index, b["number"].tolist(), b["noisy"].tolist()) for b in batches]


# three epochs have 27 batches with drop_last: asking for one more would end the iteration, and the state with it
@settings(max_examples=30)
@given(
    st.integers(0, 27), st.integers(0, 3), st.integers(0, 3), st.sampled_from([{}, {"pad": True}, {"drop_last": True}])
)
def test_a_state_resumes_at_the_exact_next_batch(store: Store, taken: int, before: int, after: int, ends: dict) -> None:
    expected = dump(make(store, epochs=3, threads=0, **ends))
    loader = make(store, epochs=3, threads=before, prefetch=3, **ends)
    iterator = iter(loader)
    head = dump(itertools.islice(iterator, taken))
    state = json.loads(json.dumps(loader.state_dict()))
    resumed = make(store, epochs=3, threads=after, **ends)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    assert head + dump(resumed) == expected


def test_a_state_after_each_batch_counts_what_was_taken_not_what_was_built(store: Store) -> None:
    loader = make(store, threads=3, prefetch=4)
    assert [loader.state_dict()["consumed"] for _ in loader] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 37]
    assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (1, 0)


def test_endless_loaders_resume_across_epochs(store: Store) -> None:
    loader = make(store, epochs=None, batch_size=10, threads=1)
    iterator = iter(loader)
    for _ in range(6):
        next(iterator)
    state = loader.state_dict()
    assert (state["epoch"], state["consumed"]) == (1, 60 - 37)
    rest = dump(next(iterator) for _ in range(5))
    resumed = make(store, epochs=None, batch_size=10)
    resumed.load_state_dict(state)
    iterator = iter(resumed)
    assert dump(next(iterator) for _ in range(5)) == rest


def test_a_state_may_be_resumed_with_another_batch_size(store: Store, numbers: list[int]) -> None:
    loader = make(store)
    iterator = iter(loader)
    seen = [n for _ in range(3) for n in next(iterator)["number"].tolist()]
    resumed = make(store, batch_size=7)
    resumed.load_state_dict(loader.state_dict())
    seen += [n for batch in resumed for n in batch["number"].tolist()]
    assert sorted(seen) == numbers


def test_an_outer_loop_over_epochs_can_be_resumed(store: Store) -> None:
    expected = dump(make(store, epochs=4))
    loader = make(store)
    head = dump(loader)
    for count, batch in enumerate(loader):
        head += dump([batch])
        if count == 2:
            break
    resumed = make(store)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.epoch == 1
    for _ in range(resumed.epoch, 4):
        head += dump(resumed)
    assert head == expected


def test_a_state_of_another_store_selection_or_order_is_refused(store: Store, tmp_path: Path) -> None:
    state = make(store).state_dict()
    other = make_store(tmp_path / "other.well", (5, 9, 2))
    with pytest.raises(StateError, match=state["snapshot"]):
        make(other).load_state_dict(state)
    for loader in (
        make(View(store).select([0, 1])),
        make(store, order="sequential"),
        make(store, seed=6),
        make(store, order=weighted(episodes=[1, 1, 1, 1, 1, 2])),
    ):
        with pytest.raises(StateError):
            loader.load_state_dict(state)


def test_a_state_is_small_json_whatever_the_order(store: Store) -> None:
    order = weighted(steps=np.random.default_rng(0).random(37))
    for loader in (make(store), make(store, order=order, seed=2**100)):
        assert len(json.dumps(loader.state_dict())) <= 1024
        loader.load_state_dict(loader.state_dict())


def test_numpy_integers_give_the_state_that_ints_give(store: Store) -> None:
    def state(kind: type) -> str:
        loader = Loader(store, order="random", batch_size=kind(4), seed=kind(3), world_size=kind(2), rank=kind(1))
        next(iter(loader))
        return json.dumps(loader.state_dict())

    assert state(np.int64) == state(int)


def test_a_pickled_loader_is_where_the_loader_was(store: Store) -> None:
    loader = make(store, threads=2)
    iterator = iter(loader)
    next(iterator)
    copy = pickle.loads(pickle.dumps(loader))
    assert dump(copy) == dump(iterator)
