"""The reader of WebDataset's shards: a sample is an episode of one step, a shard a segment."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.errors import FormatError, StepwellError
from stepwell.files.addresses import is_remote
from stepwell.files.local_files import OpenFile
from stepwell.formats.images import channels_of
from stepwell.formats.options import flag_of, option_key, renames_of
from stepwell.formats.reader import Reader
from stepwell.formats.registry import register_reader
from stepwell.recorders.sources import EpisodeData
from stepwell.references.file_spans import make_spans, span_feature
from stepwell.references.remote_files import fetched_ahead
from stepwell.schema import Feature, Schema, Text
from stepwell.store.bulk_writing import Blobs, EpisodeBlock
from stepwell.store.values import EncodedRows
from stepwell.webdataset.member_columns import (
    Decoders,
    Findings,
    MemberColumn,
    Settings,
    list_of,
    schema_of,
)
from stepwell.webdataset.samples import Members, Shard, group_samples
from stepwell.webdataset.shard_files import (
    check_length,
    check_shards,
    find_shards,
    info_path,
    names_shards,
    read_infos,
    told_names,
    told_samples,
)
from stepwell.webdataset.tar_files import open_archive, read_tar_index

__all__ = ["KEY", "WebDatasetReader"]

WINDOW_BYTES = 4 << 20
KEY = "__key__"
BLOCK_SAMPLES = 16384
# of samples that are read at once by an import
BATCH_BYTES = 4 << 20
MAX_BATCH_SAMPLES = 1024


class ShardWindow:
    """Some bytes of a shard, from a sample on."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._data, self._start = b"", 0
        self._file = open_archive(shard.path)
        first, last = shard.spans()
        self._firsts, self._lasts = first.tolist(), last.tolist()
        self._places = {
            ending: (members.offsets.tolist(), members.sizes.tolist()) for ending, members in shard.members.items()
        }

    def sample(self, sample: int) -> dict[str, bytes]:
        """Return the members of a sample, those that it has, by their ending."""
        self._need(self._firsts[sample], self._lasts[sample])
        found = {}
        for ending, (offsets, sizes) in self._places.items():
            if offsets[sample] >= 0:
                place = offsets[sample] - self._start
                found[ending] = self._data[place : place + sizes[sample]]
        return found

    def member(self, sample: int, ending: str) -> bytes:
        """Return one member, which the sample has."""
        offset, size = (part[sample] for part in self._places[ending])
        return self._read(offset, size)

    def _need(self, first: int, last: int) -> None:
        if not self._start <= first <= last <= self._start + len(self._data):
            self._data, self._start = self._read(first, max(last - first, WINDOW_BYTES), least=last - first), first

    def _read(self, offset: int, size: int, least: int | None = None) -> bytes:
        try:
            data = self._file.read(offset, size)
        except OSError as error:
            raise FormatError(f"{self.shard.path} cannot be read: {error.strerror}.") from error
        if len(data) < (size if least is None else least):
            raise FormatError(f"{self.shard.path} was cut off since it was opened. Open it again.")
        return data


def member_values(shard: Shard, sample: int, ending: str, column: MemberColumn, data: bytes) -> tuple[Any, ...]:
    """Return the values of a member."""
    try:
        return column.values(data)
    except StepwellError:
        raise
    except Exception as error:  # a decoder may be anybody's
        told = f"no {error}" if isinstance(error, KeyError) else error
        raise FormatError(f"{shard.where(sample, ending)}: {told}.") from error


@register_reader
class WebDatasetReader(Reader):
    """Shards of WebDataset: each sample is an episode of one step, with a feature for each ending and ``__key__``.

    Args:
        source: shards: paths or addresses with braces, globs, a directory, several of them joined by ``::``; see
            `stepwell.formats.source_files`. Those of other machines are fetched into the cache.
        endings: that are read, ``["jpg", "cls"]`` or ``"jpg,cls"``; default all.
        ignore: endings that are not.
        rename: names of features for endings: ``{"jpg": "image", "cls": "label"}`` or ``"jpg=image,cls=label"``;
            default: the ending, or what ``_info.json`` of `write_webdataset` beside the shards tells. Images of one new
            name, ``"jpg=image,png=image"``, are one feature, whichever of them a sample has.
        json: "text" (default): JSON files are `Text`; "columns": a feature for each number and text in them; what else
            there is, is left out with a `stepwell.errors.LeftOutWarning`.
        channels: 1, 3 or 4 that all images are to have: grey, RGB, RGBA; default: as many as one has.
        decoders: ending to (feature, function): makes a value of that feature of a member's bytes.
        allow_missing: leave samples out that lack a member of an ending; default: they are an error.
        allow_cut: of shards that were cut off take the samples that are whole.
        allow_repeats: of samples whose members do not follow each other take each run of them as a sample.

    Raises:
        DatasetNotFoundError: no such shards.
        FormatError: no archives, damaged or cut off ones, shards that are missing or have other numbers of samples than
            ``_info.json`` beside them says, or members that cannot be read; names shard and sample.

    Example:
        >>> WebDatasetReader.accepts("https://host/train-{000..146}.tar")
        True

    Notes:
        As `Reader`. Headers of all shards are read once, those of images and arrays as well; workers read the headers
        of a shard again when they come to it.
    """

    name: ClassVar[str] = "webdataset"

    def __init__(
        self,
        source: str,
        *,
        endings: Collection[str] | str = (),
        ignore: Collection[str] | str = (),
        rename: Mapping[str, str] | str | None = None,
        json: str = "text",
        decoders: Decoders | None = None,
        channels: int | str | None = None,
        allow_missing: bool | str = False,
        allow_cut: bool | str = False,
        allow_repeats: bool | str = False,
    ) -> None:
        super().__init__(source)
        self.paths = find_shards(source)
        renames = renames_of(rename)
        infos = read_infos(self.paths)
        check_shards(source, self.paths, infos)
        names = {**told_names(self.paths[0], infos), **renames}
        self._settings = Settings(
            list_of(endings), list_of(ignore), names, json, dict(decoders or {}), channels_of(channels)
        )
        self._allow_missing = flag_of("allow_missing", allow_missing)
        self._allow_cut, self._allow_repeats = flag_of("allow_cut", allow_cut), flag_of("allow_repeats", allow_repeats)
        whole, findings = [], Findings(self._settings)
        for number, file in _opened_shards(self.paths):
            whole.append(self._read_shard(number, file))
            if not whole[-1].is_cut:
                check_length(self.paths[number], whole[-1].num_stored, infos)
            findings.add(whole[-1], file)
        self._columns = findings.columns()
        self._shards = {number: self._complete(shard) for number, shard in enumerate(whole)}
        self._stops = np.cumsum([len(shard) for shard in self._shards.values()])
        self._num_bytes = sum(int(members.sizes.sum()) for shard in whole for members in shard.members.values())
        if not len(self):
            raise FormatError(
                f"{source}: no sample has a member of each of {self._needed()}, so that allow_missing=True leaves all "
                f"out. Leave endings out with ignore=.{self._way_out()}"
            )
        self.schema = schema_of(self._columns, {self._settings.name_of(KEY): Text()})
        self._check_are_there(renames)
        self.metadata = {"shards": [path.rpartition("/")[2] for path in self.paths]}
        self._window: ShardWindow | None = None

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether a source names ``.tar`` files, or is a directory of such; see `Reader.accepts`."""
        return names_shards(source) and told_samples(source) != "episodes"

    @classmethod
    def files(cls, source: str, **options: Any) -> Sequence[str]:
        """Return the shards, and ``_info.json`` beside them; see `Reader.files`."""
        paths = find_shards(source)
        info = info_path(paths[0])
        return [*paths, str(info)] if info is not None and info.is_file() else paths

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self._stops[-1])

    def __getitem__(self, index: int) -> EpisodeData:
        """Return a sample as an episode of one step; see `Reader.__getitem__`. Its values are copies."""
        number, sample = self._place_of(index)
        return EpisodeData(self._columns_of(number, range(sample, sample + 1)))

    def one_step_episodes(self, start: int, stop: int) -> dict[str, Any]:
        """Return the columns of several samples of one shard; see `Reader.one_step_episodes`."""
        number, sample = self._place_of(start)
        most = min(MAX_BATCH_SAMPLES, max(1, BATCH_BYTES // self.episode_bytes(self.schema)))
        count = min(stop - start, most, len(self._shard(number)) - sample)
        return self._columns_of(number, range(sample, sample + count))

    def _columns_of(self, number: int, samples: range) -> dict[str, Any]:
        """Return the values of consecutive samples: encoded rows as they are, lists of others."""
        shard = self._shard(number)
        if self._window is None or self._window.shard is not shard:
            self._window = ShardWindow(shard)
        members = [self._window.sample(sample) for sample in samples]
        columns: dict[str, Any] = {self._settings.name_of(KEY): [shard.keys[sample] for sample in samples]}
        for ending, column in self._columns.items():
            rows = [
                member_values(shard, sample, ending, column, data[ending])
                for sample, data in zip(samples, members, strict=True)
            ]
            for place, (name, feature) in enumerate(column.features.items()):
                columns[name] = _column(feature, [row[place] for row in rows])
        return columns

    @property
    def edges(self) -> npt.NDArray[np.int64]:
        """The first sample of each shard, see `Reader.edges`."""
        starts = np.concatenate([[0], self._stops[:-1]]).astype(np.int64)
        return np.unique(starts[starts < self._stops])

    @property
    def in_place_schema(self) -> Schema:
        """The features with references where members are read where they are; see `Reader.in_place_schema`."""
        left = {name for column in self._columns.values() if column.stays for name in column.features}
        return Schema(
            {
                name: span_feature(feature, self.paths) if name in left else feature
                for name, feature in self.schema.items()
            }
        )

    def blocks(self) -> Iterator[EpisodeBlock]:
        """Yield all samples, a shard or `BLOCK_SAMPLES` at a time; see `Reader.blocks`."""
        for number in range(len(self.paths)):
            shard = self._shard(number)
            for start in range(0, len(shard), BLOCK_SAMPLES):
                samples = range(start, min(start + BLOCK_SAMPLES, len(shard)))
                yield EpisodeBlock(
                    np.ones(len(samples), np.int64),
                    self._stored(number, shard, samples),
                    [{}] * len(samples),
                    # what is fetched is best read to its end; of files at hand a segment each would be many files
                    ends_shard=samples.stop == len(shard) and is_remote(shard.path),
                )

    @property
    def identity(self) -> str:
        """The shards, their samples and bytes, and how they are read; see `Reader.identity`."""
        told = zlib.crc32(option_key(self._settings).encode("utf-8", "surrogateescape"))
        return f"{super().identity}, {len(self.paths)} shards, {self._num_bytes} bytes, {told:08x}"

    def episode_bytes(self, schema: Schema) -> int:
        """Return the bytes of all members by the samples; see `Reader.episode_bytes`."""
        return max(1, self._num_bytes // max(1, len(self)))

    def label(self, index: int) -> str:
        """Return a sample's key and its shard; see `Reader.label`."""
        number, sample = self._place_of(index)
        return f"sample {self._shard(number).keys[sample]} of {self.paths[number]}"

    def _check_are_there(self, renames: Mapping[str, str]) -> None:
        """Refuse new names of what is in no shard; ``"jpg=image,png=image"`` is for shards of either."""
        lacking = [old for old, new in renames.items() if new not in self.schema and self._settings.wants(old)]
        if lacking:
            raise FormatError(
                f"{self.paths[0]}: no members of ending {lacking[0]!r} to rename, nor in other shards. There are: "
                f"{', '.join(self._columns)}."
            )

    def _read_shard(self, number: int, file: OpenFile | None = None) -> Shard:
        index = read_tar_index(self.paths[number], file=file, allow_cut=self._allow_cut)
        settings = self._settings
        return group_samples(
            index, keep=settings.wants, column_of=settings.column_of, allow_repeats=self._allow_repeats
        )

    def _shard(self, number: int) -> Shard:
        """Return the samples of a shard; a worker reads them when it comes to it."""
        if number not in self._shards:
            self._shards = {number: self._complete(self._read_shard(number))}
        return self._shards[number]

    def _complete(self, shard: Shard) -> Shard:
        """Return the samples that have all that they need."""
        is_complete = np.ones(len(shard), bool)
        for ending in self._columns:
            members = shard.members.get(ending)
            is_complete &= False if members is None else members.is_there
        if is_complete.all():
            return shard
        is_last_cut = shard.is_cut and is_complete[:-1].all()
        if not self._allow_missing and not is_last_cut:
            first = int(np.argmin(is_complete))
            lacking = next(
                ending
                for ending in self._columns
                if ending not in shard.members or not shard.members[ending].is_there[first]
            )
            raise FormatError(
                f"{shard.path}: sample {shard.keys[first]} has no .{lacking}, which others have. Leave the ending out "
                f"with ignore=, or such samples with allow_missing=True.{self._way_out()}"
            )
        rows = np.flatnonzero(is_complete)
        members_of = {
            ending: Members(members.offsets[rows], members.sizes[rows]) for ending, members in shard.members.items()
        }
        return Shard(shard.path, [shard.keys[row] for row in rows.tolist()], members_of)

    def _needed(self) -> str:
        return ", ".join(f".{ending}" for ending in self._columns)

    def _way_out(self) -> str:
        """Return how images of several endings become one feature, if there are such."""
        endings = [ending for ending, column in self._columns.items() if column.kind == "image"]
        if len(endings) < 2:
            return ""
        told = ",".join(f"{ending}=image" for part in endings for ending in part.split("|"))
        return f' Where a sample has either, rename="{told}" makes one feature of them.'

    def _place_of(self, index: int) -> tuple[int, int]:
        """Return shard and sample of an episode."""
        if not 0 <= index < len(self):
            raise IndexError(f"episode {index} of {self.source}, which has {len(self)}.")
        number = int(np.searchsorted(self._stops, index, side="right"))
        return number, index - (int(self._stops[number - 1]) if number else 0)

    def _stored(self, number: int, shard: Shard, samples: range) -> dict[str, npt.NDArray[Any] | Blobs]:
        """Return columns as the files of a store have them."""
        keys = [shard.keys[sample].encode("utf-8") for sample in samples]
        made: dict[str, npt.NDArray[Any] | Blobs] = {self._settings.name_of(KEY): _joined(keys)}
        window = ShardWindow(shard)
        for ending, column in self._columns.items():
            if column.stays:
                made[next(iter(column.features))] = _spans(number, shard, samples, ending, column)
                continue
            rows = [member_values(shard, sample, ending, column, window.member(sample, ending)) for sample in samples]
            for place, (name, feature) in enumerate(column.features.items()):
                made[name] = _as_stored(feature, [row[place] for row in rows])
        return made

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shards": {}, "_window": None}

    def __repr__(self) -> str:
        return f"<WebDatasetReader {self.source} {len(self):,} samples in {len(self.paths)} shards>"


def _opened_shards(paths: Sequence[str]) -> Iterator[tuple[int, OpenFile]]:
    """Yield number and archive of each shard; those of other machines are fetched ahead."""
    if any(map(is_remote, paths)):
        yield from fetched_ahead(paths)
    else:
        yield from ((number, open_archive(path)) for number, path in enumerate(paths))


def _spans(number: int, shard: Shard, samples: range, ending: str, column: MemberColumn) -> Blobs:
    """Return references to members; of ``.npy`` files to what is behind the header."""
    rows = slice(samples.start, samples.stop)
    offsets, sizes = shard.members[ending].offsets[rows], shard.members[ending].sizes[rows]
    if column.kind == "npy":
        row_bytes = next(iter(column.features.values())).row_bytes
        offsets, sizes = offsets + sizes - row_bytes, np.full(len(samples), row_bytes, np.int64)
    spans = make_spans(number, offsets, sizes)
    return Blobs(spans.reshape(-1), np.full(len(spans), spans.shape[1], np.int64))


def _column(feature: Feature, values: list[Any]) -> Any:
    """Return a column as writers take it."""
    if isinstance(values[0], bytes) and not feature.is_raw:
        return EncodedRows(values)
    if not feature.is_ragged:
        return np.asarray(values, feature.np_dtype).reshape(len(values), *feature.fixed_shape)
    return values


def _as_stored(feature: Feature, values: list[Any]) -> npt.NDArray[Any] | Blobs:
    if feature.is_raw:
        return np.asarray(values, feature.np_dtype).reshape(len(values), *feature.fixed_shape)
    codec = make_codec(feature)
    return _joined([value if isinstance(value, bytes) else codec.encode(value) for value in values])


def _joined(rows: Sequence[bytes]) -> Blobs:
    return Blobs(np.frombuffer(b"".join(rows), np.uint8), np.array([len(row) for row in rows], np.int64))
