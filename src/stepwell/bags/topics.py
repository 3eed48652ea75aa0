"""Recordings as episodes: topics at the ticks of one clock, each with its lag.

::

    clock="/camera/image"     a step a message of this topic        clock="30"    30 steps a second
    align="nearest,/joint_states=linear,/cmd=hold,/tactile=own"      of all, and of some topics; own: at its own rate
                |
    /joint_states {position, velocity}  ->  joint_states.position [T, 7], joint_states.velocity [T, 7]
                                            joint_states.lag [T] seconds
    /camera/image                       ->  camera.image: JPEG files as they are, or pixels;   camera.image.lag
                                            timestamp [T] seconds from the first step
    /tactile {data}                     ->  tactile.data: Samples, all messages; tactile.data_time
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.alignment import METHODS, NANOSECONDS, Aligned, align, covers, rate_ticks
from stepwell.bags.message_log import MessageLog, Topic, naming
from stepwell.bags.message_values import (
    LeafKinds,
    checked,
    encoded_feature,
    image_of,
    is_image,
    leaves_of,
    number_column,
    pixels_of,
    stamp_of,
)
from stepwell.bags.protobuf_messages import ProtobufReader
from stepwell.bags.ros_messages import MessageReader
from stepwell.errors import DecodeError, FormatError
from stepwell.formats.options import names_of
from stepwell.formats.reader import Reader, left_out, store_schema, warn_of_left_out
from stepwell.formats.source_paths import natural
from stepwell.json_text import parse_json
from stepwell.recorders.sources import EpisodeData
from stepwell.references.file_spans import FileSpans, span_feature
from stepwell.schema import Array, Feature, Schema
from stepwell.store.samples import Samples
from stepwell.store.values import EncodedRows

__all__ = ["RecordingReader", "recordings_in"]

TIMES = ("log", "publish", "header")
TIMESTAMP, LAG = "timestamp", ".lag"
METADATA = "metadata.yaml"
# of align: a topic keeps its own rate
OWN = "own"
NO_NAME = re.compile(r"[^A-Za-z0-9_.\-]+")
# files and folders that are looked at to find out what a directory is
MOST_ENTRIES = 100_000
# a clock whose ticks are that even has a rate
EVEN = 0.05

Int64s = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Decoded:
    """How the messages of a topic are read, and the features that they make by name."""

    topic: str
    type: str
    encoding: str
    definition: str
    prefix: str
    reader: MessageReader | ProtobufReader | None = None
    # leaf of the messages by name of the feature; "" of images
    leaves: dict[str, str] = field(default_factory=dict)
    features: dict[str, Feature] = field(default_factory=dict)
    is_file: bool = False

    def read(self, data: bytes) -> Mapping[str, Any]:
        """Return a message."""
        if self.reader is not None:
            return self.reader.read(data)
        try:
            found = parse_json(data)
        except ValueError as error:
            raise DecodeError(f"a message that is no JSON: {error}") from error
        return found if isinstance(found, dict) else {"value": found}


class RecordingReader(Reader):
    """Recordings of robots, an episode each: topics at the ticks of one clock.

    Args:
        source: a recording; or a directory of them, in natural order.
        topics: names of those to keep, or patterns with ``*``; default: all that can be read.
        clock: a topic whose messages are the steps, or a number of steps a second. Default: the camera with the fewest
            messages, else the topic with the most.
        align: what a step shows of a topic: "nearest" (default) message, "hold": the last one before, "linear":
            interpolated between two, of numbers; or several, joined by commas: ``"nearest,/joint_states=linear"``.
            "own": all messages are kept, at the topic's own rate: of numbers of fixed shape; not of the clock.
        time: of messages: "log" (default): when they were recorded; "publish": when they were sent; "header": their
            ``header.stamp``, or ``timestamp`` of Foxglove's, where they have one.
        ignore: names of features to leave out.

    Raises:
        FormatError: no recording there, or one that is damaged; topics or options that are not there.

    Notes:
        As for `Reader`. Features are named by topic and field, with dots; ``NAME.lag`` (float32) says by how many
        seconds the step comes after the message that it shows, ``timestamp`` (float64) the seconds since the first
        step. Steps before the first message of a topic that is held or interpolated, and after the last of one that is
        interpolated, are left out. An episode neither terminated nor was truncated. It is held in memory when it is
        read, but for images that lie plain in the file.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        source: str,
        *,
        topics: Sequence[str] | str = (),
        clock: str | float | None = None,
        align: Mapping[str, str] | str = "nearest",
        time: str = "log",
        ignore: Sequence[str] | str = (),
    ) -> None:
        super().__init__(source)
        if time not in TIMES:
            raise FormatError(f"time={time!r}. Allowed: {', '.join(TIMES)}.")
        self._time = time
        self._recordings = self.recordings(source)
        if not self._recordings:
            endings = " or ".join(self.suffixes)
            raise FormatError(
                f"{source} holds no recordings of {self.name}: no {endings} file, nor a directory of ROS 2 with one."
            )
        self._paths = [path for paths in self._recordings for path in paths]
        self._held: tuple[int, MessageLog] | None = None
        self._known: dict[str, Int64s] = {}
        log = self._log(0)
        self._decoded = self._found(log, names_of(topics))
        self._methods = _methods(align, [each.topic for each in self._decoded])
        self._clock = self._chosen(log, clock)
        self._align_clock(align)
        ticks = self._ticks(log)
        self.fps = self._clock if isinstance(self._clock, float) else _rate(ticks)
        self._set_schema(ignore)
        self.metadata = {
            self.name: {
                "clock": self._clock,
                "topics": {
                    each.topic: {"type": each.type, "align": self._methods[each.topic]} for each in self._decoded
                },
            }
        }

    @classmethod
    def recordings(cls, source: str) -> list[list[str]]:
        """Return the files of each recording."""
        return recordings_in(source, cls.suffixes)

    @abstractmethod
    def open_log(self, paths: Sequence[str]) -> MessageLog:
        """Return the messages of a recording."""

    def __len__(self) -> int:
        return len(self._recordings)

    def __getitem__(self, index: int) -> EpisodeData:
        log = self._log(index)
        with naming(self.label(index)):
            ticks = self._ticks(log)
            columns: dict[str, Any] = {TIMESTAMP: (ticks - ticks[0]) / NANOSECONDS}
            for each in self._decoded:
                topic = self._topic(log, each.topic, index)
                times = self._times(log, topic)
                if self._methods[each.topic] == OWN:
                    columns |= self._samples(log, topic, each, ticks, index)
                    continue
                columns |= self._columns(log, topic, each, align(times, ticks, self._methods[each.topic]), index)
        return EpisodeData(
            {name: columns[name] for name in self.schema if name in columns},
            metadata={"file": Path(self._recordings[index][0]).name, "start": int(ticks[0]) / NANOSECONDS},
        )

    @property
    def in_place_schema(self) -> Schema:
        """The features, with images left in the files where they lie there plainly; see `Reader.in_place_schema`."""
        staying = {name: span_feature(self.schema[name], self._paths) for name in self._staying()}
        return Schema({**self.schema, **staying})

    def label(self, index: int) -> str:
        """Return the file of a recording; see `Reader.label`."""
        return self._recordings[index][0]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_known": {}}

    def _log(self, index: int) -> MessageLog:
        """Return the messages of a recording, of which the one used last is kept."""
        if self._held is None or self._held[0] != index:
            self._held, self._known = None, {}
            with naming(self.label(index)):
                self._held = index, self.open_log(self._recordings[index])
        return self._held[1]

    def _topic(self, log: MessageLog, name: str, index: int) -> Topic:
        if name not in log.topics:
            raise FormatError(
                f"{self.label(index)} has no messages of {name}, which the first recording has. It has: "
                f"{_told(log)}. Choose by topics=."
            )
        return log.topics[name]

    def _times(self, log: MessageLog, topic: Topic) -> Int64s:
        """Return the times of a topic's messages, ascending."""
        if topic.name not in self._known:
            if self._time != "log":
                times = topic.published if self._time == "publish" else self._stamps(log, topic)
                # messages lie in the order in which they were recorded
                order = np.argsort(times, kind="stable")
                topic.times, topic.places = times[order], topic.places[order]
            self._known[topic.name] = topic.times
        return self._known[topic.name]

    def _stamps(self, log: MessageLog, topic: Topic) -> Int64s:
        found = []
        with naming(f"{log.paths[0]}, {topic.name}"):
            # a topic may be the clock, and not be kept
            kept = next((each for each in self._decoded if each.topic == topic.name), None)
            decoded = kept or self._described(log, topic)
            for data in log.read(topic, np.arange(len(topic.times))):
                stamp = stamp_of(decoded.read(data))
                if stamp is None:
                    return topic.times
                found.append(stamp)
            return np.array(found, np.int64)

    def _found(self, log: MessageLog, wanted: Sequence[str]) -> list[Decoded]:
        """Return how each topic is read that is kept."""
        kept = _kept(log, wanted, self.label(0))
        found, lost = [], {}
        for name in kept:
            topic = log.topics[name]
            try:
                with naming(f"{topic.type} as {topic.encoding}"):
                    found.append(self._described(log, topic))
            except (FormatError, DecodeError) as error:
                if name in wanted:
                    raise FormatError(f"{self.label(0)}, {name}: {error}") from error
                lost[name] = str(error)
        for name, reason in lost.items():
            warn_of_left_out(self.label(0), [name], reason.rstrip("."))
        if not found:
            raise FormatError(f"{self.label(0)} has no topic that can be read. It has: {_told(log)}.")
        return found

    def _described(self, log: MessageLog, topic: Topic) -> Decoded:
        """Return how a topic is read, and what features it makes, by its messages in the first recording."""
        prefix = NO_NAME.sub("_", topic.name.strip("/").replace("/", "."))
        made = Decoded(topic.name, topic.type, topic.encoding, topic.definition, prefix)
        if topic.encoding in ("ros1", "cdr"):
            if not topic.definition:
                raise FormatError(f"{topic.type} has no definition in the recording.")
            made.reader = MessageReader(topic.type, topic.definition, is_cdr=topic.encoding == "cdr")
        elif topic.encoding == "protobuf":
            made.reader = ProtobufReader(topic.type, topic.definition.encode("latin-1"))
        elif topic.encoding != "json":
            raise FormatError(f"messages are encoded as {topic.encoding}. Read are: ROS 1, ROS 2 (CDR), protobuf, JSON")
        rows = np.arange(len(topic.times))
        if is_image(topic.type):
            self._describe_images(log, topic, made)
        else:
            kinds: dict[str, LeafKinds] = {}
            for data in log.read(topic, rows):
                for name, value in leaves_of(made.read(data)).items():
                    kinds.setdefault(name, LeafKinds()).add(value)
            for name, each in kinds.items():
                feature = each.feature() if each.count == len(rows) else None
                if feature is not None:
                    shown = NO_NAME.sub("_", f"{prefix}.{name}")
                    made.leaves[shown], made.features[shown] = name, feature
        if not made.features:
            raise FormatError("its messages hold no number, array, text or image, but lists of messages")
        made.features[f"{prefix}{LAG}"] = Array((), "float32")
        return made

    def _describe_images(self, log: MessageLog, topic: Topic, made: Decoded) -> None:
        first = made.read(next(log.read(topic, np.array([0]))))
        if image_of(first) is not None:
            blobs = (image_of(made.read(data)) for data in log.read(topic, np.arange(len(topic.times))))
            made.features[made.prefix] = encoded_feature((blob for blob in blobs if blob is not None), made.prefix)
            made.is_file = True
        elif "encoding" in first:
            made.features[made.prefix] = pixels_of(first, topic.name).feature
        else:
            raise FormatError(f"images of format {first.get('format')!r}. Read are: JPEG, PNG, WebP and plain pixels")

    def _chosen(self, log: MessageLog, clock: str | float | None) -> str | float:
        """Return the topic that is the clock, or its rate."""
        if clock is None:
            kept = [(log.topics[each.topic], each) for each in self._decoded]
            cameras = [topic for topic, each in kept if is_image(each.type)]
            if cameras:
                return min(cameras, key=lambda topic: (len(topic.times), topic.name)).name
            return max((topic for topic, _ in kept), key=lambda topic: len(topic.times)).name
        try:
            rate = float(clock)
        except ValueError:
            if clock not in log.topics:
                raise FormatError(f"clock={clock!r}. Allowed: a rate in Hz, or a topic: {_told(log)}.") from None
            return str(clock)
        rate_ticks(rate, 0, 0)
        return rate

    def _ticks(self, log: MessageLog) -> Int64s:
        """Return the times of the steps of a recording."""
        index = 0 if self._held is None else self._held[0]
        topics = [self._topic(log, each.topic, index) for each in self._decoded]
        known = {topic.name: self._times(log, topic) for topic in topics}
        if isinstance(self._clock, str):
            ticks = self._times(log, self._topic(log, self._clock, index))
        else:
            first = min(times[0] for times in known.values())
            ticks = rate_ticks(self._clock, int(first), int(max(times[-1] for times in known.values())))
        is_shown = np.ones(len(ticks), np.bool_)
        known = {name: times for name, times in known.items() if self._methods[name] != OWN}
        for name, times in known.items():
            is_shown &= covers(times, ticks, self._methods[name])
        if not is_shown.any():
            spans = ", ".join(f"{name} {_span(times)}" for name, times in known.items())
            raise FormatError(f"{self.label(index)}: no step at which all topics have a message: {spans}.")
        return ticks[is_shown]

    def _align_clock(self, align: Mapping[str, str] | str) -> None:
        """Let the topic that is the clock have a message a step, whatever is said of all."""
        clock = self._clock
        if isinstance(clock, str) and self._methods.get(clock) == OWN:
            if clock in (align if not isinstance(align, str) else "".join(names_of(align)).replace("=", " ").split()):
                raise FormatError(f"align: {clock}={OWN}, and it is the clock, of which each message is a step.")
            self._methods[clock] = "nearest"

    def _rated(self, each: Decoded, ignored: Sequence[str] | str) -> dict[str, Feature]:
        """Return the features of a topic whose messages are all kept, with its rate."""
        where = f"{self.label(0)}: align: {each.topic}={OWN}"
        if self.fps is None:
            raise FormatError(f"{where} needs steps that are even, and those of {self._clock} are not. Give clock=30.")
        log = self._log(0)
        times = np.unique(self._times(log, self._topic(log, each.topic, 0)))
        if len(times) < 2 or times[-1] == times[0]:
            raise FormatError(f"{where}: {len(times)} messages have no rate. Align it.")
        rate = _rate(times) or round((len(times) - 1) * NANOSECONDS / int(times[-1] - times[0]), 3)
        found = {}
        for name, feature in each.features.items():
            if name == f"{each.prefix}{LAG}" or name in names_of(ignored):
                continue
            if feature.kind not in ("array", "image") or feature.is_ragged:
                raise FormatError(
                    f"{where}: {name!r} is {feature}. Allowed: numbers and images of fixed shape; else ignore={name}."
                )
            found[name] = replace(feature, shape=(None, *feature.fixed_shape), rate=rate)
        return found

    def _samples(self, log: MessageLog, topic: Topic, each: Decoded, ticks: Int64s, index: int) -> dict[str, Any]:
        """Return all messages of a topic that lie in the episode, at times of the clock of its steps."""
        times = self._times(log, topic)
        # of messages of one time the last one is kept
        rows = np.flatnonzero(np.append(np.diff(times) > 0, np.ones(min(len(times), 1), np.bool_)))
        seconds = _step_times(times[rows], ticks, float(self.fps or 1.0))
        is_inside = (seconds >= 0) & (seconds <= len(ticks) / float(self.fps or 1.0))
        rows, seconds = rows[is_inside], seconds[is_inside]
        columns = self._columns(log, topic, each, Aligned(rows, np.zeros(len(rows), np.float32)), index)
        return {name: Samples(columns[name], seconds) for name in (*each.leaves, each.prefix) if name in self.schema}

    def _set_schema(self, ignore: Sequence[str] | str) -> None:
        features: dict[str, Feature] = {TIMESTAMP: Array((), "float64")}
        for each in self._decoded:
            method = self._methods[each.topic]
            for name, feature in (self._rated(each, ignore) if method == OWN else each.features).items():
                if name in features:
                    raise FormatError(f"{self.label(0)}: two features are called {name!r}. Choose by topics=.")
                features[name] = _shown(feature) if method == "linear" and name in each.leaves else feature
        ignored = left_out(ignore, features, self.label(0))
        self.schema = store_schema({name: each for name, each in features.items() if name not in ignored}, self.source)

    def _staying(self) -> list[str]:
        """Return the images that can be left in the files, in all recordings."""
        found = [
            each
            for each in self._decoded
            if is_image(each.type) and each.prefix in self.schema and self._methods[each.topic] != OWN
        ]
        for index in range(len(self)):
            log = self._log(index)
            found = [each for each in found if self._lies_plain(log, each, index)]
        return [each.prefix for each in found if not self.schema[each.prefix].is_ragged or each.is_file]

    def _lies_plain(self, log: MessageLog, each: Decoded, index: int) -> bool:
        topic = self._topic(log, each.topic, index)
        if log.spans(topic) is None:
            return False
        first = each.read(next(log.read(topic, np.array([0]))))
        return each.is_file or pixels_of(first, each.topic).is_plain

    def _columns(self, log: MessageLog, topic: Topic, each: Decoded, aligned: Aligned, index: int) -> dict[str, Any]:
        """Return the columns of a topic."""
        where = f"{self.label(index)}, {topic.name}"
        columns: dict[str, Any] = {f"{each.prefix}{LAG}": aligned.lag}
        if is_image(each.type):
            return columns | {each.prefix: self._images(log, topic, each, aligned.rows, index)}
        after = np.minimum(aligned.rows + 1, len(topic.times) - 1)
        used = np.unique(aligned.rows if aligned.weights is None else np.concatenate([aligned.rows, after]))
        leaves = [leaves_of(each.read(data)) for data in log.read(topic, used)]
        places = np.searchsorted(used, aligned.rows)
        for name, leaf in each.leaves.items():
            if name not in self.schema:
                continue
            lost = next((row for row, values in enumerate(leaves) if leaf not in values), None)
            if lost is not None:
                raise FormatError(f"{where}: message {used[lost]} has no {leaf}.")
            values = number_column([values[leaf] for values in leaves], each.features[name], f"{where}: {leaf}")
            columns[name] = _at(values, places, aligned, each.features[name])
        return columns

    def _images(self, log: MessageLog, topic: Topic, each: Decoded, rows: Int64s, index: int) -> Any:
        """Return the images of a topic: spans of the file, image files, or pixels."""
        where = f"{self.label(index)}, {topic.name}"
        if each.prefix not in self.schema:
            return None
        feature = self.schema[each.prefix].sample
        # samples are held by the store itself
        spans = log.spans(topic) if feature is self.schema[each.prefix] else None
        used, inverse = np.unique(rows, return_inverse=True)
        found: list[Any] = []
        places: list[tuple[int, int]] = []
        for data in log.read(topic, used):
            message = each.read(data)
            if each.is_file:
                found.append(checked(image_of(message), feature, where))
                places.append((_place(message["data"], data), len(found[-1])))
                continue
            pixels = pixels_of(message, where)
            if pixels.feature != feature:
                raise FormatError(f"{where}: an image that is {pixels.feature}, where the first is {feature}.")
            if spans is not None and pixels.is_plain:
                places.append((_place(message["data"], data), feature.row_bytes))
            else:
                found.append(pixels.array())
        if spans is not None and len(places) == len(used) and all(place >= 0 for place, _ in places):
            offsets = spans[1][used] + np.array([place for place, _ in places], np.int64)
            sizes = np.array([size for _, size in places], np.int64)
            files = self._numbers(index)[spans[0][used]]
            return FileSpans(feature, self._paths, files[inverse], offsets[inverse], sizes[inverse])
        if each.is_file:
            return EncodedRows([found[row] for row in inverse.tolist()])
        return np.stack(found)[inverse] if found else np.empty((0, *feature.fixed_shape), feature.np_dtype)

    def _numbers(self, index: int) -> Int64s:
        """Return the number among all paths of each file of a recording."""
        first = sum(len(paths) for paths in self._recordings[:index])
        return first + np.arange(len(self._recordings[index]), dtype=np.int64)


def recordings_in(source: str, suffixes: Sequence[str]) -> list[list[str]]:
    """Return the files of each recording that a source names: a file, a directory that is one, or one with many."""
    if "://" in source:
        raise FormatError(f"{source}: recordings are read from this machine. Copy them here first.")
    found: list[list[str]] = []
    for part in source.split("\n"):
        place = Path(part)
        if not place.is_dir():
            found += [[part]] if part.lower().endswith(tuple(suffixes)) else []
            continue
        inside = sorted(islice(place.iterdir(), MOST_ENTRIES), key=lambda path: natural(path.name))
        files = [str(path) for path in inside if path.name.lower().endswith(tuple(suffixes)) and path.is_file()]
        if (place / METADATA).is_file():
            found += [files] if files else []
            continue
        found += [[path] for path in files]
        for folder in (path for path in inside if (path / METADATA).is_file()):
            found += recordings_in(str(folder), suffixes)
    return found


def _kept(log: MessageLog, wanted: Sequence[str], where: str) -> list[str]:
    """Return the names of topics that are chosen by names and patterns, in their order."""
    if not wanted:
        return list(log.topics)
    lost = [each for each in wanted if not any(fnmatchcase(name, each) for name in log.topics)]
    if lost:
        raise FormatError(f"topics={lost}: {where} has {_told(log)}.")
    return [name for name in log.topics if any(fnmatchcase(name, each) for each in wanted)]


def _methods(given: Mapping[str, str] | str, topics: Sequence[str]) -> dict[str, str]:
    """Return the way of alignment of each topic."""
    pairs = [part.rpartition("=") for part in names_of(given)] if isinstance(given, str) else []
    chosen = dict(given) if not isinstance(given, str) else {name: method for name, _, method in pairs}
    default = chosen.pop("", "nearest")
    for method in (default, *chosen.values()):
        if method not in (*METHODS, OWN):
            raise FormatError(f"align: {method!r}. Allowed: {', '.join(METHODS)}, {OWN}.")
    lost = [name for name in chosen if name not in topics]
    if lost:
        raise FormatError(f"align: there is no topic {', '.join(lost)}. There are: {', '.join(topics)}.")
    return {name: chosen.get(name, default) for name in topics}


def _step_times(times: Int64s, ticks: Int64s, fps: float) -> npt.NDArray[np.float64]:
    """Return times as seconds of a clock by which tick i is at i / fps; beyond the ticks it goes on at that rate."""
    inside = np.interp(times, ticks, np.arange(len(ticks)) / fps)
    before, after = np.minimum(times - ticks[0], 0), np.maximum(times - ticks[-1], 0)
    found: npt.NDArray[np.float64] = inside + (before + after) / NANOSECONDS
    return found


def _told(log: MessageLog) -> str:
    """Return what messages say of the topics of a recording."""
    return ", ".join(f"{name} ({topic.type}, {len(topic.times)})" for name, topic in log.topics.items()) or "none"


def _shown(feature: Feature) -> Feature:
    """Return the feature of interpolated values: of integers a float."""
    is_number = feature.kind == "array" and not feature.is_ragged and feature.np_dtype.kind in "iu"
    return Array(feature.fixed_shape, "float64") if is_number else feature


def _at(values: Any, places: Int64s, aligned: Aligned, feature: Feature) -> Any:
    """Return what steps show of a column, whose rows are those that are used."""
    is_mixed = aligned.weights is not None and not isinstance(values, list) and feature.np_dtype.kind in "iuf"
    if is_mixed:
        return Aligned(places, aligned.lag, aligned.weights).of(values)
    if aligned.weights is not None:
        # what cannot be mixed is that of the nearer one
        places = np.minimum(places + (aligned.weights > 0.5), len(values) - 1)
    return [values[place] for place in places.tolist()] if isinstance(values, list) else values[places]


def _place(part: npt.NDArray[np.uint8], whole: bytes) -> int:
    """Return where bytes that were read out of a message lie in it; -1: nowhere."""
    place = int(part.__array_interface__["data"][0] - np.frombuffer(whole, np.uint8).__array_interface__["data"][0])
    # of protobuf they are a copy
    return place if 0 <= place <= len(whole) - part.nbytes else whole.find(part.tobytes())


def _rate(ticks: Int64s) -> float | None:
    """Return the ticks a second of times that are even."""
    steps = np.diff(ticks)
    if not len(steps) or not np.median(steps):
        return None
    median = float(np.median(steps))
    is_even = bool((np.abs(steps - median) <= EVEN * median).all())
    return round(NANOSECONDS / median, 3) if is_even else None


def _span(times: Int64s) -> str:
    return f"{times[0] / NANOSECONDS:.3f} to {times[-1] / NANOSECONDS:.3f} s"
