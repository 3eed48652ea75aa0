"""stepwell: steps are stored once, decoded once, and everything else is an index over them.

Every name below is loaded on first use (PEP 562), so that ``import stepwell`` costs a few milliseconds and
loads neither numba, torch nor any image library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell import beton as beton
    from stepwell import codecs as codecs
    from stepwell import errors as errors
    from stepwell import ffcv as ffcv
    from stepwell import formats as formats
    from stepwell import lerobot as lerobot
    from stepwell import octo as octo
    from stepwell import order as order
    from stepwell import ray as ray
    from stepwell import replay as replay
    from stepwell import reverb as reverb
    from stepwell import service as service
    from stepwell import testing as testing
    from stepwell import tfds as tfds
    from stepwell import transforms as transforms
    from stepwell import webdataset as webdataset
    from stepwell.codecs import Codec, Decoder, SequentialCodec, register_codec
    from stepwell.codecs.video_files import VideoFile
    from stepwell.errors import (
        CorruptSegmentError,
        DatasetNotFoundError,
        DecodeError,
        DiskFullError,
        EncodeError,
        EpisodeNotFoundError,
        FeatureNotFoundError,
        FormatError,
        LoaderError,
        MissingDependencyError,
        OrderError,
        RateLimitError,
        ReadOnlyError,
        SchemaError,
        SegmentGoneError,
        ServiceError,
        StateError,
        StepError,
        StepwellError,
        StoreBusyError,
        StoreExistsError,
        StoreNotFoundError,
        StoreVersionError,
        TableError,
        UntrustedFileError,
        WindowError,
        WorkerError,
        WriterClosedError,
    )
    from stepwell.formats.conversion import convert
    from stepwell.formats.opening import open as open
    from stepwell.loader import Batch, BatchSampler, Loader, WindowDataset, gather_valid
    from stepwell.order import BoundOrder, Order, mixed, pooled, sequential, weighted
    from stepwell.order import random as random
    from stepwell.recorders import ConvertReport, EpisodeData, write_episodes, write_samples
    from stepwell.recorders import EpisodeRecorder as EpisodeRecorder
    from stepwell.recorders import VectorRecorder as VectorRecorder
    from stepwell.recorders import schema_of as schema_of
    from stepwell.replay import ReplayLoader, Table, TableWriter, sequence_fields, transition_fields
    from stepwell.schema import Array, Bytes, Feature, Image, Schema, Text, Video, infer_schema
    from stepwell.store import EncodedRows, Episode, Samples, Store, Writer, concatenate, create
    from stepwell.transforms import BatchTransform, Transform
    from stepwell.windows import Field, View

    __version__: str

_HOMES = {
    "stepwell.codecs": "Codec Decoder SequentialCodec register_codec",
    "stepwell.codecs.video_files": "VideoFile",
    "stepwell.errors": (
        "CorruptSegmentError DatasetNotFoundError DecodeError DiskFullError EncodeError EpisodeNotFoundError "
        "FeatureNotFoundError FormatError LoaderError MissingDependencyError OrderError RateLimitError ReadOnlyError "
        "SchemaError SegmentGoneError ServiceError StateError StepError StepwellError StoreBusyError "
        "StoreExistsError StoreNotFoundError StoreVersionError TableError UntrustedFileError "
        "WindowError WorkerError WriterClosedError"
    ),
    "stepwell.formats.conversion": "convert",
    "stepwell.formats.opening": "open",
    "stepwell.loader": "Batch BatchSampler Loader WindowDataset gather_valid",
    "stepwell.order": "BoundOrder Order mixed pooled random sequential weighted",
    "stepwell.recorders": (
        "ConvertReport EpisodeData EpisodeRecorder VectorRecorder schema_of write_episodes write_samples"
    ),
    "stepwell.replay": "ReplayLoader Table TableWriter sequence_fields transition_fields",
    "stepwell.schema": "Array Bytes Feature Image Schema Text Video infer_schema",
    "stepwell.store": "EncodedRows Episode Samples Store Writer concatenate create",
    "stepwell.transforms": "BatchTransform Transform",
    "stepwell.windows": "Field View",
}
# without an import statement of their own: stepwell.transforms.RandomCrop
_PACKAGES = [
    "beton",
    "codecs",
    "errors",
    "ffcv",
    "formats",
    "lerobot",
    "octo",
    "order",
    "ray",
    "replay",
    "reverb",
    "service",
    "testing",
    "tfds",
    "transforms",
    "webdataset",
]
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}

# a star import takes neither what stands on an optional package, so that it does not fail for want of it, nor `open`
# and `random`, which would hide a builtin and a module of everybody's
__all__ = [
    "Array",
    "Batch",
    "BatchSampler",
    "BatchTransform",
    "BoundOrder",
    "Bytes",
    "Codec",
    "ConvertReport",
    "CorruptSegmentError",
    "DatasetNotFoundError",
    "DecodeError",
    "Decoder",
    "DiskFullError",
    "EncodeError",
    "EncodedRows",
    "Episode",
    "EpisodeData",
    "EpisodeNotFoundError",
    "Feature",
    "FeatureNotFoundError",
    "Field",
    "FormatError",
    "Image",
    "Loader",
    "LoaderError",
    "MissingDependencyError",
    "Order",
    "OrderError",
    "RateLimitError",
    "ReadOnlyError",
    "ReplayLoader",
    "Samples",
    "Schema",
    "SchemaError",
    "SegmentGoneError",
    "SequentialCodec",
    "ServiceError",
    "StateError",
    "StepError",
    "StepwellError",
    "Store",
    "StoreBusyError",
    "StoreExistsError",
    "StoreNotFoundError",
    "StoreVersionError",
    "Table",
    "TableError",
    "TableWriter",
    "Text",
    "Transform",
    "UntrustedFileError",
    "Video",
    "VideoFile",
    "View",
    "WindowDataset",
    "WindowError",
    "WorkerError",
    "Writer",
    "WriterClosedError",
    "__version__",
    "concatenate",
    "convert",
    "create",
    "gather_valid",
    "infer_schema",
    "mixed",
    "pooled",
    "register_codec",
    "sequence_fields",
    "sequential",
    "transition_fields",
    "weighted",
    "write_episodes",
    "write_samples",
]


if not TYPE_CHECKING:  # a type checker would take it for any name

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name == "__version__":
            from importlib.metadata import version

            value: Any = version("stepwell")
        elif name in _HOME_OF:
            value = getattr(import_module(_HOME_OF[name]), name)
        elif name in _PACKAGES:
            value = import_module(f"stepwell.{name}")
        else:
            raise AttributeError(f"module 'stepwell' has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    from importlib.util import find_spec

    needs_gymnasium = () if find_spec("gymnasium") else ("EpisodeRecorder", "VectorRecorder", "schema_of")
    return sorted({*__all__, *_HOME_OF, *_PACKAGES} - {*needs_gymnasium})
