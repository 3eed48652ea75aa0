import itertools
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import stepwell
from stepwell import Field, View
from stepwell.errors import LoaderError, OrderError, WindowError
from stepwell.loader import Batch, Loader
from stepwell.order import mixed, weighted
from stepwell.store import Store

FIELDS = {
    "number": "number",
    "state": Field("observation.state", [-1, 0, 1]),
    "image": Field("observation.image", [0, 1], pad="zero"),
    "text": "text",
}


def dump(batches) -> list:
    """Return everything about batches, to compare."""
    return [
        (b.epoch, b.index, None if b.valid is None else b.valid.tolist(), {k: v.tolist() for k, v in b.items()})
        for b in batches
    ]


def add_noise(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return array + rng.random(array.shape, dtype=np.float32)


@pytest.mark.parametrize("order", ["sequential", "random", weighted(episodes=[1, 2, 3, 4, 5, 6])])
def test_batches_are_the_same_for_any_number_of_threads(store: Store, order) -> None:
    fields = {**FIELDS, "noisy": Field("observation.state", transform=add_noise)}
    expected = None
    for threads, prefetch in [(0, 1), (1, 1), (2, 3), (5, 2)]:
        loader = Loader(store, fields, batch_size=4, order=order, seed=7, epochs=2, threads=threads, prefetch=prefetch)
        found = dump(loader)
        assert len(found) == len(loader) == 2 * 10
        expected = expected or found
        assert found == expected


def test_a_batch_holds_the_windows_of_its_anchors(store: Store, numbers: list[int]) -> None:
    batches = list(Loader(store, FIELDS, batch_size=10))
    assert [n for batch in batches for n in batch["number"].tolist()] == numbers
    assert [b.index for b in batches] == [0, 1, 2, 3]
    first = batches[0]
    assert first["state"].shape == (10, 3, 2)
    assert first["state"][:, 1, 0].tolist() == numbers[:10]
    assert first["state_is_pad"][0].tolist() == [True, False, False]
    assert first["text"].tolist() == [str(n) for n in numbers[:10]]
    assert batches[-1]["number"].shape == (7,)


def test_every_for_runs_the_next_epoch(store: Store, numbers: list[int]) -> None:
    loader = Loader(store, {"number": "number"}, batch_size=10, order="random", epochs=1)
    epochs = []
    for epoch in range(3):
        assert loader.epoch == epoch
        batches = list(loader)
        assert {b.epoch for b in batches} == {epoch}
        epochs.append([n for b in batches for n in b["number"].tolist()])
    assert all(sorted(epoch) == numbers for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    three = Loader(store, {"number": "number"}, batch_size=10, order="random", epochs=3)
    assert [n for b in three for n in b["number"].tolist()] == [*epochs[0], *epochs[1], *epochs[2]]
    assert three.epoch == 3


def test_a_loop_left_early_counts_as_run_and_one_never_begun_does_not(store: Store) -> None:
    loader = Loader(store, {"number": "number"}, batch_size=4, threads=2)
    iter(loader)
    assert loader.epoch == 0
    next(iter(loader))
    assert loader.epoch == 1
    loader.epoch = 0
    assert next(iter(loader)).epoch == 0
    loader.set_epoch(5)
    assert next(iter(loader)).epoch == 5
    with pytest.raises(OrderError, match="epoch"):
        loader.set_epoch(-1)


def test_endless_epochs_run_into_each_other_with_full_batches(store: Store, numbers: list[int]) -> None:
    loader = Loader(store, {"number": "number"}, batch_size=10, order="sequential", epochs=None, threads=1)
    batches = list(itertools.islice(loader, 12))
    assert all(len(b["number"]) == 10 for b in batches)
    assert [n for b in batches for n in b["number"].tolist()] == (numbers * 4)[:120]
    assert [(b.epoch, b.index) for b in batches[:5]] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    with pytest.raises(TypeError, match="endless"):
        len(loader)
    assert loader.num_batches == 4
    with pytest.raises(OrderError, match="endless"):
        iter(Loader(store, {"number": "number"}, batch_size=100, epochs=None, drop_last=True, threads=1))


def test_a_view_with_no_anchors_gives_no_batches(tmp_path: Path) -> None:
    empty = stepwell.create(tmp_path / "empty.well", {"number": stepwell.Array((), "int64")})
    loader = Loader(empty, batch_size=4, threads=1)
    assert len(loader) == 0
    assert list(loader) == []
    assert loader.epoch == 1


def test_settings_and_fields_are_checked_when_the_loader_is_made(store: Store) -> None:
    with pytest.raises(OrderError, match="batch_size"):
        Loader(store, batch_size=0)
    with pytest.raises(OrderError, match="order 'shuffled'"):
        Loader(store, order="shuffled")
    with pytest.raises(WindowError, match="nested"):
        Loader(store, {"a": "number", "a.b": "number"}, nested=True)


def test_nested_keys_follow_the_dots(store: Store) -> None:
    fields = {"number": "number", "observation.state": [0, 1], "observation.image": "observation.image"}
    batch = next(iter(Loader(store, fields, batch_size=3, nested=True)))
    assert type(batch) is Batch
    assert set(batch) == {"number", "observation"}
    assert set(batch["observation"]) == {"state", "state_is_pad", "image"}
    assert "observation.state: float32[3, 2, 2]" in repr(batch)


@pytest.mark.parametrize("threads", [0, 2])
def test_torch_batches_share_memory_and_leave_text_to_numpy(store: Store, threads: int) -> None:
    torch = pytest.importorskip("torch")
    batches = list(Loader(store, FIELDS, batch_size=5, to="torch", threads=threads))
    plain = list(Loader(store, FIELDS, batch_size=5))
    assert isinstance(batches[0]["text"], np.ndarray)
    assert batches[0]["state_is_pad"].dtype == torch.bool
    for tensors, arrays in zip(batches, plain, strict=True):
        for key in ("number", "state", "image", "state_is_pad"):
            assert torch.equal(tensors[key], torch.from_numpy(arrays[key]))
    padded = list(Loader(store, FIELDS, batch_size=5, to="torch", threads=threads, pad=True))[-1]
    assert padded.valid.tolist() == [True, True, False, False, False]
    assert padded["number"][padded.valid].tolist() == plain[-1]["number"].tolist()
    starts = {tensor.data_ptr() for tensor in batches[0].values() if isinstance(tensor, torch.Tensor)}
    assert max(starts) - min(starts) < Loader(store, FIELDS, batch_size=5).reader.num_bytes(5)


def test_transforms_of_fields_and_loader_are_applied(store: Store) -> None:
    def rename(batch: dict) -> dict:
        return {"renamed": batch["number"], "sum": batch["state"].sum(axis=-1)}

    fields = {"number": Field("number", transform=lambda a: a + 1), "state": "observation.state"}
    batch = next(iter(Loader(store, fields, batch_size=3, transform=rename, threads=1)))
    assert batch["renamed"].tolist() == [1, 2, 3]
    assert batch["sum"].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_failing_transform_surfaces_at_its_batch_and_can_be_resumed(store: Store, threads: int) -> None:
    broken = True

    def fail(array: np.ndarray) -> np.ndarray:
        if broken and 1003 in array:
            raise ValueError("no such number")
        return array

    loader = Loader(store, {"number": Field("number", transform=fail)}, batch_size=4, threads=threads)
    iterator = iter(loader)
    assert [next(iterator)["number"][0] for _ in range(2)] == [0, 4]
    with pytest.raises(LoaderError, match="field 'number' raised ValueError") as caught:
        next(iterator)
    assert isinstance(caught.value.__cause__, ValueError)
    assert list(iterator) == []
    broken = False
    loader.load_state_dict(loader.state_dict())
    assert next(iter(loader))["number"].tolist() == [1003, 1004, 1005, 1006]


@pytest.mark.parametrize("threads", [0, 2])
def test_a_row_that_cannot_be_decoded_names_store_episode_and_step(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepwell.codecs.png import PngCodec
    from stepwell.errors import DecodeError

    from .conftest import make_store

    store = make_store(tmp_path / "broken.well")
    decode_into = PngCodec.decode_into

    def fail(self, blob, out):
        decode_into(self, blob, out)
        if out.flat[0] == 1003 % 251:
            raise DecodeError("broken on purpose")

    monkeypatch.setattr(PngCodec, "decode_into", fail)
    iterator = iter(Loader(store, {"image": "observation.image"}, batch_size=4, threads=threads))
    next(iterator), next(iterator)
    with pytest.raises(LoaderError, match=r"broken\.well.*episode 1.*step 3") as caught:
        next(iterator)
    assert caught.value.__cause__ is not None
    with pytest.raises(StopIteration):
        next(iterator)


def test_refresh_takes_in_new_episodes_at_the_next_epoch(tmp_path: Path) -> None:
    from .conftest import make_store, write_episodes

    store = make_store(tmp_path / "growing.well", (3, 2))
    loader = Loader(store, {"number": "number"}, batch_size=2, threads=1)
    iterator = iter(loader)
    next(iterator)
    write_episodes(store, (4,), first=2)
    assert loader.num_positions == 5
    loader.refresh()
    assert loader.num_positions == 9
    assert sum(len(batch["number"]) for batch in iterator) == 3
    again = list(loader)
    assert {b.epoch for b in again} == {1}
    assert sum(len(b["number"]) for b in again) == 9


def test_a_view_of_some_episodes_is_all_that_is_seen(store: Store) -> None:
    loader = Loader(View(store).select([1, 4]), {"number": "number"}, batch_size=100)
    assert {n // 1000 for n in next(iter(loader))["number"].tolist()} == {1, 4}


def test_loader_says_what_it_is(store: Store) -> None:
    text = repr(Loader(store, {"number": "number"}, batch_size=4, order="random", threads=2))
    assert text == "<Loader 37 anchors  batch 4  Random(seed=0)  1 epoch of 10 batches  2 threads>"
    assert "endless epochs of 10 batches" in repr(Loader(store, {"number": "number"}, batch_size=4, epochs=None))


def test_an_iterator_is_a_context_that_closes(store: Store) -> None:
    with iter(Loader(store, {"number": "number"}, batch_size=4, threads=2)) as iterator:
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_several_stores_are_mixed_in_one_loader(store: Store, tmp_path: Path) -> None:
    from .conftest import make_store

    other = make_store(tmp_path / "other.well", (4, 4))
    fields = {"number": "number", "episode": "episode_index"}
    loader = Loader(View([store, other]), fields, batch_size=9, order=mixed([1, 3]), threads=2)
    assert sum(len(batch["number"]) for batch in loader) == loader.num_positions == 45
    state = loader.state_dict()
    again = Loader(View([store, other]), fields, batch_size=9, order=mixed([1, 3]))
    again.load_state_dict(state)
    assert dump(again) == dump(loader)


@pytest.mark.parametrize("threads", [0, 2])
def test_an_endless_loader_goes_on_where_the_last_for_was_left(store, threads):
    options = {"batch_size": 7, "order": "random", "seed": 5, "epochs": None, "threads": threads}
    loader = Loader(store, {"number": "number"}, **options)
    pieces = [batch["number"].tolist() for _ in range(9) for batch in islice(loader, 2)]
    whole = [batch["number"].tolist() for batch in islice(Loader(store, {"number": "number"}, **options), 18)]
    assert pieces == whole
    count = loader.num_positions
    numbers = [number for piece in pieces for number in piece]
    assert sorted(numbers[:count]) == sorted(numbers[count : 2 * count])


def test_a_refresh_of_an_endless_loader_begins_the_next_epoch(store):
    loader = Loader(store, {"number": "number"}, batch_size=7, order="random", epochs=None)
    list(islice(loader, 2))
    loader.refresh()
    assert loader.state_dict()["consumed"] == 0
    assert loader.epoch == 1


def test_a_last_batch_that_is_dropped_and_the_only_one_is_refused(store: Store) -> None:
    loader = Loader(store, {"number": range(2)}, batch_size=10_000, drop_last=True)
    with pytest.raises(OrderError, match=r"37 positions do not fill one batch of 10000 .* drop_last=False"):
        iter(loader)
    assert len(list(Loader(store, {"number": range(2)}, batch_size=10_000))) == 1
