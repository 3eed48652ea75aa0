"""Columns that a writer takes but arrays and lists: rows that are encoded already, and rows that come in pieces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeGuard, overload, runtime_checkable

import numpy as np
import numpy.typing as npt

from stepwell.codecs import Codec, SequentialCodec, codec_class, make_codec
from stepwell.errors import DecodeError, EncodeError, FormatError, SchemaError, StepError
from stepwell.references.file_codec import FileCodec, parse_references
from stepwell.references.file_spans import rows_of
from stepwell.schema import Feature
from stepwell.sizes import counted

__all__ = [
    "EncodedRows",
    "HasPieces",
    "HasRows",
    "PiecewiseRows",
    "accept_encoded",
    "check_first_row",
    "encoded_of",
    "has_rows",
    "row_of",
]

Buffer = bytes | memoryview
Int64s = npt.NDArray[np.int64]
OWN_PACKAGE = "stepwell.codecs."


@runtime_checkable
class HasRows(Protocol):
    """What gives the encoded rows of an episode: `EncodedRows`, a video file."""

    @property
    def num_rows(self) -> int:
        """Rows that there are."""

    def rows(self, feature: Feature) -> Iterable[bytes]:
        """Return the rows as the feature's codec has them, first to last."""


def has_rows(values: Any) -> TypeGuard[HasRows]:
    """Return whether values are `HasRows`, for every column: ``isinstance`` of a protocol takes 10 us."""
    return not isinstance(values, np.ndarray | list) and hasattr(values, "num_rows") and hasattr(values, "rows")


class EncodedRows(Sequence[bytes]):
    r"""A column of rows that are encoded already, to be stored without being decoded.

    Args:
        blobs: a bytes object for each row, as the feature's codec makes them: for "jpeg" a JPEG file, for "png" a PNG
            file. Of a sequential codec (video, delta) the first one must begin a run.

    Example:
        >>> import tempfile, stepwell
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/a.well", {"note": stepwell.Text()})
        >>> with store.writer() as writer:
        ...     episode = writer.add_episode({"note": stepwell.EncodedRows([b"left", b"right"])})
        >>> store[0]["note"]
        ['left', 'right']

    Notes:
        An immutable value. Writers decode the first row, to see that it is one of the feature, and take the others on
        trust: ``verify(deep=True)`` looks at all of them.
    """

    __slots__ = ("_blobs",)

    def __init__(self, blobs: Iterable[bytes]) -> None:
        self._blobs: tuple[Buffer, ...] = tuple(blobs)
        for row, blob in enumerate(self._blobs):
            if not isinstance(blob, bytes):
                raise StepError(f"row {row} is a {type(blob).__name__}. Give bytes, an encoded row each.")

    @classmethod
    def in_memory(cls, data: npt.NDArray[np.uint8], offsets: Int64s, sizes: Int64s) -> EncodedRows:
        """Return rows that lie in memory, which is not copied and must not change as long as they are used.

        Args:
            data: uint8 [n], contiguous.
            offsets: int64 [rows], first byte of each in the data.
            sizes: int64 [rows], its bytes.

        Raises:
            StepError: a row that does not lie within the data.

        Example:
            >>> data = np.frombuffer(b"-left-right", np.uint8)
            >>> list(EncodedRows.in_memory(data, np.array([1, 6]), np.array([4, 5])))
            [b'left', b'right']
        """
        ends = offsets + sizes
        if len(ends) and (offsets.min() < 0 or sizes.min() < 0 or ends.max() > len(data)):
            raise StepError(f"rows from byte {offsets.min()} to {ends.max()} of {len(data)}. Give what lies within.")
        view = data.data
        return cls._of(tuple(view[start:end] for start, end in zip(offsets.tolist(), ends.tolist(), strict=True)))

    @classmethod
    def _of(cls, blobs: tuple[Buffer, ...]) -> EncodedRows:
        made = cls(())
        made._blobs = blobs
        return made

    @property
    def num_rows(self) -> int:
        """Rows that there are."""
        return len(self._blobs)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(map(len, self._blobs))

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The rows, those that lie in other memory as views of it."""
        return self._blobs

    def rows(self, feature: Feature) -> Iterator[bytes]:
        """Return the rows, whatever the feature."""
        return iter(self)

    def encoded(self, feature: Feature) -> EncodedRows:
        """Return itself, whatever the feature; see `encoded_of`."""
        return self

    def __len__(self) -> int:
        return len(self._blobs)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | npt.NDArray[Any]) -> EncodedRows: ...
    def __getitem__(self, index: int | slice | Sequence[int] | npt.NDArray[Any]) -> bytes | EncodedRows:
        if isinstance(index, int | np.integer):
            return bytes(self._blobs[index])
        chosen = rows_of(index)
        if isinstance(chosen, slice):
            return self._of(self._blobs[chosen])
        return self._of(tuple(self._blobs[row] for row in np.arange(len(self))[chosen].tolist()))

    def __iter__(self) -> Iterator[bytes]:
        return map(bytes, self._blobs)

    def __reduce__(self) -> tuple[Any, ...]:
        return EncodedRows, (tuple(self),)

    def __repr__(self) -> str:
        return f"<EncodedRows {counted(len(self), 'row')}, {counted(self.nbytes, 'byte')}>"


@runtime_checkable
class HasPieces(Protocol):
    """What gives an episode's values in pieces, for a feature that is stored raw."""

    @property
    def num_rows(self) -> int:
        """Rows that there are."""

    def pieces(self, feature: Feature) -> Iterable[npt.NDArray[Any]]:
        """Return arrays [n, *shape] of consecutive rows, first to last; each may be overwritten by the next."""


class PiecewiseRows:
    """An accepted column of a raw feature, read while it is stored."""

    def __init__(self, name: str, feature: Feature, given: HasPieces) -> None:
        self._name, self._feature, self._given = name, feature, given

    def __len__(self) -> int:
        return self._given.num_rows

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Yield the pieces; StepError for one that does not fit, or when there are more or fewer rows."""
        expected, count = self._given.num_rows, 0
        for piece in self._given.pieces(self._feature):
            if piece.dtype != self._feature.np_dtype or piece.shape[1:] != self._feature.fixed_shape:
                raise StepError(
                    f"feature {self._name!r}: {self._given!r} gave {piece.dtype} {piece.shape[1:]}, the store has "
                    f"{self._feature}."
                )
            count += len(piece)
            if count <= expected:
                yield np.ascontiguousarray(piece)
        if count != expected:
            raise StepError(f"feature {self._name!r}: {self._given!r} has num_rows = {expected} and gave {count} rows.")

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice) and index.indices(len(self)) == (0, len(self), 1):
            return self
        pieces = [piece.copy() for piece in self]
        return np.concatenate(pieces)[index]


def encoded_of(given: HasRows, feature: Feature) -> EncodedRows | None:
    """Return the rows where they lie in memory as the feature has them, if ``given.encoded(feature)`` says so."""
    encoded = getattr(given, "encoded", None)
    return None if encoded is None else encoded(feature)


def accept_encoded(name: str, feature: Feature, given: HasRows) -> EncodedRows | PiecewiseRows:
    """Return encoded rows of a feature once the first is found to be one; of a raw feature, decoded pieces."""
    if feature.is_raw and isinstance(given, HasPieces):
        return PiecewiseRows(name, feature, given)
    if feature.is_raw:
        own = getattr(given, "feature", None)
        one = (
            "one of their codec"
            if own is None
            else f"{own!r} (stepwell.convert() makes another codec of it afterwards)"
        )
        raise StepError(
            f"feature {name!r}: got encoded rows ({given!r}), the store has {feature!r}, which is not encoded. "
            f"Give an array, or make the feature {one}."
        )
    try:
        found = encoded_of(given, feature)
        if found is None:
            found = EncodedRows(given.rows(feature))
    except (StepError, SchemaError) as error:
        raise StepError(f"feature {name!r}: {error}") from error
    if len(found) != given.num_rows:
        raise StepError(f"feature {name!r}: {given!r} has num_rows = {given.num_rows} and gave {len(found)} rows.")
    if len(found):
        try:
            _check_first(name, feature, found[0])
        except StepError as error:
            # rows of another system's files say which
            where = getattr(given, "where", None)
            if where is None:
                raise
            raise FormatError(f"{where}: {error}") from error
    return found


def row_of(column: Any, number: int) -> Any:
    """Return one value of an accepted column; of `EncodedRows` those of that one row."""
    return column[number : number + 1] if isinstance(column, EncodedRows) else column[number]


def _check_first(name: str, feature: Feature, blob: bytes) -> None:
    row = np.frombuffer(blob, np.uint8)
    try:
        if issubclass(codec_class(feature), FileCodec):
            parse_references([row])  # the file is looked at when the row is read
            return
        codec = make_codec(feature)
        if isinstance(codec, SequentialCodec) and not codec.is_sync(row):
            raise DecodeError("it needs rows before it; the first of an episode begins a run.")
        codec.check(row)
    except DecodeError as error:
        raise StepError(f"feature {name!r}: the first of the encoded rows is no row of {feature}: {error}") from error


def check_first_row(name: str, codec: Codec, value: Any) -> None:
    """Encode and decode a value by a codec that is not stepwell's own: a mistake shows before it is stored."""
    if type(codec).__module__.startswith(OWN_PACKAGE):
        return
    feature, where = codec.feature, f"codec {codec.feature.codec!r} of feature {name!r}"
    blob: Any = codec.encode(value)
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise EncodeError(f"{where}: encode returned a {type(blob).__name__}. It must return bytes.")
    row = codec.decode(np.frombuffer(blob, np.uint8))
    if feature.kind in ("text", "bytes"):
        wanted, found = str(feature.kind), type(row).__name__
        is_right = isinstance(row, str if feature.kind == "text" else bytes)
    else:
        wanted, found = _shown(np.asarray(value)), _shown(row)
        is_right = wanted == found
    if not is_right:
        raise EncodeError(f"{where}: decode returned {found}, where {wanted} was encoded. Let it return that.")


def _shown(row: Any) -> str:
    is_array = isinstance(row, np.ndarray | np.generic)
    return f"{row.dtype} {row.shape}" if is_array else f"a {type(row).__name__}"
