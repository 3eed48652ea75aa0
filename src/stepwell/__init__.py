"""stepwell: steps are stored once, decoded once, and everything else is an index over them.

Every name below is loaded on first use (PEP 562), so that ``import stepwell`` costs a few milliseconds and
loads neither numba, torch nor any image library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.errors import (
        CorruptSegmentError,
        DecodeError,
        EpisodeNotFoundError,
        FeatureNotFoundError,
        LoaderError,
        MissingDependencyError,
        SchemaError,
        StepError,
        StepwellError,
        StoreExistsError,
        StoreNotFoundError,
        WindowError,
    )
    from stepwell.loader import Batch, Loader, WindowDataset
    from stepwell.order import mixed, random, sequential, weighted
    from stepwell.recorders import EpisodeRecorder, VectorRecorder, write_episodes, write_samples
    from stepwell.schema import Array, Bytes, Feature, Image, Schema, Text, infer_schema
    from stepwell.store import Episode, Store, Writer, concatenate, create, open
    from stepwell.windows import Field, View

    __version__: str

_HOMES = {
    "stepwell.errors": (
        "CorruptSegmentError DecodeError EpisodeNotFoundError FeatureNotFoundError LoaderError MissingDependencyError "
        "SchemaError StepError StepwellError StoreExistsError StoreNotFoundError WindowError"
    ),
    "stepwell.loader": "Batch Loader WindowDataset",
    "stepwell.order": "mixed random sequential weighted",
    "stepwell.recorders": "EpisodeRecorder VectorRecorder write_episodes write_samples",
    "stepwell.schema": "Array Bytes Feature Image Schema Text infer_schema",
    "stepwell.store": "Episode Store Writer concatenate create open",
    "stepwell.windows": "Field View",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "Array",
    "Batch",
    "Bytes",
    "CorruptSegmentError",
    "DecodeError",
    "Episode",
    "EpisodeNotFoundError",
    "EpisodeRecorder",
    "Feature",
    "FeatureNotFoundError",
    "Field",
    "Image",
    "Loader",
    "LoaderError",
    "MissingDependencyError",
    "Schema",
    "SchemaError",
    "StepError",
    "StepwellError",
    "Store",
    "StoreExistsError",
    "StoreNotFoundError",
    "Text",
    "VectorRecorder",
    "View",
    "WindowDataset",
    "WindowError",
    "Writer",
    "__version__",
    "concatenate",
    "create",
    "infer_schema",
    "mixed",
    "open",
    "random",
    "sequential",
    "weighted",
    "write_episodes",
    "write_samples",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("stepwell")
    elif name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module 'stepwell' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
