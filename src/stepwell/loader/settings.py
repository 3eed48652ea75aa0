"""The settings of a loader: what a user chose, checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from stepwell.errors import OrderError
from stepwell.loader.memory import Target
from stepwell.order import Pad, Partition
from stepwell.order.order import check_count, check_seed
from stepwell.process import available_cpus

__all__ = ["LoaderSettings", "explain_arguments"]

P = ParamSpec("P")

MAX_AUTO_THREADS = 8
# each has a block of its own under way, and blocks are a share of the pool
MAX_POOL_THREADS = 32
DISK_THREADS = 2
INLINE_BYTES = 1 << 20
RAW_HANDOVER_BYTES = 1 << 20
# decoding makes a few hundred MB/s where copying makes thousands: fewer bytes are worth a hand-over
DECODED_HANDOVER_BYTES = 1 << 17
MAX_GROUP = 16
BOOLS = ("drop_last", "pin_memory", "nested", "page_cache")
INTEGERS = ("batch_size", "seed", "epochs", "rank", "world_size", "threads", "prefetch")


def explain_arguments(renamed: Mapping[str, str]) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Return a decorator of ``__init__`` whose error for an argument that there is none of names those there are.

    Args:
        renamed: names that other libraries have, to what stands for them.
    """

    def decorate(init: Callable[P, None]) -> Callable[P, None]:
        _, *known = inspect.signature(init).parameters

        @wraps(init)
        def checked(*arguments: P.args, **options: P.kwargs) -> None:
            for name in options:
                if name not in known:
                    kind = type(arguments[0]).__name__
                    instead = f" Here it is {renamed[name]}." if name in renamed else ""
                    raise TypeError(f"{kind} has no argument {name!r}.{instead} There are: {', '.join(known)}.")
            init(*arguments, **options)

        return checked

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoaderSettings:
    """How a loader batches, shards, builds ahead and hands over; see `Loader` for each.

    Notes:
        An immutable value: comparable, picklable, printable.
    """

    batch_size: int = 64
    seed: int = 0
    epochs: int | None = 1
    drop_last: bool = False
    pad: Pad = False
    rank: int = 0
    world_size: int = 1
    threads: int | None = None
    prefetch: int = 2
    to: Target = "numpy"
    pin_memory: bool | None = None
    nested: bool = False
    page_cache: bool = True
    device: str | None = None
    sharding: Any = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_count("epochs", self.epochs, least=1)
        check_count("threads", self.threads)
        check_count("prefetch", self.prefetch, least=1)
        self.partition(0)
        for name in BOOLS:
            if not isinstance(getattr(self, name), bool | np.bool_ | None):
                raise OrderError(f"{name}={getattr(self, name)!r}. Allowed: True or False.")
        for name in INTEGERS:
            value = getattr(self, name)
            if value is not None:
                # numpy's print differently and are not JSON, and a loader's state is to be both
                object.__setattr__(self, name, int(value))
        self._check_target()

    @property
    def is_stream(self) -> bool:
        """Whether epochs run into each other: endless, and the end of an epoch neither dropped nor padded."""
        return self.epochs is None and not self.drop_last and not self.pad

    def partition(self, num_positions: int, offset: int = 0) -> Partition:
        """Return this rank's batches of an epoch, from an offset on."""
        return Partition(num_positions, self.batch_size, self.rank, self.world_size, self.drop_last, self.pad, offset)

    def stream(self, num_positions: int, offset: int = 0) -> Partition:
        """Return this rank's batches of endless epochs, from an offset on."""
        return Partition(num_positions, self.batch_size, self.rank, self.world_size, offset=offset, is_stream=True)

    def num_threads(self, batch_bytes: int, is_raw: bool, is_pooled: bool = False) -> int:
        """Return the number of threads to use: what the user said, else by the work in a batch.

        Past the page cache there are two a CPU: while one of them waits for the disk the other copies or decodes.

        Args:
            batch_bytes: decoded bytes of a batch.
            is_raw: whether nothing is decoded, nor read past the page cache.
            is_pooled: whether threads load blocks: a CPU has work whatever the size of a batch.
        """
        if self.threads is not None:
            return self.threads
        wanted = available_cpus() if self.page_cache else DISK_THREADS * available_cpus()
        if is_pooled:
            return min(wanted, MAX_POOL_THREADS)
        if is_raw and batch_bytes < INLINE_BYTES:
            return 0
        return min(wanted, MAX_AUTO_THREADS)

    def group(self, batch_bytes: int, is_raw: bool) -> int:
        """Return the number of batches that a thread hands over at a time."""
        worth = RAW_HANDOVER_BYTES if is_raw else DECODED_HANDOVER_BYTES
        return max(1, min(MAX_GROUP, worth // max(batch_bytes, 1)))

    def _check_target(self) -> None:
        """Check what says where batches go."""
        if self.to not in ("numpy", "torch", "jax"):
            raise OrderError(f'to={self.to!r}. Allowed: "numpy", "torch" or "jax".')
        if self.pin_memory and self.to != "torch":
            raise OrderError(
                'pin_memory=True needs to="torch": numpy arrays are not copied to a GPU, and JAX pins by itself.'
            )
        if self.device is not None and self.to == "numpy":
            raise OrderError(f'device={self.device!r} needs to="torch" or "jax": numpy arrays stay where they are.')
        if self.sharding is not None and self.to != "jax":
            raise OrderError('sharding= needs to="jax". With torch, each process has a loader of its own: rank=.')
        if self.sharding is not None and self.device is not None:
            raise OrderError(f"sharding= and device={self.device!r}. Give one: a sharding names its devices.")

    def __repr__(self) -> str:
        chosen = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return f"LoaderSettings({', '.join(f'{name}={value!r}' for name, value in chosen.items())})"
