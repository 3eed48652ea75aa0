"""What tells a reader's options from others, in every process: a cache made for one function is none of another's.

::

    "train[:10%]"  {"b", "a"}     their text, sets and mappings in order
    oxe.standard                  module and name, the code, what it closes over and its defaults
    a feature, a partial          its parts
    an array, any other object    its type, and the bytes that pickle makes of it
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

from stepwell.errors import FormatError

__all__ = ["option_key"]

PLAIN = (str, bytes, bool, int, float, complex, type(None), type(Ellipsis), range, slice)
MAX_DEPTH = 32


def option_key(value: Any, depth: int = 0) -> str:
    """Return a text that is the same for the same options, whichever process asks.

    Args:
        value: an option: plain values, collections, functions, or what pickle takes.
        depth: of the value in others.

    Raises:
        FormatError: an object of which nothing tells whether it is the same.

    Example:
        >>> option_key({"rename": {"b": "x", "a": "y"}}) == option_key({"rename": {"a": "y", "b": "x"}})
        True
        >>> option_key(lambda text: int(text)) == option_key(lambda text: float(text))
        False

    Notes:
        Of a function its own code counts, not that of others which it calls.
    """
    if depth > MAX_DEPTH:
        raise FormatError(f"an option that holds itself, or is nested more than {MAX_DEPTH} deep. Give plain values.")
    if isinstance(value, PLAIN):
        return repr(value)
    parts = _parts_of(value)
    if parts is not None:
        return f"{_name_of(value)} {_digest(option_key(parts, depth + 1))}"
    if isinstance(value, Mapping):
        pairs = [f"{option_key(key, depth + 1)}: {option_key(part, depth + 1)}" for key, part in value.items()]
        return f"{{{', '.join(sorted(pairs))}}}"
    if isinstance(value, Set):
        return f"{{{', '.join(sorted(option_key(part, depth + 1) for part in value))}}}"
    if isinstance(value, Sequence):
        return f"[{', '.join(option_key(part, depth + 1) for part in value)}]"
    return _pickled(value)


def _parts_of(value: Any) -> list[Any] | None:
    """Return what an object is made of; None for one that is not looked into."""
    if isinstance(value, FunctionType):
        cells = [part for cell in value.__closure__ or () for part in _held(cell) if part is not value]
        return [value.__code__, value.__defaults__, value.__kwdefaults__, cells]
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, value.co_varnames, value.co_freevars, value.co_consts]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return None


def _held(cell: CellType) -> list[Any]:
    """Return what a function closes over; nothing of a name that was not given a value."""
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _name_of(value: Any) -> str:
    named = value if isinstance(value, FunctionType) else type(value)
    return f"{named.__module__}:{named.__qualname__}"


def _pickled(value: Any) -> str:
    """Return what tells an object of another kind from others."""
    try:
        data = pickle.dumps(value, protocol=4)
    except Exception as error:
        raise FormatError(
            f"option {value!r}: it cannot be told from others, because it cannot be pickled ({error}). Give a function "
            "of a module, or plain values."
        ) from error
    return f"{_name_of(value)} {hashlib.blake2b(data, digest_size=16).hexdigest()}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
