"""Formats: data sets of other systems, read in place or taken into a store; each reader is found by looking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.lazy import load_name

if TYPE_CHECKING:
    from stepwell.formats.cache import open_in_place
    from stepwell.formats.conversion import convert, import_dataset
    from stepwell.formats.reader import Reader
    from stepwell.formats.registry import find_reader, open_reader, reader_names, register_reader
    from stepwell.formats.source_paths import source_files
    from stepwell.formats.splits import even_splits, split_indices
    from stepwell.references.file_spans import FileSpans, span_feature

    Hdf5Layout: Any  # of a layer above this one

# the modules of names, loaded on first use
_HOMES: dict[str, str] = {
    "FileSpans": "stepwell.references.file_spans",
    "Hdf5Layout": "stepwell.readers.hdf5_layouts",
    "Reader": "stepwell.formats.reader",
    "convert": "stepwell.formats.conversion",
    "even_splits": "stepwell.formats.splits",
    "find_reader": "stepwell.formats.registry",
    "import_dataset": "stepwell.formats.conversion",
    "open_in_place": "stepwell.formats.cache",
    "open_reader": "stepwell.formats.registry",
    "reader_names": "stepwell.formats.registry",
    "register_reader": "stepwell.formats.registry",
    "source_files": "stepwell.formats.source_paths",
    "span_feature": "stepwell.references.file_spans",
    "split_indices": "stepwell.formats.splits",
}

__all__: list[str] = [
    "FileSpans",
    "Hdf5Layout",
    "Reader",
    "convert",
    "even_splits",
    "find_reader",
    "import_dataset",
    "open_in_place",
    "open_reader",
    "reader_names",
    "register_reader",
    "source_files",
    "span_feature",
    "split_indices",
]


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name: str) -> Any:
        return load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
