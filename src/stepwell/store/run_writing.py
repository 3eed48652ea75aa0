"""The rows of a sequential column on their way from values to the files."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from stepwell.codecs import RowEncoder, SequentialCodec
from stepwell.errors import EncodeError

if TYPE_CHECKING:
    from stepwell.store.column_file import EncodedColumn

__all__ = ["RunWriter"]


class RunWriter:
    """Encode the rows of one sequential column and store what the encoder gives back.

    A row is **ready** when it is stored, and all rows before it are: it may be committed when it is ready in every
    column. A row that is put again, because another column failed to take it, replaces the first one and begins a run.

    Args:
        name: of the feature, for messages.
        column: its files, empty.

    Notes:
        One thread at a time; `num_ready` may be read by any. The encoder is made by the thread that puts the first row.
    """

    def __init__(self, name: str, column: EncodedColumn) -> None:
        self.name = name
        self.num_ready = 0
        self._column = column
        self._num_put = 0
        self._encoder: RowEncoder | None = None
        self._is_in_run = False
        self._is_abandoned = False

    @property
    def is_behind(self) -> bool:
        """Whether the encoder keeps rows back."""
        return self.num_ready < self._num_put

    @property
    def is_failed(self) -> bool:
        """Whether rows that were put are lost."""
        return self._encoder is None and self.is_behind

    def put(self, row: int, value: Any) -> None:
        """Encode a value as row number ``row``.

        Raises:
            EncodeError: the codec could not; the row is not stored, and the next one begins a run.
            DiskFullError: no space; the same holds.
        """
        self._go_to(row)
        try:
            encoder = self._open()
            self._is_in_run = True
            self._store(encoder.put(value))
        except BaseException as error:
            raise self._restarted(error, row) from error
        self._num_put = row + 1

    def put_encoded(self, row: int, blobs: Iterable[bytes]) -> None:
        """Store rows that are encoded already, from number ``row`` on: whole runs, or what goes on with the last."""
        self._go_to(row)
        self.end()
        try:
            self._store(blobs)
        finally:
            self._num_put = self.num_ready

    def end(self) -> None:
        """End the run: every row put is ready, and the next one begins a run."""
        if not self._is_in_run:
            return
        try:
            self._store(self._open().end())
            if self.is_behind:
                raise EncodeError(f"feature {self.name!r}: its encoder gave back fewer rows than it took.")
        except BaseException as error:
            raise self._restarted(error, self.num_ready) from error
        self._is_in_run = False

    def wait(self) -> None:
        """Do nothing: what was put is done."""

    def close(self) -> None:
        """Let go of the encoder; rows that it kept back are lost."""
        encoder, self._encoder, self._is_in_run = self._encoder, None, False
        if encoder is not None:
            encoder.close()

    def abandon(self) -> None:
        """Store nothing more, whatever an encoder that hangs in another thread gives back one day."""
        self._is_abandoned = True

    def _open(self) -> RowEncoder:
        if self._encoder is None:
            self._encoder = cast(SequentialCodec, self._column.codec).encoder()
        return self._encoder

    def _go_to(self, row: int) -> None:
        """Take back the rows from number ``row`` on, if there are any."""
        if row < max(self._num_put, self.num_ready):
            self.end()
            self._num_put = self.num_ready = row

    def _store(self, blobs: Iterable[bytes]) -> None:
        for blob in blobs:
            if self._is_abandoned:
                raise EncodeError(f"feature {self.name!r}: its encoder was given up.")
            self._column.write(self.num_ready, blob)
            self.num_ready += 1

    def _restarted(self, error: BaseException, row: int) -> BaseException:
        """Save what the encoder kept back, let go of it, and return the error to raise."""
        if self._encoder is not None:
            with suppress(Exception):
                self._store(self._encoder.end()[: max(0, self._num_put - self.num_ready)])
            with suppress(Exception):
                self.close()
        if isinstance(error, EncodeError | OSError) or not isinstance(error, Exception):
            return error
        return EncodeError(f"feature {self.name!r}: row {row} of the segment could not be encoded: {error}")
