"""The reader of ``.beton`` files: samples as episodes of one step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.beton.fields import BetonField, ImageField, ImageKind, ValueField, field_modules, stays_as_image
from stepwell.beton.layout import HEADER_BYTES, Header
from stepwell.beton.reading import BetonFile
from stepwell.beton.stored_images import BetonImages, beton_image_feature, make_image_references
from stepwell.codecs import make_codec
from stepwell.errors import FormatError, SchemaError, StepwellError
from stepwell.files.addresses import is_remote, plain_address
from stepwell.files.local_files import read_regular
from stepwell.formats.options import renames_of
from stepwell.formats.reader import Reader
from stepwell.formats.registry import register_reader
from stepwell.formats.source_paths import source_files
from stepwell.recorders.sources import EpisodeData
from stepwell.references.file_spans import FileSpans, span_feature
from stepwell.schema import Feature, Schema
from stepwell.store.bulk_writing import Blobs, EpisodeBlock

__all__ = ["BetonReader"]

SUFFIX = ".beton"
ENDINGS = (SUFFIX,)
# samples whose places are worked out at once
BLOCK_SAMPLES = 65536


@register_reader
class BetonReader(Reader):
    """FFCV's ``.beton`` files: each sample is an episode of one step.

    Numbers are copied; images, arrays, texts and bytes stay where they are when the files are read in place.

    Args:
        source: path or address of a file; or several, which are one data set of files with the same fields: a pattern
            such as ``"train-*.beton"`` or ``"train-{0..7}.beton"``, a directory, paths one a line.
        rename: names of features for fields whose names they cannot have, or that should be called otherwise; as text
            ``"old=new,other=another"``.
        custom_fields: what reads custom fields, by name: subclasses of `stepwell.beton.SpanField` or `ValueField`.

    Raises:
        DatasetNotFoundError: no such file.
        FormatError: not such a file, a cut off one, or a custom field that nobody says how to read.

    Example:
        >>> BetonReader.accepts("nothing.beton")
        False
    """

    name: ClassVar[str] = "beton"

    def __init__(
        self,
        source: str,
        *,
        rename: Mapping[str, str] | str | None = None,
        custom_fields: Mapping[str, type[BetonField]] | None = None,
    ) -> None:
        super().__init__(source)
        self.paths = source_files(source, ENDINGS)
        self._custom_fields = dict(custom_fields or {})
        self._names = _names(self._opened, renames_of(rename))
        self._stops = np.cumsum([len(file) for file in self._opened])
        images = _image_features(self._opened)
        features = {new: images.get(name) or self._feature(name) for name, new in self._names.items()}
        self.schema = _schema(features, self.paths)
        self._block: tuple[int, int, dict[str, Any]] = (0, 0, {})

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether a source is a ``.beton`` file, or a pattern or lines of such; see `Reader.accepts`."""
        try:
            # those of a directory may be for training and for testing
            paths = [] if any(Path(line).is_dir() for line in source.split("\n")) else source_files(source, ENDINGS)
        except (StepwellError, OSError, ValueError):
            return False
        return bool(paths) and all(path.endswith(SUFFIX) and (is_remote(path) or _is_beton(path)) for path in paths)

    @classmethod
    def files(cls, source: str, **options: Any) -> Sequence[str]:
        """Return the files, and those in which custom fields are defined; see `Reader.files`."""
        return [*source_files(source, ENDINGS), *field_modules(options.get("custom_fields") or {})]

    def __len__(self) -> int:
        """Return the number of samples."""
        return int(self._stops[-1])

    def __getitem__(self, index: int) -> EpisodeData:
        """Return a sample as an episode of one step; see `Reader.__getitem__`."""
        start, stop, columns = self._block
        if not start <= index < stop:
            start, stop, columns = self._block = self._block_of(index)
        row = index - start
        return EpisodeData({name: _part(column, row) for name, column in columns.items()})

    @property
    def in_place_schema(self) -> Schema:
        """The features with references where their values stay in the files; see `Reader.in_place_schema`."""
        return Schema({new: self._left_in_place(name, new) for name, new in self._names.items()})

    def blocks(self) -> Iterator[EpisodeBlock]:
        """Yield all samples, `BLOCK_SAMPLES` at a time; see `Reader.blocks`."""
        schema = self.in_place_schema
        start = 0
        while start < len(self):
            _, stop, columns = self._block_of(start)
            count = stop - start
            made = {name: _stored(column, schema[name]) for name, column in columns.items()}
            yield EpisodeBlock(np.ones(count, np.int64), made, [{}] * count)
            start = stop

    @property
    def identity(self) -> str:
        """The files, their samples and sizes; see `Reader.identity`."""
        sizes = ", ".join(str(file.num_bytes) for file in self._opened)
        return f"{super().identity}, {sizes} bytes, {', '.join(self.schema)}"

    def episode_bytes(self, schema: Schema) -> int:
        """Return the bytes of the files by their samples; see `Reader.episode_bytes`."""
        return max(1, sum(file.num_bytes for file in self._opened) // max(1, len(self)))

    def label(self, index: int) -> str:
        """Return the sample's number in its file; see `Reader.label`."""
        file, sample = self._place_of(index)
        return f"sample {sample} of {plain_address(self.paths[file])}"

    @cached_property
    def _opened(self) -> list[BetonFile]:
        return [BetonFile(path, self._custom_fields) for path in self.paths]

    def _place_of(self, index: int) -> tuple[int, int]:
        """Return file and sample of an episode."""
        if not 0 <= index < len(self):
            raise IndexError(f"episode {index} of {self.source}, which has {len(self)}.")
        file = int(np.searchsorted(self._stops, index, side="right"))
        return file, index - (int(self._stops[file - 1]) if file else 0)

    def _block_of(self, index: int) -> tuple[int, int, dict[str, Any]]:
        """Return the samples of an episode's file from it on: first and last episode, and what their columns are."""
        number, start = self._place_of(index)
        file = self._opened[number]
        stop = min(len(file), start + BLOCK_SAMPLES)
        rows = file.rows(start, stop)
        columns = {self._names[name]: self._column(number, name, rows, start) for name in file.fields}
        return index, index + stop - start, columns

    def _column(self, number: int, name: str, rows: npt.NDArray[Any], start: int) -> Any:
        """Return the values of samples: an array or a list, or the places in the file."""
        file = self._opened[number]
        feature = self.schema[self._names[name]]
        if isinstance(file.fields[name], ValueField):
            return _typed(file.values(name, rows, start), feature)
        offsets, sizes = file.spans(name, rows, start)
        if isinstance(file.fields[name], ImageField) and stays_as_image(feature):
            return BetonImages(self.paths, make_image_references(number, rows[name], offsets, sizes))
        return FileSpans(feature, self.paths, number, offsets, sizes)

    def _feature(self, name: str) -> Feature:
        """Return the feature of a field in all files, of one that is no image."""
        fields = [file.fields[name] for file in self._opened]
        for field, path in zip(fields, self.paths, strict=True):
            if field.feature != fields[0].feature:
                raise FormatError(
                    f"{plain_address(path)}: field {name!r} is {field.feature!r}, where {self._opened[0].called} has "
                    f"{fields[0].feature!r}. Files that are read together have the same fields."
                )
        return fields[0].feature

    def _left_in_place(self, name: str, new: str) -> Feature:
        feature, field = self.schema[new], self._opened[0].fields[name]
        if isinstance(field, ValueField):
            return feature
        is_own = isinstance(field, ImageField) and stays_as_image(feature)
        return (beton_image_feature if is_own else span_feature)(feature, self.paths)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("_opened", None)
        state["_block"] = (0, 0, {})
        return state

    def __repr__(self) -> str:
        return f"<BetonReader {self.source} {len(self)} samples>"


def _is_beton(path: str) -> bool:
    try:
        header = Header.parse(read_regular(path, HEADER_BYTES), path)
        return header.table_ptr <= Path(path).stat().st_size
    except (OSError, ValueError):
        return False


def _names(files: Sequence[BetonFile], rename: Mapping[str, str]) -> dict[str, str]:
    """Return the feature's name of each field, in order."""
    first = files[0]
    for file in files[1:]:
        if list(file.fields) != list(first.fields):
            raise FormatError(
                f"{file.called} has fields {', '.join(file.fields)}, where {first.called} has "
                f"{', '.join(first.fields)}. Files that are read together have the same fields."
            )
    unknown = [name for name in rename if name not in first.fields]
    if unknown:
        raise FormatError(f"{first.called}: no field {unknown[0]!r} to rename. It has: {', '.join(first.fields)}.")
    names = {name: rename.get(name, name) for name in first.fields}
    twice = next((new for new in names.values() if list(names.values()).count(new) > 1), None)
    if twice is not None:
        raise FormatError(f"{first.called}: two fields would be called {twice!r}. Rename the other one, too.")
    return names


def _schema(features: Mapping[str, Feature], paths: Sequence[str]) -> Schema:
    try:
        return Schema(features)
    except SchemaError as error:
        where = plain_address(paths[0])
        raise FormatError(f"{where}: {error} Give the field another name: rename={{'old': 'new'}}.") from error


def _image_features(files: Sequence[BetonFile]) -> dict[str, Feature]:
    """Return the features of the fields that are images, by one look at the rows of all samples."""
    kinds = {name: ImageKind() for name, field in files[0].fields.items() if isinstance(field, ImageField)}
    for file in files if kinds else ():
        for start in range(0, len(file), BLOCK_SAMPLES):
            rows = file.rows(start, min(len(file), start + BLOCK_SAMPLES))
            kinds = {name: kind.merged(ImageKind.of(rows[name])) for name, kind in kinds.items()}
    return {name: kind.feature for name, kind in kinds.items()}


def _part(column: Any, row: int) -> Any:
    """Return the column of one sample."""
    part = slice(row, row + 1)
    if isinstance(column, FileSpans):
        file, offsets, sizes = (np.asarray(each)[part] for each in (column.file, column.offsets, column.sizes))
        return FileSpans(column.feature, column.paths, file, offsets, sizes)
    return BetonImages(column.paths, column.references[part]) if isinstance(column, BetonImages) else column[part]


def _typed(values: Any, feature: Feature) -> Any:
    """Return values as their feature has them: numbers in its dtype and byte order."""
    return values if feature.is_ragged else np.ascontiguousarray(values, feature.np_dtype)


def _stored(column: Any, feature: Feature) -> npt.NDArray[Any] | Blobs:
    """Return a column as a store's files have it."""
    if isinstance(column, FileSpans):
        return _blobs(column.references())
    if isinstance(column, BetonImages):
        return _blobs(column.references)
    if feature.is_raw:
        found: npt.NDArray[Any] = column
        return found
    codec = make_codec(feature)
    rows = [codec.encode(value) for value in column]
    return Blobs(np.frombuffer(b"".join(rows), np.uint8), np.array([len(row) for row in rows], np.int64))


def _blobs(references: npt.NDArray[np.uint8]) -> Blobs:
    return Blobs(references.reshape(-1), np.full(len(references), references.shape[1], np.int64))
