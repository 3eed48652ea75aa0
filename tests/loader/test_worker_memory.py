"""Batches of DataLoader workers in shared memory that is used again: values, lives, and what does not fit."""

import gc
import multiprocessing
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.loader.worker_memory import FREE, MAX_BLOCKS, SENT, BatchMemory, _Blocks, batch_memory  # noqa: E402


class Numbers(torch.utils.data.Dataset):
    """Items whose batch is made in the memory of the worker."""

    def __len__(self):
        return 96

    def __getitem__(self, i):
        return {"image": torch.full((3, 8, 8), float(i)), "index": torch.tensor(i), "name": f"item {i}"}

    def __getitems__(self, indices):
        memory = batch_memory()
        empty = np.empty if memory is None else memory.empty
        images = empty((len(indices), 3, 8, 8), "float32")
        images[...] = np.array(indices)[:, None, None, None]
        columns = {"image": torch.from_numpy(images), "index": torch.tensor(indices)}
        columns |= {"name": [f"item {i}" for i in indices], "half": torch.zeros(len(indices), dtype=torch.bfloat16)}
        return columns if memory is None else memory.batch(columns)


def collate(columns):
    return columns


def check(batch, indices):
    assert list(batch) == ["image", "index", "name", "half"]
    assert type(batch) is dict
    assert batch["index"].tolist() == indices
    assert batch["image"].shape == (len(indices), 3, 8, 8)
    np.testing.assert_array_equal(batch["image"][:, 2, 7, 7].numpy(), np.array(indices, np.float32))
    assert batch["name"] == [f"item {i}" for i in indices]
    assert batch["half"].dtype == torch.bfloat16 and not batch["half"].any()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("keeps", [False, True], ids=["dropped", "kept"])
def test_batches_are_right_however_long_they_live(workers, keeps):
    loader = torch.utils.data.DataLoader(
        Numbers(), 4, num_workers=workers, collate_fn=collate, persistent_workers=bool(workers)
    )
    kept = []
    for _ in range(3):
        for number, batch in enumerate(loader):
            indices = list(range(4 * number, 4 * number + 4))
            check(batch, indices)
            if keeps:
                kept.append((batch, indices))
    for batch, indices in kept:
        check(batch, indices)


def test_a_tensor_of_a_batch_keeps_it_alive():
    loader = torch.utils.data.DataLoader(Numbers(), 4, num_workers=1, collate_fn=collate)
    views = [batch["image"][1, :, 2:] for batch in loader]
    gc.collect()
    assert [view.unique().tolist() for view in views] == [[4.0 * number + 1] for number in range(24)]


def test_no_memory_outside_of_a_worker():
    assert batch_memory() is None


def received(batch):
    """Return a batch as the process gets it that it is sent to, and the block it lies in."""
    from multiprocessing.reduction import ForkingPickler

    return ForkingPickler.loads(ForkingPickler.dumps(batch))


def columns(value, size=16):
    return {"x": torch.full((size,), value)}


def test_a_block_is_used_again_when_neither_side_has_it():
    blocks = _Blocks()
    batch = BatchMemory(blocks).batch(columns(1.0))
    block = batch.memory.block
    assert not block.is_free
    there = received(batch)
    assert block.values[0] == SENT
    del batch
    assert not block.is_free
    second = BatchMemory(blocks)
    assert second.block is not block
    tensor = there["x"][3:5]
    del there
    gc.collect()
    assert not block.is_free and tensor.tolist() == [1, 1]
    del tensor
    gc.collect()
    assert block.is_free and block.values[0] == FREE
    assert BatchMemory(blocks).block is block


def test_a_batch_that_is_kept_here_is_not_written_over_when_the_other_side_is_done():
    blocks = _Blocks()
    batch = BatchMemory(blocks).batch(columns(1.0))
    received(batch)
    gc.collect()
    assert batch.memory.block.values[0] == FREE and not batch.memory.block.is_free
    other = BatchMemory(blocks).batch(columns(2.0))
    assert other.memory.block is not batch.memory.block
    assert batch["x"].unique().tolist() == [1]


def test_what_is_sent_twice_or_changed_meanwhile_arrives_as_it_was_sent():
    batch = BatchMemory(_Blocks()).batch(columns(1.0))
    first = received(batch)
    batch["x"] = batch["x"] + 1
    batch["new"] = torch.arange(3)
    second = received(batch)
    assert first["x"].unique().tolist() == [1] and list(first) == ["x"]
    assert second["x"].unique().tolist() == [2] and second["new"].tolist() == [0, 1, 2]
    del first, second
    gc.collect()
    third = received(batch)
    assert third["x"].unique().tolist() == [2] and third["new"].tolist() == [0, 1, 2]


def test_blocks_grow_with_batches_and_there_are_not_more_than_allowed():
    blocks = _Blocks()
    held = [BatchMemory(blocks).batch(columns(float(number))) for number in range(MAX_BLOCKS + 2)]
    assert sum(batch.memory.block is not None for batch in held) == MAX_BLOCKS
    there = [received(batch) for batch in held]
    assert [each["x"][0].item() for each in there] == list(range(MAX_BLOCKS + 2))
    large = BatchMemory(blocks).batch(columns(7.0, 1000))
    assert large.memory.block is not None
    assert received(large)["x"].unique().tolist() == [7]
    assert [each["x"][0].item() for each in there] == list(range(MAX_BLOCKS + 2))


def test_strided_values_and_memory_that_runs_out_are_sent_as_ever():
    blocks = _Blocks()
    BatchMemory(blocks).batch(columns(0.0))
    memory = BatchMemory(blocks)
    beyond = [memory.empty((8,), "float32") for _ in range(40)]
    assert all(array.shape == (8,) for array in beyond)
    strided = torch.arange(16.0).reshape(4, 4).T
    there = received(memory.batch({"x": torch.ones(4), "strided": strided, "none": torch.empty(0, 3)}))
    assert there["x"].tolist() == [1] * 4 and torch.equal(there["strided"], strided) and there["none"].shape == (0, 3)


def hold_and_exit(batch, is_held):
    is_held.set()
    del batch
    gc.collect()
    os._exit(0)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork here")
def test_a_fork_of_the_process_that_received_a_batch_does_not_give_it_back():
    batch = BatchMemory(_Blocks()).batch(columns(1.0))
    block, there = batch.memory.block, received(batch)
    context = multiprocessing.get_context("fork")
    held = context.Event()
    child = context.Process(target=hold_and_exit, args=(there, held))
    child.start()
    child.join()
    assert held.is_set() and block.values[0] == SENT
    assert there["x"].tolist() == [1] * 16


def test_without_files_batches_are_sent_as_ever(monkeypatch):
    def no_file():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("stepwell.loader.worker_memory._nameless_file", no_file)
    batch = BatchMemory(_Blocks()).batch(columns(1.0))
    assert batch.memory.block is None and received(batch)["x"].tolist() == [1] * 16


def test_systems_without_memfd_have_a_temporary_file(monkeypatch):
    monkeypatch.delattr("os.memfd_create", raising=False)
    batch = BatchMemory(_Blocks()).batch(columns(1.0))
    assert batch.memory.block is not None and received(batch)["x"].tolist() == [1] * 16
