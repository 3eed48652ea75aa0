"""The data files, opened one after the other: which there are, and at which position of the dataset each begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.lerobot.audits.columns import numbers_of
from stepwell.lerobot.audits.info import problem_of
from stepwell.lerobot.audits.reports import Rule
from stepwell.lerobot.audits.subject import Subject
from stepwell.lerobot.info import DatasetInfo
from stepwell.lerobot.meta_files import open_parquet, read_columns

__all__ = ["UNREADABLE", "DataFile", "data_paths", "read_data_files"]

Integers = npt.NDArray[np.int64]

UNREADABLE = Rule(
    "data-unreadable",
    "error",
    "Download it again. A recorder that was killed leaves files without end: their rows are lost.",
)


@dataclass(frozen=True, slots=True, eq=False)
class DataFile:
    """One parquet file of rows that is open.

    Args:
        path: below the root.
        number: among the files that are looked at.
        first: position of its first row in the dataset.
        num_rows: of it.
        episodes: numbers of the episodes that should be in it.
        file: the ``pyarrow.parquet.ParquetFile``.
        kept: index columns that were read.
    """

    path: str
    number: int
    first: int
    num_rows: int
    episodes: Integers
    file: Any
    kept: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    def numbers(self, name: str, info: DatasetInfo) -> npt.NDArray[Any] | None:
        """Return a numeric column as [rows, elements]; None where it is missing.

        Raises:
            FormatError: it cannot be read.
            ValueError: it holds no numbers, or rows of another shape.
        """
        if name not in self.file.schema_arrow.names:
            return None
        if name not in self.kept:
            table = read_columns(self.file, Path(self.path), [name])
            values = numbers_of(table.column(name), info.features[name])
            if not info.features[name].is_index:
                return values
            self.kept[name] = values
        return self.kept[name]


def data_paths(subject: Subject) -> list[str]:
    """Return the data files that are there and are looked at, in the order in which readers join them."""
    wanted = {path for place in subject.places.tolist() if (path := subject.data_path(place)) is not None}
    there = {path for path in wanted if (subject.root / path).is_file()}
    if subject.chosen is None:
        found = (subject.root / "data").glob("*/*.parquet")
        there.update(path.relative_to(subject.root).as_posix() for path in found)
    return sorted(there)


def read_data_files(subject: Subject, paths: Sequence[str]) -> Iterator[DataFile]:
    """Yield the data files, open; those that cannot be opened are findings.

    Args:
        subject: what is audited. Where a file before is not looked at, its table of episodes says where the rows of the
            next one begin.
        paths: of the files, from `data_paths`.
    """
    members, numbers = _members(subject), {path: number for number, path in enumerate(paths)}
    position: int | None = 0
    for path in sorted({*paths, *members}):
        places = members.get(path, np.empty(0, np.int64))
        file = _opened(subject, path, places) if path in numbers else None
        if file is None:
            position = None
            continue
        if position is None:
            position = max(0, int(subject.episodes.first[places].min())) if len(places) else 0
        with file:
            num_rows = file.metadata.num_rows
            yield DataFile(path, numbers[path], position, num_rows, subject.episodes.number[places], file)
        position += num_rows


def _opened(subject: Subject, path: str, places: Integers) -> Any:
    try:
        return open_parquet(subject.root / path)
    except FormatError as error:
        subject.tally.add(UNREADABLE, path, problem_of(error), subject.episodes.number[places])
        return None


def _members(subject: Subject) -> dict[str, Integers]:
    """Return the places of the episodes that should be in each data file."""
    members: dict[str, list[int]] = {}
    for place in range(len(subject.episodes)):
        path = subject.data_path(place)
        if path is not None:
            members.setdefault(path, []).append(place)
    return {path: np.array(places, np.int64) for path, places in members.items()}
