"""Messages of one recording by topic: their times, where they lie, and their bytes; what is unpacked is bounded."""

from __future__ import annotations

import bz2
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.decoded_sizes import WHAT_TO_SET, is_too_large
from stepwell.errors import FormatError, MissingDependencyError, StepwellError

__all__ = ["MessageLog", "Topic", "naming", "unpacked"]

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Topic:
    """A topic of a recording, with its messages in the order of their times.

    Attributes:
        name: as recorded, "/camera/image".
        type: of its messages, "sensor_msgs/Image".
        encoding: of the messages: "ros1", "cdr", "protobuf", "json", or another, which is not read.
        definition: of the type, of protobuf as Latin-1; "" where the recording has none.
        times: int64 [n] nanoseconds, when messages were recorded.
        published: int64 [n] nanoseconds, when they were sent, where the recording says so.
        places: int64 [n, 3]: the number of a file or chunk, first byte, bytes; as its log means it.
    """

    name: str
    type: str
    encoding: str
    definition: str
    times: Int64s
    published: Int64s
    places: Int64s = field(default_factory=lambda: np.empty((0, 3), np.int64))


class MessageLog(ABC):
    """The messages of a recording.

    Attributes:
        paths: of its files.
        topics: by name, those that have messages.
    """

    paths: Sequence[str]
    topics: dict[str, Topic]

    @abstractmethod
    def read(self, topic: Topic, rows: Int64s) -> Iterator[bytes]:
        """Yield the bytes of messages, int64 [n] ascending row numbers, any of them several times."""

    def spans(self, topic: Topic) -> tuple[Int64s, Int64s] | None:
        """Return the file and first byte of each message where all lie plain in files; None (default): they do not."""
        return None


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Make whatever a library raises of a damaged file an error that names it."""
    try:
        yield
    except StepwellError:
        raise
    except ImportError:
        raise
    except Exception as error:  # of damaged records come errors of every kind
        raise FormatError(f"{path}: {type(error).__name__}: {error}. It is damaged, or cut off.") from error


def unpacked(data: bytes, compression: str, claimed: int | None, where: str) -> bytes:
    """Return the bytes of a chunk.

    Args:
        data: as stored.
        compression: "", "none", "zstd", "lz4" or "bz2".
        claimed: how many bytes it says that it has; None: it says nothing.
        where: what messages call it.

    Raises:
        FormatError: another compression, other bytes than it says, or more than `WHAT_TO_SET` allows.
    """
    if compression in ("", "none"):
        return data
    if claimed is not None and is_too_large(claimed, len(data)):
        raise FormatError(f"{where}: {len(data):,} bytes would take {claimed:,}. {WHAT_TO_SET}")
    most = len(data) * 4 + (1 << 16) if claimed is None else claimed
    if compression not in ("zstd", "lz4", "bz2"):
        raise FormatError(f"{where} is compressed by {compression!r}. Read are: none, zstd, lz4, bz2.")
    parts: list[bytes] = []
    size = 0
    decoder = _decoder(compression)
    while not decoder.eof:
        with naming(where):
            part = decoder.decompress(data if not parts else b"", most + 1)
        if not part and not decoder.eof:
            raise FormatError(f"{where} is cut off.")
        parts.append(part)
        size += len(part)
        if (claimed is not None and size > claimed) or is_too_large(size, len(data)):
            raise FormatError(f"{where}: {len(data):,} bytes take more than {size:,}. {WHAT_TO_SET}")
    if claimed is not None and size != claimed:
        raise FormatError(f"{where} has {size} bytes, and says {claimed}: it is damaged.")
    return b"".join(parts)


class _Zstd:
    """A zstd frame, decompressed a piece at a time, as `bz2.BZ2Decompressor` does."""

    def __init__(self) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise MissingDependencyError.of("zstandard", "zstd") from error
        self._make: Any = zstandard.ZstdDecompressor().stream_reader
        self._stream: Any = None
        self.eof = False

    def decompress(self, data: bytes, most: int) -> bytes:
        if self._stream is None:
            self._stream = self._make(data)
        found: bytes = self._stream.read(most)
        self.eof = len(found) < most
        return found


def _decoder(compression: str) -> Any:
    if compression == "zstd":
        return _Zstd()
    if compression == "bz2":
        return bz2.BZ2Decompressor()
    try:
        import lz4.frame
    except ImportError as error:
        raise MissingDependencyError.of("lz4", "lz4") from error
    return lz4.frame.LZ4FrameDecompressor()


def file_size(path: str) -> int:
    """Return the bytes of a file."""
    return os.stat(path).st_size  # noqa: PTH116
