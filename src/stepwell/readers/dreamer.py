"""Episodes and replay chunks of Dreamer: ``.npz`` files, a row a step of the environment.

::

    20210101T000000-ID-500.npz               V1, V2: an episode of 501 rows
    20240101T000000F123-ID-NEXT-1024.npz     V3: a chunk of 1,024 rows, which NEXT follows; episodes begin at is_first

    row i    V3   observation i, the action that is taken then, the reward that came with the observation
             V2   observation i, the action that led to it, the reward that came with it

Source: the code of dreamerv2 (``common/replay.py``, ``common/driver.py``) and dreamerv3 (``embodied/core/chunk.py``,
``embodied/core/replay.py``, ``embodied/core/driver.py``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.formats.arrays import npz_arrays
from stepwell.formats.reader import Reader, left_out, store_schema
from stepwell.formats.registry import register_reader
from stepwell.recorders.sources import EpisodeData
from stepwell.schema import Array, Feature, Image

__all__ = ["DreamerReader"]

EPISODE = re.compile(r"(\d{8}T\d{6}\w*)-([^-]+)-(\d+)\.npz")
CHUNK = re.compile(r"(\d{8}T\d{6}\w*)-([^-]+)-([^-]+)-(\d+)\.npz")
FIRST, LAST, TERMINAL, DISCOUNT = "is_first", "is_last", "is_terminal", "discount"
ACTION, REWARD = "action", "reward"
AS = ("rows", "v2", "v3")
MOST_ENTRIES = 4096


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a file."""

    file: int
    start: int
    stop: int


@register_reader
class DreamerReader(Reader):
    """Episodes of Dreamer's ``.npz`` files, in the order of their names; of V3's chunks stream by stream.

    Args:
        source: the directory.
        transitions: "rows" (default): a step is a row, as the files have them. "v3" or "v2": a step is an action, with
            the reward and the ends that follow from it; observations have a final row. It says which version wrote the
            files, since an action lies in the row that it follows (V3) or leads to (V2).
        ignore: names of arrays to leave out.

    Notes:
        As for `Reader`. An episode terminated where its last ``is_terminal`` is set (of V1, where its last ``discount``
        is 0), and was truncated where ``is_last`` is and ``is_terminal`` is not. Episodes of V3 whose first chunk is
        gone begin in their middle.
    """

    name = "dreamer"

    def __init__(self, source: str, *, transitions: str = "rows", ignore: Sequence[str] | str = ()) -> None:
        super().__init__(source)
        if transitions not in AS:
            raise FormatError(f"transitions={transitions!r}. Allowed: {', '.join(AS)}.")
        self._transitions = transitions
        found = _files(source, None)
        if not found:
            raise FormatError(
                f"{source} has no files as Dreamer calls them, TIME-ID-LENGTH.npz or TIME-ID-NEXT-LENGTH.npz."
            )
        self._paths = found
        chunks = [match for path in found if (match := CHUNK.fullmatch(path.name)) is not None]
        if chunks and len(chunks) < len(found):
            raise FormatError(f"{source} has episodes of V2 and chunks of V3. Give a directory of one of them.")
        self._held: tuple[int, dict[str, npt.NDArray[Any]]] | None = None
        self._episodes = self._joined(chunks) if chunks else [(Piece(n, 0, -1),) for n in range(len(found))]
        arrays = self._arrays(self._episodes[0])
        ignored = left_out(ignore, arrays, source)
        self._names = [name for name in arrays if name not in ignored]
        columns = self._columns(arrays, 0)
        self.schema = store_schema({name: self._feature(name, columns[name]) for name in columns}, source)

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is a directory of files that are called as Dreamer's; see `Reader.accepts`."""
        return bool(_files(source, 1))

    def __len__(self) -> int:
        return len(self._episodes)

    def __getitem__(self, index: int) -> EpisodeData:
        arrays = self._arrays(self._episodes[index])
        columns = self._columns(arrays, index)
        if set(columns) != set(self.schema):
            raise FormatError(
                f"{self.label(index)} has {', '.join(columns)}; the first episode {', '.join(self.schema)}."
            )
        for name, rows in columns.items():
            feature = self.schema[name]
            if rows.shape[1:] != feature.fixed_shape or rows.dtype != feature.np_dtype:
                raise FormatError(
                    f"{self.label(index)}: {name} is {rows.dtype} {rows.shape[1:]}, at first it is {feature}."
                )
        is_done, is_cut = _ends(arrays)
        file = self._paths[self._episodes[index][0].file].name
        return EpisodeData(columns, terminated=is_done, truncated=is_cut, metadata={"file": file})

    def label(self, index: int) -> str:
        """Return the file that an episode begins in; see `Reader.label`."""
        first = self._episodes[index][0]
        return f"{self._paths[first.file]}, row {first.start}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None}

    def _joined(self, chunks: Sequence[re.Match[str]]) -> list[tuple[Piece, ...]]:
        """Return the episodes of streams of chunks, cut where is_first is set."""
        numbers = {match[2]: number for number, match in enumerate(chunks)}
        if len(numbers) < len(chunks):
            raise FormatError(f"{self.source} has two chunks of one id.")
        followers = {match[3] for match in chunks}
        episodes: list[tuple[Piece, ...]] = []
        seen: set[str] = set()
        heads = [match for match in chunks if match[2] not in followers]
        for head in heads:
            pieces: list[Piece] = []
            match: re.Match[str] | None = head
            while match is not None and match[2] not in seen:
                seen.add(match[2])
                number = numbers[match[2]]
                rows = self._first_rows(number, int(match[4]))
                cuts = [0, *rows[rows > 0].tolist(), int(match[4])]
                for start, stop in pairwise(cuts):
                    if pieces and (start > 0 or (len(rows) and rows[0] == 0)):
                        episodes.append(tuple(pieces))
                        pieces = []
                    pieces.append(Piece(number, start, stop))
                match = chunks[numbers[match[3]]] if match[3] in numbers else None
            if pieces:
                episodes.append(tuple(pieces))
        if len(seen) < len(chunks):
            raise FormatError(f"{self.source} has chunks that follow each other in a circle.")
        return episodes

    def _first_rows(self, number: int, length: int) -> npt.NDArray[np.int64]:
        """Return the rows of a chunk that begin an episode."""
        arrays = _loaded(self._paths[number], (FIRST,))
        if FIRST not in arrays or arrays[FIRST].shape != (length,):
            shape = arrays[FIRST].shape if FIRST in arrays else "none"
            raise FormatError(
                f"{self._paths[number]} should have {FIRST} of {length} rows, as its name says: it has {shape}."
            )
        return np.flatnonzero(arrays[FIRST])

    def _arrays(self, pieces: Sequence[Piece]) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of an episode."""
        parts = [self._part(piece) for piece in pieces]
        first = parts[0]
        for part, piece in zip(parts, pieces, strict=True):
            if set(part) != set(first):
                raise FormatError(
                    f"{self._paths[piece.file]} has {', '.join(part)}; the chunk before {', '.join(first)}."
                )
        return first if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in first}

    def _part(self, piece: Piece) -> dict[str, npt.NDArray[Any]]:
        if self._held is None or self._held[0] != piece.file:
            self._held = piece.file, _checked(self._paths[piece.file])
        rows = slice(piece.start, None if piece.stop < 0 else piece.stop)
        return {name: array[rows] for name, array in self._held[1].items()}

    def _columns(self, arrays: Mapping[str, npt.NDArray[Any]], index: int) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of an episode: rows as they are, or a step an action."""
        kept = {name.replace("/", "."): arrays[name] for name in self._names if name in arrays}
        if self._transitions == "rows":
            return kept
        if ACTION not in kept or len(kept[ACTION]) < 2:
            raise FormatError(f"{self.label(index)} has no {ACTION} of two rows. Read it with transitions=rows.")
        after = {REWARD, LAST, TERMINAL, DISCOUNT}
        found = {}
        for name, rows in kept.items():
            if name == FIRST:
                continue
            is_action = name == ACTION or name.startswith(f"{ACTION}.")
            found[name] = rows[1:] if name in after or (is_action and self._transitions == "v2") else rows
            if is_action and self._transitions == "v3":
                found[name] = rows[:-1]
        return found

    def _feature(self, name: str, rows: npt.NDArray[Any]) -> Feature:
        shape = rows.shape[1:]
        is_image = rows.dtype == np.uint8 and len(shape) == 3 and shape[2] in (1, 3, 4) and 0 not in shape
        feature = Image(shape) if is_image else Array(shape, rows.dtype)
        is_step = name in (REWARD, LAST, TERMINAL, DISCOUNT) or name.partition(".")[0] == ACTION
        return feature.with_final() if self._transitions != "rows" and not is_step else feature


def _files(source: str, most: int | None) -> list[Path]:
    """Return files that are called as Dreamer's, in the order of their names; of many entries some."""
    root = Path(source)
    if "://" in source or not root.is_dir():
        return []
    entries = islice(root.iterdir(), None if most is None else MOST_ENTRIES)
    named = (path for path in entries if EPISODE.fullmatch(path.name) or CHUNK.fullmatch(path.name))
    return sorted(islice(named, most), key=lambda path: path.name)


def _checked(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a file, which have as many rows as its name says."""
    arrays = _loaded(path)
    told = int(path.stem.rpartition("-")[2])
    counts = {len(array) if array.ndim else -1 for array in arrays.values()}
    # of an episode the name counts its actions
    allowed = {told} if CHUNK.fullmatch(path.name) else {told, told + 1}
    if len(counts) != 1 or not counts <= allowed or not max(counts):
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise FormatError(f"{path}: its name says {told} rows, its arrays are {shapes or 'none'}. It is damaged.")
    wrong = [name for name, array in arrays.items() if array.dtype.kind not in "biuf"]
    if wrong:
        raise FormatError(f"{path}: {wrong[0]} is {arrays[wrong[0]].dtype}. Allowed: numbers and bool.")
    return arrays


def _loaded(path: Path, names: Collection[str] | None = None) -> dict[str, npt.NDArray[Any]]:
    try:
        with path.open("rb") as file:
            return npz_arrays(file, names)
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: {error}. It should hold arrays of numbers, as numpy.savez writes them.") from error


def _ends(arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[bool, bool]:
    """Return whether an episode terminated, and whether it was truncated."""
    last = {name: bool(np.any(arrays[name][-1])) for name in (TERMINAL, LAST, DISCOUNT) if name in arrays}
    is_done = last.get(TERMINAL, not last.get(DISCOUNT, True))
    return is_done, last.get(LAST, False) and not is_done
