"""TFDS and RLDS datasets as episodes, without TensorFlow.

::

    dataset_info.json ─> splits ─> Selection ──┐                 ┌─ an Example an episode, where there are `steps`
    features.json ─────> names ──> columns ────┴─> Steps ────────┤
                                                                 └─ an Example a step: episodes of one step
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import FeatureNotFoundError, FormatError, StepwellError
from stepwell.files.addresses import is_remote
from stepwell.formats.options import flag_of, names_of, option_key, renames_of
from stepwell.formats.reader import Reader
from stepwell.formats.registry import register_reader
from stepwell.formats.source_paths import walked
from stepwell.formats.splits import Split
from stepwell.recorders.sources import EpisodeData
from stepwell.references.file_spans import FileSpans, span_feature
from stepwell.schema import Schema
from stepwell.store.bulk_writing import EpisodeBlock
from stepwell.tfds.columns import Column, choose, column_of
from stepwell.tfds.dataset_files import INFO, described_by, find_version, label_names, named_version, read_info
from stepwell.tfds.features import walk
from stepwell.tfds.images import Images, images_of, with_image_features
from stepwell.tfds.record_files import Records
from stepwell.tfds.shards import Shards, files_of, lengths_by_split, select
from stepwell.tfds.steps import (
    HeldSpans,
    ImageRows,
    StepDecoder,
    Steps,
    Transform,
    block_of,
    transform_of,
    transformed_schema,
)

__all__ = ["RldsReader", "TfdsReader"]

# records that are read at once, at most; as many files are looked at to see what images are
MOST_RECORDS = 4096
LOOKED_AT = 16
# the bytes of a longer record are not held while its steps are stored
MOST_HELD_BYTES = 64 << 20


@register_reader
class TfdsReader(Reader):
    """A TFDS dataset: TFRecord or ArrayRecord files, ``features.json`` and ``dataset_info.json``.

    With a Dataset of steps, as RLDS has it, an example is an episode: its features are columns, by their names below
    the steps with dots (``observation.image``), and what stands beside the steps is the episode's metadata. Where
    stepwell computes a column of that name itself (``is_first``, ``is_last``) the stored one is ``steps.is_first``.
    Without steps an example is an episode of one step. Episodes come in the order of the files. JPEG, PNG and WebP
    files stay as they are; float64 was stored as float32 by TFDS, and becomes float64 again.

    Args:
        source: directory of a version, or of the dataset: the newest version is taken. A path, or an address:
            ``"gs://bucket/arm"``; of HTTP that of the version, ``"https://host/arm/1.0.0"``.
        split: ``"train"`` (default), ``"train[:10%]"``, ``"train+val"``, ``"all"``; see `stepwell.formats.splits`.
        features: names to keep, with what is nested in them; default: all.
        ignore: names to leave out.
        rename: name to the one in the store.
        steps: name of the sequence whose items are steps; default: the Dataset there is, if any. A Video may be one.
        as_bytes: names of strings that are no text.
        transform: what makes another episode of each: a function of `EpisodeData` that workers can import, or its
            name, ``"module:function"``. An episode for which it returns None is left out. Of one that has a method
            ``with_paths`` it is what that returns, given the names that lead to each column in the dataset.
        images: ``"alike"`` (default): images of a feature are files of one format, or of those that some of them have;
            ``"any"``: each may be JPEG, PNG or WebP.
        verify: whether records are compared with their CRCs as they are read.

    Raises:
        DatasetNotFoundError: no dataset there, or a file is missing.
        FormatError: it is not as its format says, or has a feature that no store has.
        FeatureNotFoundError: a name that the dataset does not have.

    Example:
        >>> TfdsReader.accepts("/no/such/directory")
        False

    Notes:
        As for `Reader`. Holds one record, or 4 MiB of short ones. Files of other machines are fetched whole, those that
        hold records of the split, the next one while one is read; see `stepwell.references.remote_files`.
    """

    name: ClassVar[str] = "tfds"

    def __init__(
        self,
        source: str,
        *,
        split: Split = "train",
        features: Collection[str] | str | None = None,
        ignore: Collection[str] | str = (),
        rename: Mapping[str, str] | str | None = None,
        steps: str | None = None,
        as_bytes: Collection[str] | str = (),
        transform: Callable[[EpisodeData], EpisodeData | None] | str | None = None,
        images: Images = "alike",
        verify: bool | str = True,
    ) -> None:
        super().__init__(source)
        self._images = images_of(images)
        self._info = info = read_info(source)
        self._chosen = choose(
            info.features,
            steps=steps,
            features=None if features is None else names_of(features),
            ignore=names_of(ignore),
            rename=renames_of(rename),
        )
        self._selection = select(info, split)
        self._as_bytes = set(names_of(as_bytes))
        unknown = self._as_bytes - {*self._chosen.sources, *self._chosen.sources.values()}
        if unknown:
            raise FeatureNotFoundError(
                f"as_bytes: no feature {', '.join(sorted(unknown))}. There are: {', '.join(self._chosen.sources)}."
            )
        self._transform: Transform | None = transform_of(transform)
        paths, is_verified = self._selection.paths, flag_of("verify", verify)
        self._shards = Shards(paths, info.file_format, is_verified=is_verified)
        told = sorted(self._chosen.columns.items()), self._chosen.metadata, sorted(self._as_bytes), self._images
        self._told = f"{split}, {zlib.crc32(repr(told).encode()):08x}, {option_key(self._transform)}"
        # of one that reads by the dataset's own names
        with_paths = getattr(self._transform, "with_paths", None)
        if with_paths is not None:
            self._transform = with_paths(self._chosen.paths)
        self._held: tuple[int, int, Steps] | None = None
        self.metadata = {"tfds": self._description(split)}
        self.own_files = None if is_remote(source) else [*described_by(info), *paths]

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is a directory with the files of a TFDS dataset; see `Reader.accepts`.

        Of other machines nothing is asked: addresses that end by a version are taken.
        """
        if is_remote(source):
            return named_version(source)
        try:
            return find_version(source).missing([INFO]) is None
        except (StepwellError, OSError, ValueError):
            return False

    @classmethod
    def files(cls, source: str, **options: Any) -> Sequence[str]:
        """Return the files of the version; of another machine those of the split, and those that describe it."""
        if "://" not in source:
            # all in the directory, listed at once: nothing is read to know which of them are of the split
            return sorted(map(itemgetter(0), walked(find_version(source).place)))
        info = read_info(source)
        return [*described_by(info), *files_of(info, options.get("split", "train"))]

    @classmethod
    def meant(cls, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options with the function for its name; see `Reader.meant`."""
        return {**options, "transform": transform_of(options["transform"])} if "transform" in options else options

    @property
    def schema(self) -> Schema:  # type: ignore[override]  # it takes a look at the first images
        """The features; of the first images it looks what they are."""
        return self._schema

    @cached_property
    def _schema(self) -> Schema:
        plain = Schema({column.name: column.feature for column in self._columns if column.feature is not None})
        return plain if self._transform is None or not len(self) else transformed_schema(self._first, plain)

    @cached_property
    def _first(self) -> EpisodeData:
        """The first episode that a transform does not leave out."""
        found = next(self.episodes(), None)
        if found is None:
            raise FormatError(f"{self.source}: transform= leaves all {len(self)} episodes out. None is left to read.")
        return found

    @cached_property
    def _columns(self) -> list[Column]:
        in_steps = self._chosen.steps is not None
        made = [
            column_of(name, placed, in_steps=in_steps, is_text=not {name, source} & self._as_bytes, source=source)
            for name, placed in self._chosen.columns.items()
            for source in [self._chosen.sources[name]]
        ]
        first = self._selection.edges[:LOOKED_AT].tolist()
        return with_image_features(made, lambda: map(self._record, first), self._all_records, self._images)

    @cached_property
    def _decoder(self) -> StepDecoder:
        metadata = [
            (names, column_of(".".join(names), placed, in_steps=False)) for names, placed in self._chosen.metadata
        ]
        flags = {name: self._chosen.flag(name, self._info.features) for name in ("is_last", "is_terminal")}
        return StepDecoder(self._columns, metadata, **flags)

    @property
    def in_place_schema(self) -> Schema:
        """The features when images stay in the TFRecord files; see `Reader.in_place_schema`."""
        left = {column.name for column in self._columns if column.is_left and self._can_be_left}
        paths = self._selection.paths
        schema = Schema({column.name: column.feature for column in self._columns if column.feature is not None})
        if self._transform is not None and len(self):
            left = {name for name, values in self._first.columns.items() if isinstance(values, FileSpans | HeldSpans)}
            schema = self.schema
        # of no records nothing is left anywhere
        return Schema({name: span_feature(f, paths) if name in left and paths else f for name, f in schema.items()})

    @cached_property
    def _can_be_left(self) -> bool:
        return self._shards.can_be_left()

    @property
    def edges(self) -> npt.NDArray[np.int64]:
        """The first episode of each file; see `Reader.edges`."""
        return self._selection.edges

    def __len__(self) -> int:
        return len(self._selection)

    def __getitem__(self, index: int) -> EpisodeData | None:
        steps, place, _ = self._steps_at(index, 1)
        start, stop = steps.edges[place : place + 2].tolist()
        shard = int(self._selection.shard[index])
        columns = {
            column.name: self._part(steps.rows[column.name], start, stop, column, shard) for column in self._columns
        }
        found = EpisodeData(
            columns, bool(steps.terminated[place]), bool(steps.truncated[place]), self._told_of(steps, place, shard)
        )
        return found if self._transform is None else self._transform(found)

    def one_step_episodes(self, start: int, stop: int) -> Mapping[str, Any] | None:
        """Return columns of several examples that are one step each; see `Reader.one_step_episodes`."""
        is_plain = self._chosen.steps is None and self._transform is None and not self._has_splits
        if not is_plain:
            return None
        steps, place, count = self._steps_at(start, stop - start)
        end = place + min(count, stop - start)
        columns = {}
        for column in self._columns:
            rows = steps.rows[column.name]
            is_left = isinstance(rows, ImageRows) and column.feature is not None
            columns[column.name] = rows.in_memory(place, end, column.feature) if is_left else rows[place:end]
        return columns

    def blocks(self) -> Iterator[EpisodeBlock] | None:
        """Yield all episodes, a record or some megabytes at a time; see `Reader.blocks`."""
        if self._transform is not None:
            return None
        return self._blocks()

    def _blocks(self) -> Iterator[EpisodeBlock]:
        self._shards.expect(self._selection.shard)
        position = 0
        while position < len(self):
            steps, place, count = self._steps_at(position, MOST_RECORDS)
            shard = int(self._selection.shard[position])
            told = [self._told_of(steps, number, shard) for number in range(place, place + count)]
            yield block_of(steps, place, self._columns, told, shard if self._can_be_left else None)
            position += count

    def prepare(self, episodes: npt.NDArray[np.int64]) -> None:
        """Take note of the files that will be fetched; see `Reader.prepare`."""
        self._shards.expect(self._selection.shard[episodes])

    @property
    def identity(self) -> str:
        """The dataset's directory, its files of JSON, and the options; see `Reader.identity`."""
        described = repr((self._info.raw, self._info.raw_features)).encode()
        return f"{self.name} {self._info.directory} {zlib.crc32(described):08x}, {self._told}, {len(self)} episodes"

    def episode_bytes(self, schema: Schema) -> int | None:
        """Return about how many bytes an episode takes: as in the files, unless by another codec."""
        if schema != self.schema or self._transform is not None or not len(self):
            return None
        return int(self._selection.num_bytes.sum()) // max(1, int(self._selection.lengths.sum()))

    def label(self, index: int) -> str:
        """Return which record of which file it is; see `Reader.label`."""
        return f"record {self._selection.record[index]} of {self._shards.called(int(self._selection.shard[index]))}"

    def __getstate__(self) -> dict[str, Any]:
        # what a function made of an episode may be large
        return {**{name: value for name, value in self.__dict__.items() if name != "_first"}, "_held": None}

    def _steps_at(self, index: int, most: int) -> tuple[Steps, int, int]:
        """Return decoded records, which of them is the one at a position, and how many positions follow with it.

        More are read than asked for where they were asked for in order.
        """
        shard, record = int(self._selection.shard[index]), int(self._selection.record[index])
        held = self._held
        if held is not None and held[0] == shard and held[1] <= record < held[1] + len(held[2]):
            place = record - held[1]
            return held[2], place, self._selection.run(index, len(held[2]) - place)
        is_next = held is not None and held[0] == shard and record == held[1] + len(held[2])
        ahead = 4 * len(held[2]) if is_next and held is not None else 1
        most = self._selection.run(index, min(MOST_RECORDS, max(most, ahead)))
        records = self._read(shard, record, most)
        steps = self._decoder.decode(records, self._shards.called(shard))
        if records.offset is not None and len(records.data) > MOST_HELD_BYTES:
            steps = steps.without_data()
        self._held = shard, record, steps
        return steps, 0, len(steps)

    def _read(self, shard: int, record: int, most: int) -> Records:
        """Return some records of a file; raises where it has other numbers of them than the dataset says."""
        file, length = self._shards.records(shard), int(self._selection.lengths[shard])
        if not file.is_next(record):
            self._check_length(len(file), shard)
        records = file.read(record, most)
        is_last = record + len(records.starts) == length
        known = len(file) if is_last else file.num_known
        if known is not None:
            self._check_length(known, shard)
        return records

    def _check_length(self, found: int, shard: int) -> None:
        length = int(self._selection.lengths[shard])
        if found != length:
            self._shards.close()
            raise FormatError(
                f"{self._shards.called(shard)}: {found} records, by {self._info.directory}/{INFO} {length}. A file was "
                "cut off or replaced: copy all of the dataset again."
            )

    def _record(self, index: int) -> tuple[Records, str]:
        shard = int(self._selection.shard[index])
        return self._read(shard, int(self._selection.record[index]), 1), self._shards.called(shard)

    def _all_records(self) -> Iterator[tuple[Records, str]]:
        self._shards.expect(self._selection.shard)
        position = 0
        while position < len(self):
            shard, record = int(self._selection.shard[position]), int(self._selection.record[position])
            records = self._read(shard, record, self._selection.run(position, MOST_RECORDS))
            yield records, self._shards.called(shard)
            position += len(records.starts)
        self._shards.expect(np.empty(0, np.int64))

    def _part(self, rows: Any, start: int, stop: int, column: Column, shard: int) -> Any:
        """Return the rows of one episode."""
        if not isinstance(rows, ImageRows) or column.feature is None:
            return rows[start:stop]
        return rows.part(start, stop, column.feature, self._selection.paths, shard)

    def _told_of(self, steps: Steps, place: int, shard: int) -> Mapping[str, Any]:
        """Return the metadata of an episode; with its split, where there are several."""
        told = steps.metadata[place]
        return {**told, "tfds_split": self._selection.splits[shard]} if self._has_splits else told

    @cached_property
    def _has_splits(self) -> bool:
        return len(self._selection.names) > 1

    def _description(self, split: Split) -> dict[str, Any]:
        """Return what the store says of the dataset."""
        info = self._info
        names = {
            found.key: label_names(info.directory, found) for found in walk(info.features) if found.leaf.kind == "label"
        }
        return {
            "name": info.name,
            "version": info.version,
            "split": str(split),
            "splits": dict(lengths_by_split(info)),
            "labels": {key: given for key, given in names.items() if given is not None},
            "features": dict(info.raw_features),
        }


@register_reader
class RldsReader(TfdsReader):
    """The same under the name of RLDS: ``rlds://PATH``, ``--from rlds``."""

    name: ClassVar[str] = "rlds"

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Nothing by itself: `TfdsReader` does."""
        return False
