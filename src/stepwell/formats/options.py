"""Options of readers: the values of those that are given as text, and the key of all in the cache.

::

    "false"  "jpg, cls"  "jpg=image,cls=label"      flag_of, names_of, renames_of: in an address, on the command line
    "train[:10%]"  {"b", "a"}                       option_key: their text, sets and mappings in order
    oxe.standard                                    module and name; the module's file counts as one of the data set
    a feature, a partial                            its parts
    an array, any other object                      its type, and the bytes that pickle makes of it
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

from stepwell.errors import FormatError

__all__ = ["flag_of", "names_of", "option_key", "renames_of"]

WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}
PLAIN = (str, bytes, bool, int, float, complex, type(None), type(Ellipsis), range, slice)
MAX_DEPTH = 32
# states of loaders belong to a store whose identity has the name that a class had first
FIRST_NAMES = {"stepwell.formats.splits:EvenSplit": "stepwell.formats.slicing:EvenSplit"}
# names functions that have no name of their own, for as long as this process lives
PROCESS = uuid.uuid4().hex


def flag_of(name: str, value: bool | str) -> bool:
    """Return a bool that may be given as "true", "false", "1", "0", "yes" or "no"; FormatError for other texts."""
    found = value if isinstance(value, bool) else WORDS.get(str(value).lower())
    if found is None:
        raise FormatError(f"{name}={value!r}. Allowed: true, false.")
    return found


def names_of(given: Iterable[str] | str) -> list[str]:
    """Return names that may be given as one text, joined by commas: "action, reward"."""
    parts = given.split(",") if isinstance(given, str) else given
    return [name for part in parts if (name := part.strip())]


def renames_of(rename: Mapping[str, str] | str | None) -> dict[str, str]:
    """Return new names that are given as a mapping, or as text: "jpg=image, cls=label", or with colons."""
    if not isinstance(rename, str):
        return dict(rename or {})
    # names of features have no colon, names of members may
    pairs = [part.partition("=" if "=" in part else ":") for part in names_of(rename)]
    wrong = next((old for old, _, new in pairs if not new.strip()), None)
    if wrong is not None:
        raise FormatError(f'rename={rename!r}: {wrong.strip()!r} has no new name. Allowed: "old=new,other=another".')
    found = {old.strip(): new.strip() for old, _, new in pairs}
    if len(found) < len(pairs):
        raise FormatError(f"rename={rename!r}: a name comes twice. Give each one new name.")
    return found


def option_key(value: Any, *, files: set[str] | None = None) -> str:
    """Return a text that is the same for the same options, in every process.

    Example:
        >>> option_key({"rename": {"b": "x", "a": "y"}}) == option_key({"rename": {"a": "y", "b": "x"}})
        True
        >>> option_key(flag_of, files=set())
        'stepwell.formats.options:flag_of'
    """
    return repr(value) if isinstance(value, PLAIN) else _key(value, files, 0)


def _key(value: Any, files: set[str] | None, depth: int) -> str:
    if isinstance(value, PLAIN):
        return repr(value)
    if depth == MAX_DEPTH:
        raise FormatError(f"an option that holds itself, or is nested more than {MAX_DEPTH} deep. Give plain values.")
    if isinstance(value, FunctionType | type):
        return _named(value, files)
    parts = _parts_of(value)
    if parts is not None:
        name = f"{type(value).__module__}:{type(value).__qualname__}"
        return f"{FIRST_NAMES.get(name, name)} {_digest(_key(parts, files, depth + 1))}"
    if isinstance(value, Mapping):
        pairs = [f"{_key(key, files, depth + 1)}: {_key(part, files, depth + 1)}" for key, part in value.items()]
        return f"{{{', '.join(sorted(pairs))}}}"
    if isinstance(value, Set | Sequence):
        keys = [_key(part, files, depth + 1) for part in value]
        return f"{{{', '.join(sorted(keys))}}}" if isinstance(value, Set) else f"[{', '.join(keys)}]"
    return _pickled(value)


def _named(value: Any, files: set[str] | None) -> str:
    """Return module and name of a function or class."""
    module, name = sys.modules.get(value.__module__), f"{value.__module__}:{value.__qualname__}"
    found: Any = module
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    path = getattr(module, "__file__", None)
    # a notebook has no file by which changed code of the same name is seen
    if found is value and (path is not None or value.__module__ != "__main__"):
        if path is None or not Path(path).is_file():
            return name
        if files is not None:
            files.add(path)
            return name
        status = Path(path).stat()
        return f"{name} {status.st_size} {status.st_mtime_ns}"
    if files is not None:
        raise FormatError(
            f"option {value!r}: no other process finds this function by its name, and so not the store that is made "
            "with it. Define it with def at the top of a module, not as a lambda, within a function or in a notebook; "
            "or import the data set, which takes any function."
        )
    return f"{name} {PROCESS} {id(value)}"


def _parts_of(value: Any) -> list[Any] | None:
    """Return the parts of an object; None for one that is not looked into."""
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    return None


def _pickled(value: Any) -> str:
    try:
        data = pickle.dumps(value, protocol=4)
    except Exception as error:
        raise FormatError(
            f"option {value!r}: it cannot be told from others, because it cannot be pickled ({error}). Give a function "
            "of a module, or plain values."
        ) from error
    return f"{type(value).__module__}:{type(value).__qualname__} {hashlib.blake2b(data, digest_size=16).hexdigest()}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
