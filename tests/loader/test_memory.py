import gc
import sys
import threading

import numpy as np
import pytest

from stepwell.loader.memory import ArenaPool, CountedPool


def address(memory: np.ndarray) -> int:
    return memory.__array_interface__["data"][0]


def test_memory_is_leased_again_when_the_last_view_is_gone() -> None:
    pool = ArenaPool(256, max_free=2)
    first = pool.lease(256)
    where = address(first)
    view = first[64:128].view(np.float32).reshape(4, 4).T[1:]
    del first
    assert pool.num_free == 0
    del view
    assert pool.num_free == 1
    assert address(pool.lease(256)) == where


KEEPS = [
    lambda m: m,
    lambda m: m[3:5],
    lambda m: m.view("f4").reshape(8, 8).T,
    lambda m: np.ndarray((2, 2), "f8", m, 64),
    lambda m: memoryview(m[8:16]),
    lambda m: np.lib.stride_tricks.as_strided(m[:8], (2, 2), (1, 1)),
    lambda m: m[:100][:50][:25],
    lambda m: np.asarray(memoryview(m)),
    lambda m: iter(m[:10]),
    lambda m: m.reshape(16, 16).flat,
]


@pytest.mark.parametrize("keep", KEEPS)
def test_memory_that_is_seen_in_any_way_is_not_leased_again(keep) -> None:
    pool = ArenaPool(256, max_free=2)
    lease = pool.lease(256)
    where = address(lease)
    kept = keep(lease)
    del lease
    gc.collect()
    assert address(pool.lease(256)) != where
    del kept
    gc.collect()
    assert pool.num_free >= 1


def test_a_tensor_keeps_its_memory() -> None:
    torch = pytest.importorskip("torch")
    pool = ArenaPool(256, max_free=2)
    tensor = torch.from_numpy(pool.lease(256)[:64])
    part = tensor.view(torch.float32)[1:].numpy()
    del tensor
    assert pool.num_free == 0
    del part
    assert pool.num_free == 1


def test_leases_are_aligned_and_of_the_size_asked() -> None:
    pool = ArenaPool(1000, max_free=4)
    leases = [pool.lease(n) for n in (1000, 1, 999, 0, 5000)]
    assert [lease.nbytes for lease in leases] == [1000, 1, 999, 0, 5000]
    assert all(address(lease) % 64 == 0 for lease in leases)
    assert all(lease.flags.writeable for lease in leases)


def test_no_more_than_max_free_blocks_are_kept() -> None:
    pool = ArenaPool(64, max_free=3)
    held = [pool.lease(64) for _ in range(10)]
    del held
    assert pool.num_free == 3


def test_leases_outlive_their_pool() -> None:
    pool = ArenaPool(64, max_free=3)
    lease = pool.lease(64)
    lease[:] = 7
    del pool
    gc.collect()
    assert (lease == 7).all()


@pytest.mark.parametrize("number", [1, 5, 8])
def test_leases_that_are_counted_are_used_again(number: int) -> None:
    pool = CountedPool(64, 8)
    held = [pool.lease() for _ in range(number)]
    known = {address(lease) for lease in held}
    assert len(known) == number and all(where % 64 == 0 for where in known)
    for turn in range(100):
        held[turn % number] = np.empty(0, np.uint8)
        held[turn % number] = pool.lease()
    assert {address(lease) for lease in held} == known


@pytest.mark.parametrize("keep", KEEPS)
def test_memory_that_is_seen_in_any_way_is_not_counted_as_free(keep) -> None:
    pool = CountedPool(256, 4)
    lease = pool.lease()
    where = address(lease)
    kept = keep(lease)
    del lease
    gc.collect()
    assert where not in {address(each) for each in [pool.lease() for _ in range(4)]}
    del kept


def test_threads_never_share_a_lease_that_is_counted() -> None:
    pool, shared = CountedPool(64, 8), []

    def use(mark: int) -> None:
        for _ in range(3000):
            lease = pool.lease()
            lease[:] = mark
            other = pool.lease()
            other[:] = mark + 100
            if not (lease == mark).all():
                shared.append(mark)
            del lease, other

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=use, args=(mark,)) for mark in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(interval)
    assert not shared
