"""Hugging Face `datasets`: saved Arrow files and Parquet files, with a column that says which episode a row is of.

::

    saved/state.json            _data_files: data-00000-of-00003.arrow, ...     Dataset.save_to_disk
    dict/dataset_dict.json      splits: train, test; a saved data set each      DatasetDict.save_to_disk
    pq/data/train-00000-of-00001.parquet                                        Dataset.to_parquet; the hub

    rows        episode_index  state       image {bytes, path}
                0              [..]        PNG
                0              [..]        PNG             consecutive rows of one value are an episode
                1              [..]        PNG

Source: the `datasets` documentation, and files that `datasets` 5.2 wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.files.local_files import read_regular
from stepwell.formats.images import channels_of
from stepwell.formats.options import names_of
from stepwell.formats.reader import Reader, check_told_apart, store_schema
from stepwell.formats.registry import register_reader
from stepwell.formats.source_paths import warn_of_gaps
from stepwell.json_text import parse_json
from stepwell.readers.arrow import SUFFIXES, ArrowFiles, column_feature, leaf_column, leaf_names, naming, values_of
from stepwell.recorders.sources import EpisodeData
from stepwell.schema import Feature

__all__ = ["HuggingFaceReader"]

STATE, SPLITS, LEROBOT = "state.json", "dataset_dict.json", "meta/info.json"
EPISODES = ("episode_index", "episode_id", "episode", "traj_id", "trajectory_id")
# of a column some rows are looked at before all are read
LOOKS, LOOKED_AT = 4, 128
MOST_AT_ONCE = 1024
# as the hub has them, in former years with a hash behind the numbers; or any names that begin with that of a split
SHARD = re.compile(r"(.+?)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?\.parquet")
SPLIT = re.compile(r"(train(?:ing)?|val(?:id(?:ation)?)?|dev|test(?:ing)?|eval(?:uation)?)(?![A-Za-z])")


@register_reader
class HuggingFaceReader(Reader):
    """Episodes of Arrow or Parquet files of `datasets`.

    Notes:
        As for `Reader`. Images stay the JPEG, PNG and WebP files that they are; names of a ClassLabel are in the
        store's metadata. The episode's value is its metadata ``episode``. What differs from row to row in length is a
        ragged feature; lists that all have one length are arrays.
    """

    name = "huggingface"
    is_last_resort = True

    def __init__(
        self,
        source: str,
        *,
        split: str | None = None,
        episode: str | None = None,
        ignore: Sequence[str] | str = (),
        varying: Sequence[str] | str = (),
        channels: int | str | None = None,
    ) -> None:
        super().__init__(source)
        self._channels = channels_of(channels)
        files, splits, taken = _files(source, split)
        self._rows = ArrowFiles(files)
        with naming(source):
            names = [leaf for field in self._rows.schema for leaf in leaf_names(field.name, field.type)]
            check_told_apart(names, source)
            left_out = _known_names("ignore", ignore, names, source)
            open_sized = _known_names("varying", varying, names, source)
            if not self._rows.num_rows:
                raise FormatError(f"{source} has no rows.")
            self._column = _episode_column(episode, names, source)
            self._starts, self._values = self._cut()
            head = self._rows.heads(LOOKS, LOOKED_AT)
            self.schema = store_schema(
                {name: self._feature(head, name, name in open_sized) for name in names if name not in left_out},
                source,
            )
        told = {"split": taken, "splits": dict.fromkeys(splits)} if len(splits) > 1 else {}
        self.metadata = {"huggingface": {"labels": _labels(self._rows.schema), **told}}

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is what ``save_to_disk`` wrote, or Parquet files that are no LeRobot dataset."""
        if "://" in source or Path(source, LEROBOT).exists():
            return False
        if any(Path(source, name).is_file() for name in (STATE, SPLITS)):
            return True
        place = Path(source)
        return (place.is_file() and place.suffix in SUFFIXES) or bool(_parquet_files(place))

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> EpisodeData:
        start, stop = (int(place) for place in self._starts[index : index + 2])
        told = {} if self._values is None else {"episode": self._values[index]}
        return EpisodeData(self._columns(start, stop), metadata=told)

    def one_step_episodes(self, start: int, stop: int) -> Mapping[str, Any] | None:
        """Return rows that are an episode each; see `Reader.one_step_episodes`."""
        return self._columns(start, min(stop, start + MOST_AT_ONCE)) if self._values is None else None

    @property
    def edges(self) -> npt.NDArray[np.int64]:
        """The episodes that begin a file; see `Reader.edges`."""
        return np.unique(np.searchsorted(self._starts[:-1], self._rows.file_starts[:-1])).astype(np.int64)

    def label(self, index: int) -> str:
        """Return the rows of an episode; see `Reader.label`."""
        return f"rows {self._starts[index]} to {self._starts[index + 1]} of {self.source}"

    def _columns(self, start: int, stop: int) -> dict[str, Any]:
        table = self._rows.read(start, stop)
        columns = {}
        for name, feature in self.schema.items():
            where = f"rows {start} to {stop} of {self.source}, {name}"
            with naming(where), _with_a_way_out(name):
                column = leaf_column(table, name, where)
                columns[name] = values_of(column, feature, where, is_converted=self._channels is not None)
        return columns

    def _feature(self, head: Any, name: str, is_varying: bool) -> Feature:
        where = f"{self.source}, {name}"
        with naming(where), _with_a_way_out(name):
            column = leaf_column(head, name, where)
            return column_feature(column, where, is_varying=is_varying, channels=self._channels)

    def _cut(self) -> tuple[npt.NDArray[np.int64], list[Any] | None]:
        """Return the first row of each episode and the number of rows, and the value of each episode."""
        if not self._column:
            return np.arange(self._rows.num_rows + 1), None
        column = self._rows.column(self._column)
        if column.null_count:
            raise FormatError(f"{self.source}: {column.null_count} rows have no {self._column}. Every row needs one.")
        codes = column.combine_chunks().dictionary_encode()
        numbers = np.asarray((codes.combine_chunks() if hasattr(codes, "chunks") else codes).indices)
        starts = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1, [len(numbers)]]).astype(np.int64)
        values = [column[int(start)].as_py() for start in starts[:-1]]
        seen = numbers[starts[:-1]]
        if len(np.unique(seen)) != len(seen):
            twice = values[int(np.flatnonzero(np.bincount(seen)[seen] > 1)[0])]
            raise FormatError(
                f"{self.source}: rows of {self._column} {twice!r} do not follow each other. Sort them first: "
                f"dataset.sort({self._column!r}); or each row an episode of one step: episode=''."
            )
        return starts, values


def _files(source: str, split: str | None) -> tuple[list[str], list[str], str]:
    """Return the files of a source, those of one split; the names of its splits, if it has any, and of that one."""
    place = Path(source)
    if place.is_file():
        return [source], [], ""
    if (place / SPLITS).is_file():
        names = [child.name for child in sorted(place.iterdir()) if (child / STATE).is_file()]
        taken = _chosen(names, split, source)
        lost = [name for name in _told_splits(place / SPLITS) if name not in names]
        if lost:
            raise FormatError(f"{place / SPLITS} lists the split {lost[0]!r}, and {place / lost[0]} has no {STATE}.")
        return [str(place / taken / name) for name in _data_files(place / taken / STATE)], names, taken
    if (place / STATE).is_file():
        return [str(place / name) for name in _data_files(place / STATE)], [], ""
    named = _by_split(_parquet_files(place))
    taken = _chosen(list(named), split, source)
    files = [path.rpartition("/")[2] for path in named[taken]]
    warn_of_gaps(str(place), files, "name one file, or write the others anew")
    return named[taken], list(named), taken


def _told_splits(path: Path) -> list[str]:
    """Return the names of splits that ``dataset_dict.json`` lists."""
    try:
        return [str(name) for name in parse_json(read_regular(path))["splits"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise FormatError(f"{path}: {error!r}. It should list splits, as save_to_disk writes it.") from error


def _data_files(path: Path) -> list[str]:
    try:
        told = parse_json(read_regular(path))
        names = [str(entry["filename"]) for entry in told["_data_files"]]
        has_indices = bool(told.get("_indices_data_files"))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise FormatError(f"{path}: {error!r}. It should list _data_files, as save_to_disk writes it.") from error
    if has_indices:
        raise FormatError(f"{path}: rows are chosen by indices, as old versions of datasets saved them. Save it anew.")
    if not names or any("/" in name or name.startswith(".") for name in names):
        raise FormatError(f"{path} lists the files {names}. Allowed: names in its directory, at least one.")
    return names


def _by_split(paths: Sequence[Path]) -> dict[str, list[str]]:
    named: dict[str, list[str]] = {}
    for path in paths:
        found = SHARD.fullmatch(path.name) or SPLIT.match(path.name)
        named.setdefault(found[1] if found else path.parent.name, []).append(str(path))
    return named


def _chosen(names: Sequence[str], split: str | None, source: str) -> str:
    wanted = split if split is not None else names[0] if len(names) == 1 else "train"
    if wanted not in names:
        raise FormatError(f"{source} has the splits {', '.join(names) or 'none'}. Say which: split=..., not {split!r}.")
    return wanted


def _parquet_files(place: Path) -> list[Path]:
    """Return the Parquet files of a directory and of ``data`` in it."""
    return [path for folder in (place, place / "data") for path in sorted(folder.glob("*.parquet"))]


def _episode_column(episode: str | None, names: Sequence[str], source: str) -> str | None:
    if episode:
        if episode not in names:
            raise FormatError(f"episode={episode!r}: {source} has the columns {', '.join(names)}.")
        return episode
    return None if episode == "" else next((name for name in EPISODES if name in names), None)


def _labels(schema: Any) -> dict[str, list[str]]:
    """Return the names of each column of classes."""
    try:
        told = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        return {name: list(map(str, each["names"])) for name, each in told.items() if each.get("_type") == "ClassLabel"}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def _known_names(option: str, given: Sequence[str] | str, known: Sequence[str], source: str) -> list[str]:
    names = names_of(given)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise FormatError(f"{option}={unknown}: {source} has the columns {', '.join(known)}.")
    return names


@contextmanager
def _with_a_way_out(name: str) -> Iterator[None]:
    """Make errors of a column say by which options the others can be read, or it can all the same."""
    try:
        yield
    except FormatError as error:
        more = f"varying=[{name!r}] takes lists of any length, images of any size and format."
        raise FormatError(f"{error} Options: ignore=[{name!r}] leaves the column out, {more}") from error
