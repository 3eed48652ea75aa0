"""WebDataset: shards of samples in tar archives, read in place, taken into a store, written."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# the modules of names, loaded on first use
_HOMES: dict[str, str] = {
    "EpisodeShardsReader": "stepwell.webdataset.episodes_reader",
    "TarIndex": "stepwell.webdataset.tar_index",
    "WebDatasetReader": "stepwell.webdataset.reader",
    "read_tar_index": "stepwell.webdataset.tar_index",
    "write_webdataset": "stepwell.webdataset.writing",
}

__all__: list[str] = ["EpisodeShardsReader", "TarIndex", "WebDatasetReader", "read_tar_index", "write_webdataset"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
