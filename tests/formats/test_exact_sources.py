"""Exact over ranks and workers whatever a data set is read from: a store, a ring, files in place, files imported."""

import io
import itertools
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import View, convert, pooled, random
from stepwell.beton import write_beton
from stepwell.formats.splits import even_splits, split_indices
from stepwell.loader import BatchSampler, Loader, WindowDataset, gather_valid
from stepwell.order import Partition
from stepwell.store import Store
from stepwell.tfds import write_tfds

SIZE, FILES = 30, 9
CELLS = [(1, 7), (3, 4), (4, 4), (8, 7)]


def make_store(root: Path, **options: Any) -> Store:
    store = stepwell.create(root / "items.well", {"item": stepwell.Array((), "int64")}, **options)
    for part in np.array_split(np.arange(SIZE), FILES):
        with store.writer() as writer:
            for item in part:
                writer.add_episode({"item": [item]})
    store.refresh()
    return store


def make_ring(root: Path) -> Store:
    return make_store(root, capacity=1000)


def make_shards(root: Path) -> str:
    """Write shards of uneven numbers of samples, and return their address."""
    for shard, part in enumerate(np.array_split(np.arange(SIZE), FILES)):
        with tarfile.open(root / f"items-{shard}.tar", "w") as archive:
            for item in part:
                data = io.BytesIO()
                np.save(data, np.array([item]))
                member = tarfile.TarInfo(f"{item:04d}.item.npy")
                member.size = data.tell()
                data.seek(0)
                archive.addfile(member, data)
    return f"{root}/items-{{0..{FILES - 1}}}.tar"


def open_shards(root: Path) -> Store:
    return stepwell.open(f"webdataset://{make_shards(root)}", rename={"item.npy": "item"}, cache=root / "cache")


def import_shards(root: Path) -> Store:
    convert(make_shards(root), root / "items.well", rename={"item.npy": "item"}, workers=1, progress=False)
    return stepwell.open(root / "items.well")


def open_beton(root: Path) -> Store:
    write_beton(make_store(root), root / "items.beton", workers=0)
    return stepwell.open(f"beton://{root}/items.beton", cache=root / "cache")


def open_records(root: Path) -> Store:
    path = write_tfds(make_store(root), root, name="items", num_shards=FILES, workers=0)
    return stepwell.open(f"tfds://{path}", cache=root / "cache")


def open_rows(root: Path) -> Store:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    for file, part in enumerate(np.array_split(np.arange(SIZE), FILES)):
        parquet.write_table(arrow.table({"item": part}), root / f"train-{file:05d}-of-{FILES:05d}.parquet")
    return stepwell.open(f"huggingface://{root}", cache=root / "cache")


SOURCES: dict[str, Callable[[Path], Store]] = {
    "store": make_store,
    "ring": make_ring,
    "webdataset in place": open_shards,
    "webdataset imported": import_shards,
    "beton in place": open_beton,
    "tfds in place": open_records,
    "parquet in place": open_rows,
}


@pytest.fixture(scope="module", params=SOURCES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    yield SOURCES[request.param](tmp_path_factory.mktemp("exact"))


def items(batch: Any) -> list[int]:
    found: list[int] = np.asarray(batch["item"]).reshape(-1).tolist()
    return found


class Count:
    """An index of as many anchors as there are items."""

    num_anchors = SIZE


@pytest.mark.parametrize(("world", "batch"), CELLS)
@pytest.mark.parametrize("pad", [False, True, "wrap"])
def test_evaluation_serves_each_item_once_in_order(store: Store, world: int, batch: int, pad: Any) -> None:
    ranks = [
        list(Loader(store, {"item": "item"}, batch_size=batch, pad=pad, rank=rank, world_size=world, threads=rank % 3))
        for rank in range(world)
    ]
    assert all(items(each) == each.anchors.tolist() for rank in ranks for each in rank)
    whole = gather_valid(itertools.chain(*ranks), expected=SIZE)
    assert whole is not None
    assert items(whole) == list(range(SIZE))
    if pad:
        assert {len(rank) for rank in ranks} == {-(-SIZE // (world * batch))}


@pytest.mark.parametrize(("world", "batch"), CELLS)
def test_training_visits_what_the_seed_says_whatever_the_source(store: Store, world: int, batch: int) -> None:
    order = random(5).bind(Count())  # type: ignore[arg-type]
    for rank in range(world):
        options: Any = {"order": random(5), "pad": "wrap", "rank": rank, "world_size": world}
        found = list(Loader(store, {"item": "item"}, batch_size=batch, epochs=2, **options))
        dealt = Partition(SIZE, batch, rank, world, pad="wrap")
        parts = [dealt.batch(k, epoch=epoch) for epoch in range(2) for k in range(len(dealt))]
        assert [items(each) for each in found] == [part.anchors(order).tolist() for part in parts]
        assert [each.valid.tolist() for each in found] == [part.valid.tolist() for part in parts]


def test_worker_processes_and_threads_give_the_same_batches(store: Store) -> None:
    data = pytest.importorskip("torch.utils.data")
    dataset = WindowDataset(store, {"item": "item"})
    options: Any = {"order": "random", "batch_size": 4, "pad": "wrap", "rank": 1, "world_size": 3}
    wanted = [items(each) for each in Loader(store, {"item": "item"}, epochs=2, **options)]
    for workers in (0, 2):
        sampler = BatchSampler(dataset, epochs=2, **options)
        batches = data.DataLoader(dataset, batch_sampler=sampler, collate_fn=dataset.collate, num_workers=workers)
        assert [items(each) for each in batches] == wanted


def test_a_pooled_epoch_has_every_item_once_over_ranks(store: Store) -> None:
    found = [
        item
        for rank in range(3)
        for each in Loader(store, {"item": "item"}, order=pooled("1 MiB"), batch_size=4, rank=rank, world_size=3)
        for item in items(each)
    ]
    assert sorted(found) == list(range(SIZE))


def test_a_run_goes_on_under_another_number_of_ranks(store: Store) -> None:
    def loaders(world: int, batch: int) -> list[Loader]:
        options: Any = {"order": "random", "batch_size": batch, "world_size": world}
        return [Loader(store, {"item": "item"}, rank=rank, **options) for rank in range(world)]

    first = loaders(2, 4)
    seen = [item for loader in first for item in items(next(iter(loader)))]
    state = first[1].state_dict()
    for loader in loaders(3, 7):
        loader.load_state_dict(state)
        seen += [item for each in loader for item in items(each)]
    assert sorted(seen) == list(range(SIZE))


@pytest.mark.parametrize("split", ["train[:33%]", "train[10:-5]", "train[2shard]", "train[:10%]+train[90%:]"])
def test_any_split_is_served_exactly(store: Store, split: str) -> None:
    shards = [len(part) for part in np.array_split(np.arange(SIZE), FILES)]
    chosen = np.concatenate([indices for _, indices in split_indices(split, {"train": shards})])
    view = View(store).select(chosen)
    ranks = [
        each
        for rank in range(4)
        for each in Loader(view, {"item": "item"}, batch_size=3, pad=True, rank=rank, world_size=4)
    ]
    whole = gather_valid(ranks, expected=len(chosen))
    assert whole is not None
    assert items(whole) == chosen.tolist()


def test_even_splits_are_served_exactly(store: Store) -> None:
    seen = []
    for part in even_splits("train", 7):
        ((_, chosen),) = split_indices(part, {"train": SIZE})
        loader = Loader(View(store).select(chosen), {"item": "item"}, batch_size=4)
        seen += [item for each in loader for item in items(each)]
    assert seen == list(range(SIZE))


@pytest.mark.parametrize("records", ["tfrecord", "array_record"])
@pytest.mark.parametrize("split", ["train", "val", "train[:33%]+val[-3:]", "all"])
def test_what_tfds_wrote_is_served_exactly_over_ranks_and_workers(tmp_path: Path, records: str, split: str) -> None:
    root = Path(__file__).parents[2].parent / "shared" / "data" / "tfds_images"
    if not root.exists():
        pytest.skip("the data sets in ../shared/data are not here")
    data = pytest.importorskip("torch.utils.data")
    expected = np.load(root / "expected_tfds.npz")
    wanted = [(name, number) for name, found in split_indices(split, {"train": 30, "val": 10}) for number in found]
    store = stepwell.open(f"tfds://{root / records / 'mini_images'}", split=split, cache=tmp_path)
    rows = []
    for rank in range(3):
        dataset = WindowDataset(store, {key: key for key in ("id", "label", "image")})
        sampler = BatchSampler(dataset, 4, pad=True, rank=rank, world_size=3, order="random")
        options: Any = {"batch_sampler": sampler, "collate_fn": dataset.collate, "num_workers": rank}
        rows += list(data.DataLoader(dataset, **options))
        loader = Loader(store, {"image": "image"}, batch_size=4, pad=True, rank=rank, world_size=3, order="random")
        for row, other in zip(rows[-len(loader) :], loader, strict=True):
            assert np.array_equal(row["image"], other["image"])
    whole = gather_valid(rows, expected=len(wanted))
    assert whole is not None
    for key in ("id", "label"):
        assert np.array_equal(whole[key], [expected[f"{name}/{key}"][number] for name, number in wanted])
    (alone,) = Loader(store, {"image": "image"}, batch_size=len(wanted))
    assert np.array_equal(whole["image"], alone["image"])
