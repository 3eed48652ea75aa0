"""The reader of shards whose samples are episodes, as `write_webdataset` writes them."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs import codec_class
from stepwell.errors import FormatError, SchemaError
from stepwell.formats.arrays import npy_array, npy_head
from stepwell.formats.reader import Reader
from stepwell.formats.registry import register_reader
from stepwell.json_text import parse_json
from stepwell.recorders.sources import EpisodeData
from stepwell.references.file_codec import FileCodec
from stepwell.references.file_spans import FileSpans, span_feature
from stepwell.schema import Feature, Schema
from stepwell.webdataset.samples import split_name
from stepwell.webdataset.shard_files import (
    check_length,
    check_shards,
    find_shards,
    names_shards,
    read_infos,
    told_samples,
)
from stepwell.webdataset.tar_files import TarIndex, open_archive, read_tar_index
from stepwell.webdataset.writing import EPISODE

__all__ = ["EpisodeShardsReader"]

ROW = re.compile(r"(?P<name>.+)\.(?P<row>\d{6,})\.[a-z]+")
HEAD_BYTES = 512
FACTS = ("length", "terminated", "truncated", "final", "metadata", "features")

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Entry:
    """Where the members of an episode lie: (offset, size) each."""

    key: str
    shard: int
    facts: tuple[int, int] = (0, 0)
    arrays: dict[str, tuple[int, int]] = field(default_factory=dict)
    rows: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)


@register_reader
class EpisodeShardsReader(Reader):
    """Shards of episodes, see `stepwell.webdataset.writing.EpisodeSamples`: the store that they were made of.

    Args:
        source: shards, see `stepwell.webdataset.WebDatasetReader`.

    Raises:
        DatasetNotFoundError: no such shards.
        FormatError: no archives, damaged or cut off ones, or samples that are no episodes; names shard and sample.

    Example:
        >>> EpisodeShardsReader.accepts("nothing")
        False

    Notes:
        As `Reader`. Found by looking where ``_info.json`` beside the shards tells; else by its name.
    """

    name: ClassVar[str] = "webdataset-episodes"

    def __init__(self, source: str) -> None:
        super().__init__(source)
        self.paths = find_shards(source)
        self._entries: list[_Entry] = []
        first: list[int] = []
        infos = read_infos(self.paths)
        check_shards(source, self.paths, infos)
        for number, path in enumerate(self.paths):
            first.append(len(self._entries))
            self._entries += _entries_of(read_tar_index(path), number)
            check_length(path, len(self._entries) - first[-1], infos)
        if not self._entries:
            raise FormatError(f"{self.paths[0]}: no samples with a member .{EPISODE}: not shards of episodes.")
        self._edges = np.unique([start for start in first if start < len(self._entries)]).astype(np.int64)
        self.schema = _schema_of(self._facts(self._entries[0]), self.label(0))

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether shards are of episodes, as ``_info.json`` beside them tells; see `Reader.accepts`."""
        return names_shards(source) and told_samples(source) == "episodes"

    @classmethod
    def files(cls, source: str, **options: Any) -> Sequence[str]:
        """Return the shards, see `Reader.files`."""
        return find_shards(source)

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._entries)

    def __getitem__(self, index: int) -> EpisodeData:
        """Return an episode, whose values stay in the shards; see `Reader.__getitem__`."""
        entry = self._entries[index]
        facts = self._facts(entry)
        columns = {name: self._column(entry, facts, name, feature) for name, feature in self.schema.items()}
        return EpisodeData(columns, bool(facts["terminated"]), bool(facts["truncated"]), facts["metadata"])

    @property
    def in_place_schema(self) -> Schema:
        """The features with references but for arrays of varying size; see `Reader.in_place_schema`."""
        return Schema(
            {
                name: feature if _is_copied(feature) else span_feature(feature, self.paths)
                for name, feature in self.schema.items()
            }
        )

    @property
    def edges(self) -> Int64s:
        """The first episode of each shard, see `Reader.edges`."""
        return self._edges

    def label(self, index: int) -> str:
        """Return an episode's key and its shard; see `Reader.label`."""
        entry = self._entries[index]
        return f"sample {entry.key} of {self.paths[entry.shard]}"

    def _facts(self, entry: _Entry) -> dict[str, Any]:
        where = f"{self.paths[entry.shard]}: {entry.key}.{EPISODE}, byte {entry.facts[0]}"
        try:
            facts = parse_json(self._bytes(entry, *entry.facts))
            found = {name: facts[name] for name in FACTS}
        except (ValueError, LookupError, TypeError) as error:
            raise FormatError(f"{where}: not what an episode is told by: {error!r}.") from error
        is_right = type(found["length"]) is int and found["length"] > 0 and isinstance(found["metadata"], dict)
        if not is_right or not isinstance(found["features"], dict):
            raise FormatError(f"{where}: length {found['length']!r}, or metadata or features that are no objects.")
        return found

    def _bytes(self, entry: _Entry, offset: int, size: int) -> bytes:
        return open_archive(self.paths[entry.shard]).read(offset, size)

    def _column(self, entry: _Entry, facts: Mapping[str, Any], name: str, feature: Feature) -> Any:
        """Return the rows of a feature: where they lie, or copies of arrays of varying size."""
        count = facts["length"] + (feature.final and bool(facts["final"]))
        if feature.is_raw:
            return self._plain_rows(entry, name, feature, count)
        rows = sorted(entry.rows.get(name, []))
        if len(rows) != count or any(row != place for place, (row, _, _) in enumerate(rows)):
            raise FormatError(
                f"{self.paths[entry.shard]}: sample {entry.key} has {len(rows)} members of {name!r}, where its length "
                f"asks for {count}, numbered from 0."
            )
        if _is_copied(feature):
            return [self._array(entry, f"{name}.{row:06d}.npy", offset, size) for row, offset, size in rows]
        places = np.array(rows, np.int64)
        return FileSpans(feature, self.paths, entry.shard, places[:, 1], places[:, 2])

    def _array(self, entry: _Entry, ending: str, offset: int, size: int) -> Any:
        try:
            return npy_array(self._bytes(entry, offset, size))
        except ValueError as error:
            where = f"{self.paths[entry.shard]}: {entry.key}.{ending}, byte {offset}"
            raise FormatError(f"{where}: not a .npy file: {error}.") from error

    def _plain_rows(self, entry: _Entry, name: str, feature: Feature, count: int) -> FileSpans:
        offset, size = entry.arrays.get(name, (0, 0))
        where = f"{self.paths[entry.shard]}: {entry.key}.{name}.npy, byte {offset}"
        head = io.BytesIO(self._bytes(entry, offset, min(size, HEAD_BYTES)))
        try:
            shape, is_fortran, dtype = npy_head(head)
        except ValueError as error:
            raise FormatError(f"{where}: not a .npy file: {error}.") from error
        wanted = ((count, *feature.fixed_shape), feature.np_dtype, False)
        if (shape, dtype, is_fortran and len(shape) > 1) != wanted or size != head.tell() + count * feature.row_bytes:
            raise FormatError(
                f"{where}: {size} bytes of {dtype} {shape}, where {count} rows of {feature!r} are wanted."
            )
        starts = offset + head.tell() + feature.row_bytes * np.arange(count)
        return FileSpans(feature, self.paths, entry.shard, starts, np.full(count, feature.row_bytes, np.int64))

    def __repr__(self) -> str:
        return f"<EpisodeShardsReader {self.source} {len(self):,} episodes in {len(self.paths)} shards>"


def _entries_of(index: TarIndex, shard: int) -> list[_Entry]:
    """Return the episodes of an archive."""
    found: dict[str, _Entry] = {}
    for name, offset, size in zip(index.names, index.offsets.tolist(), index.sizes.tolist(), strict=True):
        split = split_name(name)
        if split is None:
            continue
        key, _ = split
        ending = name[len(key) + 1 :]
        entry = found.setdefault(key, _Entry(key, shard))
        row = ROW.fullmatch(ending)
        if row is not None:
            entry.rows.setdefault(row["name"], []).append((int(row["row"]), offset, size))
            continue
        if (ending == EPISODE and entry.facts[1]) or ending.removesuffix(".npy") in entry.arrays:
            raise FormatError(
                f"{index.path}, byte {offset}: {name} comes twice. Two archives that were put into one file are two "
                "shards; write it again."
            )
        if ending == EPISODE:
            entry.facts = offset, size
        else:
            entry.arrays[ending.removesuffix(".npy")] = offset, size
    lacking = next((entry.key for entry in found.values() if not entry.facts[1]), None)
    if lacking is not None:
        raise FormatError(f"{index.path}: sample {lacking} has no member .{EPISODE}: these are no shards of episodes.")
    return list(found.values())


def _schema_of(facts: Mapping[str, Any], label: str) -> Schema:
    try:
        told = Schema({name: Feature.from_json(record) for name, record in facts["features"].items()})
        referring = [name for name, feature in told.items() if issubclass(codec_class(feature), FileCodec)]
    except SchemaError as error:
        raise FormatError(f"{label}: {error}") from error
    if referring:
        raise FormatError(f"{label}: feature {referring[0]!r} refers to other files. Allowed: rows that are members.")
    # where their rows lie says this reader, and not the archive
    return Schema({name: replace(feature, reach=None) for name, feature in told.items()})


def _is_copied(feature: Feature) -> bool:
    """Whether rows are ``.npy`` files, whose bytes are no rows of a store."""
    return feature.is_ragged and feature.kind == "array"
