"""TFDS and RLDS datasets: TFRecord and ArrayRecord files, read and written without TensorFlow."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# the modules of names, loaded on first use
_HOMES: dict[str, str] = {
    "ArrayRecordFile": "stepwell.tfds.array_records",
    "TfdsReader": "stepwell.tfds.reader",
    "write_rlds": "stepwell.tfds.writing",
    "write_tfds": "stepwell.tfds.writing",
}

__all__: list[str] = [
    "ArrayRecordFile",
    "TfdsReader",
    "write_rlds",
    "write_tfds",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
