r"""Importing: a data set of another system becomes a store, episode by episode, by several processes.

::

    Reader --EpisodeData--> rows as they come --------------------------> write_episodes: a segment a chunk
                       \--> Recoded, where another codec is asked for --/       resumable
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import EpisodeNotFoundError, SchemaError, StoreExistsError
from stepwell.formats.import_reports import ImportReport, report_of
from stepwell.formats.reader import Reader, decoded_as
from stepwell.formats.reader_episodes import ReaderEpisodes
from stepwell.formats.registry import SourceLike, open_reader
from stepwell.recorders.recoding import converted_feature
from stepwell.recorders.resuming import IMPORTING
from stepwell.recorders.sources import chunk_length
from stepwell.recorders.write import write_episodes
from stepwell.references.trusted_paths import Trust
from stepwell.schema import Feature, Schema
from stepwell.store.records import SEGMENT_BYTES

__all__ = ["Codecs", "import_dataset", "imported_schema"]

NamedCodecs = Mapping[str, Feature | str]
Codecs = NamedCodecs | str | Callable[[Schema], NamedCodecs] | None


def import_dataset(
    source: SourceLike | Reader,
    target: str | os.PathLike[str],
    *,
    reader: str | None = None,
    codecs: Codecs = None,
    episodes: Any = None,
    workers: int | None = None,
    resume: bool = True,
    progress: bool | None = None,
    trust: Trust = None,
    **options: Any,
) -> ImportReport:
    """Make a store of a data set of another system, by several processes.

    What is encoded already (PNG and JPEG files, packets of videos) is stored as it is, unless another codec is asked
    for. A source that is fetched is fetched as its episodes come, and let go.

    Args:
        source: a path, an address of a file, or one that names its reader, such as ``"lerobot://owner/name"`` or
            ``"beton://data/train.beton"``; a list of them where the reader takes several; or a reader.
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
        trust: directories that links of the data set may lead to, beyond its own; True: anywhere. See `stepwell.open`.
        options: of the reader.

    Returns:
        What became of each feature, and how large it is.

    Raises:
        FormatError: no reader for the source, or it is not as its format says.
        UntrustedFileError: a link that leads out of the data set's directory.
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
    found = source if isinstance(source, Reader) else open_reader(source, reader, options, trust=trust)
    place = Path(target).absolute()
    found.scratch = scratch = place.with_name(f".{place.name}.fetched")
    try:
        chosen = _chosen(len(found), episodes)
        before = found.schema
        after = imported_schema(decoded_as(before, found.dct), codecs)
        size, source_episodes = found.episode_bytes(after), ReaderEpisodes(found, after, chosen)
        edges = source_episodes.edges
        length = None
        if size is not None:
            length = chunk_length(len(chosen), size, SEGMENT_BYTES, has_edges=edges is not None)
        store = write_episodes(
            target,
            source_episodes,
            schema=after,
            fps=found.fps,
            metadata=found.metadata,
            workers=workers,
            chunk_episodes=length,
            edges=edges,
            resume=resume,
            progress=progress,
        )
    finally:
        found.scratch = None
        shutil.rmtree(scratch, ignore_errors=True)
    with store:
        return report_of(store, before, time.perf_counter() - began)


def imported_schema(schema: Schema, codecs: Codecs) -> Schema:
    """Return the schema of the store to be.

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
    """Return the features that are images."""
    names = [name for name, feature in schema.items() if feature.kind == "image"]
    if not names:
        raise SchemaError(f"no images to store by another codec. Say of which feature: {', '.join(schema)}.")
    return names


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
