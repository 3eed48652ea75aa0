"""Recorders: how steps get into a store, from environments as they run, from data sets and from other stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.errors import MissingDependencyError
from stepwell.lazy import load_name

if TYPE_CHECKING:
    from stepwell.recorders.chunks import Executor, ProcessExecutor
    from stepwell.recorders.conversion_reports import ConvertReport
    from stepwell.recorders.gymnasium import EpisodeRecorder
    from stepwell.recorders.sources import EpisodeData
    from stepwell.recorders.spaces import schema_of
    from stepwell.recorders.vector import VectorRecorder
    from stepwell.recorders.write import write_episodes, write_samples

__all__ = [
    "ConvertReport",
    "EpisodeData",
    "EpisodeRecorder",
    "Executor",
    "ProcessExecutor",
    "VectorRecorder",
    "schema_of",
    "write_episodes",
    "write_samples",
]

_HOMES = {
    "ConvertReport": "stepwell.recorders.conversion_reports",
    "EpisodeData": "stepwell.recorders.sources",
    "Executor": "stepwell.recorders.chunks",
    "ProcessExecutor": "stepwell.recorders.chunks",
    "EpisodeRecorder": "stepwell.recorders.gymnasium",
    "VectorRecorder": "stepwell.recorders.vector",
    "schema_of": "stepwell.recorders.spaces",
    "write_episodes": "stepwell.recorders.write",
    "write_samples": "stepwell.recorders.write",
}


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name: str) -> Any:
        try:
            return load_name(__name__, _HOMES, name)
        except ModuleNotFoundError as error:
            if error.name == "gymnasium":
                raise MissingDependencyError.of("gymnasium", "gymnasium") from error
            raise


def __dir__() -> list[str]:
    return sorted(__all__)
