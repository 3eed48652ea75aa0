"""Atari DQN Replay and other replay buffers of Dopamine: a gzipped array a feature, episode after episode.

::

    $store$_observation_ckpt.7.gz   [N, 84, 84] uint8    | 0 0 0 e0 . . . . | 0 0 0 e1 . . | ...   a ring of N rows
    $store$_action_ckpt.7.gz  $store$_reward_ckpt.7.gz
    $store$_terminal_ckpt.7.gz      1 where an episode ends
    add_count_ckpt.7.gz             rows that were ever added: the ring's oldest row is that number modulo N

Before each episode lie stack - 1 rows of zeros, which are left out. Observations of one file may take 7 GB: they are
unpacked as a stream, once where episodes are read in order.

Source: the code of dopamine (``circular_replay_buffer.py``) and of batch_rl (``logged_replay_buffer.py``).
"""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError, StepwellError
from stepwell.files.local_files import open_regular
from stepwell.formats.arrays import MAX_RATIO, npy_head
from stepwell.formats.reader import Reader, left_out, store_schema
from stepwell.formats.registry import register_reader
from stepwell.recorders.sources import EpisodeData
from stepwell.schema import Array, Feature, Image

__all__ = ["DqnReplayReader"]

STORED = re.compile(r"\$store\$_(\w+)_ckpt\.(\d+)\.gz")
OBSERVATION, ACTION, REWARD, TERMINAL = "observation", "action", "reward", "terminal"
NEEDED = (OBSERVATION, ACTION, REWARD, TERMINAL)
INSIDE = "replay_logs"
STACK = 4
MOST_ENTRIES = 4096
SKIPPED_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class Piece:
    """An episode: its checkpoint, and the runs of rows that it lies in; two where the ring begins again."""

    checkpoint: int
    runs: tuple[tuple[int, int], ...]
    is_done: bool


class GzipArray:
    """A ``.npy`` file in gzip, whose rows are read as a stream."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._owner, self._row = -1, 0
        self._file: Any = None
        self._raw: Any = None
        with _naming(path):
            self.shape, is_fortran, self.dtype = self._begin()
            count = math.prod(self.shape)
            size = path.stat().st_size
            if not self.shape or is_fortran or self.dtype.kind not in "biuf":
                raise ValueError(f"an array {self.dtype} {self.shape}, where rows of numbers should be")
            if count * self.dtype.itemsize > MAX_RATIO * size:
                raise ValueError(f"it claims {count * self.dtype.itemsize:,} bytes in {size:,}")
            self.close()

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows; cheap where they come after the last ones."""
        with _naming(self.path):
            if self._file is None or self._owner != os.getpid() or start < self._row:
                self.close()
                self._begin()
            while self._row < start:
                step = min(start - self._row, max(1, SKIPPED_BYTES // max(1, self.row_bytes)))
                self._read(step)
            data = self._read(stop - start)
        return np.frombuffer(data, self.dtype).reshape(stop - start, *self.shape[1:])

    def close(self) -> None:
        """Close the file."""
        if self._file is not None and self._owner == os.getpid():
            self._file.close()
            self._raw.close()
        self._file = self._raw = None

    def _begin(self) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        self._raw = os.fdopen(open_regular(self.path), "rb")
        self._file = gzip.GzipFile(fileobj=self._raw)
        self._owner, self._row = os.getpid(), 0
        return npy_head(self._file)

    def _read(self, count: int) -> bytes:
        wanted = count * self.row_bytes
        data: bytes = self._file.read(wanted)
        if len(data) < wanted:
            raise ValueError(f"it ends in row {self._row + len(data) // max(1, self.row_bytes)} of {self.shape[0]}")
        self._row += count
        return data

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_raw": None, "_owner": -1}

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()


@register_reader
class DqnReplayReader(Reader):
    """Episodes of the checkpoints of a replay buffer of Dopamine, in the order of their numbers.

    Args:
        source: the directory of the files, or one with ``replay_logs`` in it.
        checkpoints: numbers of those to read, such as "0,49"; default: all.
        stack: frames that an agent sees at once; before each episode up to one less are zeros and left out.
        ignore: names of features to leave out.

    Notes:
        As for `Reader`. An episode terminated at its ``terminal``; the one that the file ends in neither terminated nor
        was truncated, and the first one may begin in its middle. The one that goes over the end of the ring comes last.
        The observation after a last action is not in the files.
    """

    name = "dqn-replay"

    def __init__(
        self,
        source: str,
        *,
        checkpoints: Sequence[int] | str = (),
        stack: int | str = STACK,
        ignore: Sequence[str] | str = (),
    ) -> None:
        super().__init__(source)
        try:
            self._stack = int(stack)
            parts = checkpoints.split(",") if isinstance(checkpoints, str) else checkpoints
            wanted = {int(part) for part in parts if str(part).strip()}
        except ValueError as error:
            raise FormatError(f"checkpoints={checkpoints!r}, stack={stack!r}: {error}. Give numbers.") from error
        root = _root(source)
        found = _checkpoints(root) if root is not None else {}
        lost = sorted(wanted - set(found))
        if lost or not found:
            raise FormatError(f"{source} has no checkpoints {lost or ''}. It has: {sorted(found) or 'none'}.")
        self._arrays = {number: _opened(found[number], number) for number in sorted(wanted or found)}
        self._pieces = [piece for number in self._arrays for piece in self._found(number, root)]
        if not self._pieces:
            raise FormatError(f"{source} has no steps.")
        first = next(iter(self._arrays.values()))
        ignored = left_out(ignore, first, source)
        self.schema = store_schema(
            {name: _feature(array) for name, array in first.items() if name not in ignored}, source
        )

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is a directory with such files, or with ``replay_logs`` of them; see `Reader.accepts`."""
        return _root(source) is not None

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> EpisodeData:
        piece = self._pieces[index]
        arrays = self._arrays[piece.checkpoint]
        columns = {}
        for name in {*self.schema, *NEEDED}:
            array = arrays.get(name)
            if array is None or (name in self.schema and _feature(array) != self.schema[name]):
                raise FormatError(
                    f"checkpoint {piece.checkpoint} of {self.source} has another {name} than the first one."
                )
            parts = [array.rows(start, stop) for start, stop in piece.runs]
            columns[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        begin = _padding(columns, self._stack - 1)
        shown = {name: columns[name][begin:] for name in self.schema}
        return EpisodeData(shown, terminated=piece.is_done, metadata={"checkpoint": piece.checkpoint})

    @property
    def edges(self) -> npt.NDArray[np.int64]:
        """The first episode of each checkpoint; see `Reader.edges`."""
        numbers = np.array([piece.checkpoint for piece in self._pieces])
        return np.flatnonzero(np.diff(numbers, prepend=-1)).astype(np.int64)

    def label(self, index: int) -> str:
        """Return checkpoint and rows of an episode; see `Reader.label`."""
        piece = self._pieces[index]
        runs = " and ".join(f"{start} to {stop}" for start, stop in piece.runs)
        return f"rows {runs} of checkpoint {piece.checkpoint} of {self.source}"

    def _found(self, number: int, root: Path | None) -> list[Piece]:
        """Return the episodes of a checkpoint."""
        arrays = self._arrays[number]
        capacity = arrays[TERMINAL].shape[0]
        with _naming(Path(f"{root}/add_count_ckpt.{number}.gz")):
            added = GzipCount(Path(f"{root}/add_count_ckpt.{number}.gz")).value
        count = min(added, capacity)
        oldest = added % capacity if added >= capacity else 0
        terminals, actions, rewards = (_is_set(arrays[name]) for name in (TERMINAL, ACTION, REWARD))
        order = (oldest + np.arange(count)) % capacity
        cuts = np.flatnonzero(terminals[order]) + 1
        bounds = np.unique(np.concatenate([[0], cuts, [count]]))
        pieces = []
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            rows = order[start:stop]
            is_done = bool(terminals[rows[-1]])
            if not is_done and len(rows) < self._stack and not (actions[rows].any() or rewards[rows].any()):
                continue  # zeros before an episode that has not begun
            first, last = int(rows[0]), int(rows[-1]) + 1
            runs = ((first, last),) if first < last else ((first, capacity), (0, last))
            pieces.append(Piece(number, runs, is_done))
        return sorted(pieces, key=lambda piece: (len(piece.runs), piece.runs[0]))


def _is_set(array: GzipArray) -> npt.NDArray[np.bool_]:
    """Return which rows are not zero, bool [rows]."""
    found: npt.NDArray[np.bool_] = np.any(array.rows(0, array.shape[0]).reshape(array.shape[0], -1), axis=1)
    return found


class GzipCount:
    """The one number of a gzipped ``.npy`` file."""

    def __init__(self, path: Path) -> None:
        with os.fdopen(open_regular(path), "rb") as raw, gzip.GzipFile(fileobj=raw) as file:
            shape, _, dtype = npy_head(file)  # type: ignore[arg-type]
            if shape or dtype.kind not in "iu":
                raise ValueError(f"{dtype} {shape}, where one number should be")
            self.value = int(np.frombuffer(file.read(dtype.itemsize), dtype)[0])
            if self.value < 0:
                raise ValueError(f"{self.value} rows were ever added")


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make errors of damaged files name them."""
    try:
        yield
    except StepwellError:
        raise
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise FormatError(f"{path}: {error}. It is damaged, or no file of a replay buffer.") from error


def _root(source: str) -> Path | None:
    """Return the directory of a source's files."""
    if "://" in source or not Path(source).is_dir():
        return None
    for root in (Path(source), Path(source, INSIDE)):
        entries = islice(root.iterdir(), MOST_ENTRIES) if root.is_dir() else ()
        if any((match := STORED.fullmatch(path.name)) and match[1] == OBSERVATION for path in entries):
            return root
    return None


def _checkpoints(root: Path) -> dict[int, dict[str, Path]]:
    """Return the files of each checkpoint by the names of their features."""
    found: dict[int, dict[str, Path]] = {}
    for path in sorted(root.iterdir()):
        match = STORED.fullmatch(path.name)
        if match is not None:
            found.setdefault(int(match[2]), {})[match[1]] = path
    return found


def _opened(paths: dict[str, Path], number: int) -> dict[str, GzipArray]:
    """Return the arrays of a checkpoint, which have as many rows."""
    missing = [name for name in NEEDED if name not in paths]
    if missing:
        raise FormatError(
            f"checkpoint {number} has no {', '.join(missing)}. It has: {', '.join(paths)}. Copy it again."
        )
    arrays = {name: GzipArray(path) for name, path in paths.items()}
    counts = {array.shape[0] for array in arrays.values()}
    if len(counts) != 1 or counts == {0}:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise FormatError(f"checkpoint {number}: {shapes}. All should have as many rows, one at least.")
    return arrays


def _feature(array: GzipArray) -> Feature:
    shape = array.shape[1:]
    is_image = (
        array.dtype == np.uint8 and 0 not in shape and (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4)))
    )
    return Image(shape) if is_image else Array(shape, array.dtype.newbyteorder("="))


def _padding(columns: dict[str, npt.NDArray[Any]], most: int) -> int:
    """Return how many rows of zeros an episode begins with."""
    count = min(most, len(columns[ACTION]) - 1)
    for row in range(max(0, count)):
        if any(np.any(columns[name][row]) for name in NEEDED):
            return row
    return max(0, count)
