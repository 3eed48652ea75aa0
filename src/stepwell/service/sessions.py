"""Writers of clients: what they sent is stored exactly once, however often a connection or the server goes.

::

    client     steps 0 .. 63 | 64 .. 127 | end ...      each message says how many steps, ends and items came before it
    session    [################ 100 ]                  so that what is stored already is passed over
    journal    a file beside the store: the same numbers, and the names of the segments that the session wrote

A killed server may have stored more than its journal says: at most what one call of a writer stores. The segments know:
recovery counts the steps in those of the session, from the one that the journal was written in.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import os
import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import SegmentGoneError, ServiceError, StepError, StepwellError, TableError
from stepwell.json_text import parse_json
from stepwell.schema import Schema
from stepwell.service.messages import Message
from stepwell.store.beneath import system_errors
from stepwell.store.layout import OPEN_SUFFIX, SEGMENTS, parse_segment_name
from stepwell.store.segments import Segment
from stepwell.store.store import Store
from stepwell.store.values import EncodedRows, missing_features_error
from stepwell.store.vector_writer import VectorWriter
from stepwell.store.writer import Writer

__all__ = ["FINAL", "FLAG", "ROWS", "SIZES", "Journal", "Position", "Session"]

Int64s = npt.NDArray[np.int64]
# columns of a message that are not a raw feature's rows; no name of a feature has such a sign
FINAL, FLAG, SIZES, ROWS = "final:", "flag:", ":sizes", ":rows"
DIRECTORY = "service"
LOG = logging.getLogger("stepwell.service")
SLOT = struct.Struct("<8q")
HEAD_BYTES = 2 * SLOT.size
# numbers of steps that items may be made of
MAX_KEPT_STEPS = 1 << 18


class Position(NamedTuple):
    """How much of what a client sent is stored: steps (rows of all environments), ends of episodes, items."""

    steps: int = 0
    ends: int = 0
    items: int = 0


class Journal:
    """The file of one session: two records of its position, written in turns, then the names of its segments."""

    def __init__(self, store: str, name: str, identity: Mapping[str, Any]) -> None:
        self._path = journal_path(store, name)
        temporary = f"{self._path}.new"
        with system_errors(store, is_writing=True), ExitStack() as stack:
            self._file = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
            stack.callback(os.close, self._file)
            _append(self._file, b"\0" * HEAD_BYTES + _line(identity))
            Path(temporary).rename(self._path)
            self._map = mmap.mmap(self._file, HEAD_BYTES)
            self._files = stack.pop_all()
        self._number = 0

    def save(self, position: Position, ordinal: int, steps: int, ends: int) -> None:
        """Write down a position, and how many steps and ends of it are in the segment with an ordinal."""
        self._number += 1
        # a process that is killed here leaves the record before it whole: the number comes first and last
        at = SLOT.size * (self._number % 2)
        SLOT.pack_into(self._map, at, self._number, *position, ordinal, steps, ends, self._number)

    def add_segment(self, name: str) -> None:
        """Write down a segment, before any row is in it; from any thread."""
        # a line that a full disk cut off is none of this one's
        with system_errors(self._path, is_writing=True):
            _append(self._file, f"\n{name}\n".encode())

    def close(self, *, is_over: bool) -> None:
        """Let go of the file; remove it where the client does not come back."""
        self._map.close()
        self._files.close()
        if is_over:
            Path(self._path).unlink(missing_ok=True)


def _append(file: int, data: bytes) -> None:
    """Append bytes; OSError where not all of them are written."""
    while data:
        data = data[os.write(file, data) :]


def journal_path(store: str, name: str) -> str:
    """Return the path of the journal of a client."""
    return f"{store}/{DIRECTORY}/{hashlib.sha256(name.encode()).hexdigest()[:32]}.journal"


def _line(identity: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(identity)).encode() + b"\n"


def read_journal(store: Store, name: str) -> tuple[dict[str, Any], Position] | None:
    """Return who the session of a client was and what of it is stored; None where nothing readable is there."""
    path = str(store.path)
    try:
        data = Path(journal_path(path, name)).read_bytes()
    except FileNotFoundError:
        return None
    lines = data[HEAD_BYTES:].split(b"\n")
    slots = [SLOT.unpack_from(data, SLOT.size * number) for number in range(2) if len(data) >= HEAD_BYTES]
    whole = [slot for slot in slots if slot[0] == slot[-1]]
    try:
        identity = parse_json(lines[0])
    except ValueError:
        return None
    if not whole or not isinstance(identity, dict):
        return None
    _, steps, ends, items, ordinal, known_steps, known_ends, _ = max(whole)
    steps, ends = steps - known_steps, ends - known_ends
    for segment in {line.decode(errors="replace") for line in lines[1:-1]}:
        parsed = parse_segment_name(segment)
        if parsed is not None and parsed[0] >= ordinal and store.schema is not None:
            found = _count(f"{path}/{SEGMENTS}/{segment}", store.schema)
            steps, ends = steps + found[0], ends + found[1]
    return identity, Position(steps, ends, items)


def _count(directory: str, schema: Schema) -> tuple[int, int]:
    """Return how many steps are in a segment, and how many episodes were ended in it by its writer."""
    for path in (directory, f"{directory}{OPEN_SUFFIX}"):
        try:
            segment = Segment(path, schema)
        except (SegmentGoneError, FileNotFoundError):
            continue
        records = segment.records
        ended = records[~records["interrupted"] & (records[(records.dtype.names or ())[-1]] < 1 << 31)]
        last = 0 if not len(records) else int((records["start"] + records["rows"])[-1])
        open_steps = 0 if segment.is_sealed or segment.has_lanes else segment.num_rows - last
        return int(records["length"].sum()) + open_steps, len(ended)
    return 0, 0


class Session:
    """What one client writes, on behalf of it; one thread at a time.

    Args:
        store: that it is written to.
        name: of the client.
        incarnation: of it: another one begins anew.
        num_envs: environments of a vector writer; None: of a plain one.
        create_item: makes an item of a table: name, ids of steps, length, priority.
        on_disconnect: "interrupt" or "discard" the open episode of a client that does not come back.
    """

    def __init__(  # noqa: PLR0917
        self,
        store: Store,
        name: str,
        incarnation: str,
        num_envs: int | None,
        create_item: Callable[[str, Int64s, int, float | None], Any],
        on_disconnect: str,
    ) -> None:
        self.name, self.incarnation, self.num_envs, self.on_disconnect = name, incarnation, num_envs, on_disconnect
        self._store, self._create_item = store, create_item
        self.position = Position()
        self._writer: Any = None
        # the segment that was written to last, and how much of the position is in it
        self._ordinal, self._in_segment = -1, [0, 0]
        # of the steps that items may be made of: number of the first, and their ids
        self._kept: deque[tuple[int, Int64s]] = deque()
        self._num_kept = 0
        # number of the first step whose id this server knows, and of the first after an episode was cut, once it comes
        self._begin: int | None = 0
        self._is_cut, self._cut = False, 0
        identity = {"name": name, "incarnation": incarnation, "num_envs": num_envs}
        known = read_journal(store, name)
        if known is not None and all(known[0].get(key) == value for key, value in identity.items()):
            self.position, self._begin = known[1], None
        self._journal = Journal(str(store.path), name, identity)
        self._save()

    def apply(self, message: Message) -> None:
        """Store what a message says, but for what is stored already."""
        head, columns = message.head, message.columns
        first = Position(*_ints(head.get("first"), 3))
        if any(ours < theirs for ours, theirs in zip(self.position, first, strict=True)):
            raise ServiceError(
                f"a message that begins at {first}, and {self.position} is stored: one before it is missing."
            )
        schema = self._ensure_schema(head)
        if self.num_envs is None:
            self._apply_steps(head, columns, first, schema)
        else:
            self._apply_vectors(head, columns, first)

    def interrupt(self) -> None:
        """End the open episode of a client that went, and seal what it wrote."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        self._is_cut = True
        if self.on_disconnect == "discard":
            writer.discard_episode() if self.num_envs is None else writer.discard_episodes()
        writer.close()

    def close(self, *, is_over: bool) -> None:
        """End the session: the client said that nothing follows, or the server stops."""
        try:
            self.interrupt()
        finally:
            self._journal.close(is_over=is_over)

    # steps one by one

    def _apply_steps(self, head: dict[str, Any], columns: Mapping[str, Any], first: Position, schema: Schema) -> None:
        (count,) = _ints([head.get("count")], 1)
        _check_names(schema, columns, has_rows=count > 0)
        rows = {name: self._rows(name, columns, count) for name in schema} if count else {}
        done = self.position.steps - first.steps
        ends, items = first.ends, first.items
        ops = head.get("ops", [])
        for op in [*ops, [count, "none"]]:
            at = int(op[0])
            if not done <= at <= count:
                if at > count or at < 0:
                    raise ServiceError(f"an operation at row {at} of {count}.")
            elif at > done:
                self._append({name: values[done:at] for name, values in rows.items()}, at - done)
                done = at
            match op[1]:
                case "end" | "discard":
                    ends += 1
                    if ends > self.position.ends:
                        self._end(op[1], op[2] if len(op) > 2 else {}, columns, schema)
                case "item":
                    items += 1
                    if items > self.position.items:
                        self._make_item(*op[2:])
                case "none":
                    pass
                case unknown:
                    raise ServiceError(f"an operation {unknown!r}, which protocol 1 does not have.")

    def _append(self, rows: Mapping[str, Any], count: int) -> None:
        first = self._open_writer().append_batch(rows)
        self._keep(self.position.steps, np.arange(first, first + count))
        self._advance(count, 0, first >> 32)

    def _end(self, what: str, options: Mapping[str, Any], columns: Mapping[str, Any], schema: Schema) -> None:
        writer, row = self._open_writer(), options.get("final")
        # a server that was killed ended the episode, as an interrupted one
        if writer.has_open_episode:
            if what == "discard":
                writer.discard_episode()
            else:
                final = (
                    None if row is None else {name: self._final(name, columns, int(row)) for name in schema.final_names}
                )
                flags = {name: bool(options.get(name)) for name in ("terminated", "truncated")}
                writer.end_episode(**flags, final=final, **dict(options.get("metadata") or {}))
        self._advance(0, 1, self._ordinal)

    @staticmethod
    def _rows(name: str, columns: Mapping[str, Any], count: int | None) -> Any:
        if name + ROWS in columns:
            sizes = np.asarray(columns[name + SIZES], np.int64)
            rows = EncodedRows.in_memory(
                columns[name + ROWS].reshape(-1).view(np.uint8), np.cumsum(sizes) - sizes, sizes
            )
        else:
            rows = columns[name]
        if count is not None and len(rows) != count:
            raise ServiceError(f"{len(rows)} rows of {name!r} in a message of {count} steps.")
        return rows

    def _final(self, name: str, columns: Mapping[str, Any], row: int) -> Any:
        rows = self._rows(FINAL + name, columns, None)
        if not 0 <= row < len(rows):
            raise ServiceError(f"final row {row} of {name!r}, and {len(rows)} came with the message.")
        return rows[row : row + 1] if isinstance(rows, EncodedRows) else rows[row]

    # steps of many environments

    def _apply_vectors(self, head: dict[str, Any], columns: Mapping[str, Any], first: Position) -> None:
        count, number = _ints([head.get("count"), head.get("number")], 2)
        writer = self._open_writer()
        steps = {name: rows for name, rows in columns.items() if not name.startswith((FINAL, FLAG))}
        final = {name.removeprefix(FINAL): rows for name, rows in columns.items() if name.startswith(FINAL)} or None
        flags = {name.removeprefix(FLAG): rows for name, rows in columns.items() if name.startswith(FLAG)}
        mask, metadata = flags.pop("mask", None), head.get("metadata") or {}
        num_rows = np.full(count, self.num_envs) if mask is None else mask.sum(1)
        done = int(np.searchsorted(np.cumsum(num_rows), self.position.steps - first.steps, side="right"))
        if done < count and mask is None and not metadata:
            ids = np.full((count - done, writer.num_envs), -1, np.int64)
            given = {name: rows[done:] for name, rows in steps.items()}
            rest = {name: rows[done:] for name, rows in flags.items()}
            finals = None if final is None else {name: rows[done:] for name, rows in final.items()}
            try:
                writer.append_batch(given, **rest, final=finals, out=ids)
            finally:
                self._stored(number + done * writer.num_envs, ids)
            done = count
        for step in range(done, count):
            self._stored(
                number + step * writer.num_envs,
                writer.append(
                    {name: rows[step] for name, rows in steps.items()},
                    **{name: rows[step] for name, rows in flags.items()},
                    mask=None if mask is None else mask[step],
                    final=None if final is None else {name: rows[step] for name, rows in final.items()},
                    metadata={int(env): each for env, each in metadata.get(str(step), {}).items()} or None,
                )[None],
            )
        ends, items = first.ends, first.items
        for op in head.get("ops", []):
            match op[1]:
                case "end" | "discard":
                    ends += 1
                    if ends > self.position.ends:
                        self._end_vectors(writer, op[1], op[2], columns)
                case "item":
                    items += 1
                    if items > self.position.items:
                        self._make_item(*op[2:])
                case unknown:
                    raise ServiceError(f"an operation {unknown!r}, which protocol 1 does not have.")

    def _end_vectors(
        self, writer: VectorWriter, what: str, options: Mapping[str, Any], columns: Mapping[str, Any]
    ) -> None:
        mask = None if options.get("envs") is None else np.isin(np.arange(writer.num_envs), options["envs"])
        if what == "discard":
            writer.discard_episodes(mask)
        else:
            final = {name.removeprefix(FINAL): rows[0] for name, rows in columns.items() if name.startswith(FINAL)}
            flags = {name: bool(options.get(name)) for name in ("terminated", "truncated")}
            metadata = {int(env): each for env, each in (options.get("metadata") or {}).items()}
            writer.end_episodes(mask, **flags, final=final or None, metadata=metadata or None)
        self._advance(0, 1, self._ordinal)

    def _stored(self, number: int, ids: Int64s) -> None:
        """Take note of vector steps that were stored, from a number on: int64 [t, n], -1 where nothing was."""
        there = ids[ids >= 0]
        if not len(there):
            return
        self._keep(number, ids.reshape(-1))
        ordinals = there >> 32
        last = int(ordinals.max())
        in_last = int((ordinals == last).sum())
        if last != self._ordinal:
            self._advance(len(there) - in_last, 0, self._ordinal)
        self._advance(in_last, 0, last)

    # what both do

    def _ensure_schema(self, head: dict[str, Any]) -> Schema:
        if self._store.schema is not None:
            return self._store.schema
        if "schema" not in head:
            raise StepwellError("the store has no features yet. Send them with the first steps.")
        return self._store.ensure_schema(lambda: Schema.from_json(head["schema"]))

    def _open_writer(self) -> Any:
        if self._writer is None:
            made: Writer | VectorWriter
            made = self._store.writer() if self.num_envs is None else self._store.vector_writer(self.num_envs)
            made.on_segment = self._journal.add_segment
            self._writer = made
        return self._writer

    def _advance(self, steps: int, ends: int, ordinal: int) -> None:
        if ordinal != self._ordinal:
            self._ordinal, self._in_segment = ordinal, [0, 0]
        self._in_segment[0] += steps
        self._in_segment[1] += ends
        self.position = self.position._replace(steps=self.position.steps + steps, ends=self.position.ends + ends)
        self._save()

    def _save(self) -> None:
        self._journal.save(self.position, self._ordinal, *self._in_segment)

    def _keep(self, first: int, ids: Int64s) -> None:
        self._begin = first if self._begin is None else self._begin
        if self._is_cut:
            self._is_cut, self._cut = False, first
        self._kept.append((first, ids))
        self._num_kept += len(ids)
        while self._num_kept - len(self._kept[0][1]) >= MAX_KEPT_STEPS:
            self._num_kept -= len(self._kept.popleft()[1])

    def _make_item(self, table: str, number: int, length: int, priority: float | None) -> None:
        number, length = _ints([number, length], 2)
        last = number + (length - 1) * (self.num_envs or 1)
        # of what was stored before this server began, or over the end of an episode that no client asked for: as with
        # items that a killed server had not saved
        if self._begin is None or number < self._begin or number < self._cut <= last:
            LOG.info("writer %s: an item of table %s from step %d on is left out", self.name, table, number)
        else:
            ids = self._ids(number, length)
            self._create_item(str(table), ids, length, None if priority is None else float(priority))
        self.position = self.position._replace(items=self.position.items + 1)
        self._save()

    def _ids(self, number: int, length: int) -> Int64s:
        """Return the ids of consecutive steps of one environment, by the number of the first."""
        firsts = [first for first, _ in self._kept]
        found: list[int] = []
        stride = self.num_envs or 1
        for each in range(number, number + length * stride, stride):
            place = bisect_right(firsts, each) - 1
            if place < 0 or each - firsts[place] >= len(self._kept[place][1]):
                raise TableError(
                    f"step {each} of this writer is not among its newest {MAX_KEPT_STEPS:,}. Make items sooner."
                )
            found.append(int(self._kept[place][1][each - firsts[place]]))
        return np.array(found, np.int64)


def _check_names(schema: Schema, columns: Mapping[str, Any], *, has_rows: bool) -> None:
    """Raise what a writer of this process raises where columns are not those of the schema."""
    names = dict.fromkeys(each.removesuffix(ROWS).removesuffix(SIZES) for each in columns)
    steps = {name: None for name in names if not name.startswith(FINAL)}
    if has_rows and steps.keys() != schema.keys():
        raise missing_features_error(schema, steps)
    finals = [name.removeprefix(FINAL) for name in names if name.startswith(FINAL)]
    if finals and set(finals) != set(schema.final_names):
        raise StepError(
            f"final values of {', '.join(finals)}. Give those of all features with final=True: "
            f"{', '.join(schema.final_names) or 'none here'}."
        )


def _ints(values: Any, number: int) -> list[int]:
    is_list = isinstance(values, list) and len(values) == number
    if not is_list or not all(type(value) is int and 0 <= value < 1 << 62 for value in values):
        raise ServiceError(f"{values!r:.100} where {number} whole numbers of 0 or more were due.")
    return list(values)
