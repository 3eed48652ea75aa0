"""FFCV's ``.beton`` files: read in place or taken into a store, and written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.lazy import load_name

if TYPE_CHECKING:
    from stepwell.beton.fields import BetonField, SpanField, ValueField, register_beton_field
    from stepwell.beton.reader import BetonReader
    from stepwell.beton.reading import BetonFile
    from stepwell.beton.writing import write_beton

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


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name: str) -> Any:
        return load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
