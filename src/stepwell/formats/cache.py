"""Data sets of other systems, opened where they lie: a store in the cache refers to their files.

::

    files(source): names, sizes, times ──> is there a store in the cache for them? ── yes ──> open it
                               |                    | no
                               |                    v
                               |   Reader ── blocks() ────────> write_store ─────────────┐
                               |         └── episodes ────────> write_episodes ──────────┴──> CachedStore ──> open it
                               └── noted with ──> spans, which stay in the files; all else is copied

    $STEPWELL_CACHE | $XDG_CACHE_HOME/stepwell | ~/.cache/stepwell
      lerobot/                               a folder a reader
        pusht-5e884898da28/                  name and hash of the dataset's directory
          lock                               held while a store is built; others wait
          pusht-9f86d081884c7d65-2c26b46b.well     a store: digests of the files, and of the options
          .pusht-9f86....well.7f3a91bc.partial     being built
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.codecs.codec import codec_class
from stepwell.errors import (
    CorruptSegmentError,
    DiskFullError,
    FormatError,
    ReadOnlyError,
    SegmentGoneError,
    StoreNotFoundError,
    UntrustedFileError,
)
from stepwell.files.addresses import cache_directory, plain_address
from stepwell.files.file_locks import FileLock, lock_directory, lock_file
from stepwell.formats.options import option_key
from stepwell.formats.reader import Reader, decoded_as, scratch_beside
from stepwell.formats.reader_episodes import ReaderEpisodes
from stepwell.formats.registry import (
    OPENERS,
    Address,
    SourceLike,
    address_of,
    check_address,
    check_options,
    made_reader,
    reader_of,
    told_address,
)
from stepwell.formats.source_paths import Entry, check_boundaries, digest_of, entries_of
from stepwell.json_text import parse_json, seal_json
from stepwell.progress import make_bar
from stepwell.recorders.write import write_episodes
from stepwell.references.file_codec import ListedFileCodec, files_of, noting_states
from stepwell.references.span_files import common_root, noted_states
from stepwell.references.trusted_paths import Trust
from stepwell.schema import Schema
from stepwell.store.beneath import disk_error
from stepwell.store.bulk_writing import EpisodeBlock, write_store
from stepwell.store.info import file_codec_of
from stepwell.store.layout import BUILD_SUFFIX, SEGMENT_JSON, SEGMENTS, STORE_JSON, built_store, new_tag, replace_file
from stepwell.store.store import Store

__all__ = ["CacheEntry", "CachedStore", "cache_entries", "open_address", "open_in_place"]

# stores whose references were made in another way are made again
REFERENCES = b"with the states of files"
# another number makes every store again
FORMAT = 1
DIGITS = 16
OPTION_DIGITS = 8
ROOT_DIGITS = 12
MAX_NAME = 64
MAX_TRIES = 10
SUFFIX = ".well"
LOCK = "lock"
# what is being removed; and the folder of files that were fetched from other machines
GONE, REMOTE = ".gone", "remote"
UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR)
NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")


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
    return open_address(address_of(source, reader, options), cache=cache, progress=progress, trust=trust)


def open_address(
    address: Address,
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    trust: Trust = None,
) -> Store:
    """Open the data set at an address as a store; see `open_in_place`."""
    kind = reader_of(address)
    if kind.name in OPENERS:
        module, _, name = OPENERS[kind.name].partition(":")
        given = {"cache": cache, "progress": progress, "trust": trust, **address.options}
        options = {name: value for name, value in given.items() if value is not None}
        opener = getattr(import_module(module), name)
        check_options(kind, address.options, opener)
        store: Store = opener(address.source, **options)
        return store
    if address.options or "://" in address.source:
        check_address(kind, address)
    check_boundaries(address.source, trust)
    modules: set[str] = set()
    meant = kind.meant(address.options)
    keys = sorted([(name, option_key(value, files=modules)) for name, value in meant.items()])
    # before anything is read: what changes afterwards has another digest
    files = entries_of(kind.files(address.source, **address.options))
    place = kind.place_of(address.source)
    places = place.split("\n")
    cached = CachedStore(
        kind.name,
        # options may choose other files: each choice has its folder, or would take another's store for a stale one
        repr((places, keys)),
        name=(plain_address(places[0]) if "://" in places[0] else places[0]).rstrip("/").rpartition("/")[2],
        files=digest_of(files + entries_of(sorted(modules)) if modules else files, REFERENCES),
        options=keys,
        cache=cache_directory() if cache is None else Path(cache),
        address=told_address(address, kind.name),
        place=place,
    )
    return cached.open(lambda path: _build(path, made_reader(kind, address, trust), files, keys, progress))


def _build(
    path: Path, reader: Reader, files: Sequence[Entry], options: Sequence[tuple[str, str]], progress: bool | None
) -> None:
    """Write the store of a reader, whose files were as noted before it was made."""
    in_place = decoded_as(reader.in_place_schema, reader.dct)
    schema, uuid = _noting_states(in_place, files), _identity(reader, files, options)
    blocks = reader.blocks()
    if blocks is None:
        _write_episodes(path, reader, schema, uuid, progress)
        return
    with make_bar(len(reader), "episodes", f"map {path.name}", wanted=progress) as bar:
        write_store(path, schema, _counted(blocks, bar), fps=reader.fps, metadata=reader.metadata, uuid=uuid)


def _write_episodes(path: Path, reader: Reader, schema: Schema, uuid: str, progress: bool | None) -> None:
    episodes = ReaderEpisodes(reader, schema, np.arange(len(reader)))
    with built_store(path) as hidden, scratch_beside(path, reader):
        store = write_episodes(
            hidden,
            episodes,
            schema=schema,
            fps=reader.fps,
            metadata=reader.metadata,
            # processes that are spawned would run a script again that opens a data set without a guard
            workers=1,
            # no work is shared, and a segment may be as large as segments get
            edges=[0],
            progress=progress,
        )
        with store:
            record = replace(store.record, uuid=uuid)
        replace_file(f"{hidden}/{STORE_JSON}", seal_json(record.to_json()))


def _identity(reader: Reader, files: Sequence[Entry], options: Sequence[tuple[str, str]]) -> str:
    """Return the same for the same files wherever they lie: training goes on on another machine."""
    if reader.own_files is not None:
        files = entries_of(reader.own_files)
    root = common_root([path for path, _, _ in files])[0] if files else ""
    told = [(path.removeprefix(root), num_bytes) for path, num_bytes, _ in files]
    whole = repr((reader.name, options, len(reader), sorted(told)))
    return hashlib.blake2b(whole.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


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
            more = entries_of([path for path in paths if path not in known])
            known |= {path: (num_bytes, version) for path, num_bytes, version in more}
            made[name] = noting_states(feature, noted_states(known[path] for path in paths))
    return Schema(made)


def _counted(blocks: Iterable[EpisodeBlock], bar: Any) -> Iterator[EpisodeBlock]:
    for block in blocks:
        yield block
        bar.update(len(block.lengths))


class CachedStore:
    """The store in the cache that stands for a data set as its files are now."""

    # Any number of processes may come at once: one builds, the others wait. A killed one leaves nothing that is taken
    # for whole. While a store that `open` returned lives, no other process removes its files.

    def __init__(
        self,
        reader: str,  # its name, the folder in the cache
        root: str,  # where the data set is
        *,
        name: str,  # for people
        files: str,  # digest of its files, hexadecimal digits
        options: Any,  # what else the store depends on; its repr counts
        cache: Path,
        address: str | None = None,  # the name that messages have for the store
        place: str | None = None,  # where the data set is, whatever it is opened with
    ) -> None:
        told = NO_NAME.sub("-", name)[:MAX_NAME].strip("-.") or "dataset"
        self._folder = cache / reader / f"{told}-{_digest(root, ROOT_DIGITS)}"
        self._address, self._place = address, None if place is None else (reader, place)
        self._current = f"{told}-{files[:DIGITS]}-"
        self.path = self._folder / f"{self._current}{_digest(repr((FORMAT, options)), OPTION_DIGITS)}{SUFFIX}"

    def open(self, build: Callable[[Path], None]) -> Store:
        """Return the store, open for reading; ``build`` writes it at a path first where it is not there."""
        for _ in range(MAX_TRIES):
            found = self._find()
            if found is None:
                found = self._make(build)
            if found is not None:
                return found
        raise ReadOnlyError(f"{self.path} is removed as soon as it is made. Set STEPWELL_CACHE to another directory.")

    def _make(self, build: Callable[[Path], None]) -> Store | None:
        """Build the store, unless another process just did; None when it is gone again."""
        try:
            with _locked(self._folder):
                found = self._find()
                if found is None:
                    # what a loss of power left of it
                    shutil.rmtree(self.path, ignore_errors=True)
                    build(self.path)
                self._remove_stale()
        except UntrustedFileError:
            # an error of permissions, and not the cache's
            raise
        except OSError as error:
            told = _cache_error(error, self._folder)
            if told is None:
                raise
            raise told from error
        return found or self._find()

    def _find(self) -> Store | None:
        """Return the store, if it is there and whole, with a lock that keeps others from removing it."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            # some network file systems have no locks: others may remove it there
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            _check_files(self.path)
            store = Store(str(self.path), "r", self._address, trust=True, place=self._place)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, FileNotFoundError | StoreNotFoundError | SegmentGoneError | CorruptSegmentError):
                return None
            raise
        weakref.finalize(store, os.close, descriptor)
        return store

    def _remove_stale(self) -> None:
        """Remove stores of the data set as it was before, unless they are in use."""
        for entry in list(self._folder.iterdir()):
            if entry.name.endswith(SUFFIX) and not entry.name.startswith((self._current, ".")):
                _remove_unused(entry)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A store in the cache that stands for a data set, or the files that were fetched."""

    format: str  # name of the reader; "remote" of fetched files
    name: str  # for people, and the same for what was made of one data set
    path: Path
    num_bytes: int
    used: float  # when it was last made or opened, as far as the file system notes it: seconds since 1970

    def remove(self) -> bool:
        """Remove it; returns whether it is gone: what a process has open stays."""
        if self.path.is_dir():
            _remove_unused(self.path)
        else:
            # whoever has it open keeps it
            self.path.unlink(missing_ok=True)
        return not self.path.exists()


def cache_entries(cache: str | os.PathLike[str] | None = None) -> list[CacheEntry]:
    """Return what lies in the cache, by format and name; what is being built or fetched this moment is left out."""
    place = cache_directory() if cache is None else Path(cache)
    found = []
    for folder in _children(place):
        for entry in _children(folder):
            if folder.name == REMOTE and entry.is_file() and not entry.name.startswith("."):
                found.append(_entry(folder.name, entry.name.split("-", 2)[-1], entry, [entry]))
            for made in _children(entry):
                if made.is_dir() and made.suffix in (SUFFIX, BUILD_SUFFIX, GONE) and not _is_locked(made):
                    files = [file for file in made.rglob("*") if file.is_file()]
                    found.append(_entry(folder.name, entry.name.rpartition("-")[0], made, files))
    return sorted(found, key=lambda each: (each.format, each.name, str(each.path)))


def _children(path: Path) -> list[Path]:
    """Return what is in a directory; nothing where it is none, or is gone."""
    with suppress(OSError):
        return sorted(path.iterdir())
    return []


def _is_locked(path: Path) -> bool:
    """Return whether a directory is one that is being built."""
    if path.suffix == SUFFIX:
        return False
    try:
        lock_directory(path, is_waiting=False).release()
    except OSError:
        return True
    return False


def _entry(kind: str, name: str, path: Path, files: Iterable[Path]) -> CacheEntry:
    num_bytes, used = 0, 0.0
    for file in files:
        # another process may remove it meanwhile
        with suppress(OSError):
            status = file.stat()
            num_bytes, used = num_bytes + status.st_size, max(used, status.st_atime, status.st_mtime)
    return CacheEntry(kind, name, path, num_bytes, used)


def _check_files(store: Path) -> None:
    """Raise FileNotFoundError or CorruptSegmentError where a cleaner of caches took files, or a part of one."""
    for segment in Path(store, SEGMENTS).iterdir():
        manifest = segment / SEGMENT_JSON
        try:
            for name, entry in parse_json(manifest.read_bytes())["files"].items():
                if os.stat(f"{segment}/{name}").st_size != entry["bytes"]:  # noqa: PTH116
                    raise CorruptSegmentError(f"{name} of segment {segment.name} is cut short.")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CorruptSegmentError(f"{manifest} is damaged.") from error


def _remove_unused(path: Path) -> None:
    with suppress(OSError), lock_directory(path, is_waiting=False):
        # other processes see it whole or not at all
        gone = path.rename(path.with_name(f".{path.name}.{new_tag()}{GONE}"))
        shutil.rmtree(gone, ignore_errors=True)


def _locked(folder: Path) -> FileLock:
    folder.mkdir(parents=True, exist_ok=True)
    return lock_file(folder / LOCK)


def _cache_error(error: OSError, folder: Path) -> OSError | None:
    """Return an error that says which variable names another directory; None for one that is not about the cache."""
    if isinstance(disk_error(error, 0, str(folder)), DiskFullError):
        return DiskFullError(f"no space in the cache, {folder}. Make room, or set STEPWELL_CACHE to another directory.")
    if isinstance(error, PermissionError) or error.errno in UNWRITABLE:
        return ReadOnlyError(
            f"the cache, {folder}, cannot be written ({error.strerror}). Set STEPWELL_CACHE to a directory that can."
        )
    return None


def _digest(text: str, digits: int) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=digits // 2).hexdigest()
