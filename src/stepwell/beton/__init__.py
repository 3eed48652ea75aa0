"""FFCV's ``.beton`` files: read in place or taken into a store, and written."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# the modules of names, loaded on first use
_HOMES: dict[str, str] = {
    "BetonField": "stepwell.beton.fields",
    "BetonFile": "stepwell.beton.reading",
    "BetonReader": "stepwell.beton.reader",
    "SpanField": "stepwell.beton.fields",
    "ValueField": "stepwell.beton.fields",
    "register_beton_field": "stepwell.beton.fields",
    "write_beton": "stepwell.beton.writing",
}

__all__: list[str] = [
    "BetonField",
    "BetonFile",
    "BetonReader",
    "SpanField",
    "ValueField",
    "register_beton_field",
    "write_beton",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
