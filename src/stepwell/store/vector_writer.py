"""The vector writer: a step of n environments by one call, into lanes of one segment, or by a writer for each."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import StepError
from stepwell.process import this
from stepwell.schema import Schema, flatten, infer_schema
from stepwell.sizes import counted
from stepwell.store.base_writer import BaseWriter
from stepwell.store.beneath import system_errors
from stepwell.store.device_arrays import HostCopies, is_on_device
from stepwell.store.encoding import QUEUE_BYTES
from stepwell.store.lanes import IS_SYNCED
from stepwell.store.layout import MAX_ROWS
from stepwell.store.maintenance import add_deleted
from stepwell.store.records import Capacity, Sync, fixed_row_bytes
from stepwell.store.ring import LEAST_ROWS, SHARE, SegmentLimit, growing_segments
from stepwell.store.samples import refuse_rates
from stepwell.store.values import (
    accept_column,
    acceptor,
    check_mapping,
    encode_metadata,
    given_twice_error,
    has_rows,
    is_column,
    missing_features_error,
)

if TYPE_CHECKING:
    from stepwell.store.lane_writer import LaneValues, LaneWriter, NextSegment
    from stepwell.store.separate_writers import Ending, SeparateWriters
    from stepwell.store.store import Store

__all__ = ["VectorWriter"]

Flags = npt.ArrayLike
Int64s = npt.NDArray[np.int64]
# a step, a final row, and a row for the final one of a cut
LEAST_LANE_ROWS = 8
# earlier segments that are kept open for environments that do not step
MAX_WAITING = 32
_ndarray = np.ndarray
_BOOL = np.dtype(np.bool_)


class VectorWriter(BaseWriter):
    """Record n environments that step together, or some of them at a time.

    Made by ``store.vector_writer(n)``. Each environment has an episode of its own, which begins and ends when it does.
    In a ring whose features are all raw a vector step is stored and committed by one call, whatever n is, into one
    segment; elsewhere each environment has a writer, made with its first step.

    Example:
        >>> import numpy as np, stepwell
        >>> from stepwell import Array
        >>> schema = {"observation": Array(2, final=True), "action": Array((), "int64")}
        >>> store = stepwell.create(":memory:", schema, capacity=1000)
        >>> with store.vector_writer(3) as writer:
        ...     for t in range(4):
        ...         observation = np.full((3, 2), t, np.float32)
        ...         done = np.array([False, t == 2, False])
        ...         step = {"observation": observation, "action": np.arange(3)}
        ...         ids = writer.append(step, terminated=done, final={"observation": observation})
        >>> [(episode.length, episode.terminated) for episode in store]
        [(3, True), (4, False), (1, False), (4, False)]

    Notes:
        One thread at a time; after a fork only the parent may go on (the child gets WriterClosedError). A kill at any
        moment loses at most the vector step that had not returned.

        With one segment, a vector step is visible to readers everywhere, whole, when `append` returns. When the rows of
        an environment in it are full, the episodes of all that step are cut, as a long one is in any ring: see
        `stepwell.Writer`.

        With a writer for each environment, readers see the steps of one vector step one after the other, and episodes
        are as `stepwell.Writer` records them. An error of the disk or of a codec when some environments had stored
        their step ends the open episodes of all that step, marked ``interrupted``; what comes next are others. With
        fewer ``writers`` than environments running episodes are in memory: a kill loses them whole, and an error leaves
        those that are not written as they were.
    """

    _maker = "store.vector_writer()"

    def __init__(self, store: Store, num_envs: int, *, sync: Sync, num_writers: int | None) -> None:
        super().__init__(store, sync=sync)
        self._num_envs, self._shape, self._num_writers = num_envs, (num_envs,), num_writers
        self._host = HostCopies()
        # where segments have no lanes
        self._separate: SeparateWriters | None = None
        self._segment: LaneWriter | None = None
        # those that are being closed
        self._closing: list[LaneWriter] = []
        # the segment after this one, which is made while half of this one is still free
        self._next: NextSegment | None = None
        # earlier segments with open episodes of environments that did not step since, and what was written before each
        # of the segments after them: steps, or bytes
        self._waiting: list[tuple[LaneWriter, int]] = []
        self._num_written = 0
        self._num_until_next = 0
        self._kind = self._kind_with_final = 0
        self._values: LaneValues | None = None
        self._columns: list[tuple[str, Any, tuple[int, ...], npt.NDArray[Any]]] = []
        self._finals: list[tuple[str, npt.NDArray[Any]]] = []
        # whether the flags of `LaneValues` are those of a step with which no episode ends, of all environments
        self._has_no_flags = True
        # of episodes that were cut: their origins, and the ids of their pieces' first steps; int64 [n] each
        self._pieces: list[tuple[Int64s, Int64s]] = []

    def append(  # noqa: PLR0912
        self,
        step: Mapping[str, Any] | None = None,
        /,
        *,
        terminated: Flags | None = None,
        truncated: Flags | None = None,
        final: Mapping[str, Any] | None = None,
        mask: Flags | None = None,
        metadata: Mapping[int, Mapping[str, Any]] | None = None,
        **features: Any,
    ) -> Int64s:
        """Store one step of each environment, and end the episodes that end with it.

        Args:
            step: name to values [n, *shape] of every feature; nested mappings become dotted names. JAX arrays and
                torch tensors of a GPU come to the host with one transfer, ``final`` and flags among them.
            terminated: bool [n], environments that reached a terminal state by this step; default: none.
            truncated: bool [n], environments whose episode was cut after this step; default: none.
            final: name to values [n, *shape] of every feature with ``final=True``: what came after the last action,
                of environments whose episode ends; the values of others, and where none ends all, are not looked at.
            mask: bool [n], environments that stepped; nothing is stored of the others. Default: all.
            metadata: number of an environment to the metadata of its episode, where it ends.
            features: the same as ``step``, as keywords.

        Returns:
            The ids of the steps, int64 [n]; -1 where the mask is False, or the running episode is in memory.

        Raises:
            StepError: a feature is missing, unknown, or of another dtype or shape; nothing was written.
            DiskFullError: no space; nothing of this step is visible, and the writer may be used again. (Where each
                environment has a writer: see Notes of the class.)
            EncodeError: a value could not be encoded; see Notes of the class.
            RateLimitError: a table with back-pressure refuses the step; nothing was written.
            WriterClosedError: the writer was closed, or belongs to another process.

        Notes:
            Waits while a table with back-pressure lets nothing in, or drops the step of all environments and returns
            -1 for each: as with `stepwell.Writer`, the episodes of which steps are dropped end before them.
        """
        if step is None:
            step = features
        elif features:
            raise given_twice_error(features)
        segment = self._segment
        if segment is None or self._pid != this.pid:
            step, terminated, truncated, final, mask = self._host.take((step, terminated, truncated, final, mask))
            begun = self._begin(step)
            if begun is None:
                return self._append_each(
                    step, terminated=terminated, truncated=truncated, final=final, mask=mask, metadata=metadata
                )
            segment = begun
        try:
            if len(step) != len(self._columns):
                raise KeyError
            for name, dtype, shape, target in self._columns:
                value = step[name]
                if type(value) is not _ndarray or value.dtype is not dtype or value.shape != shape:
                    if is_on_device(value):
                        # all of the step at once
                        given = self._host.take((step, terminated, truncated, final, mask))
                        step, terminated, truncated, final, mask = given
                        value = step[name]
                    value = self._accepted(name, value)
                target[...] = value
        except KeyError:
            return self._append_nested(
                step, terminated=terminated, truncated=truncated, final=final, mask=mask, metadata=metadata
            )
        values = self._values
        assert values is not None
        if mask is None and terminated is None and truncated is None:
            if not self._has_no_flags:
                self._set_flags(None, None, None)
        else:
            self._set_flags(mask, terminated, truncated)
        kind = self._kind if final is None else self._kind_with_final
        if self._limits[0] and not self._admits_step():
            return self._leave_gap(segment)
        try:
            found = 0 if self._waiting else segment.append_step(kind)
            if found or self._waiting:
                self._finish(segment, found, kind, final, metadata)
        except OSError as error:
            self._raise_from(error)
        self._num_until_next -= 1
        if not self._num_until_next:
            self._make_next(segment.schema)
        return values.ids.copy()

    def append_batch(
        self,
        steps: Mapping[str, Any],
        /,
        *,
        terminated: Flags | None = None,
        truncated: Flags | None = None,
        final: Mapping[str, Any] | None = None,
        out: Int64s | None = None,
    ) -> Int64s:
        """Store several vector steps of all environments at once, by one call of a kernel.

        Args:
            steps: name to values [t, n, *shape] of every feature; nested mappings become dotted names.
            terminated: bool [t, n]; see `append`.
            truncated: bool [t, n]; see `append`.
            final: name to values [t, n, *shape] of every feature with ``final=True``; see `append`.
            out: int64 [t, n], where the ids are put; default: a new array.

        Returns:
            The ids of the steps, int64 [t, n].

        Raises:
            StepError: as for `append`, or arrays of different lengths; nothing was written.
            DiskFullError: no space for the segment that a step needs: it and those after it were not written, and
                their ids in ``out`` are as they were.
            RateLimitError: a table with back-pressure refuses a step: likewise.
        """
        check_mapping(steps)
        steps, terminated, truncated, final = self._host.take((steps, terminated, truncated, final))
        given = dict(flatten(steps))
        count = self._num_steps_of(given)
        if not count:
            return np.empty((0, self._num_envs), np.int64) if out is None else out
        if self._segment is None or self._pid != this.pid:
            self._begin({name: values[0] for name, values in given.items()})
        columns, finals, flags = self._batch(given, final, {"terminated": terminated, "truncated": truncated}, count)
        if out is None:
            out = np.empty((count, self._num_envs), np.int64)
        elif out.dtype != np.int64 or out.shape != (count, self._num_envs) or not out.flags.carray:
            raise StepError(
                f"out of {out.dtype}{list(out.shape)}. Give a contiguous int64 [{count}, {self._num_envs}]."
            )

        def append_one(number: int) -> None:
            out[number] = self.append(
                {name: column[number] for name, column in columns.items()},
                terminated=flags[0][number],
                truncated=flags[1][number],
                final={name: rows[number] for name, rows in finals.items()} if finals else None,
            )

        if self._limits[0] or self._separate is not None:
            # tables may let in some of them
            for number in range(count):
                append_one(number)
            return out
        ends = flags[0] | flags[1]
        self._set_flags(None, None, None)
        kind = self._kind_with_final if finals else self._kind
        done = 0
        while done < count:
            segment = self._segment
            assert segment is not None
            if self._waiting:
                # all environments step: then none waits any more
                append_one(done)
                self._set_flags(None, None, None)
                done += 1
                continue
            addresses = [array[done:].ctypes.data for array in (*flags, out)]
            for name, *_ in self._columns:
                addresses.append(columns[name][done:].ctypes.data)
                addresses.append(finals[name][done:].ctypes.data if name in finals else 0)
            try:
                num = segment.append_steps(np.array(addresses), kind, count - done, int(np.count_nonzero(ends[done:])))
            except OSError as error:
                self._raise_from(error)
            is_half_free = self._num_until_next > 0
            self._num_until_next -= num
            done += num
            if is_half_free and self._num_until_next <= 0:
                self._make_next(segment.schema)
            if done < count:
                # the segment is full: this step is the next one's first
                append_one(done)
                self._set_flags(None, None, None)
                done += 1
        return out

    def _num_steps_of(self, given: Mapping[str, Any]) -> int:
        for name, values in given.items():
            if not is_column(values):
                raise StepError(f"feature {name!r}: got {values!r:.40}. Give an array [t, {self._num_envs}, ...].")
        return len(next(iter(given.values()), ()))

    def _batch(
        self, given: dict[str, Any], final: Mapping[str, Any] | None, flags: Mapping[str, Flags | None], count: int
    ) -> tuple[dict[str, Any], dict[str, Any], list[npt.NDArray[np.bool_]]]:
        """Return columns, final values and flags of several vector steps as the kernel takes them."""
        schema = self._store.schema
        assert schema is not None
        if given.keys() != schema.keys():
            raise missing_features_error(schema, given)
        columns = {name: self._accepted_steps(name, values, count) for name, values in given.items()}
        rows = {} if final is None else self._checked_finals(final)
        finals = {name: self._accepted_steps(name, values, count) for name, values in rows.items()}
        shape = (count, self._num_envs)
        found = [
            np.zeros(shape, np.bool_) if array is None else self._flags(name, array, shape)
            for name, array in flags.items()
        ]
        return columns, finals, found

    def _accepted_steps(self, name: str, values: Any, count: int) -> Any:
        """Return values [t, n, *shape] of a feature, contiguous, or lists of them; StepError where they are not."""
        schema = self._store.schema
        assert schema is not None
        feature, shape = schema[name], (count, self._num_envs)
        if feature.is_ragged:
            if not is_column(values) or len(values) != count:
                raise StepError(f"feature {name!r}: give a list of {count} lists of {self._num_envs} values.")
            return [self._accepted_values(name, step, range(self._num_envs)) for step in values]
        if type(values) is _ndarray and values.dtype == feature.np_dtype and values.shape == (*shape, *feature.shape):
            return np.ascontiguousarray(values)
        rows = np.asarray(values)
        if rows.shape[:2] != shape:
            raise StepError(f"feature {name!r}: values {list(rows.shape)}. Give [{count}, {self._num_envs}, ...].")
        accepted = accept_column(name, feature, rows.reshape(-1, *rows.shape[2:]))
        return np.ascontiguousarray(accepted).reshape(*shape, *feature.fixed_shape)

    def end_episodes(
        self,
        mask: Flags | None = None,
        *,
        terminated: bool = False,
        truncated: bool = False,
        final: Mapping[str, Any] | None = None,
        metadata: Mapping[int, Mapping[str, Any]] | None = None,
    ) -> None:
        """End the open episodes of some environments, without a step: where they were reset in between.

        Args:
            mask: bool [n], environments whose episode ends, if one is open; default: all.
            terminated: see `append`; of all of them.
            truncated: see `append`; of all of them.
            final: see `append`.
            metadata: see `append`.

        Raises:
            StepError: as for `append`; nothing was written.
        """
        mask, final = self._host.take((mask, final))
        if self._separate is not None:
            self._check_usable()
            flags = np.full((2, self._num_envs), [[terminated], [truncated]])
            open_ones = self._separate.open_among(self._chosen(mask))
            self._separate.end(self._endings(open_ones, flags, final, metadata))
        else:
            self._end(mask, terminated | truncated << 8, final, metadata)

    def discard_episodes(self, mask: Flags | None = None) -> None:
        """Take back the open episodes of some environments (bool [n]; default: all): they are never shown again.

        They count, and are kept, until their time comes.
        """
        from stepwell.store.lane_writer import IS_DISCARDED

        segment = self._segment
        if segment is None:
            self._check_usable()
            if self._separate is not None:
                self._separate.discard(self._chosen(mask))
            return
        pieces = [(one.skipped > 0, one.origins.copy()) for one in self._open_segments()]
        taken = self._end(mask, IS_DISCARDED, None, None)
        gone = np.concatenate([origins[taken & is_piece] for is_piece, origins in pieces])
        ids = [ids[np.isin(known, gone)] for known, ids in self._pieces]
        if len(gone) and ids:
            add_deleted(str(self._store.path), np.unique(np.concatenate(ids)))

    def _sync_open(self) -> None:
        if self._separate is not None:
            self._separate.flush()
        try:
            for segment in self._open_segments():
                segment.sync_committed()
        except OSError as error:
            self._raise_from(error)

    def _seal_all(self) -> None:
        unused = self._take_next()
        if unused is not None:
            self._seals.add(unused)
        if self._segment is not None:
            segments = self._open_segments()
            # at once: nothing more is appended to them, and after a Ctrl-C they are found here
            self._closing, self._segment, self._waiting = segments, None, []
        self._interrupt(self._closing)
        self._closing = []
        if self._separate is not None:
            self._separate.close()

    def _interrupt(self, segments: list[LaneWriter]) -> None:
        """End all open episodes, and seal the segments."""
        from stepwell.store.lane_writer import INTERRUPTED

        if self._values is not None:
            self._values.takes_part.fill(True)
        for segment in segments:
            if not segment.is_open:
                # done before a Ctrl-C came
                continue
            try:
                segment.end_all(INTERRUPTED, has_final=False)
            except Exception as error:
                segment.leave()
                self._seals.fail(error)
            else:
                self._seals.add(segment)

    @property
    def num_envs(self) -> int:
        """How many environments it records."""
        return self._num_envs

    def __del__(self) -> None:
        # an abandoned writer leaves what a killed one does, and is recovered the same way
        if hasattr(self, "_closing") and self._pid == this.pid:
            for each in (self._take_next(), *self._open_segments(), *self._closing):
                if each is not None:
                    each.leave()
            self._seals.leave()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<VectorWriter of {self._store.path.name} {state} {counted(self._num_envs, 'environment')}>"

    # the way in

    def _begin(self, step: Mapping[str, Any]) -> LaneWriter | None:
        """Return the segment to write to, made on the first step; None where environments have writers of their own."""
        from stepwell.store.lane_writer import HAS_FINAL, HAS_ROWS, LaneValues

        self._check_usable()
        check_mapping(step)
        if self._segment is None and self._separate is None:
            self._presence.note_thread()
            self._kind, self._kind_with_final = HAS_ROWS, HAS_ROWS | HAS_FINAL
            schema = self._store.ensure_schema(lambda: infer_schema(self._first_rows(step)))
            refuse_rates(schema, "a vector writer")
            if self._num_writers is not None or not has_lanes(schema, self._store.capacity):
                self._separate = self._make_separate(schema)
                return None
            if self._values is None:
                values = LaneValues(schema, self._num_envs)
                columns = [
                    (name, feature.np_dtype, column.shape, column)
                    for (name, feature), column in zip(schema.items(), values.columns, strict=True)
                ]
                finals = [(name, final) for name, final in zip(schema, values.finals, strict=True) if final is not None]
                # at once: no interrupt comes in between
                self._values, self._columns, self._finals = values, columns, finals
            self._go_on_in(self._make_segment(schema), [])
        return self._segment

    def _open_segments(self) -> list[LaneWriter]:
        """The segments that have open episodes, or may get some, the one that is written to last."""
        return [*(one for one, _ in self._waiting), *([] if self._segment is None else [self._segment])]

    def _make_separate(self, schema: Schema) -> SeparateWriters:
        from stepwell.store.separate_writers import EnvironmentWriter, SeparateWriters

        if self._store.capacity is not None:
            with system_errors(self._store.path, is_writing=True):
                self._open_ring(schema)
        record, num_writers = self._store.record, self._num_writers or self._num_envs
        make = functools.partial(
            EnvironmentWriter,
            self._store,
            sync=self._sync,
            limit=SegmentLimit(record.segment_bytes, record.capacity),
            queue_bytes=QUEUE_BYTES // num_writers,
        )
        return SeparateWriters(make, num_writers, self._num_envs)

    def _go_on_in(self, segment: LaneWriter, waiting: list[tuple[LaneWriter, int]]) -> None:
        # at once: no interrupt comes in between
        self._segment, self._num_until_next, self._waiting = segment, segment.lanes[1] // 2, waiting

    def _make_next(self, schema: Schema) -> None:
        from stepwell.store.lane_writer import NextSegment

        self._next = NextSegment(functools.partial(self._make_segment, schema))

    def _take_next(self) -> LaneWriter | None:
        made = None if self._next is None else self._next.take()
        self._next = None
        return made

    def _first_rows(self, step: Mapping[str, Any]) -> dict[str, Any]:
        rows = {}
        for name, values in flatten(step):
            if len(values) != self._num_envs:
                raise StepError(f"feature {name!r}: {len(values)} values of {self._num_envs} environments.")
            rows[name] = values[0]
        return rows

    def _make_segment(self, schema: Schema) -> LaneWriter:
        from stepwell.store.lane_writer import LaneWriter

        path, capacity = str(self._store.path), self._store.capacity
        assert capacity is not None
        assert self._values is not None
        with system_errors(path, is_writing=True):
            self._store.ensure_lanes()
            if self._clock is None:
                self._open_ring(schema)
            own = {segment.name for segment in self._open_segments()}
            writers = 1 + len(growing_segments(path) - own)
        return LaneWriter(
            path,
            schema,
            values=self._values,
            lane_rows=_lane_rows(
                self._num_envs, writers, fixed_row_bytes(schema), capacity, self._store.record.segment_bytes
            ),
            sync=self._sync,
            confirm=lambda: self._store.check_schema(schema),
            clock=self._clock,
            on_made=self.on_segment,
        )

    def _accepted(self, name: str, value: Any) -> Any:
        """Return values of a feature, [n, *shape] of its dtype; StepError where they are not."""
        schema = self._store.schema
        assert schema is not None
        accepted = accept_column(name, schema[name], value)
        if len(accepted) != self._num_envs:
            raise StepError(f"feature {name!r}: {len(accepted)} values of {self._num_envs} environments.")
        return accepted

    def _accepted_values(self, name: str, values: Any, chosen: Sequence[int]) -> list[Any]:
        """Return the values of some environments, as a writer of one takes them; StepError where they are not."""
        schema = self._store.schema
        assert schema is not None
        feature = schema[name]
        if not feature.is_ragged and not has_rows(values):
            accepted = self._accepted(name, values)
            return list(accepted) if len(chosen) == self._num_envs else [accepted[env] for env in chosen]
        if isinstance(values, str | bytes) or not is_column(values) or len(values) != self._num_envs:
            raise StepError(f"feature {name!r}: got {type(values).__name__}. Give {self._num_envs} values.")
        accept = acceptor(name, feature)
        return [accept(values[env]) for env in chosen]

    def _accepted_rows(self, columns: Mapping[str, Any], chosen: list[int]) -> dict[int, dict[str, Any]]:
        """Return the values of some environments, by environment."""
        accepted = [self._accepted_values(name, values, chosen) for name, values in columns.items()]
        rows = zip(*accepted, strict=True) if accepted else [()] * len(chosen)
        names = list(columns)
        return {env: dict(zip(names, row, strict=True)) for env, row in zip(chosen, rows, strict=True)}

    def _chosen(self, mask: Flags | None) -> list[int]:
        return list(range(self._num_envs)) if mask is None else np.flatnonzero(self._flags("mask", mask)).tolist()

    def _endings(
        self,
        environments: list[int],
        flags: npt.NDArray[np.bool_],
        final: Mapping[str, Any] | None,
        metadata: Mapping[int, Mapping[str, Any]] | None,
    ) -> dict[int, Ending]:
        """Return how the episodes of some environments end; flags [2, n] are those of all, terminated and truncated."""
        from stepwell.store.separate_writers import Ending

        finals = {} if final is None else self._accepted_rows(self._checked_finals(final), environments)
        lines = {env: encode_metadata((metadata or {}).get(env, {})) for env in environments}
        return {env: Ending(lines[env], finals.get(env) or None, *flags[:, env].tolist()) for env in environments}

    def _append_each(
        self,
        step: Mapping[str, Any],
        *,
        terminated: Flags | None,
        truncated: Flags | None,
        final: Mapping[str, Any] | None,
        mask: Flags | None,
        metadata: Mapping[int, Mapping[str, Any]] | None,
    ) -> Int64s:
        """Store one step of each environment by its own writer, when all values are accepted."""
        schema, separate = self._store.schema, self._separate
        assert schema is not None
        assert separate is not None
        given = dict(flatten(step))
        if given.keys() != schema.keys():
            raise missing_features_error(schema, given)
        chosen = self._chosen(mask)
        flags = np.zeros((2, self._num_envs), np.bool_)
        for row, (name, array) in zip(flags, {"terminated": terminated, "truncated": truncated}.items(), strict=True):
            if array is not None:
                row[...] = self._flags(name, array)
        rows = self._accepted_rows(given, chosen)
        ended = set(np.flatnonzero(flags.any(axis=0)).tolist())
        endings = self._endings([env for env in chosen if env in ended], flags, final, metadata)
        ids = np.full(self._num_envs, -1, np.int64)
        if self._limits[0] and chosen and not self._is_admitted(len(chosen), len(endings)):
            self._leave_gaps(separate, rows)
        else:
            stored = separate.append(rows, endings)
            ids[list(stored)] = list(stored.values())
        return ids

    def _leave_gaps(self, separate: SeparateWriters, rows: Mapping[int, dict[str, Any]]) -> None:
        """Drop a vector step: end the episodes that it was of, with its values as their final rows."""
        from stepwell.store.separate_writers import Ending

        schema, environments = self._store.schema, separate.open_among(rows)
        assert schema is not None
        finals = {env: {name: rows[env][name] for name in schema.final_names} for env in environments}
        separate.end({env: Ending(final=finals[env] or None, interrupted=True) for env in environments})
        if self._gate is not None:
            self._gate.count_ends(len(environments))

    def _append_nested(self, step: Mapping[str, Any], **options: Any) -> Int64s:
        """Append a step with nested mappings, or say what is wrong with its names."""
        check_mapping(step)
        schema = self._store.schema
        assert schema is not None
        flat = dict(flatten(step))
        if flat.keys() != schema.keys() or not any(isinstance(value, Mapping) for value in step.values()):
            raise missing_features_error(schema, flat)
        return self.append(flat, **options)

    def _set_flags(self, mask: Flags | None, terminated: Flags | None, truncated: Flags | None) -> None:
        values = self._values
        assert values is not None
        shape = self._shape
        # checked before any is stored
        if terminated is not None and not (
            type(terminated) is _ndarray and terminated.dtype is _BOOL and terminated.shape == shape
        ):
            terminated = self._flags("terminated", terminated)
        if truncated is not None and not (
            type(truncated) is _ndarray and truncated.dtype is _BOOL and truncated.shape == shape
        ):
            truncated = self._flags("truncated", truncated)
        if mask is not None:
            values.takes_part[...] = self._flags("mask", mask)
            values.ids.fill(-1)
        else:
            values.takes_part.fill(True)
        if terminated is not None:
            values.terminated[...] = terminated
        else:
            values.terminated.fill(False)
        if truncated is not None:
            values.truncated[...] = truncated
        else:
            values.truncated.fill(False)
        self._has_no_flags = mask is terminated is truncated is None

    def _flags(self, name: str, given: Flags, shape: tuple[int, ...] | None = None) -> npt.NDArray[np.bool_]:
        if is_on_device(given):
            # of a step whose values are not
            given = np.array(self._host.take(given))
        array, shape = np.asarray(given), shape or self._shape
        if array.dtype != _BOOL or array.shape != shape:
            raise StepError(
                f"{name} of dtype {array.dtype} and shape {array.shape}. Give bool {list(shape)}, one for each "
                "environment."
            )
        return np.ascontiguousarray(array)

    def _checked_finals(self, final: Mapping[str, Any]) -> dict[str, Any]:
        """Return final values by name; StepError where they are not those of all features that have some."""
        given = dict(flatten(final))
        names = [] if self._store.schema is None else self._store.schema.final_names
        if given.keys() != set(names):
            raise StepError(
                f"final values of {', '.join(given) or 'no features'}. Give those of all features with final=True: "
                f"{', '.join(names) or 'there are none'}."
            )
        return given

    def _set_finals(self, final: Mapping[str, Any]) -> None:
        has_all = len(final) == len(self._finals) and all(name in final for name, _ in self._finals)
        given = final if has_all else self._checked_finals(final)
        for name, target in self._finals:
            value = given[name]
            if type(value) is not _ndarray or value.dtype is not target.dtype or value.shape != target.shape:
                value = self._accepted(name, value)
            target[...] = value

    def _lines(self, metadata: Mapping[int, Mapping[str, Any]]) -> list[bytes]:
        """Return the lines of metadata of the episodes that end, by environment."""
        values = self._values
        assert values is not None
        ends = values.takes_part & (values.terminated | values.truncated)
        return [encode_metadata(metadata.get(lane, {})) for lane in np.flatnonzero(ends).tolist()]

    def _end(
        self,
        mask: Flags | None,
        flags: int,
        final: Mapping[str, Any] | None,
        metadata: Mapping[int, Mapping[str, Any]] | None,
    ) -> npt.NDArray[np.bool_]:
        """End the open episodes of some environments; returns which these were."""
        self._check_usable()
        segment, values = self._segment, self._values
        if segment is None or values is None:
            return np.zeros(self._num_envs, np.bool_)
        self._set_flags(mask, None, None)
        self._has_no_flags = False
        if final is not None:
            self._set_finals(final)
        ended = np.zeros(self._num_envs, np.bool_)
        try:
            for each in self._open_segments():
                ends = values.takes_part & each.is_open_in
                lines = None
                if metadata is not None:
                    lines = [encode_metadata(metadata.get(lane, {})) for lane in np.flatnonzero(ends).tolist()]
                each.end_all(flags, has_final=final is not None, lines=lines)
                ended |= ends
            segment.carry_no_more(values.takes_part)
            self._seal_ended()
        except OSError as error:
            self._raise_from(error)
        return ended

    def _finish(
        self,
        segment: LaneWriter,
        found: int,
        kind: int,
        final: Mapping[str, Any] | None,
        metadata: Mapping[int, Mapping[str, Any]] | None,
    ) -> None:
        """Store a step with which episodes end, or for which there is no room."""
        if final is not None and found != IS_SYNCED:
            self._set_finals(final)
        lines = None if metadata is None else self._lines(metadata)
        if not (self._go_on(segment, kind, lines) if self._waiting else segment.finish_step(found, kind, lines)):
            self._cut(segment, kind, lines)

    def _go_on(self, segment: LaneWriter, kind: int, lines: list[bytes] | None) -> bool:
        """Store a step with which episodes of earlier segments may go on; False, with nothing stored, without room."""
        num_calls, waiting = segment.num_calls, [one for one, _ in self._waiting]
        parts = self._prepare_pieces(waiting, segment)
        try:
            found = segment.append_step(kind)
            is_stored = not found or segment.finish_step(found, kind, lines)
        finally:
            if segment.num_calls > num_calls:
                self._end_pieces(waiting, parts)
            else:
                _take_back(waiting, parts, segment)
        self._seal_ended()
        return is_stored

    def _prepare_pieces(self, segments: list[LaneWriter], new: LaneWriter) -> list[npt.NDArray[np.bool_]]:
        """Have room for the ends of the pieces with which this step goes on in another segment; returns whose."""
        assert self._values is not None
        parts = [self._values.takes_part & segment.is_open_in for segment in segments]
        try:
            for segment, mask in zip(segments, parts, strict=True):
                if mask.any():
                    segment.prepare_pieces(mask)
                    new.carry_in(mask, *segment.carry_lanes())
        except BaseException:
            _take_back(segments, parts, new)
            raise
        return parts

    def _end_pieces(self, segments: list[LaneWriter], parts: list[npt.NDArray[np.bool_]]) -> None:
        """End the pieces with which this step went on."""
        # the next step says anew of all who takes part, wherever an interrupt comes
        self._has_no_flags = False
        for segment, mask in zip(segments, parts, strict=True):
            if mask.any():
                self._note_pieces(segment, mask)
                segment.end_pieces(mask, has_final=True)

    def _note_pieces(self, segment: LaneWriter, mask: npt.NDArray[np.bool_]) -> None:
        """Remember the pieces of some lanes for `discard_episodes`."""
        self._pieces.append((np.where(mask, segment.carry_lanes()[1], -1), np.where(mask, new_ids(segment), -1)))

    def _cut(self, segment: LaneWriter, kind: int, lines: list[bytes] | None) -> None:
        """Go on in a new segment, with this step as its first, and end the pieces with which it goes on before it."""
        # what a seal before met is said before this step is stored
        self._seals.check()
        assert self._store.capacity is not None
        in_bytes = self._store.capacity.unit == "bytes"
        num_written = self._num_written + (segment.num_bytes if in_bytes else segment.num_steps)
        new = self._take_next() or self._make_segment(segment.schema)
        segments = self._open_segments()
        parts: list[npt.NDArray[np.bool_]] = []
        try:
            # in this order: a step that cannot be stored leaves all episodes as they were
            new.carry_in(~segment.is_open_in, *segment.carry_lanes())
            parts = self._prepare_pieces(segments, new)
            found = new.append_step(kind)
            if found:
                new.finish_step(found, kind, lines)
            if self._sync == "episode":
                new.sync_committed()
            self._end_pieces(segments, parts)
            self._go_on_in(new, [*self._waiting, (segment, num_written)])
        except BaseException:
            if self._segment is not new:
                _take_back(segments, parts, new)
                new.abandon()
                self._seals.add(new)
            raise
        self._num_written = num_written
        self._leave_evicted(new, self._store.capacity.amount)
        self._seal_ended()
        origins = np.concatenate([each.carry_lanes()[1] for each in self._open_segments()])
        self._pieces = [piece for piece in self._pieces if np.isin(piece[0], origins).any()]

    def _leave_evicted(self, new: LaneWriter, capacity: int) -> None:
        """End the pieces of environments that wait where nothing is left of their segment: a ring has let it go."""
        from stepwell.store.lane_writer import INTERRUPTED, IS_PIECE

        for number, (segment, num_written) in enumerate(self._waiting):
            # files that are open are few in a process: 32 such segments have some 300
            if self._num_written - num_written >= capacity or len(self._waiting) - number > MAX_WAITING:
                mask = segment.is_open_in
                # without space this is done at the next cut
                with suppress(OSError):
                    segment.prepare_pieces(mask)
                    new.carry_in(mask, *segment.carry_lanes())
                    self._note_pieces(segment, mask)
                    # it may never step again: should this writer die, this is how it ended
                    segment.end_pieces(mask, has_final=False, flags=IS_PIECE | INTERRUPTED)

    def _seal_ended(self) -> None:
        """Seal the segments in which no environment waits any more."""
        ended = [segment for segment, _ in self._waiting if not segment.has_open_episode]
        if ended:
            self._waiting = [each for each in self._waiting if each[0].has_open_episode]
        for segment in ended:
            self._seals.add(segment)

    def _admits_step(self) -> bool:
        """Wait for the tables that hold the writers of this ring; False where the vector step is to be dropped."""
        values = self._values
        assert values is not None
        steps, ends = self._num_envs, 0
        if not self._has_no_flags:
            steps = int(np.count_nonzero(values.takes_part))
            ends = int(np.count_nonzero((values.terminated | values.truncated) & values.takes_part))
        return not steps or self._is_admitted(steps, ends)

    def _leave_gap(self, segment: LaneWriter) -> Int64s:
        """Drop a vector step: end the episodes that it was of, with its values as their final rows."""
        from stepwell.store.lane_writer import INTERRUPTED

        values = self._values
        assert values is not None
        taken: dict[str, npt.NDArray[Any]] = {name: target for name, _, _, target in self._columns}
        for name, target in self._finals:
            target[...] = taken[name]
        ends = 0
        try:
            for each in self._open_segments():
                ends += int(np.count_nonzero(values.takes_part & each.is_open_in))
                each.end_all(INTERRUPTED, has_final=bool(self._finals))
            segment.carry_no_more(values.takes_part)
            self._seal_ended()
        except OSError as error:
            self._raise_from(error)
        if self._gate is not None:
            self._gate.count_ends(ends)
        return np.full(self._num_envs, -1, np.int64)


def _take_back(segments: list[LaneWriter], parts: list[npt.NDArray[np.bool_]], new: LaneWriter) -> None:
    """Leave episodes that were to go on in another segment as they were."""
    for segment, mask in zip(segments, parts, strict=False):
        segment.take_back()
        new.carry_no_more(mask)


def new_ids(segment: LaneWriter) -> Int64s:
    """Return the ids of the first steps of the pieces that lie in a segment, int64 [n]."""
    return (segment.ordinal << 32) | segment.starts


def has_lanes(schema: Schema, capacity: Capacity | None) -> bool:
    """Whether segments have a run of rows for each environment: in rings, where all rows of a feature have one size."""
    return capacity is not None and schema.is_raw


def _lane_rows(num_envs: int, writers: int, row_bytes: int, capacity: Capacity, segment_bytes: int) -> int:
    """Return the rows of each lane of a segment."""
    # An eighth of the writer's share of the capacity; at least 1,024, where those are no more than the capacity.
    row_bytes = max(1, row_bytes)
    whole = capacity.amount if capacity.unit == "steps" else capacity.amount // row_bytes
    if whole < num_envs:
        raise StepError(
            f"a ring of {capacity.amount:,} {capacity.unit} has room for {whole} steps, and shows vector steps whole: "
            f"those of {num_envs} environments never. Give it room for one of each environment, better for thousands."
        )
    rows = max(whole // (SHARE * writers * num_envs), min(LEAST_ROWS, whole // num_envs))
    rows = min(rows, segment_bytes // (num_envs * row_bytes), (MAX_ROWS - 1) // num_envs)
    return max(rows, LEAST_LANE_ROWS)
