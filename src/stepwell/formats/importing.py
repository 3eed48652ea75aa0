r"""Importing: a data set of another system becomes a store, episode by episode, by several processes.

::

    Reader --EpisodeData--> rows as they come --------------------------> write_episodes: a segment a chunk
                       \--> Recoded, where another codec is asked for --/       resumable
"""

from __future__ import annotations

import inspect
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.file_spans import FileSpanCodec, FileSpans
from stepwell.errors import EpisodeNotFoundError, FormatError, SchemaError, StoreExistsError
from stepwell.formats.import_reports import ImportReport, report_of
from stepwell.formats.reader import Reader
from stepwell.formats.recoded import Recoded
from stepwell.formats.registry import find_reader
from stepwell.recorders.parallel import write_episodes
from stepwell.recorders.recoding import converted_feature
from stepwell.recorders.resuming import IMPORTING
from stepwell.recorders.sources import EpisodeData, chunk_length
from stepwell.schema import Feature, Schema, flatten
from stepwell.store.encoded_rows import HasRows
from stepwell.store.records import SEGMENT_BYTES

__all__ = ["Codecs", "import_dataset", "imported_schema", "open_reader"]

NamedCodecs = Mapping[str, Feature | str]
Codecs = NamedCodecs | str | Callable[[Schema], NamedCodecs] | None


def import_dataset(
    source: str | os.PathLike[str] | Reader,
    target: str | os.PathLike[str],
    *,
    reader: str | None = None,
    codecs: Codecs = None,
    episodes: Any = None,
    workers: int | None = None,
    resume: bool = True,
    progress: bool | None = None,
    **options: Any,
) -> ImportReport:
    """Make a store of a data set of another system, by several processes.

    What is encoded already (PNG and JPEG files, packets of videos) is stored as it is, unless another codec is asked
    for. A source that is fetched is fetched as its episodes come, and let go.

    Args:
        source: a path or an address, such as ``"lerobot://owner/name"``; or a reader.
        target: path of the new store. Until all is there it opens as any store, and shows what was written so far.
        reader: name of the source's format; default: found by looking.
        codecs: of all its images ("jpeg"); or features by name, as codec or feature with options; or a function that
            returns these for the source's schema. What is not named stays as it is.
        episodes: an index, indices, a slice or a bool mask: only these, in ascending order; default all.
        workers: number of processes; default one a processor, 0 or 1 imports in this process. What is stored is the
            same for every number.
        resume: keep what is finished when it fails, or is interrupted or killed: the same call again does the rest.
            False: a failure takes everything back.
        progress: a bar on stderr; default: when it is a terminal and tqdm is installed.
        options: of the reader.

    Returns:
        What became of each feature, and how large it is.

    Raises:
        FormatError: no reader for the source, or it is not as its format says.
        SchemaError: a codec that cannot store the feature; nothing was written.
        FeatureNotFoundError: a name that the source does not have.
        EpisodeNotFoundError: there are no such episodes.
        StoreExistsError: something is at the target that is no unfinished import of the same source and codecs.
        StoreBusyError: another process is at it.
        WorkerError: an episode that could not be read or written; the message names it.

    Notes:
        Memory is bounded: a worker holds the encoded rows of one episode, and a few pieces of decoded ones. In a
        script, more than one worker needs an ``if __name__ == "__main__":`` guard.
    """
    began = time.perf_counter()
    _check_target(Path(target), resume)
    found = source if isinstance(source, Reader) else open_reader(source, reader, options)
    place = Path(target).absolute()
    found.scratch = scratch = place.with_name(f".{place.name}.fetched")
    try:
        chosen = _chosen(len(found), episodes)
        before = found.schema
        after = imported_schema(before, codecs)
        size = found.episode_bytes(after)
        store = write_episodes(
            target,
            _Import(found, before, after, chosen),
            schema=after,
            fps=found.fps,
            metadata=found.metadata,
            workers=workers,
            chunk_episodes=None if size is None else chunk_length(len(chosen), size, SEGMENT_BYTES),
            resume=resume,
            progress=progress,
        )
    finally:
        found.scratch = None
        shutil.rmtree(scratch, ignore_errors=True)
    with store:
        return report_of(store, before, time.perf_counter() - began)


def open_reader(
    source: str | os.PathLike[str], name: str | None = None, options: Mapping[str, Any] | None = None
) -> Reader:
    """Return the reader of a source.

    Args:
        source: a path, or what a reader takes.
        name: of the reader; default: found by looking.
        options: of the reader.

    Raises:
        FormatError: no reader for it, or an option that its reader does not have.
    """
    kind = find_reader(source, name)
    known = [
        parameter
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind != parameter.VAR_KEYWORD
    ]
    names = [parameter.name for parameter in known][1:]
    unknown = [option for option in options or () if option not in names]
    if unknown:
        raise FormatError(
            f"the reader {kind.name!r} has no option {', '.join(map(repr, unknown))}. "
            f"It has: {', '.join(names) or 'none'}."
        )
    return kind(os.fspath(source), **(options or {}))


def imported_schema(schema: Schema, codecs: Codecs) -> Schema:
    """Return the schema of the store to be.

    Args:
        schema: of the source.
        codecs: see `import_dataset`.

    Raises:
        SchemaError: a codec that cannot store the feature, or one for all images where there is none.
        FeatureNotFoundError: a name that the source does not have.

    Example:
        >>> from stepwell.schema import Array, Image
        >>> print(imported_schema(Schema({"top": Image((8, 8, 3), codec="png"), "action": Array(2)}), "jpeg")["top"])
        jpeg 8x8x3 uint8
    """
    if callable(codecs):
        codecs = codecs(schema)
    if isinstance(codecs, str):
        codecs = dict.fromkeys(image_names(schema), codecs)
    changed = dict(schema)
    for name, given in (codecs or {}).items():
        old = schema[name]
        try:
            # a codec that it has already, without options, means: as it is
            changed[name] = old if given == old.codec else converted_feature(old, given)
        except SchemaError as error:
            raise SchemaError(f"feature {name!r}: {error}") from error
    return Schema(changed)


def image_names(schema: Schema) -> list[str]:
    """Return the features that are images.

    Raises:
        SchemaError: there is none.
    """
    names = [name for name, feature in schema.items() if feature.kind == "image"]
    if not names:
        raise SchemaError(f"no images to store by another codec. Say of which feature: {', '.join(schema)}.")
    return names


class _Import:
    """The source of `write_episodes`: chosen episodes of a reader, with the rows that the store is to have."""

    def __init__(self, reader: Reader, before: Schema, after: Schema, chosen: npt.NDArray[np.int64]) -> None:
        self._reader, self._before, self._after, self._chosen = reader, before, after, chosen

    @property
    def identity(self) -> str:
        """What an interrupted import is known by."""
        return f"{self._reader.identity}; chosen {len(self._chosen)} {zlib.crc32(self._chosen.tobytes()):08x}"

    def prepare(self, spans: Sequence[tuple[int, int]]) -> None:
        """Tell the reader which episodes will be read; see `HasSpans`."""
        parts = [self._chosen[start:stop] for start, stop in spans]
        self._reader.prepare(np.concatenate([np.empty(0, np.int64), *parts]))

    def forget(self, start: int, stop: int) -> None:
        """Tell the reader which episodes are stored; see `HasSpans`."""
        self._reader.forget(self._chosen[start:stop])

    def __len__(self) -> int:
        return len(self._chosen)

    def __iter__(self) -> Iterator[EpisodeData]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> EpisodeData:
        episode = int(self._chosen[index])
        label = self._reader.label(episode)
        try:
            found = self._reader[episode]
        except (OSError, ValueError, LookupError, ArithmeticError) as error:
            raise FormatError(f"{label} cannot be read: {error}") from error
        columns = {name: self._column(name, values, label) for name, values in flatten(found.columns)}
        return EpisodeData(columns, found.terminated, found.truncated, found.metadata)

    def _column(self, name: str, values: Any, label: str) -> Any:
        if not isinstance(values, HasRows):
            return values
        before, after, where = self._before.get(name), self._after.get(name), f"{label}, feature {name!r}"
        stays = after is not None and after.codec == FileSpanCodec.name
        if isinstance(values, FileSpans) and values.feature.is_raw and not stays:
            return _array_of(values, where)
        if before is None or before == after or stays:
            return _Named(values, where)
        return Recoded(_Named(values, where), before, where)


def _array_of(spans: FileSpans, where: str) -> npt.NDArray[Any]:
    try:
        return spans.array()
    except (OSError, ValueError, LookupError) as error:
        raise FormatError(f"{where}: {error}") from error


class _Named:
    """Rows whose errors say of which episode and feature they are; it counts their bytes as they come."""

    def __init__(self, given: HasRows, where: str) -> None:
        self._given, self._where = given, where
        self.nbytes = int(getattr(given, "nbytes", 0))

    @property
    def num_rows(self) -> int:
        """Rows that there are."""
        return self._given.num_rows

    def rows(self, feature: Feature) -> Iterator[bytes]:
        """Yield the rows; see `HasRows`."""
        self.nbytes = 0
        try:
            for blob in self._given.rows(feature):
                self.nbytes += len(blob)
                yield blob
        except (OSError, ValueError, LookupError) as error:
            raise FormatError(f"{self._where}: {error}") from error


def _check_target(target: Path, resume: bool) -> None:
    """Refuse a target that is taken before anything is read."""
    is_taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if is_taken and not (resume and (target / IMPORTING).exists()):
        raise StoreExistsError(f"{target} is there already. Choose another path, or remove it.")


def _chosen(count: int, episodes: Any) -> npt.NDArray[np.int64]:
    """Return ascending indices of episodes."""
    everything = np.arange(count, dtype=np.int64)
    try:
        chosen = everything if episodes is None else np.unique(everything[episodes])
    except (IndexError, TypeError, ValueError) as error:
        raise EpisodeNotFoundError(
            f"episodes={episodes!r}: the source has {count}, 0 to {count - 1}. Give an index, indices, a slice or a "
            "mask of them."
        ) from error
    if not len(chosen):
        raise EpisodeNotFoundError(f"no episodes to import: the source has {count}, and {episodes!r} chooses none.")
    return chosen
