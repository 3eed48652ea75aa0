"""Data sets of other systems, opened where they lie: a store in the cache refers to their files.

::

    files(source): names, sizes, times ──> is there a store in the cache for them? ── yes ──> open it
                               |                    | no
                               |                    v
                               |   Reader ── blocks() ────────> write_store ─────────────┐
                               |         └── episodes ────────> write_episodes ──────────┴──> CachedStore ──> open it
                               └── noted with ──> spans, which stay in the files; all else is copied
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.codecs.codec import codec_class
from stepwell.errors import DatasetNotFoundError, FormatError
from stepwell.files.addresses import cache_directory, is_remote, plain_address
from stepwell.formats.addresses import Address, SourceLike, told_address
from stepwell.formats.boundaries import check_boundaries
from stepwell.formats.cached_stores import CachedStore
from stepwell.formats.fingerprints import digest_of
from stepwell.formats.option_keys import option_key
from stepwell.formats.reader import Reader, decoded_as
from stepwell.formats.reader_episodes import ReaderEpisodes
from stepwell.formats.registry import OPENERS, address_of, check_address, find_reader, made_reader
from stepwell.json_text import seal_json
from stepwell.progress import make_bar
from stepwell.recorders.parallel import write_episodes
from stepwell.references.file_codec import ListedFileCodec, files_of, noting_states
from stepwell.references.remote_files import remote_states
from stepwell.references.span_files import common_root, noted_states
from stepwell.references.trusted_paths import Trust
from stepwell.schema import Schema
from stepwell.store import Store
from stepwell.store.bulk_writing import EpisodeBlock, write_store
from stepwell.store.info import file_codec_of
from stepwell.store.layout import STORE_JSON, built_store, replace_file

__all__ = ["open_in_place"]

Entry = tuple[str, int, int | str]
# stores of references that were made in another way are made anew
REFERENCES = b"with the states of files"


def open_in_place(
    source: SourceLike,
    *,
    reader: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    trust: Trust = None,
    **options: Any,
) -> Store:
    """Open a data set of another system as a store, without converting it.

    Args:
        source: a path, an address of a file, or one that names its reader, such as ``"beton://data/train.beton"``; a
            list of them where the reader takes several.
        reader: name of the source's format; default: that of the address, else found by looking.
        cache: directory for what is made once; default ``$STEPWELL_CACHE``, else ``$XDG_CACHE_HOME/stepwell`` or
            ``~/.cache/stepwell``.
        progress: a bar on stderr while it is made; default: when it is a terminal and tqdm is installed.
        trust: directories that links of the data set may lead to, beyond its own; True: anywhere. See `stepwell.open`.
        options: of the reader.

    Returns:
        A store, open for reading. What the reader leaves in the files is read from there, the rest was copied.

    Raises:
        FormatError: no reader for the source, an option that it does not have, or a file that is damaged.
        UntrustedFileError: a link that leads out of the data set's directory.
        DatasetNotFoundError: a file that is not there.
        ReadOnlyError: the cache cannot be written.
        DiskFullError: no space in the cache.

    Notes:
        The first time all is read that does not stay in the files; later it is a look at their names, sizes and times.
        A data set whose files changed is read again, and what stood for it before is removed when nobody uses it. The
        files must stay where they are. Any number of processes may come at once: one makes the store.
    """
    address, kind = address_of(source, reader, options), find_reader(source, reader)
    if kind.name in OPENERS:
        module, _, name = OPENERS[kind.name].partition(":")
        store: Store = getattr(import_module(module), name)(
            address.source, cache=cache, progress=progress, trust=trust, **address.options
        )
        return store
    check_address(kind, address)
    check_boundaries(address.source, trust)
    return _Opening(kind, address, progress).open(cache_directory() if cache is None else Path(cache))


@dataclass(frozen=True, slots=True)
class _Opening:
    """One call: what is opened, and how.

    Args:
        kind: of reader.
        address: source and options.
        progress: see `open_in_place`.
    """

    kind: type[Reader]
    address: Address
    progress: bool | None

    def open(self, cache: Path) -> Store:
        """Return the store, made unless it is there."""
        options = self._options()
        places = [part if is_remote(part) else os.path.abspath(part) for part in self.address.source.split("\n")]  # noqa: PTH100
        # before anything is read: what changes afterwards has another digest
        files = _states_of(self.kind.files(self.address.source, **self.address.options))
        cached = CachedStore(
            self.kind.name,
            # options may choose other files: each choice has its folder, or would take another's store for a stale one
            repr((places, options)),
            name=plain_address(places[0]).rstrip("/").rpartition("/")[2],
            files=digest_of(files, REFERENCES),
            options=options,
            cache=cache,
            address=told_address(self.address, self.kind.name),
        )
        return cached.open(lambda path: self._build(path, files))

    def _options(self) -> list[tuple[str, str]]:
        """Return what tells the options from others, the same in every process."""
        meant = self.kind.meant(self.address.options)
        return sorted((name, option_key(value)) for name, value in meant.items())

    def _build(self, path: Path, files: Sequence[Entry]) -> None:
        """Write the store."""
        reader = made_reader(self.kind, self.address)
        in_place = decoded_as(reader.in_place_schema, reader.dct)
        schema, uuid = _noting_states(in_place, files), self._identity(reader, files)
        blocks = reader.blocks()
        if blocks is None:
            self._write_episodes(path, reader, schema, uuid)
            return
        with make_bar(len(reader), "episodes", f"map {path.name}", wanted=self.progress) as bar:
            write_store(path, schema, _counted(blocks, bar), fps=reader.fps, metadata=reader.metadata, uuid=uuid)

    def _write_episodes(self, path: Path, reader: Reader, schema: Schema, uuid: str) -> None:
        episodes = ReaderEpisodes(reader, schema, np.arange(len(reader)))
        with built_store(path) as hidden, _scratch_of(reader, path):
            store = write_episodes(
                hidden,
                episodes,
                schema=schema,
                fps=reader.fps,
                metadata=reader.metadata,
                # processes that are spawned would run a script again that opens a data set without a guard
                workers=1,
                # so that nobody shares the work, and a segment may be as large as they get
                edges=[0],
                progress=self.progress,
            )
            with store:
                record = replace(store.record, uuid=uuid)
            replace_file(f"{hidden}/{STORE_JSON}", seal_json(record.to_json()))

    def _identity(self, reader: Reader, files: Sequence[Entry]) -> str:
        """Return the same for the same files wherever they lie: training goes on on another machine."""
        root = common_root([path for path, _, _ in files])[0] if files else ""
        told = [(path.removeprefix(root), num_bytes) for path, num_bytes, _ in files]
        whole = repr((reader.name, self._options(), len(reader), sorted(told)))
        return hashlib.blake2b(whole.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


@contextmanager
def _scratch_of(reader: Reader, path: Path) -> Iterator[None]:
    """Give a reader a directory for what it fetches, which goes afterwards."""
    reader.scratch = scratch = path.with_name(f".{path.name}.fetched")
    try:
        yield
    finally:
        reader.scratch = None
        shutil.rmtree(scratch, ignore_errors=True)


def _noting_states(schema: Schema, files: Sequence[Entry]) -> Schema:
    """Return a schema whose references know what the files were before anything was read."""
    told = [name for name, feature in schema.items() if feature.reach is not None and file_codec_of(feature)]
    if told:
        # a store in the cache may lead anywhere: what leads it there is the reader's code, never what it has read
        raise FormatError(f"feature {told[0]!r}: its references come from the data set itself, and are not followed.")
    known = {path: (num_bytes, version) for path, num_bytes, version in files}
    made = dict(schema)
    for name, feature in schema.items():
        if not feature.is_raw and issubclass(codec_class(feature), ListedFileCodec):
            paths = [os.fspath(path) for path in files_of(feature).paths]
            # of a reader that did not name all its files
            more = _states_of([path for path in paths if path not in known])
            known |= {path: (num_bytes, version) for path, num_bytes, version in more}
            made[name] = noting_states(feature, noted_states(known[path] for path in paths))
    return Schema(made)


def _states_of(paths: Sequence[str]) -> list[Entry]:
    """Return (path, bytes, version) of files, the version an mtime of those on this machine."""
    remote = [path for path in paths if is_remote(path)]
    states = dict(zip(remote, remote_states(remote), strict=True)) if remote else {}
    found: list[Entry] = []
    for path in paths:
        if path in states:
            found.append((path, states[path].num_bytes or -1, states[path].version))
            continue
        try:
            status = os.stat(path)  # noqa: PTH116  many files
        except (FileNotFoundError, NotADirectoryError):
            raise DatasetNotFoundError(f"{path} is not there. Give the path or address of a data set.") from None
        except (OSError, ValueError) as error:
            told = getattr(error, "strerror", None) or error
            raise DatasetNotFoundError(f"{path} cannot be looked at: {told}. May you read it?") from error
        found.append((os.path.abspath(path), status.st_size, status.st_mtime_ns))  # noqa: PTH100
    return found


def _counted(blocks: Iterable[EpisodeBlock], bar: Any) -> Iterator[EpisodeBlock]:
    for block in blocks:
        yield block
        bar.update(len(block.lengths))
