"""Create a store, or open one that is there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any, get_args

from stepwell.codecs import make_codec
from stepwell.errors import SchemaError, StoreExistsError
from stepwell.files.addresses import local_path
from stepwell.json_text import seal_json
from stepwell.references.trusted_paths import Trust
from stepwell.schema import Feature, Schema
from stepwell.sizes import parse_bytes
from stepwell.store.beneath import system_errors
from stepwell.store.commit import Recover, warn_if_shared
from stepwell.store.layout import LOCK, SEGMENTS, STORE_JSON, locked_store, replace_file, sync_directory
from stepwell.store.memory import memory_path
from stepwell.store.records import SEGMENT_BYTES, Capacity, StoreRecord, Sync, read_record
from stepwell.store.ring import Evictor
from stepwell.store.sealing import recover_store
from stepwell.store.store import Mode, Store

__all__ = ["create", "open"]


def create(
    path: str | os.PathLike[str],
    schema: Schema | Mapping[str, Feature] | None = None,
    *,
    fps: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    segment_bytes: int | str = SEGMENT_BYTES,
    sync: Sync = "none",
    capacity: int | str | Capacity | None = None,
    exist_ok: bool = False,
) -> Store:
    """Create a store.

    Args:
        path: of its directory, made with its parents; by custom it ends in ``.well``. ":memory:": a new directory in
            ``/dev/shm``, which goes with this process, or with its last `Store` of it; other processes open
            ``store.path``.
        schema: name to feature. None: inferred from the first step that is written.
        fps: steps a second, if they are evenly spaced; needed for offsets in seconds.
        metadata: anything that JSON holds.
        segment_bytes: a segment is sealed, and a new one begun, at the first end of an episode beyond this size;
            an int, or a size such as "64 MiB".
        sync: when writers wait for the disk: "none" (a killed process loses nothing, a loss of power may), "episode",
            "step".
        capacity: of a ring: a number of steps, or a size such as "20 GB". Readers see exactly the newest steps that
            fit, the oldest go to the step, and never come back: discarded and deleted steps count until their time
            comes. Files go a segment at a time, so that the disk holds the capacity, and about one segment more for
            each live writer (an eighth of its share, at least 1,024 steps or 1 MiB). An episode that is longer than
            two segments is cut in pieces. In bytes, a step counts as it lies on the disk: raw features
            with their size, encoded ones with that of their rows and 8 bytes. Default: everything is kept.
        exist_ok: open the store that is there instead of refusing; its schema and capacity must be the same, or
            ``schema`` and ``capacity`` None.

    Returns:
        The store, open for writing.

    Raises:
        StoreExistsError: something is at the path already.
        SchemaError: a feature that its codec cannot store, a schema or capacity unlike the store's, a setting that
            none can have.
        FormatError: the path is an address, such as ``s3://...``; stores are written to local directories.
        ReadOnlyError: nothing may be made there.

    Example:
        >>> import tempfile, stepwell
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/arm.well", {"action": stepwell.Array(7)}, fps=30)
        >>> store.schema
        <Schema action: raw 7 float32>
    """
    directory = Path(memory_path() if path == ":memory:" else local_path(path))
    limit = None if capacity is None else Capacity.parse(capacity)
    if schema is not None:
        schema = schema if isinstance(schema, Schema) else Schema(schema)
        for name, feature in schema.items():
            _check_codec(name, feature)
        if schema.rated and fps is None:
            names = ", ".join(map(repr, schema.rated))
            raise SchemaError(f"feature {names} has a rate, which needs the clock of the steps. Give fps=...")
        if limit is not None:
            limit.check(schema)
    if _is_taken(directory):
        return _open_existing(directory, schema, limit, exist_ok)
    _check_settings(fps, sync)
    record = StoreRecord(
        schema=schema,
        fps=None if fps is None else float(fps),
        metadata=dict(metadata or {}),
        segment_bytes=parse_bytes("segment_bytes", segment_bytes, error=SchemaError),
        sync=sync,
        capacity=limit,
    )
    try:
        data = seal_json(record.to_json())
    except TypeError as error:
        raise SchemaError(f"metadata: {error}. Allowed: what JSON holds.") from error
    made = [parent for parent in directory.absolute().parents if not parent.exists()]
    with system_errors(directory, is_writing=True):
        (directory / SEGMENTS).mkdir(parents=True, exist_ok=True)
        # before its record: a store without its directory of segments would be a damaged one
        sync_directory(str(directory))
        if sync != "none":
            for entry in (directory.absolute(), *made):
                sync_directory(str(entry.parent))
        # of several processes that come at the same time one creates the store, and the others find it
        with locked_store(str(directory)):
            is_new = not os.path.lexists(directory / STORE_JSON)
            if is_new:
                replace_file(str(directory / STORE_JSON), data)
    # what the features refer to is what the caller says
    return Store(str(directory), "a", trust=True) if is_new else _open_existing(directory, schema, limit, exist_ok)


def open(path: str | os.PathLike[str], *, mode: Mode = "a", trust: Trust = None, recover: Recover = "dead") -> Store:
    """Open a store.

    Args:
        path: of its directory.
        mode: "a" (default): for reading and writing, and what dead writers left is recovered first. "r": touches
            nothing.
        trust: see `stepwell.open`.
        recover: see `stepwell.open`.

    Returns:
        The store.

    Raises:
        StoreNotFoundError: no store there.
        StoreVersionError: of a newer format.
        CorruptSegmentError: damaged; the message names the file.
        ReadOnlyError: a writer is dead, and what it left may not be changed; mode="r" shows what was sealed.
        StoreAccessError: a file of it may not be read.
        StoreFileError: the system does not open a file, such as for too many that are open.
    """
    if mode not in ("a", "r"):
        raise SchemaError(f'mode={mode!r} is not one of "a", "r".')
    if recover not in get_args(Recover):
        raise SchemaError(f"recover={recover!r} is not one of {', '.join(map(repr, get_args(Recover)))}.")
    text = os.fspath(path)
    with system_errors(text, is_writing=mode == "a"):
        record = read_record(text)
        if mode == "a" and os.access(text, os.W_OK):
            warn_if_shared(text)
            recover_store(text, record.schema, recover=recover)
            if recover != "none":
                Evictor(text).evict()
            store = Store(text, mode, trust=trust)
            store.save_table()
            return store
        return Store(text, mode, trust=trust)


def _is_taken(directory: Path) -> bool:
    """Whether something is there; what a killed `create` leaves is nothing."""
    if not directory.is_dir():
        return directory.exists()
    entries = {entry.name for entry in directory.iterdir() if not entry.name.startswith(f"{STORE_JSON}.")}
    return not entries <= {SEGMENTS, LOCK} or any(directory.glob(f"{SEGMENTS}/*"))


def _check_settings(fps: float | None, sync: str) -> None:
    if fps is not None and not (isinstance(fps, Real) and 0 < fps < float("inf")):
        raise SchemaError(f"fps={fps!r} is not a rate. Give steps a second, more than 0, or None.")
    if sync not in get_args(Sync):
        raise SchemaError(f"sync={sync!r} is not one of {', '.join(map(repr, get_args(Sync)))}.")


def _open_existing(directory: Path, schema: Schema | None, capacity: Capacity | None, exist_ok: bool) -> Store:
    if not exist_ok or not (directory / STORE_JSON).exists():
        what = "a store" if (directory / STORE_JSON).exists() else "something else"
        raise StoreExistsError(
            f"{directory} is {what} already. Open it with stepwell.open() or exist_ok=True, or choose another path."
        )
    store = open(directory)
    if schema is not None and store.schema is not None and store.schema != schema:
        raise SchemaError(f"{directory} has another schema: {store.schema}, not {schema}.")
    if capacity is not None and store.capacity != capacity:
        raise SchemaError(
            f"{directory} has capacity {store.capacity}, not {capacity}. Leave capacity out to open it as it is."
        )
    return store


def _check_codec(name: str, feature: Feature) -> None:
    if feature.is_raw:
        return
    try:
        make_codec(feature)
    except SchemaError as error:
        raise SchemaError(f"feature {name!r}: {error}") from error
