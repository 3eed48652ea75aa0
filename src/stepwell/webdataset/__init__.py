"""WebDataset: shards of samples in tar archives, read in place, taken into a store, written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.lazy import load_name

if TYPE_CHECKING:
    from stepwell.webdataset.episodes_reader import EpisodeShardsReader
    from stepwell.webdataset.reader import WebDatasetReader
    from stepwell.webdataset.tar_files import TarIndex, read_tar_index
    from stepwell.webdataset.writing import write_webdataset

# the modules of names, loaded on first use
_HOMES: dict[str, str] = {
    "EpisodeShardsReader": "stepwell.webdataset.episodes_reader",
    "TarIndex": "stepwell.webdataset.tar_files",
    "WebDatasetReader": "stepwell.webdataset.reader",
    "read_tar_index": "stepwell.webdataset.tar_files",
    "write_webdataset": "stepwell.webdataset.writing",
}

__all__: list[str] = ["EpisodeShardsReader", "TarIndex", "WebDatasetReader", "read_tar_index", "write_webdataset"]


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name: str) -> Any:
        return load_name(__name__, _HOMES, name)


def __dir__() -> list[str]:
    return sorted(__all__)
