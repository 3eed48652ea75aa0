"""The writer: checks each step against the schema, then stores and commits it."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from stepwell.errors import LeftOutWarning, StepError
from stepwell.process import this
from stepwell.schema import Schema, flatten, infer_columns, infer_schema
from stepwell.sizes import counted
from stepwell.store.base_writer import BaseWriter
from stepwell.store.layout import step_id
from stepwell.store.maintenance import add_deleted
from stepwell.store.records import Sync
from stepwell.store.ring import SegmentLimit, growing_segments
from stepwell.store.samples import PendingSamples, rows_of_episode
from stepwell.store.segment_writer import SegmentWriter
from stepwell.store.values import (
    accept_columns,
    accept_final,
    acceptor,
    check_mapping,
    encode_metadata,
    given_twice_error,
    has_rows,
    is_column,
    missing_features_error,
    row_of,
)

if TYPE_CHECKING:
    from stepwell.store.manifests import WriterKey
    from stepwell.store.store import Store

__all__ = ["Writer"]

_ndarray = np.ndarray


class Writer(BaseWriter):
    """Record episodes into a store, a step at a time, in batches of steps, or whole.

    Made by ``store.writer()``. Each writer fills segments of its own, so any number of them, in any processes, record
    into one store at the same time. A step is committed, and visible to readers everywhere, when `append` returns; with
    a feature whose codec is slow (video) when it was encoded in the background.

    Example:
        >>> import tempfile, stepwell
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/walk.well")
        >>> with store.writer() as writer:
        ...     for t in range(3):
        ...         step_id = writer.append(position=[float(t), 0.0], action=t)
        ...     episode = writer.end_episode(terminated=True, task="walk")
        >>> len(store), store[0]["action"].tolist()
        (1, [0, 1, 2])

    Notes:
        One thread at a time; after a fork only the parent may go on (the child gets WriterClosedError). A kill at any
        moment loses at most the step that `append` had not returned from, and with slow codecs what waits in the queue;
        ``sync="episode"`` and ``"step"`` extend that to a loss of power. Slow codecs have a thread each. An error there
        is raised by the next call, and closes the writer: what was committed is kept, the rest of the open episode is
        not. `end_episode`, `add_episode`, `discard_episode`, `flush` and `close` wait for what is queued.

        In a ring an episode that outgrows two segments is cut between two calls: what `append` was given becomes the
        final row of the piece before, of features with ``final=True``, and the first step of the next piece. Steps
        that are given at once stay together. Sealing a segment evicts those beyond the capacity, in the background.

        A table with ``back_pressure=`` holds the writers of its ring, in all processes of the machine: each call that
        stores steps waits, raises RateLimitError with nothing written, or drops the steps and returns -1. An episode of
        which steps are dropped ends before them, marked ``interrupted``, with the first one's values as its final row;
        what follows is another episode. `end_episode` and `close` never wait.
    """

    def __init__(
        self,
        store: Store,
        *,
        sync: Sync,
        limit: SegmentLimit,
        queue_bytes: int,
        ordinal: int | None = None,
        tag: str | None = None,
        key: WriterKey | None = None,
    ) -> None:
        super().__init__(store, sync=sync)
        # one segment with a given ordinal is never full
        self._limit = limit if ordinal is None else SegmentLimit(sys.maxsize)
        self._look_row = sys.maxsize
        # ids of the first steps of the pieces that are there of the open episode, but for the one that grows
        self._pieces: list[int] = []
        self._queue_bytes = queue_bytes
        self._ordinal, self._tag, self._key = ordinal, tag, key
        # the one that is written to, or the one that is being closed
        self._segment: SegmentWriter | None = None
        self._closing: SegmentWriter | None = None
        # whether steps were dropped since the last end of an episode
        self._has_gap = False
        self._schema: Schema | None = None
        # of the features that a step has a value of: those with a rate come by `append_at`
        self._checks: list[tuple[str, Any, Any, Any]] = []
        self._samples: PendingSamples | None = None

    def append(self, step: Mapping[str, Any] | None = None, /, **features: Any) -> int:  # noqa: PLR0912
        """Store one step of the open episode.

        Args:
            step: name to value of every feature, as a mapping; nested mappings become dotted names.
            features: the same as keywords, instead of ``step``.

        Returns:
            The step's id.

        Raises:
            StepError: a feature is missing, unknown, or of another dtype or shape; nothing was written.
            DiskFullError: no space; nothing of this step is visible, and the writer may be used again (if it is not
                closed: see Notes of the class).
            EncodeError: a sequential codec could not encode this step, or in the background an earlier one.
            RateLimitError: a table with back-pressure refuses the step; nothing was written.
            WriterClosedError: the writer was closed, or belongs to another process.

        Notes:
            Values are copied: their arrays may be used again. Waits while the queue of a slow codec is full, or a table
            with back-pressure lets nothing in.
        """
        if step is None:
            step = features
        elif features:
            raise given_twice_error(features)
        segment = self._segment
        if segment is None or self._pid != this.pid:
            segment = self._begin(step)
        values = []
        try:
            for name, dtype, shape, accept in self._checks:
                try:
                    value = step[name]
                except (KeyError, TypeError):
                    break
                if type(value) is not _ndarray or value.dtype is not dtype or value.shape != shape:
                    value = accept(value)
                values.append(value)
            else:
                if len(step) == len(values):
                    if self._samples is not None:
                        return self._append_sampled(segment, values)
                    if self._limits[0] and not self._is_admitted(1):
                        return self._leave_gap(segment, values)
                    if segment.row >= self._look_row and self._is_overlong(segment):
                        return self._cut(segment, values, lambda new: new.append(values))
                    return segment.append(values)
        except Exception as error:
            self._leave_if_failed(segment)
            if isinstance(error, OSError):
                self._raise_from(error)
            raise
        check_mapping(step)
        return self._append_nested(step)

    def append_at(self, feature: str, value: Any, time: float | Any) -> None:
        """Take samples of a feature with a rate (``Array(..., rate=150)``) in the open episode, or the one to come.

        Args:
            feature: its name.
            value: a sample, of the feature's dtype and shape; or several, [n, *shape]; of a feature with a codec also
                `EncodedRows`, a sample each.
            time: seconds since the episode's first step, after those of the samples before; of several float64 [n], or
                that of the first one alone: the others follow it at the feature's rate.

        Raises:
            StepError: the feature has no rate, or is not there; another dtype or shape; times that do not ascend, that
                lie before the episode's begin, or at or before a step that is stored already. Nothing was taken.
            EncodeError: a sample that the feature's codec cannot encode; nothing was taken.

        Notes:
            Samples are stored, committed and visible with the step that follows them, so give them before it; those
            after the last step with `end_episode`, which refuses what lies after the episode's end (its steps at the
            store's fps). A kill loses those that wait for their step.
        """
        self._check_usable()
        if self._samples is None:
            if self._store.schema is None:
                raise StepError(
                    f"feature {feature!r}: the store has no schema yet. Features with a rate need one: "
                    "create(path, {name: Array(shape, dtype, rate=...), ...}, fps=...)."
                )
            self._bind(self._store.schema)
        if self._samples is None:
            raise StepError(f"feature {feature!r}: no feature of the store has a rate. `append` stores its steps.")
        self._samples.add(feature, value, time)

    def append_batch(self, columns: Mapping[str, Any]) -> int:
        """Store several steps of the open episode at once.

        Args:
            columns: name to an array [n, *shape], a list with one value a step, or `EncodedRows`.

        Returns:
            The first step's id; the others follow it.

        Raises:
            StepError: as for `append`, or columns of different lengths; nothing was written.
        """
        check_mapping(columns)
        segment = self._segment
        plain = self._plain_columns(columns)
        if segment is not None and plain is not None and self._pid == this.pid:
            return self._append_rows(segment, plain, len(plain[0]))
        columns = dict(flatten(columns))
        segment = self._begin_columns(columns)
        if self._samples is not None:
            if not columns.keys().isdisjoint(self._samples.columns):
                raise missing_features_error(segment.schema, columns)
            steps = [len(values) for values in columns.values()]
            columns |= self._samples.columns_of(segment.carry_on[0], min(steps, default=0))
        accepted, count = accept_columns(segment.schema, columns, finals=False)
        return self._append_rows(segment, accepted, count)

    def _append_sampled(self, segment: SegmentWriter, values: list[Any]) -> int:
        """Append a step with the samples that came before it."""
        assert self._samples is not None
        first = segment.carry_on[0]
        step = {name: value for (name, *_), value in zip(self._checks, values, strict=True)}
        step |= {name: rows[0] for name, rows in self._samples.rows(first, 1).items()}
        values = [step[name] for name in segment.schema]
        if self._limits[0] and not self._is_admitted(1):
            return self._leave_gap(segment, values)
        is_cut = segment.row >= self._look_row and self._is_overlong(segment)
        appended = self._cut(segment, values, lambda new: new.append(values)) if is_cut else segment.append(values)
        self._samples.stored(first + 1)
        return appended

    def _append_rows(self, segment: SegmentWriter, columns: list[Any], count: int) -> int:
        with self._left_if_failed(segment):
            if self._limits[0] and count and not self._is_admitted(count):
                return self._leave_gap(segment, [row_of(values, 0) for values in columns])
            num_steps = 0 if self._samples is None else segment.carry_on[0] + count
            if count and segment.row >= self._look_row and self._is_overlong(segment):
                first = [row_of(values, 0) for values in columns]
                appended = self._cut(segment, first, lambda new: new.append_rows(columns, count))
            else:
                appended = segment.append_rows(columns, count)
            if self._samples is not None:
                self._samples.stored(num_steps)
            return appended

    def end_episode(
        self,
        *,
        terminated: bool = False,
        truncated: bool = False,
        final: Mapping[str, Any] | None = None,
        **metadata: Any,
    ) -> int:
        """End the open episode.

        Args:
            terminated: the environment reached a terminal state: the value of what follows is zero.
            truncated: the episode was cut, by a time limit for instance: what follows has a value.
            final: the observation after the last action: name to value of every feature with ``final=True``.
            metadata: anything that JSON holds: task, seed, operator, success; `View.select` finds episodes by it.

        Returns:
            The episode's place in the segment.

        Raises:
            StepError: no steps since the last end, a final value of a feature that has none, or metadata that JSON
                cannot hold; the episode stays open.
        """
        self._check_usable()
        segment = self._segment
        if self._has_gap and (segment is None or not segment.has_open_episode):
            # its last steps were dropped
            self._has_gap = False
            if self._samples is not None:
                self._samples.clear()
            self._pieces.clear()
            return -1
        if segment is None or not segment.has_open_episode:
            raise StepError("there are no steps since the last end_episode. Append at least one.")
        if final is not None and not isinstance(final, Mapping):
            raise StepError(f"final={type(final).__name__}. Give a mapping of feature names to values.")
        finals = None if final is None else accept_final(segment.schema, dict(flatten(final)))
        line = encode_metadata(metadata)
        if self._samples is not None and self._samples:
            rest, _ = self._samples.rest(segment.carry_on[0])
            if finals is None:
                self._extend_last(segment, rest)
            else:
                finals |= {name: rows[0] for name, rows in rest.items()}
        return self._end_open(segment, line, finals, terminated=bool(terminated), truncated=bool(truncated))

    def _end_open(self, segment: SegmentWriter, line: bytes, final: Mapping[str, Any] | None, **flags: bool) -> int:
        """End the open episode with a line of metadata and accepted values of its final row; returns its place."""
        with self._left_if_failed(segment):
            place = segment.end_episode(metadata=line, final=final, **flags)
        self._pieces.clear()
        self._has_gap = False
        if self._samples is not None:
            self._samples.clear()
        if self._limits[0] and self._gate is not None:
            self._gate.count_ends(1)
        self._roll(segment)
        return place

    def _extend_last(self, segment: SegmentWriter, rest: Mapping[str, list[Any]]) -> None:
        """Store samples that came after the last step of the open episode with its row."""
        with self._left_if_failed(segment):
            segment.extend_last({name: values for name, (values,) in rest.items() if len(values)})
        if self._samples is not None:
            self._samples.extended()

    def add_episode(
        self,
        columns: Mapping[str, Any],
        /,
        *,
        terminated: bool = False,
        truncated: bool = False,
        final: Mapping[str, Any] | None = None,
        **metadata: Any,
    ) -> int:
        """Store a whole episode.

        Args:
            columns: name to an array [T, *shape] or a list of T values; where rows are encoded already, to what gives
                them: `EncodedRows`, a ``VideoFile``; of a feature with a rate to its `Samples`. Features with
                ``final=True`` may have T + 1, all of them or none: the last one is the observation after the last
                action.
            terminated: see `end_episode`.
            truncated: see `end_episode`.
            final: see `end_episode`; instead of columns of T + 1.
            metadata: see `end_episode`.

        Returns:
            The episode's place in the segment.

        Raises:
            StepError: as for `append`; an episode is open; T is 0; or lengths that do not fit; nothing was written.
        """
        line = encode_metadata(metadata)
        check_mapping(columns)
        if self._store.schema is not None and self._store.schema.rated:
            columns = rows_of_episode(self._store.schema, self._store.fps, dict(flatten(columns)))
        segment, accepted, count = self._accept_episodes(columns, finals=True)
        if count == 0:
            raise StepError("an episode needs at least one step, got columns of 0 steps.")
        names = list(segment.schema)
        finals = {
            name: row_of(values, count) for name, values in zip(names, accepted, strict=True) if len(values) > count
        }
        if final is not None:
            if finals:
                raise StepError("the final row was given twice: by columns of T + 1, and by final.")
            finals = accept_final(segment.schema, dict(flatten(final)))
        if self._limits[0] and not self._is_admitted(count, 1):
            return -1
        with self._left_if_failed(segment):
            segment.append_rows([values[:count] for values in accepted], count)
            place = segment.end_episode(
                metadata=line, final=finals or None, terminated=bool(terminated), truncated=bool(truncated)
            )
        self._roll(segment)
        return place

    def add_one_step_episodes(self, columns: Mapping[str, Any], /) -> int:
        """Store episodes of one step each: the samples of a data set, many at once.

        Args:
            columns: name to an array [n, *shape], a list of n values, or `EncodedRows`: a value for each episode.

        Returns:
            The first one's place in the segment.

        Raises:
            StepError: as for `add_episode`; nothing was written.
        """
        if self._store.schema is not None and self._store.schema.rated:
            names = ", ".join(map(repr, self._store.schema.rated))
            raise StepError(f"feature {names} has a rate, and episodes of one step have no clock. Use add_episode.")
        segment, accepted, count = self._accept_episodes(columns, finals=False)
        if count == 0:
            raise StepError("got columns of 0 values. Give a value for each episode, at least one.")
        if self._limits[0] and not self._is_admitted(count, count):
            return -1
        with self._left_if_failed(segment):
            place = segment.append_one_step_episodes(accepted, count)
        self._roll(segment)
        return place

    @property
    def has_open_episode(self) -> bool:
        """Whether steps were stored since the last end of an episode."""
        return self._segment is not None and self._segment.has_open_episode

    def discard_episode(self) -> None:
        """Take back the steps since the last end of an episode: they are never shown again.

        `Store.compact` frees their space. In a ring they count, and are kept, until their time comes.
        """
        self._check_usable()
        segment = self._segment
        if segment is not None and segment.has_open_episode:
            with self._left_if_failed(segment):
                segment.end_episode(metadata=encode_metadata({}), discarded=True)
        if self._samples is not None:
            self._samples.clear()
        self._has_gap = False
        if self._pieces:
            add_deleted(str(self._store.path), np.array(self._pieces, np.int64))
            self._pieces.clear()

    def _sync_open(self) -> None:
        if self._segment is not None:
            with self._left_if_failed(self._segment):
                self._segment.flush()

    def _seal_all(self) -> None:
        """Seal what this writer has, an open episode as an interrupted one."""
        if self._segment is not None:
            # at once: nothing more is appended to it, and after a Ctrl-C it is found here
            self._closing, self._segment = self._segment, None
        segment = self._closing
        if segment is not None:
            try:
                self._store_rest(segment)
                _interrupt(segment)
            except Exception:
                if segment.is_failed:
                    self._leave(segment)
                else:
                    segment.leave()
                self._closing = None
                raise
            self._seals.add(segment)
            self._closing = None

    def _store_rest(self, segment: SegmentWriter) -> None:
        """Store the samples of an episode that is left open, but for those after its end."""
        if self._samples is None or not self._samples:
            return
        num_after, names = 0, self._samples.names
        if segment.has_open_episode:
            rest, num_after = self._samples.rest(segment.carry_on[0], is_cut=True)
            self._extend_last(segment, rest)
        if num_after or not segment.has_open_episode:
            warnings.warn(
                f"{self._store.path}: samples of {names} lie after the last step of the episode and are left out. "
                "Append the steps that follow them before the writer is closed.",
                LeftOutWarning,
                stacklevel=4,
            )

    def _release(self) -> None:
        if self._key is not None:
            self._key.release()

    def __del__(self) -> None:
        # an abandoned writer leaves what a killed one does, and is recovered the same way: nothing to do but let go
        if hasattr(self, "_closing") and self._pid == this.pid:
            for segment in (self._segment, self._closing):
                if segment is not None:
                    segment.leave()
            self._seals.leave()
        key = getattr(self, "_key", None)
        if key is not None:
            key.leave()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        rows = 0 if self._segment is None else self._segment.row
        return f"<Writer of {self._store.path.name} {state} {counted(rows, 'row')} in this segment>"

    # the way in

    def _begin(self, step: Mapping[str, Any]) -> SegmentWriter:
        """Return the segment to write to, made on the first step."""
        self._check_usable()
        check_mapping(step)
        if self._segment is None:
            self._presence.note_thread()
            schema = self._store.ensure_schema(lambda: infer_schema(step))
            self._bind(schema)
            segment = self._make_segment(schema)
            self._segment, self._look_row = segment, 0 if self._limit.capacity is not None else sys.maxsize
        return self._segment

    def _make_segment(self, schema: Schema, *, carried: tuple[int, int] = (0, 0)) -> SegmentWriter:
        path = str(self._store.path)
        if self._clock is None and self._store.capacity is not None:
            self._open_ring(schema)
        if not self._limit.is_least:
            own = set() if self._segment is None else {self._segment.name}
            self._limit = self._limit.shared(1 + len(growing_segments(path) - own))
        return SegmentWriter(
            path,
            schema,
            sync=self._sync,
            ordinal=self._ordinal,
            tag=self._tag,
            confirm=lambda: self._store.check_schema(schema),
            queue_bytes=self._queue_bytes,
            carried=carried,
            clock=self._clock,
            note=None if self._key is None else self._key.note,
            on_made=self.on_segment,
        )

    def _begin_columns(self, columns: Mapping[str, Any]) -> SegmentWriter:
        bad = [name for name, values in columns.items() if not is_column(values)]
        encoded = [name for name, values in columns.items() if has_rows(values)]
        if bad:
            raise StepError(
                f"feature {', '.join(map(repr, bad))} is not a column. Give an array [n, ...] or a list of n values."
            )
        if self._store.schema is None and encoded:
            raise StepError(
                f"feature {', '.join(map(repr, encoded))}: a schema cannot be inferred from rows that are encoded. "
                "Give one to create()."
            )
        if self._store.schema is None and any(len(values) == 0 for values in columns.values()):
            raise StepError("the schema cannot be inferred from columns of 0 steps. Give a schema to create().")
        if self._store.schema is None:
            lengths = {name: len(values) for name, values in columns.items()}
            longer = [name for name, length in lengths.items() if length == min(lengths.values()) + 1]
            inferred = infer_columns(columns, final=longer or None)
            # refused, if it must be, before the store has a schema for ever
            self._bind(inferred)
            accept_columns(inferred, columns, finals=True)
            self._store.ensure_schema(lambda: inferred)
        return self._begin({})

    def _accept_episodes(self, columns: Mapping[str, Any], *, finals: bool) -> tuple[SegmentWriter, list[Any], int]:
        """Return the segment to write whole episodes to, their accepted columns, and the number of steps."""
        if self._has_gap or (self._segment is not None and self._segment.has_open_episode) or self._samples:
            raise StepError("an episode is open. Call end_episode or discard_episode first.")
        check_mapping(columns)
        columns = dict(flatten(columns))
        segment = self._begin_columns(columns)
        return segment, *accept_columns(segment.schema, columns, finals=finals)

    def _bind(self, schema: Schema) -> None:
        if self._schema is not schema:
            sampled = {*schema.rated, *schema.rated.values()}
            self._checks = [
                (name, feature.np_dtype, feature.shape if not feature.is_ragged else None, acceptor(name, feature))
                for name, feature in schema.items()
                if name not in sampled
            ]
            if sampled and self._samples is None:
                self._samples = PendingSamples(schema, self._store.fps)
            # last: interrupted before, it is done again
            self._schema = schema

    def _append_nested(self, step: Mapping[str, Any]) -> int:
        """Append a step with nested mappings, or say what is wrong with its names."""
        assert self._schema is not None
        flat = dict(flatten(step))
        names = {name for name, *_ in self._checks}
        if flat.keys() != names:
            raise missing_features_error(self._schema, flat)
        if any(isinstance(value, Mapping) for value in step.values()):
            return self.append(flat)
        raise missing_features_error(self._schema, step)

    def _plain_columns(self, columns: Mapping[str, Any]) -> list[Any] | None:
        """Return columns of one length that need no conversion, in the schema's order; None when one needs it."""
        # The common case, at the cost of one look a column.
        if self._samples is not None:
            return None
        accepted = []
        for name, dtype, shape, _ in self._checks:
            values = columns.get(name)
            if type(values) is not _ndarray or values.dtype is not dtype or not values.flags.c_contiguous:
                return None
            if not values.shape or values.shape[1:] != shape:
                return None
            accepted.append(values)
        if len(accepted) != len(columns) or len({len(values) for values in accepted}) != 1:
            return None
        return accepted

    # the way out

    def _leave_gap(self, segment: SegmentWriter, first: list[Any]) -> int:
        """Drop steps: end what is there of the open episode, with the values of the first one as its final row."""
        self._has_gap = True
        if self._samples is not None:
            self._samples.clear()
        if segment.has_open_episode:
            values = dict(zip(segment.schema, first, strict=True))
            final = {name: values[name] for name in segment.schema.final_names}
            self._pieces.append(step_id(segment.ordinal, segment.episode_start))
            segment.end_episode(metadata=encode_metadata({}), final=final or None, interrupted=True)
            if self._gate is not None:
                self._gate.count_ends(1)
            self._roll(segment)
        return -1

    def _is_overlong(self, segment: SegmentWriter) -> bool:
        is_overlong = segment.has_open_episode and self._limit.is_overlong(*segment.size)
        if not is_overlong:
            self._look_row = self._limit.next_look(segment.row)
        return is_overlong

    def _cut(self, segment: SegmentWriter, first: list[Any], append: Callable[[SegmentWriter], int]) -> int:
        """End the open episode's piece and go on in a new segment; returns what ``append`` does."""
        values = dict(zip(segment.schema, first, strict=True))
        final = {name: values[name] for name in segment.schema.final_names}
        # its pieces are as old as they are in order
        time_ns = time.time_ns()
        new = self._make_segment(segment.schema, carried=segment.carry_on)
        try:
            # in this order: an episode whose next step cannot be stored is as before
            appended = append(new)
            if self._sync == "episode":
                # first what follows: an episode that goes on is not to end in nothing
                new.sync_committed()
            start = step_id(segment.ordinal, segment.episode_start)
            segment.end_episode(metadata=encode_metadata({}), final=final or None, goes_on=True, time_ns=time_ns)
        except BaseException:
            # without an ended episode it is removed
            self._seals.add(new)
            raise
        self._pieces.append(start)
        self._segment, self._look_row = new, 0
        self._seals.add(segment)
        self._seals.check()
        return appended

    def _roll(self, segment: SegmentWriter) -> None:
        """Begin a new segment when this one is full; the full one is sealed in the background."""
        if self._limit.is_full(segment.row, segment.num_bytes):
            self._segment = None
            if self._key is not None:
                self._key.go_on(segment.num_kept)
            self._seals.add(segment)
        self._seals.check()

    def _leave_if_failed(self, segment: SegmentWriter) -> None:
        """Close the writer when steps that it had taken are lost; what was committed is kept and sealed."""
        if segment.is_failed and not self._is_closed:
            self._is_closed, self._closing, self._segment = True, segment, None
            self._presence.end()
            self._leave(segment)
            self._closing = None
            self._is_done = True

    @contextmanager
    def _left_if_failed(self, segment: SegmentWriter) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._leave_if_failed(segment)
            if isinstance(error, OSError):
                self._raise_from(error)
            raise

    def _leave(self, segment: SegmentWriter) -> None:
        """Seal what a segment has committed; there is an error on its way already, so none is raised."""
        segment.cut_to_committed()
        try:
            _interrupt(segment)
        except OSError:
            segment.leave()
        else:
            self._seals.add(segment)
        self._seals.wait()
        if self._key is not None:
            self._key.release()
        self._store.refresh()


def _interrupt(segment: SegmentWriter) -> None:
    if segment.has_open_episode:
        segment.end_episode(metadata=encode_metadata({}), interrupted=True)
