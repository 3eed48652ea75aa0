"""Which names of a class completion offers: not the methods that only other modules of stepwell call."""

from __future__ import annotations

from abc import ABCMeta
from typing import ClassVar

__all__ = ["Completed"]


class _CompletedClass(ABCMeta):
    # IPython and rlcompleter add the names of an object's class to those of the object
    def __dir__(cls) -> list[str]:
        hidden: frozenset[str] = getattr(cls, "_INTERNAL", frozenset())
        return [name for name in super().__dir__() if name not in hidden]


class Completed(metaclass=_CompletedClass):
    """A class with methods for other modules, which ``dir`` and completion leave out; calling them works as ever."""

    __slots__ = ()
    _INTERNAL: ClassVar[frozenset[str]] = frozenset()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in self._INTERNAL]
