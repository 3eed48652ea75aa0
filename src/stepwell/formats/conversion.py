r"""Conversion: a store of another store, or of a data set of another system, with the codecs that its user wants.

::

    Store  --segments------------> rows decoded, embedded or copied ----------> a segment a chunk, by several processes
    Reader --EpisodeData--> rows as they come --> likewise, where another codec is wanted --> a segment a chunk
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import EpisodeNotFoundError, SchemaError, StepwellError, StoreExistsError, StoreNotFoundError
from stepwell.files.addresses import SCHEME, local_path, nothing_at
from stepwell.formats.opening import is_store, open
from stepwell.formats.reader import Reader, decoded_as, scratch_beside
from stepwell.formats.reader_episodes import ReaderEpisodes
from stepwell.formats.registry import SourceLike, open_reader, readers_of
from stepwell.formats.splits import taken_split
from stepwell.recorders.chunks import Executor, Workers
from stepwell.recorders.conversion_reports import ConvertedFeature, ConvertReport
from stepwell.recorders.recoded_columns import EpisodeInSegment, stored_bytes
from stepwell.recorders.recoding import Codecs, convert_store, converted_schema, joined_features
from stepwell.recorders.resuming import IMPORTING
from stepwell.recorders.sources import chunk_length
from stepwell.recorders.write import recode_episodes
from stepwell.references.trusted_paths import Trust
from stepwell.store import Store
from stepwell.store.info import make_table
from stepwell.store.layout import built_store, check_is_outside, target_path
from stepwell.store.marks import carry_marks_of_place
from stepwell.store.records import SEGMENT_BYTES

__all__ = ["convert", "import_dataset", "open_source"]


def convert(
    source: Store | Reader | SourceLike,
    target: str | os.PathLike[str],
    features: Codecs = MappingProxyType({}),
    *,
    reader: str | None = None,
    episodes: Any = None,
    workers: int | None = None,
    executor: Executor | None = None,
    resume: bool | None = None,
    progress: bool | None = None,
    trust: Trust = None,
    **options: Any,
) -> ConvertReport:
    """Make a new store of the episodes of a store, or of a data set of another system.

    Episodes keep their order, ends and metadata; those of a store also their ``origin``, so that a split is the same in
    both stores. Features that are not named are copied as they lie on the disk; what is encoded already in a data set
    (PNG and JPEG files, packets of videos) is taken in as it is. Each row that is encoded is decoded again and
    compared. Rows of a store that lie in other files, as in a LeRobot data set that is read in place, become the
    target's own. A data set that is fetched is fetched as its episodes come, and let go.

    Args:
        source: a store; a path of a store or of a data set, an address that names its reader, such as
            ``"lerobot://owner/name"`` or ``"beton://data/train.beton"``, or a list of them where the reader takes
            several; or a reader. Deleted episodes are left behind.
        target: path of the new store; nothing may be there but what a call with ``resume`` left.
        features: name to codec ("jpeg", with its default options) or feature (``Image((96, 96, 3), codec="jpeg",
            quality=90)``), of which codec and options count: dtype and shape must be the same; or one codec of all
            images. Where both are what the source has already, or options differ only in how rows are decoded (``dct``
            of JPEG), the bytes are copied. None at all: of a data set, of some ``episodes``, or where rows are to be
            taken in from other files.
        reader: name of a data set's format; default: found by looking.
        episodes: an index, indices, a slice or a bool mask: only these, in ascending order; default all.
        workers: number of processes; default one a processor, 0 or 1 converts in this process. The new segments are the
            same, byte by byte, for every number.
        executor: where that is done instead of in ``workers`` processes; see `stepwell.ray.RayExecutor`.
        resume: keep what is finished when the conversion fails, or is interrupted or killed: the same call again does
            the rest, and warns where files of a data set changed meanwhile: what is finished stays as it is. Until all
            is there the target opens as any store, and shows what was written so far. False: a store appears whole or
            not at all (a killed conversion leaves a hidden directory beside it, which the next try at the same path
            removes), and a failure takes everything back. Default: True for a data set of another system, False for a
            store.
        progress: a bar on stderr; default: when it is a terminal and tqdm is installed.
        trust: directories that links of a data set may lead to, beyond its own; True: anywhere. See `stepwell.open`.
        options: of the reader.

    Returns:
        What became of each feature: bytes, ratio, PSNR.

    Raises:
        FeatureNotFoundError: a name that the source does not have.
        StepwellError: a target in the directory of the source, or an option that is none.
        SchemaError: a codec that cannot store the feature, or a feature of another dtype or shape; nothing was written.
        EpisodeNotFoundError: there are no such episodes.
        StoreNotFoundError: no store and no data set at the path.
        FormatError: no reader for the source, or it is not as its format says.
        UntrustedFileError: a link that leads out of the data set's directory.
        StoreBusyError: an episode is still being recorded, or the source was compacted meanwhile; or another process is
            at the target.
        StoreExistsError: something is at the target that is no unfinished conversion of the same source and codecs.
        DiskFullError: no space left for the target.
        WorkerError: an episode that could not be read or written; the message names it and says why.

    Example:
        >>> import tempfile, stepwell
        >>> from stepwell.testing import tiny_store
        >>> folder = tempfile.mkdtemp()
        >>> store = tiny_store(f"{folder}/raw.well")
        >>> report = convert(store, f"{folder}/small.well", {"observation.image": "zstd"}, workers=1)
        >>> report.features["observation.image"].psnr_db, stepwell.open(report.path).schema["observation.image"].codec
        (inf, 'zstd')

    Notes:
        Memory is bounded: a worker holds the encoded rows of an episode and a few batches of decoded ones of 32 MiB. So
        is the space on the disk: rows that are converted wait beside the target, a chunk for each worker. Damage of a
        store that no codec sees is copied: verify it first. In a script, more than one worker needs an
        ``if __name__ == "__main__":`` guard.
    """
    if not isinstance(features, str | Mapping):
        raise SchemaError(
            f'features is a {type(features).__name__}. Give a mapping of name to codec or feature, such as {{"image": '
            '"jpeg"}, or one codec of all images.'
        )
    _check_target(Path(local_path(target)), is_resumable=resume is not False)
    given = open_source(source, reader=reader, trust=trust, **options)
    try:
        check_is_outside(target_path(target), _directories_of(given))
        if isinstance(given, Reader):
            return _convert_reader(
                given, target, features, episodes, executor or workers, resume is not False, progress
            )
        return convert_store(
            given,
            target,
            features,
            workers=executor or workers,
            episodes=episodes,
            resume=resume is True,
            progress=progress,
        )
    finally:
        if isinstance(given, Store) and given is not source:
            given.close()


def import_dataset(
    source: Reader | SourceLike, target: str | os.PathLike[str], *, codecs: Codecs | None = None, **arguments: Any
) -> ConvertReport:
    """Call `convert`, which has taken its place."""
    warnings.warn("import_dataset() is stepwell.convert() now; codecs= is features=.", DeprecationWarning, stacklevel=2)
    return convert(source, target, codecs or {}, **arguments)


def open_source(
    source: Store | Reader | SourceLike, *, reader: str | None = None, trust: Trust = None, **options: Any
) -> Store | Reader:
    """Return the store at a path, or the reader of a data set of another system; see `convert`."""
    if isinstance(source, Store | Reader) or (reader is None and _names_store(source)):
        given = [*options, *(["reader"] if reader is not None else [])]
        if given:
            raise StepwellError(
                f"options {', '.join(given)} of {source!r}: a store has none, a reader its own. Leave them out."
            )
        return source if isinstance(source, Store | Reader) else open(os.fspath(source))  # type: ignore[arg-type]
    return open_reader(source, reader, options, trust=trust)


def _names_store(source: SourceLike) -> bool:
    """Return whether a path is one of a store; raises where nothing is there."""
    if not isinstance(source, str | os.PathLike) or SCHEME.match(os.fspath(source)):
        return False
    # a pattern of names may be too long for a path
    if not os.path.lexists(source):
        if readers_of(os.fspath(source)):
            return False
        raise StoreNotFoundError(f"no store and no data set at {source}: {nothing_at(source)}")
    return is_store(source)


def _convert_reader(  # noqa: PLR0917
    reader: Reader,
    target: str | os.PathLike[str],
    features: Codecs,
    episodes: Any,
    workers: Workers,
    is_resumable: bool,
    progress: bool | None,
) -> ConvertReport:
    began, place = time.perf_counter(), target_path(target)
    origin = reader.name, reader.place_of(reader.source)
    chosen = _chosen(len(reader), episodes)
    before = decoded_as(reader.schema, reader.dct)
    after = converted_schema(before, features)
    whole = nullcontext(str(place)) if is_resumable else built_store(place)
    with scratch_beside(place, reader), whole as made:
        size, source = reader.episode_bytes(after), ReaderEpisodes(reader, before, chosen)
        edges = source.edges
        length = None
        if size is not None:
            length = chunk_length(len(chosen), size, SEGMENT_BYTES, has_edges=edges is not None)
        store, job, results = recode_episodes(
            made,
            source,
            before,
            after,
            fps=reader.fps,
            metadata=reader.metadata,
            workers=workers,
            chunk_episodes=length,
            edges=edges,
            resume=is_resumable,
            progress=progress,
            finish=lambda store: carry_marks_of_place(origin, store, chosen),
        )
        with store:
            table, split = make_table(store), taken_split(store.metadata)
            rows = [EpisodeInSegment(each, 0, each.num_rows, each.num_rows, 0, 0) for each in store.segments]
            sizes = {name: stored_bytes(rows, name, feature) for name, feature in after.items()}
    kept = {name: ConvertedFeature(before[name], after[name], sizes[name], sizes[name], None) for name in after}
    return ConvertReport(
        path=Path(target).absolute(),
        num_episodes=table.num_episodes,
        num_steps=table.num_steps,
        seconds=time.perf_counter() - began,
        features=joined_features(job, results) if results else kept,
        split=split,
    )


def _check_target(target: Path, *, is_resumable: bool) -> None:
    """Refuse a target that is taken before anything is read."""
    is_taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if is_taken and not (is_resumable and (target / IMPORTING).exists()):
        raise StoreExistsError(f"{target} is there already. Choose another path, or remove it.")


def _directories_of(source: Store | Reader) -> list[str]:
    parts = str(source.source if isinstance(source, Reader) else source.path).split("\n")
    return [part for part in parts if "://" not in part and os.path.isdir(part)]  # noqa: PTH112


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
        raise EpisodeNotFoundError(f"no episodes to convert: the source has {count}, and {episodes!r} chooses none.")
    return chosen
