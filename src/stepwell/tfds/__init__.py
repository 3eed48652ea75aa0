"""TFDS and RLDS datasets: TFRecord and ArrayRecord files, read and written without TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.lazy import load_name

if TYPE_CHECKING:
    from stepwell.tfds.reader import TfdsReader
    from stepwell.tfds.record_files import ArrayRecordFile
    from stepwell.tfds.writing import write_rlds, write_tfds

# the modules of names, loaded on first use
_HOMES: dict[str, str] = {
    "ArrayRecordFile": "stepwell.tfds.record_files",
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


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name: str) -> Any:
        return load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
