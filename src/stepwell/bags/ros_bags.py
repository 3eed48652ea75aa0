"""ROS bags: files of ROS 1, and directories of ROS 2 whose messages lie in sqlite3.

::

    run.bag                       chunks (bz2, lz4 or plain), connections, an index
    run/metadata.yaml  *.db3      topics and messages in tables, in files that follow each other

Which bytes are where says the package ``rosbags``. It would also read messages, by Python code that it makes of the
definitions in a bag; that is not done here: see `stepwell.bags.ros_messages`.

Source: wiki.ros.org, "Bags/Format/2.0"; the documentation of ``rosbags``.
"""

from __future__ import annotations

import io
import os
import struct
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.bags.message_log import Int64s, MessageLog, Topic, file_size, naming, unpacked
from stepwell.bags.ros_messages import type_name
from stepwell.bags.topics import METADATA, RecordingReader, recordings_in
from stepwell.errors import FormatError, MissingDependencyError
from stepwell.files.local_files import open_regular, read_regular
from stepwell.formats.registry import register_reader

__all__ = ["BagLog", "RosbagReader", "SqliteLog"]

MAGIC = b"#ROSBAG V2.0\n"
SQLITE = b"SQLite format 3\0"
BAG, DATABASE, PACKED = ".bag", ".db3", ".zstd"
MESSAGE_DATA, CONNECTION = 2, 7
HELD_CHUNKS = 2
DISTRO = "ros2_humble"


class BoundedFile(io.BufferedReader):
    """A file of which no more is read than there is: a length that is damaged takes no memory."""

    def read(self, size: int | None = -1) -> bytes:
        """Return so many bytes, or those that are left."""
        if size is None or size < 0:
            return super().read()
        return super().read(min(size, max(0, os.fstat(self.fileno()).st_size - self.tell())))


class BoundedPath:
    """What ``rosbags`` needs of a path."""

    def __init__(self, path: str) -> None:
        self._path = path

    def exists(self) -> bool:
        """Return whether it is there."""
        return Path(self._path).exists()

    def open(self, mode: str) -> BoundedFile:
        """Open it for reading."""
        return BoundedFile(io.FileIO(open_regular(self._path)))


class BagLog(MessageLog):
    """The messages of a ROS 1 bag."""

    def __init__(self, path: str) -> None:
        self.paths = (path,)
        self._chunks: list[tuple[int, int, str]] = []
        self._held: OrderedDict[int, bytes] = OrderedDict()
        reader, decompressors = _rosbag1()
        names = {function: name for name, function in decompressors.items()}
        with naming(path), reader(BoundedPath(path)) as bag:
            numbers = {}
            for place, chunk in bag.chunks.items():
                numbers[place] = len(self._chunks)
                self._chunks.append((chunk.datapos, chunk.datasize, names[chunk.decompressor]))
            found: dict[str, list[Any]] = {}
            kinds: dict[str, tuple[str, str]] = {}
            for connection in bag.connections:
                rows = [(entry.time, numbers[entry.chunk_pos], entry.offset) for entry in bag.indexes[connection.id]]
                found.setdefault(connection.topic, []).extend(rows)
                kinds.setdefault(connection.topic, (type_name(connection.msgtype), connection.msgdef.data))
        self.topics = {name: self._topic(name, *kinds[name], found[name]) for name in sorted(found) if found[name]}

    def read(self, topic: Topic, rows: Int64s) -> Iterator[bytes]:
        """Yield the bytes of messages; see `MessageLog.read`."""
        for chunk, offset, _ in topic.places[rows].tolist():
            data = self._data(chunk)
            begin, size = self._message(data, offset)
            yield data[begin : begin + size]

    def spans(self, topic: Topic) -> tuple[Int64s, Int64s] | None:
        """Return where messages lie; see `MessageLog.spans`."""
        if any(self._chunks[chunk][2] != "none" for chunk in np.unique(topic.places[:, 0]).tolist()):
            return None
        offsets = [
            self._chunks[chunk][0] + self._message(self._data(chunk), offset)[0]
            for chunk, offset, _ in topic.places.tolist()
        ]
        return np.zeros(len(offsets), np.int64), np.array(offsets, np.int64)

    def _topic(self, name: str, kind: str, definition: str, rows: list[tuple[int, int, int]]) -> Topic:
        table = np.array(rows, np.int64)
        table = table[np.argsort(table[:, 0], kind="stable")]
        places = np.concatenate([table[:, 1:], np.zeros((len(table), 1), np.int64)], axis=1)
        return Topic(name, kind, "ros1", definition, table[:, 0].copy(), table[:, 0].copy(), places)

    def _data(self, chunk: int) -> bytes:
        """Return the bytes of a chunk, of which the last few are kept."""
        if chunk not in self._held:
            begin, size, packed = self._chunks[chunk]
            path = self.paths[0]
            if begin + size > file_size(path):
                raise FormatError(f"{path} is cut off: a chunk of {size} bytes begins at byte {begin}.")
            with naming(path), os.fdopen(open_regular(path), "rb") as file:
                file.seek(begin)
                self._held[chunk] = unpacked(file.read(size), packed, None, f"{path}, byte {begin}")
            while len(self._held) > HELD_CHUNKS:
                self._held.popitem(last=False)
        self._held.move_to_end(chunk)
        return self._held[chunk]

    def _message(self, data: bytes, offset: int) -> tuple[int, int]:
        """Return first byte and bytes of the message whose record begins at a place of a chunk."""
        place = offset
        with naming(self.paths[0]):
            while True:
                length = _uint32(data, place)
                opcode = _opcode(data, place + 4, length)
                begin = place + 8 + length
                size = _uint32(data, begin - 4)
                if begin + size > len(data):
                    raise FormatError(f"{self.paths[0]}: a record that goes beyond its chunk. It is damaged.")
                if opcode == MESSAGE_DATA:
                    return begin, size
                if opcode != CONNECTION:
                    raise FormatError(f"{self.paths[0]}: a record {opcode} where a message should be. It is damaged.")
                place = begin + size


def _uint32(data: bytes, place: int) -> int:
    found: int = struct.unpack_from("<I", data, place)[0]
    return found


def _opcode(data: bytes, place: int, length: int) -> int:
    """Return what the header of a record says that it is."""
    end = place + length
    while place < end:
        size = _uint32(data, place)
        name, _, value = data[place + 4 : min(place + 4 + size, end)].partition(b"=")
        if name == b"op":
            return value[0] if value else -1
        place += 4 + size
    return -1


class SqliteLog(MessageLog):
    """The messages of a ROS 2 bag in sqlite3: a file, or a directory of them with ``metadata.yaml``."""

    def __init__(self, path: str, paths: Sequence[str], distro: str) -> None:
        self.paths, self._path = tuple(paths), path
        self._reader, stores = _rosbag2()
        with naming(path), self._opened() as bag:
            mode = bag.compression_mode
            if mode:
                raise FormatError(f"{path} is compressed by {mode}. Write it without compression: ros2 bag convert.")
            found: dict[str, list[int]] = {}
            for connection, time, _ in bag.messages():
                found.setdefault(connection.topic, []).append(time)
            kinds = {each.topic: (each.msgtype, each.msgdef) for each in bag.connections}
        self.topics = {}
        for name in sorted(found):
            kind, definition = kinds[name]
            times = np.array(found[name], np.int64)
            text = _definition(stores, distro, kind, definition)
            places = np.zeros((len(times), 3), np.int64)
            places[:, 1] = np.arange(len(times))
            order = np.argsort(times, kind="stable")
            self.topics[name] = Topic(name, type_name(kind), "cdr", text, times[order], times[order], places[order])

    def read(self, topic: Topic, rows: Int64s) -> Iterator[bytes]:
        """Yield the bytes of messages; see `MessageLog.read`."""
        wanted = topic.places[rows, 1]
        with naming(self._path), self._opened() as bag:
            stream = enumerate(
                data for _, _, data in bag.messages([e for e in bag.connections if e.topic == topic.name])
            )
            if (np.diff(wanted) < 0).any():
                # by header.stamp they may come in another order than they were recorded in
                needed = set(wanted.tolist())
                held = {place: bytes(data) for place, data in stream if place in needed}
                yield from (held[place] for place in wanted.tolist())
                return
            last, data = -1, b""
            for place in wanted.tolist():
                while last < place:
                    last, found = next(stream)
                    data = bytes(found)
                yield data

    def _opened(self) -> Any:
        return self._reader(Path(self._path))


def _definition(stores: Any, distro: str, kind: str, definition: Any) -> str:
    """Return a type's definition: that of the bag, else that of a distribution of ROS; "" where there is none."""
    if definition.data:
        return str(definition.data) if definition.format.name == "MSG" else ""
    known = {store.value: store for store in stores.Stores}
    if distro not in known:
        raise FormatError(f"distro={distro!r}. Allowed: {', '.join(known)}.")
    store = stores.get_typestore(known[distro])
    return str(store.generate_msgdef(kind, ros_version=2)[0]) if kind in store.fielddefs else ""


def _rosbag1() -> tuple[Any, Any]:
    try:
        from rosbags.rosbag1 import Reader
        from rosbags.rosbag1.reader import decompressors
    except ImportError as error:
        raise MissingDependencyError.of("rosbags", "rosbag") from error
    return Reader, decompressors


def _rosbag2() -> tuple[Any, Any]:
    try:
        import rosbags.typesys as stores
        from rosbags.rosbag2 import Reader
    except ImportError as error:
        raise MissingDependencyError.of("rosbags", "rosbag") from error
    return Reader, stores


@register_reader
class RosbagReader(RecordingReader):
    """Recordings in ROS bags: a file of ROS 1, or a directory or database of ROS 2, an episode.

    Args:
        distro: the distribution of ROS 2 whose definitions count where a bag has none, as bags before Iron.

    Notes:
        As for `RecordingReader`. What ROS 2 wrote as MCAP is `stepwell.bags.mcap_files.McapReader`'s.
    """

    name = "rosbag"
    suffixes = (BAG, DATABASE)

    def __init__(
        self,
        source: str,
        *,
        topics: Sequence[str] | str = (),
        clock: str | float | None = None,
        align: Mapping[str, str] | str = "nearest",
        time: str = "log",
        ignore: Sequence[str] | str = (),
        distro: str = DISTRO,
    ) -> None:
        self._distro = distro
        super().__init__(source, topics=topics, clock=clock, align=align, time=time, ignore=ignore)

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is a bag, or a directory of them; see `Reader.accepts`."""
        try:
            found = recordings_in(source, cls.suffixes)
            first = found[0][0] if found else ""
            magic = MAGIC if first.lower().endswith(BAG) else SQLITE
            return bool(found) and read_regular(first, len(magic)) == magic
        except (OSError, FormatError):
            return False

    @classmethod
    def recordings(cls, source: str) -> list[list[str]]:
        """Return the files of each recording; see `RecordingReader.recordings`."""
        for part in source.split("\n"):
            folder = Path(part)
            packed = next(folder.glob(f"*{PACKED}"), None) if folder.is_dir() else None
            if packed is not None:
                raise FormatError(f"{packed} is compressed as a whole. Unpack it, or: ros2 bag convert.")
        return super().recordings(source)

    def open_log(self, paths: Sequence[str]) -> MessageLog:
        """Return the messages of a recording; see `RecordingReader.open_log`."""
        first = paths[0]
        if first.lower().endswith(BAG):
            return BagLog(first)
        folder = os.path.dirname(first)  # noqa: PTH120
        is_directory = Path(folder, METADATA).is_file() and Path(self.source) != Path(first)
        return SqliteLog(folder if is_directory else first, paths, self._distro)
