"""MCAP files: chunks of messages by topic, of ROS 1, ROS 2, protobuf and JSON.

::

    magic | header | schemas, channels, chunks (messages, packed or plain), ... | data end | summary | footer | magic

Without compression the bytes of a message lie plain in the file, and an image in it can stay there.

Source: mcap.dev, "MCAP Format Specification"; records are read by the package ``mcap``.
"""

from __future__ import annotations

import os
import struct
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, BinaryIO

import numpy as np

from stepwell.bags.message_log import Int64s, MessageLog, Topic, file_size, naming, unpacked
from stepwell.bags.ros_messages import type_name
from stepwell.bags.topics import RecordingReader
from stepwell.errors import FormatError, MissingDependencyError
from stepwell.files.local_files import open_regular, read_regular
from stepwell.formats.registry import register_reader

__all__ = ["McapLog", "McapReader"]

MAGIC = b"\x89MCAP0\r\n"
SUFFIX = ".mcap"
RECORD = struct.Struct("<BQ")
MESSAGE = struct.Struct("<HIQQ")
# opcodes
FOOTER, SCHEMA, CHANNEL, MESSAGES, CHUNK, DATA_END = 0x02, 0x03, 0x04, 0x05, 0x06, 0x0F
ENCODINGS = {("ros1", "ros1msg"): "ros1", ("cdr", "ros2msg"): "cdr", ("protobuf", "protobuf"): "protobuf"}
HELD_CHUNKS = 2


@dataclass(slots=True)
class Known:
    """Channels and schemas of a file by their numbers, as far as it was read."""

    channels: dict[int, Any] = field(default_factory=dict)
    schemas: dict[int, Any] = field(default_factory=dict)


class McapLog(MessageLog):
    """The messages of MCAP files that are one recording."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._chunks: list[tuple[int, int, int, str, int]] = []
        self._held: OrderedDict[int, bytes] = OrderedDict()
        self._found: dict[str, Topic] = {}
        # of each message its two times, chunk, first byte and bytes
        self._rows: dict[str, array[int]] = {}
        for number, path in enumerate(self.paths):
            with naming(path):
                self._scan(number, path)
        self.topics = {name: self._sorted(name) for name in sorted(self._found) if self._rows[name]}

    def read(self, topic: Topic, rows: Int64s) -> Iterator[bytes]:
        """Yield the bytes of messages; see `MessageLog.read`."""
        for chunk, offset, size in topic.places[rows].tolist():
            data = self._data(chunk)
            yield data[offset : offset + size]

    def spans(self, topic: Topic) -> tuple[Int64s, Int64s] | None:
        """Return where messages lie; see `MessageLog.spans`."""
        chunks = np.array([(file, begin, packed == "") for file, begin, _, packed, _ in self._chunks], np.int64)
        found = chunks[topic.places[:, 0]]
        return (found[:, 0], found[:, 1] + topic.places[:, 1]) if found[:, 2].all() else None

    def _scan(self, number: int, path: str) -> None:
        """Take in the topics and places of a file."""
        try:
            from mcap import records
            from mcap.data_stream import ReadDataStream
        except ImportError as error:
            raise MissingDependencyError.of("mcap", "mcap") from error
        size, known = file_size(path), Known()
        with os.fdopen(open_regular(path), "rb") as file:
            if (head := file.read(len(MAGIC))) != MAGIC:
                raise FormatError(f"{path} does not begin as an MCAP file does: {head!r}. Expected is {MAGIC!r}.")
            for opcode, begin, length in _records(file, size, path):
                if opcode == CHUNK:
                    self._add_chunk(number, path, file, begin, length)
                    data = self._data(len(self._chunks) - 1)
                    self._scan_chunk(data, len(self._chunks) - 1, known)
                elif opcode in (SCHEMA, CHANNEL):
                    file.seek(begin)
                    _note(opcode, ReadDataStream(BytesIO(file.read(length))), records, known)
                elif opcode == MESSAGES:
                    # messages outside of chunks: the record is a chunk of its own, that is plain
                    self._chunks.append((number, begin, length, "", length))
                    file.seek(begin)
                    self._add_message(file.read(MESSAGE.size), (len(self._chunks) - 1, 0, length), known)
                elif opcode == DATA_END:
                    return
        raise FormatError(f"{path} is cut off: it has no end of data. Recover what is there with: mcap recover.")

    def _add_chunk(self, number: int, path: str, file: BinaryIO, begin: int, length: int) -> None:
        file.seek(begin)
        head = file.read(min(length, 64))
        claimed, crc, name_length = struct.unpack_from("<QII", head, 16)
        packed = head[32 : 32 + min(name_length, 16)].decode("ascii")
        at = begin + 32 + name_length + 8
        stored = struct.unpack_from("<Q", head, 32 + name_length)[0]
        if at + stored > begin + length:
            raise FormatError(f"{path}, byte {begin}: a chunk of {length} bytes that says {stored}. It is damaged.")
        self._chunks.append((number, at, stored, packed, claimed))
        data = self._data(len(self._chunks) - 1)
        if crc and zlib.crc32(data) != crc:
            raise FormatError(f"{path}, byte {begin}: a chunk whose checksum is wrong. The file is damaged.")

    def _scan_chunk(self, data: bytes, chunk: int, known: Known) -> None:
        from mcap import records
        from mcap.data_stream import ReadDataStream

        place = 0
        while place < len(data):
            opcode, length = RECORD.unpack_from(data, place)
            place += RECORD.size
            if length > len(data) - place:
                raise FormatError(f"{self.paths[self._chunks[chunk][0]]}: a record that goes beyond its chunk.")
            if opcode == MESSAGES:
                self._add_message(data[place : place + MESSAGE.size], (chunk, place, length), known)
            elif opcode in (SCHEMA, CHANNEL):
                _note(opcode, ReadDataStream(BytesIO(data[place : place + length])), records, known)
            place += length

    def _add_message(self, head: bytes, where: tuple[int, int, int], known: Known) -> None:
        chunk, place, length = where
        if length < MESSAGE.size:
            raise FormatError(f"{self.paths[self._chunks[chunk][0]]}: a message of {length} bytes. It is damaged.")
        number, _, recorded, published = MESSAGE.unpack(head)
        if number not in known.channels:
            raise FormatError(f"{self.paths[self._chunks[chunk][0]]}: a message of a channel that is not there.")
        channel = known.channels[number]
        if channel.topic not in self._found:
            self._found[channel.topic] = _topic(channel, known.schemas.get(channel.schema_id))
            self._rows[channel.topic] = array("q")
        self._rows[channel.topic].extend((recorded, published, chunk, place + MESSAGE.size, length - MESSAGE.size))

    def _sorted(self, name: str) -> Topic:
        rows = np.frombuffer(self._rows.pop(name), np.int64).reshape(-1, 5)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        topic = self._found[name]
        topic.times, topic.published, topic.places = rows[:, 0].copy(), rows[:, 1].copy(), rows[:, 2:].copy()
        return topic

    def _data(self, chunk: int) -> bytes:
        """Return the bytes of a chunk, of which the last few are kept."""
        if chunk not in self._held:
            number, begin, stored, packed, claimed = self._chunks[chunk]
            path = self.paths[number]
            with naming(path), os.fdopen(open_regular(path), "rb") as file:
                file.seek(begin)
                data = file.read(stored)
                if len(data) < stored:
                    raise FormatError(f"{path} is cut off at byte {begin + len(data)}.")
                self._held[chunk] = unpacked(data, packed, claimed if packed else None, f"{path}, byte {begin}")
            while len(self._held) > HELD_CHUNKS:
                self._held.popitem(last=False)
        self._held.move_to_end(chunk)
        return self._held[chunk]


def _records(file: BinaryIO, size: int, path: str) -> Iterator[tuple[int, int, int]]:
    """Yield opcode, first byte and bytes of each record of a file, whole ones alone."""
    place = len(MAGIC)
    while place + RECORD.size <= size:
        file.seek(place)
        opcode, length = RECORD.unpack(file.read(RECORD.size))
        place += RECORD.size
        if length > size - place:
            raise FormatError(
                f"{path} is cut off: a record of {length} bytes begins at byte {place} of {size}. Recover what is "
                "there with: mcap recover."
            )
        yield opcode, place, length
        place += length


def _note(opcode: int, stream: Any, records: Any, known: Known) -> None:
    """Take in a schema or a channel."""
    if opcode == SCHEMA:
        schema = records.Schema.read(stream)
        known.schemas[schema.id] = schema
    else:
        channel = records.Channel.read(stream)
        known.channels[channel.id] = channel


def _topic(channel: Any, schema: Any) -> Topic:
    none = np.empty(0, np.int64)
    if schema is None:
        return Topic(channel.topic, "", channel.message_encoding, "", none, none)
    encoding = ENCODINGS.get((channel.message_encoding, schema.encoding), channel.message_encoding)
    is_read = encoding == "json" or (channel.message_encoding, schema.encoding) in ENCODINGS
    # of protobuf it is bytes, one a letter
    letters = "latin-1" if encoding == "protobuf" else "utf-8"
    definition = schema.data.decode(letters, "replace") if is_read else ""
    told = encoding if is_read else f"{channel.message_encoding} by {schema.encoding}"
    return Topic(channel.topic, type_name(schema.name), told, definition, none, none)


@register_reader
class McapReader(RecordingReader):
    """Recordings in MCAP files: a file an episode, or a directory that ``ros2 bag`` wrote.

    Notes:
        As for `RecordingReader`. Messages of ROS 1, ROS 2, protobuf and JSON are read; others are left out, and told.
    """

    name = "mcap"
    suffixes = (SUFFIX,)

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is an MCAP file, or a directory of them; see `Reader.accepts`."""
        try:
            found = cls.recordings(source)
            return bool(found) and all(read_regular(paths[0], len(MAGIC)) == MAGIC for paths in found[:1])
        except (OSError, FormatError):
            return False

    def open_log(self, paths: Sequence[str]) -> MessageLog:
        """Return the messages of a recording; see `RecordingReader.open_log`."""
        return McapLog(paths)
