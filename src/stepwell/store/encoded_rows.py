"""Rows that are encoded already: a column of JPEG files or video packets is stored as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeGuard, overload, runtime_checkable

import numpy as np
import numpy.typing as npt

from stepwell.codecs import SequentialCodec, codec_class, make_codec
from stepwell.errors import DecodeError, FormatError, SchemaError, StepError
from stepwell.references.file_codec import FileCodec, parse_references
from stepwell.references.file_spans import rows_of
from stepwell.schema import Feature
from stepwell.store.counting import counted
from stepwell.store.piecewise_rows import HasPieces, PiecewiseRows

__all__ = ["EncodedRows", "HasRows", "accept_encoded", "encoded_of", "has_rows", "row_of"]

Buffer = bytes | memoryview
Int64s = npt.NDArray[np.int64]


@runtime_checkable
class HasRows(Protocol):
    """What gives the encoded rows of an episode: `EncodedRows`, a video file."""

    @property
    def num_rows(self) -> int:
        """Rows that there are."""

    def rows(self, feature: Feature) -> Iterable[bytes]:
        """Return the rows as the feature's codec has them, first to last."""


def has_rows(values: Any) -> TypeGuard[HasRows]:
    """Return whether values are `HasRows`; asked of every column, where ``isinstance`` of a protocol takes 10 us."""
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
        """Return rows that lie in memory, which is not copied: nobody may write to it as long as they are there.

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


def encoded_of(given: HasRows, feature: Feature) -> EncodedRows | None:
    """Return the rows where they lie in memory as the feature has them; None: they are made one by one.

    Args:
        given: that may have a method ``encoded(feature)``, which says so.
        feature: whose rows they shall be.
    """
    encoded = getattr(given, "encoded", None)
    return None if encoded is None else encoded(feature)


def accept_encoded(name: str, feature: Feature, given: HasRows) -> EncodedRows | PiecewiseRows:
    """Return the rows that somebody gives for a feature; of a raw one what also gives decoded pieces.

    Raises:
        StepError: the feature is raw, the number of rows is not what was told, or the first is no row of the feature.
    """
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
        raise StepError(f"feature {name!r}: {given!r} told of {given.num_rows} rows and gave {len(found)}.")
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
            parse_references([row])  # the file is looked at when somebody reads it
            return
        codec = make_codec(feature)
        if isinstance(codec, SequentialCodec) and not codec.is_sync(row):
            raise DecodeError("it needs rows before it; the first of an episode begins a run.")
        codec.check(row)
    except DecodeError as error:
        raise StepError(f"feature {name!r}: the first of the encoded rows is no row of {feature}: {error}") from error
