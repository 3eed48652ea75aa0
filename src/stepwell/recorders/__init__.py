"""Recorders: how steps get into a store, from environments as they run, from data sets and from other stores."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepwell.errors import MissingDependencyError

if TYPE_CHECKING:
    from stepwell.recorders.conversion_reports import ConvertReport
    from stepwell.recorders.gymnasium import EpisodeRecorder
    from stepwell.recorders.parallel import write_episodes, write_samples
    from stepwell.recorders.recoding import convert
    from stepwell.recorders.sources import EpisodeData
    from stepwell.recorders.spaces import schema_of
    from stepwell.recorders.vector import VectorRecorder

__all__ = [
    "ConvertReport",
    "EpisodeData",
    "EpisodeRecorder",
    "VectorRecorder",
    "convert",
    "schema_of",
    "write_episodes",
    "write_samples",
]

_HOME_OF = {
    "ConvertReport": "conversion_reports",
    "EpisodeData": "sources",
    "EpisodeRecorder": "gymnasium",
    "VectorRecorder": "vector",
    "convert": "recoding",
    "schema_of": "spaces",
    "write_episodes": "parallel",
    "write_samples": "parallel",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'stepwell.recorders' has no attribute {name!r}")
    try:
        module = import_module(f"stepwell.recorders.{_HOME_OF[name]}")
    except ModuleNotFoundError as error:
        if error.name == "gymnasium":
            raise MissingDependencyError.of("gymnasium", "gymnasium") from error
        raise
    return getattr(module, name)
