"""A recording that may be interrupted, and gone on with by the same call.

::

    made.well/                 there from the beginning, opens as any store: it shows what was written so far
      importing.json           of what source, and how it is cut; gone when all of it is there
      importing/               what a conversion noted of finished chunks, and rows that it works on; gone likewise
      segments/
        00000000-5c1d/         chunk 0: finished, kept
        00000001-a0e2/         chunk 1: its writer was killed, and recovery sealed the rest; written again
"""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import CorruptSegmentError, LeftOutWarning, StoreBusyError, StoreExistsError
from stepwell.files.file_locks import FileLock, lock_directory
from stepwell.json_text import open_json, seal_json
from stepwell.recorders.sources import cut
from stepwell.schema import Schema
from stepwell.sizes import counted
from stepwell.store import Store, create, layout, open
from stepwell.store.beneath import read_file
from stepwell.store.layout import (
    OPEN_SUFFIX,
    SEGMENTS,
    built_store,
    list_segments,
    locked_store,
    remove_directory,
    replace_file,
    sync_directory,
    target_path,
)
from stepwell.store.maintenance import read_deleted, replace_deleted
from stepwell.store.manifests import ARRANGEMENT_JSON

__all__ = ["IMPORTING", "RESULTS", "Plan", "Unfinished", "read_plan", "remove_segments", "segment_maker"]

IMPORTING, RESULTS = "importing.json", "importing"
# workers whose parent was killed end within a second; until then they may make segments
ORPHAN_SECONDS = 5.0
POLL_SECONDS = 0.05
NOTHING_HIDDEN: npt.NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(frozen=True)
class Plan:
    """What a recording makes of what: the same for every call that goes on with it."""

    source: str
    num_items: int
    chunk_items: int
    schema: Schema
    fps: float | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    edges: tuple[int, ...] | None = None
    # of the source's files, which may change: one that was damaged is mended
    state: str = ""

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """The half-open range of items of each chunk; chunk n is the segment of ordinal n."""
        return cut(self.num_items, self.chunk_items, self.edges)

    def tag(self, chunk: int) -> str:
        """Return the tag of a chunk's segment: the same whenever it is made."""
        return _tag(self.spans[chunk])

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        fps = None if self.fps is None else float(self.fps)
        record: dict[str, Any] = {**asdict(self), "fps": fps, "schema": self.schema.to_json()}
        if self.edges is None:
            del record["edges"]
        if not self.state:
            del record["state"]
        return dict(json.loads(json.dumps(record)))


def read_plan(store: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return the plan of a store's unfinished recording, as of `Plan.to_json`; None where there is none."""
    if not Path(store).is_dir():
        return None
    file = str(Path(store, IMPORTING))
    try:
        return dict(open_json(read_file(file), name=file))
    except FileNotFoundError:
        return None


class Unfinished:
    """The store of a recording that is under way."""

    def __init__(
        self, path: str | os.PathLike[str], plan: Plan, hidden: npt.NDArray[np.int64] = NOTHING_HIDDEN
    ) -> None:
        # ``hidden``: steps of the store to be that are deleted from the beginning
        self._path, self.plan, self._hidden = target_path(path), plan, hidden
        if not (self._path / IMPORTING).exists():
            try:
                self._create()
            except StoreExistsError:
                # another process may have created it just now: the lock decides
                if not (self._path / IMPORTING).exists():
                    raise
        self._lock = _lock(self._path)
        try:
            if not (self._path / SEGMENTS).is_dir():
                raise StoreExistsError(
                    f"{self._path} has {IMPORTING} and no store with it. Remove it, or choose another."
                )
            self.store = _recovered(self._path)
            self._check_unchanged()
            differences = self._differences()
            if differences:
                self._start_over(differences)
            self.finished = self._drop_halves()
            self._warn_of_change()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Unfinished:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.end()
        else:
            # the error that is under way says more than one of this
            with suppress(OSError):
                self.leave()

    def end(self) -> None:
        """All of it is there and on the disk: from now on it is a store like any other."""
        (self._path / IMPORTING).unlink()
        shutil.rmtree(self._path / RESULTS, ignore_errors=True)
        sync_directory(str(self._path))
        self._lock.release()

    def leave(self) -> int:
        """Keep what is finished for another call, and nothing else; returns how many chunks that are."""
        try:
            self.store.refresh()
            kept = self._drop_halves()
            if not kept:
                self.store.close()
                remove_directory(self._path)
        finally:
            self._lock.release()
        return len(kept)

    def _create(self) -> None:
        plan = self.plan
        # whole or not at all: without its record it would be refused by the next call
        with built_store(self._path) as hidden:
            with create(hidden, plan.schema, fps=plan.fps, metadata=plan.metadata) as store:
                # what others append meanwhile does not take the place of a chunk
                store.reserve_ordinals(len(plan.spans))
            if len(self._hidden):
                replace_deleted(hidden, self._hidden)
            replace_file(f"{hidden}/{IMPORTING}", seal_json(plan.to_json()))

    def _start_over(self, differences: list[str]) -> None:
        """Replace an earlier call's store of which nothing is finished; refuse another one."""
        if self._finished(self._recorded_spans()):
            raise StoreExistsError(
                f"{self._path} is there already, unfinished, and made of other things: {'; '.join(differences)}. "
                "Give the same again to go on with it; else remove it, or choose another path."
            )
        self.store.close()
        remove_directory(self._path)
        self._create()
        lock, self._lock = self._lock, _lock(self._path)
        lock.release()
        self.store = open(self._path)

    def _differences(self) -> list[str]:
        """Return in what the plan is another than that of the call that began."""
        before, after = read_plan(self._path) or {}, self.plan.to_json()
        other = [name for name in {**after, **before} if before.get(name) != after.get(name) and name != "state"]
        if "source" in other:
            # what is of another source differs in most things, and they say no more
            return [_difference("source", before, after)]
        features = [name for name in other if name == "schema"] and _differing(before.get("schema"), after["schema"])
        return [*features, *(_difference(name, before, after) for name in other if name != "schema")]

    def _warn_of_change(self) -> None:
        """Warn of files of the source that are others than when the recording began."""
        before = (read_plan(self._path) or {}).get("state", "")
        if self.finished and before and self.plan.state and before != self.plan.state:
            warnings.warn(
                f"{self._path}: files of the source changed since this was begun. "
                f"{counted(len(self.finished), 'segment')} made before stay as they are; if the source is another now, "
                "remove the target and begin again.",
                LeftOutWarning,
                stacklevel=2,
            )

    def _recorded_spans(self) -> list[tuple[int, int]]:
        record = read_plan(self._path) or {}
        try:
            return cut(int(record["num_items"]), int(record["chunk_items"]), record.get("edges"))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptSegmentError(f"{self._path / IMPORTING} is no record of a recording: {error!r}.") from error

    def _check_unchanged(self) -> None:
        """Refuse a store whose segments are no longer those of its chunks."""
        expected = [f"{chunk:08d}-{_tag(span)}" for chunk, span in enumerate(self._recorded_spans())]
        is_other = any(segment.name not in expected for segment in self.store.segments)
        is_other |= not np.array_equal(read_deleted(str(self._path)), self._hidden)
        if is_other or (self._path / ARRANGEMENT_JSON).exists():
            raise StoreExistsError(
                f"{self._path} was changed before it was finished: episodes were added or deleted, or it was "
                "compacted. It cannot be gone on with. Choose another path, or remove it."
            )

    def _finished(self, spans: list[tuple[int, int]]) -> frozenset[int]:
        """Return the chunks of which every episode is there, and whole."""
        return frozenset(
            segment.ordinal
            for segment in self.store.segments
            if segment.is_sealed
            and len(segment.records) == spans[segment.ordinal][1] - spans[segment.ordinal][0]
            and not segment.records["interrupted"].any()
        )

    def _drop_halves(self) -> frozenset[int]:
        """Remove what is not finished; returns the chunks that are."""
        finished = self._finished(self.plan.spans)
        remove_segments(str(self._path), {ordinal for ordinal, _ in _segments(self._path)} - finished)
        for rows in (self._path / RESULTS).glob("*"):
            if rows.is_dir():
                shutil.rmtree(rows)
        self.store.refresh()
        return finished


def remove_segments(store: str, ordinals: Collection[int]) -> None:
    """Remove segments, open ones too, from a store to which nothing writes."""
    with locked_store(store):
        names = [name for name, (ordinal, _) in list_segments(store).items() if ordinal in ordinals]
        layout.remove_segments(store, [name + suffix for name in names for suffix in ("", OPEN_SUFFIX)])


def _tag(span: tuple[int, int]) -> str:
    return f"{zlib.crc32(repr(span).encode()) & 0xFFFF:04x}"


def _segments(path: Path) -> Iterator[tuple[int, bool]]:
    """Yield (ordinal, sealed?) of the segments on the disk."""
    yield from list_segments(str(path)).values()


def segment_maker(store: str | os.PathLike[str]) -> FileLock:
    """Hold the lock of a store's segments while a chunk is written: a worker may outlive its parent by a moment."""
    return lock_directory(Path(store, SEGMENTS), is_shared=True)


def _recovered(path: Path) -> Store:
    """Open a store when no other process writes to it any more."""
    is_left = _was_left(path / SEGMENTS)
    store = open(path)
    if is_left and all(is_sealed for _, is_sealed in _segments(path)):
        return store
    store.close()
    raise StoreBusyError(f"{path} is being written by another process. Wait for it to end, and try again.")


def _was_left(segments: Path) -> bool:
    """Wait until no process makes segments; False when one goes on doing so."""
    deadline = time.monotonic() + ORPHAN_SECONDS
    while True:
        try:
            with lock_directory(segments, is_waiting=False):
                return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)


def _lock(path: Path) -> FileLock:
    try:
        descriptor = os.open(path / IMPORTING, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise StoreBusyError(f"{path} was finished by another process just now.") from None
    try:
        lock = FileLock(descriptor, is_waiting=False)
    except BlockingIOError:
        raise StoreBusyError(f"{path} is being recorded by another process. Wait for it to end.") from None
    # the process that held it may have removed or replaced the file
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(descriptor), (path / IMPORTING).stat()):
            return lock
    lock.release()
    raise StoreBusyError(f"{path} was finished or removed by another process just now. Try again.")


def _differing(before: Any, after: Mapping[str, Any]) -> list[str]:
    """Return the features of two schemas that differ; of each only what differs in it."""
    old: Mapping[str, Any] = before if isinstance(before, dict) else {}
    return [
        f"feature {name!r}: {_only_in(old.get(name), after.get(name))}, not {_only_in(after.get(name), old.get(name))}"
        for name in {**old, **after}
        if old.get(name) != after.get(name)
    ] or ["the features' order"]


def _only_in(feature: Any, other: Any) -> str:
    """Return what a feature has that another has not."""
    if not isinstance(feature, dict) or not isinstance(other, dict):
        return "none" if feature is None else _short(feature)
    mine = {key: value for key, value in feature.items() if key not in other or other[key] != value}
    return ", ".join(f"{key} {_short(value)}" for key, value in mine.items()) or "without these"


def _difference(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    return f"{name} {_short(before.get(name))}, not {_short(after.get(name))}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
