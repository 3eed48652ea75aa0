"""A segment as a reader sees it: committed rows, episode records, and maps of its files."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.errors import CorruptSegmentError, SegmentGoneError
from stepwell.files.local_files import map_descriptor
from stepwell.json_text import parse_json
from stepwell.schema import Schema
from stepwell.sizes import counted
from stepwell.store.beneath import (
    avoid_read_ahead,
    check_directory,
    header_size,
    open_sized,
    parse_header_size,
    raise_from,
    read_past_cache,
    system_error,
)
from stepwell.store.commit import CommitRecord
from stepwell.store.decode import NameRows, RowError, StoredRows, rows_text
from stepwell.store.episodes import (
    EPISODE_DTYPE,
    check_lane_records,
    check_records,
    is_episodes_header,
    is_lanes_header,
    num_ended_rows,
)
from stepwell.store.lanes import (
    EPISODES_SO_FAR,
    LANE_CARRIED,
    LANE_FILES,
    LANE_MARKS,
    LANE_STEPS,
    STEP_WORDS,
    LaneState,
    open_lane_records,
    rows_until,
)
from stepwell.store.layout import (
    CLOCK,
    EPISODES,
    MAX_ROWS,
    METADATA,
    OPEN_SUFFIX,
    PROGRESS,
    TAG_BITS,
    parse_segment_name,
    step_id,
)
from stepwell.store.manifests import KeyNote, find_note, has_listed_files, read_note

__all__ = ["Segment"]

FIRST_RECORDS = 64


class Segment:
    """One directory of a store: a run of whole episodes written by one writer.

    Made by the store. `num_rows` and `records` are those of the last `refresh`; a sealed segment's never change.

    Args:
        directory: its path, with or without ``.open``.
        schema: the store's features.
        is_trimmed: take an ``.open`` directory whose files are cut to what is committed as sealed: for sealing itself.
        records: of a sealed segment, where they are known from the store's table; else its file is read.

    Raises:
        SegmentGoneError: the segment was evicted or compacted.
        CorruptSegmentError: its episode table is damaged.

    Notes:
        Maps are made at every call of `raw_map`, `offsets_map` and `blob_map` and belong to the returned array: the
        caller keeps and bounds them. They stay valid when the segment is sealed, renamed or removed.
    """

    __slots__ = (
        "_checked",
        "_directory",
        "_lane_maps",
        "_lanes",
        "_progress",
        "_records",
        "_schema",
        "carried",
        "has_lanes",
        "is_sealed",
        "key",
        "name",
        "note",
        "num_rows",
        "ordinal",
        "records",
    )

    def __init__(
        self,
        directory: str,
        schema: Schema,
        *,
        is_trimmed: bool = False,
        records: npt.NDArray[Any] | None = None,
    ) -> None:
        parsed = parse_segment_name(os.path.basename(directory))
        if parsed is None:
            raise CorruptSegmentError(f"{directory} is not named as a segment is.")
        self.ordinal, self.name, has_sealed_name = parsed
        # see layout.py
        self.key = self.ordinal << TAG_BITS | int(self.name[-4:], 16)
        self.is_sealed = has_sealed_name or is_trimmed
        self._directory = directory
        # the directory that was found to lie where it should
        self._checked = ""
        self._schema = schema
        self._progress: CommitRecord | None = None
        # of its writer's key; of a segment from the store's table the table knows it
        self.note: KeyNote | None = None
        self.num_rows = 0
        # (steps, origin) of the open episode that went on in row 0, see progress.py
        self.carried = (0, 0)
        # whether n environments share it, see lanes.py; while it is open, what is committed of them
        self.has_lanes = False
        self._lanes: LaneState | None = None
        self._lane_maps: dict[str, npt.NDArray[Any]] = {}
        # room for more of them; what is handed out is a view of its front, which never changes
        self._records = np.empty(0, np.uint8)
        self.records: npt.NDArray[Any] = self._records.view(EPISODE_DTYPE)
        if records is not None:
            self._take_known(records)
            return
        if self.is_sealed:
            self._load_sealed()
        else:
            self._follow()
        self.note = read_note(directory) if has_sealed_name else find_note(directory)

    @property
    def path(self) -> Path:
        """Its directory now; an open one is renamed when it is sealed."""
        if self.is_sealed and self._directory.endswith(OPEN_SUFFIX):
            # it was seen in the moment before
            self._take_sealed_name()
        return Path(self._directory)

    @property
    def episodes(self) -> npt.NDArray[Any]:
        """Its episode records (`EPISODE_DTYPE`), ended ones only, discarded ones too."""
        return self.records

    @property
    def commit_words(self) -> memoryview[int] | None:
        """The words of its commit record, see `stepwell.store.commit`; None when they do not count."""
        progress = self._progress
        return None if progress is None or progress.is_cut or self.has_lanes else progress.words

    @property
    def lane_words(self) -> memoryview[int] | None:
        """The words of the commit record of an open segment with lanes; None when they do not count."""
        progress = self._progress
        return None if progress is None or progress.is_cut or not self.has_lanes else progress.words

    def read_records(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Return some of its committed episode records as words, int64 [k, 6]; they are not checked."""
        data, _ = self._read_records(first, stop)
        # written to by nobody, and of the type that kernels are compiled for
        return np.frombuffer(bytearray(data), "<i8").reshape(-1, 6)

    @property
    def lane_state(self) -> LaneState | None:
        """What is committed of an open segment with lanes; None of any other."""
        return self._lanes

    def open_records(self) -> npt.NDArray[Any]:
        """Return the records that the open episodes of its lanes would have if they ended now, by lane."""
        state = self._lanes
        return self.records[:0].copy() if state is None else open_lane_records(state, self.records, self.ordinal)

    def lane_steps(self) -> npt.NDArray[np.int64]:
        """Return stamp, and rows, steps and ended episodes so far, of each committed vector step: int64 [T, 4]."""
        state = self._lanes
        if state is None and not self.is_sealed:
            return np.empty((0, STEP_WORDS), np.int64)
        # what it has by now, though it was not refreshed since
        progress = self._progress
        num_steps = 0 if state is None or progress is None else max(progress.rows, state.num_steps)
        data = self._lane_map(LANE_STEPS, num_steps)
        return data if state is None else data[:num_steps]

    def lane_marks(self) -> npt.NDArray[np.uint32]:
        """Return the vector step that wrote each row, from 1 on; 0: no row is there, or it is not committed."""
        return self._lane_map(LANE_MARKS, self.num_rows)

    def rows_before(self, records: npt.NDArray[Any], step: int) -> npt.NDArray[np.int64]:
        """Return how many steps of episodes the first ``step`` vector steps wrote, int64 [k]."""
        return rows_until(self.lane_marks(), records["start"], records["length"], step)

    def next_piece(self, records: npt.NDArray[Any]) -> tuple[int, int]:
        """Return of the episode after those of ``records`` its steps in earlier segments, and its origin."""
        start = num_ended_rows(records)
        if start == 0 and self.carried[0]:
            return self.carried
        return 0, step_id(self.ordinal, start) if self.note is None else self.note.next_origin(records)

    def refresh(self) -> bool:
        """Take in what its writer committed since; True when something changed. One mapped load when nothing did."""
        progress = self._progress
        if progress is None:
            return False
        if progress.is_hidden:
            return self._refresh_hidden()
        if self._lanes is not None:
            is_same = progress.rows == self._lanes.num_steps
        else:
            is_same = progress.rows == self.num_rows and progress.episodes == len(self.records)
        if is_same and not progress.is_sealed:
            return False
        self._follow()
        return True

    def read_record(self, number: int) -> tuple[Any, ...] | None:
        """Return one of its committed episode records, as a tuple; None where it is not there any more."""
        try:
            data, _ = self._read_records(number, number + 1)
        except (FileNotFoundError, CorruptSegmentError):
            return None
        record: tuple[Any, ...] = np.frombuffer(data, EPISODE_DTYPE)[0].item()
        return record

    def raw_map(self, name: str) -> npt.NDArray[np.uint8]:
        """Map the rows of a raw feature: read-only uint8 [>= num_rows * row_bytes]."""
        feature = self._schema[name]
        return self._map_npy(f"{name}.npy", self.num_rows * feature.row_bytes)

    def offsets_map(self, name: str) -> npt.NDArray[np.uint64]:
        """Map the offsets of an encoded feature: read-only uint64 [>= num_rows + 1]."""
        if self._has_nothing:
            return np.zeros(1, "<u8")
        data = self._map_npy(f"{name}.npy", (self.num_rows + 1) * 8)
        return data[: len(data) // 8 * 8].view("<u8")

    def clock_map(self) -> npt.NDArray[np.int64] | None:
        """Map the stamps of its rows: read-only int64 [>= num_rows]; None where it was written without a clock."""
        if self._has_nothing:
            return np.empty(0, "<i8")
        if self.has_lanes:
            return None
        directory = self._directory
        if not os.path.lexists(f"{directory}/{CLOCK}"):
            # it may have been sealed since
            sealed = directory.removesuffix(OPEN_SUFFIX)
            if not os.path.lexists(f"{sealed}/{CLOCK}"):
                if not os.path.lexists(directory) and not os.path.lexists(sealed):
                    raise self._gone()
                return None
        data = self._map_npy(CLOCK, self.num_rows * 8)
        return data[: len(data) // 8 * 8].view("<i8")

    def blob_map(self, name: str) -> npt.NDArray[np.uint8]:
        """Map the encoded rows of a feature: read-only uint8; [offsets[i], offsets[i + 1]) is row i."""
        descriptor, size = self._open(f"{name}.bin")
        try:
            return map_descriptor(descriptor, size)
        except OSError as error:
            raise_from(self._refused(f"{name}.bin", error), error)
        finally:
            os.close(descriptor)

    def read_direct(self, file: str, start: int, out: npt.NDArray[np.uint8]) -> None:
        """Read bytes of a column past the page cache: of ``NAME.npy`` from byte ``start`` of its rows on, or ``.bin``.

        Raises:
            CorruptSegmentError: the file ends before that.
        """
        descriptor, _ = self._open(file)
        try:
            if file.endswith(".npy"):
                avoid_read_ahead(descriptor)
                start += parse_header_size(os.pread(descriptor, 10, 0), f"{self._directory}/{file}")
            # a read must not flush the pages of a writer
            done = read_past_cache(descriptor, start, out, is_direct=self.is_sealed)
            if done < out.nbytes:
                raise self._damaged(file, f"{out.nbytes} bytes from byte {start} on are not there, {done} are")
        except OSError as error:
            raise_from(self._refused(file, error), error)
        finally:
            os.close(descriptor)

    def read_rows(self, name: str, start: int, stop: int, *, name_rows: NameRows | None = None) -> Any:
        """Return rows [start, stop) of a feature, decoded: an array [n, *shape], or a list when they vary in size.

        Args:
            name: of the feature.
            start: first row.
            stop: the row after the last.
            name_rows: a name for errors of the rows from a first to a last one; default: the file and the numbers.
        """
        feature = self._schema[name]
        if not feature.is_raw:
            stored, chosen = self.stored_rows(name), range(start, stop)
            try:
                stored.check_sizes(chosen)
                return stored.read(chosen)
            except RowError as error:
                raise_from(error.named(name_rows or self._namer(name)), error.cause)
        rows = self.raw_map(name)[start * feature.row_bytes : stop * feature.row_bytes]
        if feature.row_bytes == 0:
            return np.empty((stop - start, *feature.fixed_shape), feature.np_dtype)
        return rows.view(feature.np_dtype).reshape(stop - start, *feature.fixed_shape)

    def metadata_bytes(self) -> bytes:
        """Return the file of its episodes' metadata, as it is."""
        with os.fdopen(self._open(METADATA)[0], "rb") as file:
            try:
                return file.read()
            except OSError as error:
                raise_from(self._refused(METADATA, error), error)

    def metadata_lines(self) -> list[dict[str, Any]]:
        """Return the metadata of all its ended episodes."""
        lines = self.metadata_bytes().split(b"\n")[: len(self.records)]
        try:
            found = [parse_json(line) for line in lines]
        except ValueError as error:
            raise self._damaged(METADATA, f"a line that is not JSON: {error}") from error
        if len(found) < len(self.records) or not all(isinstance(entry, dict) for entry in found):
            raise self._damaged(
                METADATA, f"{len(found)} lines for {len(self.records)} episodes, or a line that is no object"
            )
        return found

    def __repr__(self) -> str:
        state = "sealed" if self.is_sealed else "open"
        return f"<Segment {self.name} {state} {counted(len(self.records), 'episode')} {counted(self.num_rows, 'row')}>"

    def stored_rows(self, name: str) -> StoredRows:
        """Return the rows of an encoded feature, to be decoded from maps of their own."""
        codec = make_codec(self._schema[name])
        file = f"{name}.npy of segment {self.name}"
        return StoredRows(name, codec, self.offsets_map(name), self.blob_map(name), self.num_rows, file=file)

    def _namer(self, name: str) -> NameRows:
        return lambda first, last: f"{name}.bin of segment {self.name}, {rows_text(first, last)}"

    def _follow(self) -> None:
        """Read the commit record of an open segment; finds out when it was sealed meanwhile."""
        # once: another thread that refreshes lets go of it when the segment is sealed
        progress = self._progress
        try:
            if progress is None:
                directory = self._directory
                check_directory(directory)
                progress = self._progress = CommitRecord.open(f"{directory}/{PROGRESS}")
                self.carried = progress.carried
                self.has_lanes = progress.lanes[0] > 0
                if not self._has_nothing:
                    self._check_size(math.prod(progress.lanes) if self.has_lanes else progress.rows)
        except FileNotFoundError:
            if not self._is_unwritten():
                self._become_sealed()
                return
            progress = self._progress = CommitRecord.hidden()
        if progress.is_sealed:
            self._become_sealed()
            return
        if self.has_lanes:
            self._follow_lanes(progress)
            return
        # rows before episodes: see progress.py
        rows, episodes = progress.rows, progress.episodes
        if episodes != len(self.records):
            self._add_records(episodes)
        self.num_rows = max(rows, num_ended_rows(self.records))

    def _follow_lanes(self, progress: CommitRecord) -> None:
        """Take in the vector steps that were committed since."""
        (num_lanes, capacity), num_steps, before = progress.lanes, progress.rows, self._lanes
        if self._has_nothing:
            # there may be no files that bound how many there are
            num_lanes = 0
        counts = np.zeros(num_lanes, np.int64) if before is None else before.counts
        carried = np.zeros((num_lanes, 2), np.int64) if before is None else before.carried
        if num_steps:
            if before is None or not before.num_steps:
                carried = self._lane_map(LANE_CARRIED, num_lanes)[:num_lanes]
            self.num_rows = num_lanes * capacity
            starts = np.arange(num_lanes) * capacity
            # a vector step adds a row to a lane, and a final one
            most = 2 * (num_steps - (0 if before is None else before.num_steps))
            room = np.minimum(capacity - counts, most)
            counts = counts + rows_until(self.lane_marks(), starts + counts, room, num_steps)
            num_episodes = int(self._lane_map(LANE_STEPS, num_steps)[num_steps - 1, EPISODES_SO_FAR])
            if num_episodes > len(self.records):
                self._add_records(num_episodes)
        self._lanes = LaneState(num_steps, counts, capacity, carried)

    def _lane_map(self, name: str, need: int) -> npt.NDArray[Any]:
        """Map a file of a segment with lanes that has at least so many entries: an array of them."""
        found, (dtype, shape) = self._lane_maps.get(name), LANE_FILES[name]
        if self._has_nothing:
            return np.empty((0, *shape), dtype)
        if found is None or len(found) < need:
            size = np.dtype(dtype).itemsize * math.prod(shape)
            data = self._map_npy(name, need * size)
            found = data[: len(data) // size * size].view(dtype).reshape(-1, *shape)
            self._lane_maps[name] = found
        return found

    @property
    def _has_nothing(self) -> bool:
        """Whether there will be no rows, and files may be missing: a loss of power came before any were promised."""
        progress = self._progress
        return progress is not None and (progress.is_hidden or (progress.is_cut and not progress.rows))

    def _is_unwritten(self) -> bool:
        """Whether a loss of power left neither a commit record nor a whole sealed one: nothing of it was promised."""
        # in this order: a directory that is there afterwards was not renamed while its files were read, as by a seal
        return not has_listed_files(self._directory) and os.path.isdir(self._directory)

    def _refresh_hidden(self) -> bool:
        """Look whether a segment of which nothing was shown is sealed."""
        if os.path.lexists(self._directory):
            return False
        self._become_sealed()
        return True

    def _check_size(self, rows: int) -> None:
        """Refuse more committed rows than the first column has room for: tables take memory for each."""
        if rows == 0:
            # there may be no file: a loss of power comes between any two
            return
        name, feature = next(iter(self._schema.items()))
        need = rows * feature.row_bytes if feature.is_raw else (rows + 1) * 8
        descriptor, size = self._open(f"{name}.npy")
        os.close(descriptor)
        if size < need:
            raise self._damaged(f"{name}.npy", f"{rows} rows were committed, its {size} bytes are not so many")

    def _become_sealed(self) -> None:
        """Go on under the sealed name; for a moment, or after a kill in it, the directory keeps its old one."""
        self._take_sealed_name()
        self._progress = None
        self.is_sealed = True
        self._load_sealed()

    def _take_sealed_name(self) -> None:
        sealed = self._directory.removesuffix(OPEN_SUFFIX)
        if os.path.lexists(sealed):
            self._directory = sealed

    def _load_sealed(self) -> None:
        self._add_records(None)
        # trimmed by now; marks keep their place
        self._lanes = None
        self._lane_maps.pop(LANE_STEPS, None)
        self.num_rows = self._num_sealed_rows()

    def _num_sealed_rows(self) -> int:
        records = self.records
        if not self.has_lanes:
            return num_ended_rows(records)
        return int((records["start"] + records["rows"]).max(initial=0))

    def _take_known(self, records: npt.NDArray[Any]) -> None:
        """Take records from the store's table, if there are as many as the segment's file holds."""
        need = header_size(EPISODE_DTYPE, ()) + records.nbytes
        with suppress(FileNotFoundError):
            # a read of its rows says that a segment is gone
            size = os.stat(f"{self._directory}/{EPISODES}", follow_symlinks=False).st_size
            if size != need:
                raise self._damaged(EPISODES, f"{size} bytes are not the {len(records)} records of the store's table")
        self.records = records
        self.num_rows = num_ended_rows(records)

    def _add_records(self, count: int | None) -> None:
        """Take in the records that came since; ``count`` is how many there are now, None: all of a sealed segment."""
        size, known = EPISODE_DTYPE.itemsize, len(self.records)
        progress = self._progress
        if count is not None and count < known and progress is not None:
            # another thread took in more of them meanwhile
            count = progress.episodes
        data, num = self._read_records(known, count)
        fresh = np.frombuffer(data, EPISODE_DTYPE)
        if self.has_lanes:
            check_lane_records(fresh, self.name, self.num_rows if count is not None else MAX_ROWS)
        else:
            check_records(fresh, self.name, first_row=num_ended_rows(self.records))
        if num * size > len(self._records):
            room = num if count is None else max(2 * num, FIRST_RECORDS)
            grown = np.zeros(room * size, np.uint8)
            grown[: known * size] = self._records[: known * size]
            self._records = grown
        self._records[known * size : num * size] = np.frombuffer(data, np.uint8)
        self.records = self._records[: num * size].view(EPISODE_DTYPE)
        self.records.flags.writeable = False

    def _read_records(self, known: int, count: int | None) -> tuple[bytes, int]:
        """Return the records from number ``known`` on, as bytes, and how many there are in all."""
        header, size = header_size(EPISODE_DTYPE, ()), EPISODE_DTYPE.itemsize
        descriptor, file_bytes = self._open(EPISODES)
        try:
            length = file_bytes - header
            num = length // size if count is None else count
            is_whole = length == num * size if count is None else length >= num * size
            if num < known or not is_whole:
                raise self._damaged(EPISODES, f"{length + header} bytes are not whole records")
            head = b"" if count is not None else os.pread(descriptor, header, 0)
            if count is None and not is_episodes_header(head, num):
                self.has_lanes = is_lanes_header(head, num)
                if not self.has_lanes:
                    raise self._damaged(EPISODES, f"its header is not that of {num} records")
            data = os.pread(descriptor, (num - known) * size, header + known * size)
        except OSError as error:
            raise_from(self._refused(EPISODES, error), error)
        finally:
            os.close(descriptor)
        if len(data) != (num - known) * size:
            raise self._damaged(EPISODES, f"{len(data)} bytes of {num - known} records are there")
        return data, num

    def _map_npy(self, file: str, need: int) -> npt.NDArray[np.uint8]:
        descriptor, size = self._open(file)
        try:
            start = parse_header_size(os.pread(descriptor, 10, 0), f"{self._directory}/{file}")
            if size - start < need:
                raise self._damaged(file, f"{need} bytes of {self.num_rows} rows are not there, {size - start} are")
            return map_descriptor(descriptor, size)[start:]
        except OSError as error:
            raise_from(self._refused(file, error), error)
        finally:
            os.close(descriptor)

    def _open(self, file: str) -> tuple[int, int]:
        """Return a descriptor of one of its files, under whichever name it has now, and the file's bytes."""
        # once: another thread's refresh may replace it at any moment
        directory = self._directory
        try:
            return self._open_in(directory, file)
        except FileNotFoundError:
            sealed = directory.removesuffix(OPEN_SUFFIX)
            if sealed != directory:
                with suppress(FileNotFoundError):
                    return self._open_in(sealed, file)
            if not os.path.lexists(directory) and not os.path.lexists(sealed):
                raise self._gone() from None
            raise self._damaged(file, "the file is missing") from None

    def _open_in(self, directory: str, file: str) -> tuple[int, int]:
        if self._checked != directory:
            check_directory(directory)
            self._checked = directory
        return open_sized(f"{directory}/{file}")

    def _refused(self, file: str, error: OSError) -> OSError:
        return system_error(error, f"{self._directory}/{file}")

    def _gone(self) -> SegmentGoneError:
        store = os.path.dirname(os.path.dirname(self._directory))
        return SegmentGoneError(
            f"segment {self.name} of {store} is not there any more: a ring evicted it (its oldest steps go when new "
            "ones come), or the store was compacted. Call refresh() of the store, view or loader, and go on."
        )

    def _damaged(self, file: str, what: str) -> CorruptSegmentError:
        return CorruptSegmentError(f'{file} of segment {self.name}: {what}. Run "stepwell verify PATH".')
