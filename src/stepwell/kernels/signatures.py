"""Which kernels there are, and the types that they are called with: to compile them before they are needed.

The list is kept in ``signatures.json``: a kernel's dotted name to the types of its arguments, of each signature. It is
recorded while the tests run::

    STEPWELL_RECORD_KERNELS=1 python -m pytest -n 0 tests/test_readme.py tests/replay ...
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from stepwell.json_text import parse_json
from stepwell.kernels.kernel import KERNELS

__all__ = ["compile_all", "known_signatures", "load_kernels", "record_signatures"]

PATH = Path(__file__).with_name("signatures.json")
Signature = tuple[str, ...]


def known_signatures() -> dict[str, list[Signature]]:
    """Return the signatures of kernels, by dotted name."""
    known = parse_json(PATH.read_text())
    return {name: [tuple(signature) for signature in signatures] for name, signatures in known.items()}


def load_kernels(names: Iterable[str]) -> None:
    """Load kernels from numba's cache, or compile them, so that their first call does not."""
    for name in names:
        _load_kernel(name)


@cache
def _load_kernel(name: str) -> None:
    for signature in _signatures_read_once().get(name, ()):
        kernel_of(name).compile(tuple(map(type_of, signature)))


@cache
def _signatures_read_once() -> dict[str, list[Signature]]:
    return known_signatures()


def kernel_of(name: str) -> Any:
    """Return a kernel by its dotted name."""
    module, function = name.rsplit(".", 1)
    return getattr(import_module(module), function)


def record_signatures() -> None:
    """Add to the list, for each kernel that it lacks, the first signature that this process called it with."""
    known = known_signatures() if PATH.exists() else {}
    names = {f"{kernel.py_func.__module__}.{kernel.py_func.__name__}": kernel for kernel in KERNELS}
    modules = {name.rsplit(".", 1)[0] for name in names}
    kept = {name: found for name, found in known.items() if name in names or name.rsplit(".", 1)[0] not in modules}
    for name, kernel in names.items():
        signatures = [tuple(map(text_of, each.args)) for each in kernel.nopython_signatures]
        if signatures and name not in kept:
            kept[name] = signatures[:1]
    lines = [f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept)]
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def compile_all() -> Iterator[tuple[str, bool]]:
    """Compile every signature of the list, or load what is kept of it; yield its name, and whether it was compiled."""
    for name, signatures in known_signatures().items():
        kernel = kernel_of(name)
        for signature in signatures:
            before = sum(kernel.stats.cache_misses.values())
            kernel.compile(tuple(map(type_of, signature)))
            yield name, sum(kernel.stats.cache_misses.values()) > before


def text_of(kind: Any) -> str:
    """Return a numba type as text: ``int64``, ``int64 2C`` (an array of 2 dimensions), ``int64; bool;`` (a tuple).

    Example:
        >>> from numba import types
        >>> text_of(types.Array(types.uint8, 1, "C", readonly=True)), text_of(types.UniTuple(types.int64, 3))
        ('uint8 1C readonly', 'int64; int64; int64; ')
    """
    from numba import types

    if isinstance(kind, types.Array):
        return f"{kind.dtype} {kind.ndim}{kind.layout}{'' if kind.mutable else ' readonly'}"
    if isinstance(kind, types.BaseTuple):
        return "; ".join([text_of(each) for each in kind.types] + [""])
    return str(kind)


def type_of(text: str) -> Any:
    """Return the numba type that `text_of` wrote."""
    from numba import types

    if ";" in text:
        return types.Tuple([type_of(each) for each in text.split("; ")[:-1]])
    name, *rest = text.split()
    kind = types.boolean if name == "bool" else getattr(types, name)
    if not rest:
        return kind
    return types.Array(kind, int(rest[0][:-1]), rest[0][-1], readonly="readonly" in rest)
