import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import Field
from stepwell.errors import LoaderError, WindowError
from stepwell.loader import Batch, WindowDataset
from stepwell.store import Store

from .conftest import make_store, write_episodes

FIELDS = {"number": "number", "state": Field("observation.state", [0, 1]), "text": "text"}


def test_samples_are_found_by_number_and_from_the_end(store: Store, numbers: list[int]) -> None:
    dataset = WindowDataset(store, FIELDS)
    assert len(dataset) == len(numbers)
    assert [int(dataset[i]["number"]) for i in range(len(dataset))] == numbers
    assert dataset[-1]["text"] == str(numbers[-1])
    assert dataset[3]["state"].shape == (2, 2)
    for wrong in (len(numbers), -len(numbers) - 1):
        with pytest.raises(IndexError, match="37"):
            dataset[wrong]


def test_samples_read_past_the_page_cache_are_the_same(store: Store) -> None:
    fields = {**FIELDS, "image": Field("observation.image", [-1, 0])}
    here, past = WindowDataset(store, fields), WindowDataset(store, fields, page_cache=False)
    for number in range(len(here)):
        np.testing.assert_equal(past[number], here[number])


@pytest.mark.parametrize("number", [1.5, True, slice(2), "1", None])
def test_what_is_no_number_of_a_sample_is_refused(store: Store, number: Any) -> None:
    with pytest.raises(WindowError, match="whole numbers"):
        WindowDataset(store, FIELDS)[number]


def test_a_dataset_ends_a_plain_for_loop(store: Store, numbers: list[int]) -> None:
    assert [int(sample["number"]) for sample in WindowDataset(store, FIELDS)] == numbers


def test_samples_of_one_read_are_views_of_one_batch(store: Store, numbers: list[int]) -> None:
    samples = WindowDataset(store, FIELDS).__getitems__([5, -1, 5, 0])
    assert [int(s["number"]) for s in samples] == [numbers[5], numbers[-1], numbers[5], numbers[0]]
    assert all(np.shares_memory(sample["state"], samples.batch["state"]) for sample in samples)
    assert len(samples) == 4
    assert [int(s["number"]) for s in samples[1:3]] == [numbers[-1], numbers[5]]


def test_collate_hands_the_batch_over_without_a_copy(store: Store) -> None:
    samples = WindowDataset(store, FIELDS).__getitems__([1, 2])
    batch = WindowDataset.collate(samples)
    assert type(batch) is Batch
    assert batch is samples.batch


def test_a_batch_of_one_read_knows_its_anchors_and_one_of_several_does_not(store: Store) -> None:
    dataset = WindowDataset(store, FIELDS)
    batch = dataset.collate(dataset.__getitems__([5, -1, 5]))
    assert batch.anchors.tolist() == [5, len(dataset) - 1, 5]
    assert dataset.collate([dataset[5], dataset[6]]).anchors is None


def test_collate_stacks_samples_of_different_reads(store: Store) -> None:
    dataset = WindowDataset(store, {**FIELDS, "observation.state": "observation.state"}, nested=True)
    together = WindowDataset.collate(dataset.__getitems__([1, 7]))
    apart = WindowDataset.collate([dataset[1], dataset[7]])
    for key in ("number", "state", "text"):
        np.testing.assert_array_equal(apart[key], together[key])
    np.testing.assert_array_equal(apart["observation"]["state"], together["observation"]["state"])


def test_no_samples_make_an_empty_read(store: Store) -> None:
    assert list(WindowDataset(store, FIELDS).__getitems__([])) == []


def test_torch_is_not_loaded_for_numpy_samples(store: Store) -> None:
    import subprocess

    script = (
        "import sys, stepwell; from stepwell.loader import WindowDataset; "
        f"d = WindowDataset(stepwell.open({str(store.path)!r}, mode='r')); d.collate(d.__getitems__([0])); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)


def test_length_is_stable_until_refreshed(tmp_path: Path) -> None:
    store = make_store(tmp_path / "growing.well", (3, 2))
    dataset = WindowDataset(store, FIELDS)
    before = [int(sample["number"]) for sample in dataset]
    write_episodes(store, (4,), first=2)
    assert len(dataset) == 5
    assert [int(sample["number"]) for sample in dataset] == before
    copy = pickle.loads(pickle.dumps(dataset))
    assert [int(sample["number"]) for sample in copy] == before
    dataset.refresh()
    assert [int(sample["number"]) for sample in dataset] == [*before, 2000, 2001, 2002, 2003]


def test_a_refresh_that_fails_changes_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path / "small.well", (5, 2))
    dataset = WindowDataset(store, {"number": Field("number", range(4), pad="drop")})
    store.delete_episodes([0])
    with pytest.raises(WindowError, match="does not fit"):
        dataset.refresh()
    assert len(dataset) == 2
    assert dataset[1]["number"].tolist() == [1, 2, 3, 4]


def test_samples_are_right_while_a_writer_appends(tmp_path: Path) -> None:
    store = make_store(tmp_path / "live.well", (3, 2))
    with store.writer() as writer:
        for step in range(20):
            writer.append(
                {
                    "number": 2000 + step,
                    "observation.state": np.float32([2000 + step, 0]),
                    "observation.image": np.zeros((2, 2, 3), "uint8"),
                    "text": str(step),
                }
            )
            writer.flush()
            if step == 9:
                store.refresh()
                dataset = WindowDataset(store, FIELDS)
                length = len(dataset)
            if step >= 9:
                assert len(dataset) == length
                found = [int(sample["number"]) for sample in dataset]
                assert found == [0, 1, 2, 1000, 1001, *range(2000, 2000 + length - 5)]
        writer.end_episode(
            final={"observation.state": np.zeros(2, "f4"), "observation.image": np.zeros((2, 2, 3), "uint8")}
        )
    dataset.refresh()
    assert len(dataset) == 25


def jitter(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return array + rng.random()


def test_random_transforms_change_with_the_epoch_and_with_the_samples_read_together(store: Store) -> None:
    dataset = WindowDataset(store, {"number": Field("number", transform=jitter)}, seed=1)
    first = float(dataset[5]["number"])
    assert float(dataset[5]["number"]) == first
    assert float(dataset.__getitems__([5, 6])[0]["number"]) != first
    dataset.set_epoch(1)
    assert float(dataset[5]["number"]) != first


def test_a_failing_transform_is_named(store: Store) -> None:
    def fail(array):
        raise ValueError("no")

    with pytest.raises(LoaderError, match="'number'"):
        WindowDataset(store, {"number": Field("number", transform=fail)})[0]


def test_threads_may_read_at_once(store: Store, numbers: list[int]) -> None:
    dataset = WindowDataset(store, FIELDS)
    wrong: list = []

    def read() -> None:
        for i in range(30):
            if int(dataset[i]["number"]) != numbers[i]:
                wrong.append(i)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


class TestDataLoader:
    """With torch's own loader."""

    @pytest.mark.parametrize(
        ("context", "to"),
        [
            (None, "numpy"),
            (None, "torch"),
            ("fork", "numpy"),
            ("fork", "torch"),
            pytest.param("spawn", "torch", marks=pytest.mark.slow),
        ],
    )
    def test_workers_read_every_sample_once(
        self, store: Store, numbers: list[int], context: str | None, to: str
    ) -> None:
        data = pytest.importorskip("torch.utils.data")
        dataset = WindowDataset(store, {"number": "number", "state": FIELDS["state"]}, to=to)
        next(iter(dataset))
        loader = data.DataLoader(
            dataset,
            batch_size=8,
            shuffle=True,
            # a spawned one loads torch, for seconds
            num_workers={None: 0, "fork": 2, "spawn": 1}[context],
            multiprocessing_context=context,
            collate_fn=dataset.collate,
        )
        batches = list(loader)
        assert {type(b) for b in batches} == {Batch}
        assert sorted(n for b in batches for n in b["number"].tolist()) == numbers
        for batch in batches:
            assert batch["state"][:, 0, 0].tolist() == batch["number"].tolist()

    def test_default_collate_works(self, store: Store, numbers: list[int]) -> None:
        data = pytest.importorskip("torch.utils.data")
        torch = pytest.importorskip("torch")
        for dataset in (WindowDataset(store, FIELDS), WindowDataset(store, FIELDS, to="torch")):
            batches = list(data.DataLoader(dataset, batch_size=8))
            assert torch.cat([b["number"] for b in batches]).tolist() == numbers
            assert [t for b in batches for t in b["text"]] == [str(n) for n in numbers]

    def test_a_subset_hands_batches_over_too(self, store: Store) -> None:
        data = pytest.importorskip("torch.utils.data")
        dataset = WindowDataset(store, FIELDS)
        subset = data.Subset(dataset, [3, 1, 2])
        (batch,) = data.DataLoader(subset, batch_size=3, collate_fn=dataset.collate)
        assert batch["number"].tolist() == [3, 1, 2]
