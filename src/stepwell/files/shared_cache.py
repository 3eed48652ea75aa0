"""Values that all threads of a process share: each made once, those used last kept, bounded in size."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

__all__ = ["SharedCache"]

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_ALL: weakref.WeakSet[SharedCache[Any, Any]] = weakref.WeakSet()


class SharedCache(Generic[Key, Value]):
    """A cache of values by key, bounded in size; the value used last is kept however large it is."""

    # Safe for any number of threads; of those that need the same value at once, one makes it and the others wait. A
    # child of a fork keeps the values and goes on: they must not change, nor depend on the process. Users of a dropped
    # value keep it.

    def __init__(self, max_size: int, size_of: Callable[[Value], int]) -> None:
        self.max_size = max_size
        self._size_of = size_of
        self._kept: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._renew()
        _ALL.add(self)

    @property
    def size(self) -> int:
        """What all values are together."""
        return self._size

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """Return the value of a key; ``make`` is called when it is not there, and what it raises is raised."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
                return kept[0]
            gate = self._gates.setdefault(key, threading.Lock())
        with gate:
            found = self.find(key)
            if found is not None:
                return found
            try:
                made = make()
                self._keep(key, made)
                return made
            finally:
                with self._lock:
                    self._gates.pop(key, None)

    def find(self, key: Key) -> Value | None:
        """Return the value of a key, None where it is not kept."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def drop(self, key: Key, value: Value) -> None:
        """Forget a key's value, unless it is another one by now."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None and found[0] is value:
                del self._kept[key]
                self._size -= found[1]

    def drop_where(self, is_gone: Callable[[Key], bool]) -> None:
        """Forget the values of some keys."""
        with self._lock:
            keys = list(self._kept)
        gone = set(filter(is_gone, keys))
        with self._lock:
            for key in gone & self._kept.keys():
                self._size -= self._kept.pop(key)[1]

    def _keep(self, key: Key, value: Value) -> None:
        size = self._size_of(value)
        with self._lock:
            self._kept[key] = value, size
            self._size += size
            while self._size > self.max_size and len(self._kept) > 1:
                _, (_, gone) = self._kept.popitem(last=False)
                self._size -= gone

    def _renew(self) -> None:
        """Begin with locks that nobody holds, and a sum that nobody was in the middle of changing."""
        self._lock = threading.Lock()
        self._gates: dict[Key, threading.Lock] = {}
        self._size = sum(size for _, size in self._kept.values())


def _after_fork() -> None:
    for cache in list(_ALL):
        cache._renew()


os.register_at_fork(after_in_child=_after_fork)
