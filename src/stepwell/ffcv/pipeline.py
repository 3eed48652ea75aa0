"""FFCV's interface of operations: what a user's own decoders and transforms are written against.

::

    Operation.declare_state_and_memory(State) ──> State, AllocationQuery     once, in the pipeline's order
    Operation.generate_code() ──────────────────> function                   once; compiled by numba where that goes
    function(values, memory[, indices]) ────────> values                     a batch a call
"""

from __future__ import annotations

import ctypes
import sys
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import MissingDependencyError
from stepwell.process import available_cpus

__all__ = [
    "Allocation",
    "AllocationQuery",
    "Compiler",
    "Operation",
    "PipelineSpec",
    "State",
    "as_python",
    "memcpy",
    "torch_of",
]

_memmove = ctypes.CDLL(None).memmove
_memmove.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
_memmove.restype = None


def memcpy(source: npt.NDArray[Any], dest: npt.NDArray[Any]) -> None:
    """Copy the bytes of an array to the beginning of another, both C-contiguous; numba compiles it, too.

    FFCV's copies as many bytes as the source has, wherever they come to lie; here at most as many as fit.

    Example:
        >>> source, dest = np.arange(3, dtype=np.uint8), np.zeros(5, np.uint8)
        >>> memcpy(source, dest)
        >>> dest.tolist()
        [0, 1, 2, 0, 0]
    """
    _memmove(dest.ctypes.data, source.ctypes.data, min(source.size * source.itemsize, dest.size * dest.itemsize))


def torch_of(needed: bool = True) -> Any:
    """Return torch; None where it is not loaded and not needed.

    Raises:
        MissingDependencyError: it is needed, and not installed.
    """
    if not needed:
        return sys.modules.get("torch")
    try:
        return import_module("torch")
    except ImportError as error:
        raise MissingDependencyError.of("torch", "torch") from error


@dataclass
class State:
    """What one operation hands to the next, without the batch.

    Args:
        jit_mode: whether the operation's code is for numba.
        device: torch's device that the values are on.
        shape: of a sample; None before the decoder.
        dtype: of numpy or of torch.

    Raises:
        AssertionError: code for numba with a tensor's dtype or on another device, as in FFCV.
    """

    jit_mode: bool
    device: Any
    shape: Any
    dtype: Any

    def __post_init__(self) -> None:
        torch = torch_of(needed=False)
        if not self.jit_mode or torch is None:
            return
        if self.device is not None and torch.device(self.device).type != "cpu":
            raise AssertionError("Can't be in JIT mode and on the GPU")
        if isinstance(self.dtype, torch.dtype):
            raise AssertionError("Can't allocate a torch tensor in JIT mode")


@dataclass(frozen=True)
class AllocationQuery:
    """Memory that an operation asks for: in each batch an array or a tensor [B, *shape] of its own.

    Args:
        shape: of a sample.
        dtype: of numpy: an array; of torch: a tensor.
        device: of a tensor.
    """

    shape: tuple[int, ...]
    dtype: Any
    device: Any = None

    def allocate(self, size: int) -> Any:
        """Return memory for a batch, of undefined content; no batch has that of another."""
        torch = torch_of(needed=False)
        shape = (size, *(int(side) for side in self.shape))
        if torch is not None and isinstance(self.dtype, torch.dtype):
            return torch.empty(shape, dtype=self.dtype, device=self.device)
        return np.empty(shape, np.dtype(self.dtype))


Allocation = AllocationQuery | Sequence[AllocationQuery] | None


class Operation(ABC):
    """A step of a pipeline: a decoder, or what changes a batch. Subclass it as with FFCV.

    The function that `generate_code` returns is called with

    - of a decoder: the samples' numbers [B], the memory, the field's part of the samples' rows, and what
      ``self.memory_read(ptr, storage_state)`` needs;
    - of others: the values [B, ...] and the memory;
    - and with the samples' numbers after the memory, where it has an attribute ``with_indices = True``; with the shared
      memory at the end, where the operation declares some.

    ``is_parallel = True`` on the function lets numba share the loops of `Compiler.get_iterator` among threads.

    Attributes:
        field: the field of the pipeline.
        metadata: the rows of all samples, the field's part.
        memory_read: (ptr, storage_state) to uint8 [n], what lies there; to be called from compiled code, too.

    Notes:
        Batches come one after the other, in the order of the epoch, all from one thread.
    """

    def __init__(self) -> None:
        self.metadata: Any = None
        self.memory_read: Any = None

    def accept_field(self, field: Any) -> None:
        """Take the field; called before the others."""
        self.field = field

    def accept_globals(self, metadata: Any, memory_read: Any) -> None:
        """Take the samples' rows, and what reads the file."""
        self.metadata, self.memory_read = metadata, memory_read

    @abstractmethod
    def generate_code(self) -> Callable[..., Any]:
        """Return the function that is called with each batch."""

    def declare_shared_memory(self, previous_state: State) -> Allocation:
        """Return what memory all pipelines that have this object share; none by default."""
        return None

    def generate_code_for_shared_state(self) -> Callable[..., Any] | None:
        """Return what fills the shared memory, once a batch, before the operation is first called; none by default."""
        return None

    @abstractmethod
    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation]:
        """Return what the operation makes of a state, and the memory that it needs."""


def as_python(function: Callable[..., Any], with_indices: bool = False) -> Callable[..., Any]:
    """Return an operation's function that is not for numba.

    Example:
        >>> @as_python
        ... def doubled(values, memory):
        ...     return 2 * values
        >>> Compiler.compile(doubled) is doubled
        True
    """
    function.compiles, function.with_indices = False, with_indices  # type: ignore[attr-defined]
    return function


class Compiler:
    """How the code of operations is compiled; settings of the process, as in FFCV."""

    is_enabled = True
    num_threads = 1

    @classmethod
    def set_enabled(cls, b: bool) -> None:
        """Let numba compile what comes from now on (default), or run it as Python."""
        cls.is_enabled = b

    @classmethod
    def set_num_threads(cls, n: int) -> None:
        """Set how many threads a parallel loop has; below 1: one a processor."""
        cls.num_threads = n if n >= 1 else available_cpus()

    @classmethod
    def compile(cls, code: Callable[..., Any], signature: Any = None) -> Callable[..., Any]:
        """Return a function compiled; itself where compiling is off, it is compiled, or says ``compiles = False``."""
        if not cls.is_enabled or not isinstance(code, FunctionType) or not getattr(code, "compiles", True):
            return code
        import numba

        parallel = bool(getattr(code, "is_parallel", False)) and cls.num_threads > 1
        options = {"fastmath": True, "nogil": True, "error_model": "numpy", "parallel": parallel}
        compiled: Callable[..., Any] = numba.njit(signature, **options)(code)
        return compiled

    @classmethod
    def get_iterator(cls) -> Any:
        """Return what to loop with: numba's ``prange`` with several threads, else ``range``."""
        if cls.num_threads <= 1:
            return range
        import numba

        return numba.prange


# numba's own thread pool ends the process when two threads begin parallel loops at once
_PARALLEL = threading.Lock()


class Code:
    """An operation's function: compiled, and as Python where numba cannot compile it."""

    def __init__(self, function: Callable[..., Any], name: str, jit_mode: bool) -> None:
        self.with_indices = bool(getattr(function, "with_indices", False))
        self._function, self._name = function, name
        self._compiled = Compiler.compile(function) if jit_mode else function
        self.is_parallel = bool(getattr(self._compiled, "targetoptions", {}).get("parallel"))

    def __call__(self, *arguments: Any) -> Any:
        """Return what the function returns."""
        if self._compiled is self._function:
            return self._function(*arguments)
        from numba.core.errors import NumbaError

        try:
            if not self.is_parallel:
                return self._compiled(*arguments)
            with _PARALLEL:
                return self._compiled(*arguments)
        except (NumbaError, NotImplementedError) as error:
            if getattr(self._compiled, "signatures", None):
                raise
            text = str(error).strip().partition("\n")[0]
            warnings.warn(f"{self._name}: numba cannot compile it, so it runs as Python: {text}", stacklevel=2)
            self._compiled = self._function
            return self._function(*arguments)


class PipelineSpec:
    """One output of a loader: where it comes from, and what is done to it.

    Args:
        source: the name of a field, so that several outputs may come from one; or an operation of another pipeline,
            from whose result this one goes on.
        decoder: of the field; default: the first of ``transforms`` if it is one, else the field's own.
        transforms: operations and torch modules. Without decoder and transforms the default decoder and `ToTensor`.

    Example:
        >>> from stepwell.ffcv.fields.decoders import IntDecoder
        >>> spec = PipelineSpec("label", transforms=[IntDecoder()])
        >>> spec.source, spec.default_pipeline, PipelineSpec("label").default_pipeline
        ('label', False, True)
    """

    def __init__(
        self, source: str | Operation, decoder: Operation | None = None, transforms: Sequence[Any] | None = None
    ) -> None:
        self.source, self.decoder, self.transforms = source, decoder, list(transforms or ())
        self.default_pipeline = decoder is None and not self.transforms and isinstance(source, str)

    def __repr__(self) -> str:
        return repr((self.source, self.decoder, self.transforms))
