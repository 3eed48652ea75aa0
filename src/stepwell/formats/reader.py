"""The interface of a reader: a data set of another system, as episodes.

One class in one file for each format: subclass `Reader`, say by `accepts` what is one's own, set ``schema`` in
``__init__``, implement ``__len__`` and ``__getitem__``, call `register_reader`. See docs/extending.md.
"""

from __future__ import annotations

import os
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs import codec_class
from stepwell.codecs.jpeg import TRANSFORMS
from stepwell.errors import FormatError, LeftOutWarning, SchemaError
from stepwell.files.addresses import is_remote
from stepwell.formats.options import names_of, option_key
from stepwell.formats.source_paths import walked
from stepwell.recorders.sources import EpisodeData
from stepwell.references.file_spans import FileSpanCodec
from stepwell.schema import Feature, Schema
from stepwell.store.layout import hidden_directory

if TYPE_CHECKING:
    from stepwell.store.bulk_writing import EpisodeBlock

__all__ = [
    "Reader",
    "check_told_apart",
    "decoded_as",
    "left_out",
    "scratch_beside",
    "store_schema",
    "warn_of_left_out",
    "with_told_finals",
]


class Reader(ABC):
    """A data set of another system: a sequence of its episodes.

    ::

        __getitem__ ── EpisodeData: arrays, EncodedRows, FileSpans ──> convert           a store: rows are copied
                                                                  └──> open_in_place     a store in the cache: FileSpans
        blocks ─────── EpisodeBlock ─────────────────────────────────> open_in_place     stay where they are

    Args:
        source: where it is: a path, or whatever `accepts` takes; of several paths one a line.
        options: a subclass names its own as keywords; in an address they are text (``"NAME://PATH?option=value"``).

    Attributes:
        name: what ``--from`` says.
        is_last_resort: whether other readers that accept a source go first: of what many data sets are made of.
        source: as given; part of what an interrupted import is known by.
        schema: the features of the store to be, as the rows come: a camera of PNG files is ``Image(..., codec="png")``.
        fps: steps a second, if they are evenly spaced.
        metadata: of the store to be; what JSON holds.
        dct: how JPEG files are decoded, "fast" or "exact": the option ``dct``, which every reader takes; None: as the
            features say. What makes a store of the reader obeys it, see `decoded_as`.
        given_options: as given to `stepwell.convert` or `open_reader`; digests of them are in `identity`.
        own_files: the files of its episodes, where `files` names more: by their names and sizes a store in place is
            known to be the same on another machine. None (default): all.
        scratch: a directory for files that are needed while episodes are read, not made yet; who imports removes it.

    Notes:
        Used by one thread, sent to each worker by pickle: leave open files out of the state (``__getstate__``), or
        open them when they are needed. A worker asks for runs of consecutive episodes, in ascending order.
    """

    name: ClassVar[str]
    is_last_resort: ClassVar[bool] = False
    schema: Schema
    fps: float | None = None
    metadata: Mapping[str, Any] = {}
    dct: str | None = None
    given_options: Mapping[str, Any] = {}
    own_files: Sequence[str] | None = None
    scratch: Path | None = None

    def __init__(self, source: str) -> None:
        self.source = source

    @classmethod
    @abstractmethod
    def accepts(cls, source: str) -> bool:
        """Whether a source looks like one of this format; cheap, and nothing is fetched."""

    @classmethod
    def advice(cls, source: str) -> str:
        """Return what to do that a source is accepted that is nearly one of this format; "" where it is not.

        Asked where no reader accepts a source; cheap, and nothing is fetched.

        Args:
            source: see `Reader`.
        """
        return ""

    @classmethod
    def files(cls, source: str, **options: Any) -> Sequence[str]:
        """Return the files and addresses that a data set is made of; cheap, none is read.

        Their names, sizes and times decide whether a store in the cache still stands for them. Default: the
        source, or every file below it.

        Args:
            source: see `Reader`.
            options: of the reader.
        """
        found: list[str] = []
        for path in source.split("\n"):
            is_folder = "://" not in path and Path(path).is_dir()
            found += sorted([name for name, _, _ in walked(Path(path))]) if is_folder else [path]
        return found

    @classmethod
    def place_of(cls, source: str) -> str:
        """Return where a data set is, whatever it is opened with: its marks are kept by that; cheap, none is read.

        Default: the absolute paths, and addresses of other machines as they are, one a line.

        Args:
            source: see `Reader`.
        """
        found = [
            part if "://" in part and is_remote(part) else os.path.abspath(part)  # noqa: PTH100
            for part in os.fspath(source).split("\n")
        ]
        return "\n".join(found)

    @classmethod
    def meant(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options with each function in place of its name; default: as they are.

        A store in the cache is found again by these: of a function by its name and the file of its module.
        """
        return options

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of episodes."""

    @abstractmethod
    def __getitem__(self, index: int) -> EpisodeData | None:
        """Return an episode; None: it is left out."""

    @property
    def in_place_schema(self) -> Schema:
        """The features when it is opened in place: `schema`, with a `span_feature` for each that stays in the files.

        Default: `schema`, so that everything is copied into the cache, once.
        """
        return self.schema

    @property
    def edges(self) -> npt.NDArray[np.int64] | None:
        """The episodes that begin a file or a shard, int64 [k], ascending; None (default): that does not matter.

        Segments are cut there, so that a worker reads whole shards, one after the other; large ones are cut further.
        """
        return None

    def blocks(self) -> Iterator[EpisodeBlock] | None:
        """Yield all episodes of `in_place_schema`, many at once; None (default): they are read one by one.

        For formats of millions of episodes of one step, where Python would run for minutes for each of them. A column
        of a span feature is ``Blobs(make_spans(file, offsets, sizes).reshape(-1), ...)``, 16 bytes a row.
        """
        return None

    def one_step_episodes(self, start: int, stop: int) -> Mapping[str, Any] | None:
        """Return columns of episodes of one step each, for a conversion, see `HasOneStepEpisodes`; default: None.

        Args:
            start: the first episode.
            stop: one past the last that may be read; to read fewer bounds memory.
        """
        return None

    def episodes(self) -> Iterator[EpisodeData]:
        """Yield all episodes."""
        return (episode for index in range(len(self)) if (episode := self[index]) is not None)

    @property
    def identity(self) -> str:
        """What tells this data set, as it is now, from others: an interrupted import of another is not gone on with.

        Default: the source, the number of episodes, and digests of the options, of which one may be secret.
        """
        options = [f", {name} {_option_digest(value)}" for name, value in sorted(self.given_options.items())]
        return f"{self.name} {self.source}, {len(self)} episodes{''.join(options)}"

    def episode_bytes(self, schema: Schema) -> int | None:
        """Return about how many bytes an episode takes in a store; None: as the first one, which is read for that.

        Args:
            schema: of the store: `schema`, where another codec is asked for with that.
        """
        return None

    def label(self, index: int) -> str:
        """Return what messages call an episode: its name in the data set."""
        return f"episode {index} of {self.source}"

    def prepare(self, episodes: npt.NDArray[np.int64]) -> None:  # noqa: B027  most need nothing
        """Take note of the episodes that will be read, int64 [n], ascending; called before workers have the reader."""

    def forget(self, episodes: npt.NDArray[np.int64]) -> None:  # noqa: B027  most hold nothing
        """Take note that episodes are stored for good, int64 [n]; called in the process that read them."""


@contextmanager
def scratch_beside(path: Path, reader: Reader) -> Iterator[None]:
    """Give a reader a directory of its own for what it fetches, next to ``path``; it is removed at the end."""
    with hidden_directory(path) as hidden:
        reader.scratch = Path(hidden, "fetched")
        try:
            yield
        finally:
            reader.scratch = None


def decoded_as(schema: Schema, dct: str | None) -> Schema:
    """Return a schema whose JPEG files are decoded so; their bytes stay as they are.

    Example:
        >>> from stepwell.schema import Image
        >>> decoded_as(Schema({"top": Image((8, 8, 3), codec="jpeg")}), "fast")["top"].option("dct", "exact")
        'fast'
    """
    if dct is None:
        return schema
    if dct not in TRANSFORMS:
        raise FormatError(f"dct={dct!r}. Allowed: {', '.join(TRANSFORMS)}.")
    made = {name: _decoded_as(feature, dct) for name, feature in schema.items()}
    if not any(dict(feature.options).get("dct") == dct for feature in made.values()):
        raise FormatError(f"dct={dct!r}: there are no images that may be JPEG files: {', '.join(schema)}.")
    return Schema(made)


def _decoded_as(feature: Feature, dct: str) -> Feature:
    codec = feature.option("format", "") if feature.codec == FileSpanCodec.name else feature.codec
    kind = codec_class(replace(feature, codec=codec)) if feature.kind == "image" else None
    if kind is None or "dct" not in kind.decoding_options:
        return feature
    return replace(feature, options=tuple(sorted({**dict(feature.options), "dct": dct}.items())))


def check_told_apart(names: Iterable[str], where: str) -> None:
    """Refuse features of one dotted name; ``where`` names the file in messages."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FormatError(f"{where}: two features are called {name!r}, one with a dot in its name. Rename it.")
        seen.add(name)


def left_out(ignore: Iterable[str] | str, known: Collection[str], where: str) -> frozenset[str]:
    """Return the names of features to leave out, of ``ignore`` as it is given to a reader; FormatError for others."""
    names = frozenset(names_of(ignore))
    unknown = sorted(names - set(known))
    if unknown:
        raise FormatError(f"ignore={unknown}: {where} has {', '.join(known)}.")
    return names


def warn_of_left_out(where: str, names: Sequence[str], reason: str) -> None:
    """Warn of features that a reader leaves out by itself, if there are any."""
    if names:
        told = f"{', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"
        warnings.warn(f"{where}: {told[:1000]}: left out, {reason}.", LeftOutWarning, stacklevel=4)


def with_told_finals(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return features with final rows only where others without one give the number of steps."""
    has_steps = any(not feature.final for feature in features.values())
    return {name: feature if has_steps else feature.with_final(False) for name, feature in features.items()}


def _option_digest(value: Any) -> str:
    return f"{zlib.crc32(option_key(value).encode('utf-8', 'surrogateescape')):08x}"


def store_schema(features: Mapping[str, Feature], where: str) -> Schema:
    """Return the schema of a store; FormatError for a name that no store has, or two that differ only in case."""
    try:
        return Schema(features)
    except SchemaError as error:
        way_out = "".join(f" Leave it out with ignore=[{name!r}]." for name in _wrong_names(features))
        raise FormatError(f"{where}: {error}{way_out}") from error


def _wrong_names(features: Mapping[str, Feature]) -> Iterator[str]:
    """Yield the first name that cannot stand in a store beside those before it."""
    taken: dict[str, Feature] = {}
    for name, feature in features.items():
        taken[name] = feature
        try:
            Schema(taken)
        except SchemaError:
            yield name
            return
