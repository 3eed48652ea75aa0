"""The decorators of kernels, with types: numba has none.

Compiled functions hold no GIL. Their machine code is kept beside the source, or where ``NUMBA_CACHE_DIR`` says.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numba
from numba.core import event
from numba.core.types.misc import unliteral
from numba.extending import intrinsic as numba_intrinsic

__all__ = ["KERNELS", "entry_of", "inlined", "inlined_too", "intrinsic", "kernel"]

Function = TypeVar("Function", bound=Callable[..., Any])
Arguments = ParamSpec("Arguments")
NOTICE_SECONDS = 1.0
# numba's dispatchers of those that were imported
KERNELS: list[Any] = []


def kernel(function: Function) -> Function:
    """Compile a function when it is first called."""
    compiled: Any = numba.njit(nogil=True, cache=True)(function)
    find = compiled.get_call_template

    def find_general(args: Any, kws: Any) -> Any:
        # a kernel that calls this one with a number in its text would compile it once more for that number alone
        return find([unliteral(each) for each in args], {key: unliteral(kws[key]) for key in kws})

    compiled.get_call_template = find_general
    KERNELS.append(compiled)
    made: Function = compiled
    return made


def entry_of(compiled: Any, arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """Return the machine code of a kernel for arguments of these types, loaded or compiled as by a call.

    Calling it leaves out numba's look at the types of the arguments, a seventh of what a draw with cold caches costs
    beside the kernel. They must have these types, layout of arrays included, in each call: nothing else checks it.
    """
    types = tuple(map(numba.typeof, arguments))
    compiled.compile(types)
    entry: Callable[..., Any] = compiled.overloads[types].entry_point
    return entry


def inlined(function: Function) -> Function:
    """Compile a function into each kernel that calls it."""
    compiled: Function = numba.njit(nogil=True, cache=True, inline="always")(function)
    return compiled


def inlined_too(compiled: Function) -> Function:
    """Return a kernel as a function that is compiled into each kernel that calls it."""
    dispatcher: Any = compiled
    function: Function = dispatcher.py_func
    return inlined(function)


def intrinsic(function: Callable[Concatenate[Any, Arguments], Any]) -> Callable[Arguments, Any]:
    """Make a function that kernels may call of one that writes its instructions, and has the typing context first."""
    made: Callable[Arguments, Any] = numba_intrinsic(function)
    return made


class _Notice(event.Listener):  # type: ignore[misc]
    """Print one line a process, once kernels have been compiling for a second."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._begun: list[float] = []

    def on_start(self, event: Any) -> None:
        self._begun.append(time.perf_counter())

    def on_end(self, event: Any) -> None:
        begun = self._begun.pop()
        # kernels that a kernel calls are compiled within its own time
        if self._begun or not _is_ours(event):
            return
        before, self._seconds = self._seconds, self._seconds + time.perf_counter() - begun
        if before < NOTICE_SECONDS <= self._seconds:
            print(
                "stepwell compiles its kernels on the first run, for some seconds. Later runs load what is kept.",
                file=sys.stderr,
            )


def _is_ours(event: Any) -> bool:
    return str(event.data["dispatcher"].py_func.__module__).startswith("stepwell.")


_NOTICE = _Notice()
event.register("numba:compile", _NOTICE)
