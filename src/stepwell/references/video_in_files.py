"""Images that are frames of video files of other systems: read in place, without a copy or conversion."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from operator import add, attrgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import RowEncoder, SequentialCodec, register_codec
from stepwell.codecs.video_decoding import open_decoder
from stepwell.codecs.video_encoding import check_is_video
from stepwell.codecs.video_files import VideoFile
from stepwell.codecs.video_packets import PacketReader, PacketTable
from stepwell.codecs.video_streams import LastStream, StreamId
from stepwell.errors import DecodeError, MissingDependencyError, SchemaError
from stepwell.files.local_files import FileState, OpenFile, open_file, state_of
from stepwell.files.shared_cache import SharedCache
from stepwell.references.file_codec import REFERENCE, NumberedFileCodec, parse_references
from stepwell.references.video_index import VideoIndex, exact_index, make_index
from stepwell.schema import Feature, Video

__all__ = [
    "KEPT",
    "KeptFrames",
    "KnownVideo",
    "VideoFileCodec",
    "forget_changed",
    "keep_frames",
    "known_video",
    "look_closer",
]

DEFAULT_TOLERANCE = 1e-4
# rows may show a frame twice; more than twice as many as there are frames are not looked at
MOST_ROWS_A_FRAME = 2
# the numbers of directory and file as one
PLACED_DTYPE = np.dtype([("where", "<i8"), ("at", "<f8")])
# of frames of 24 bytes: 11 million
MAX_INDEX_BYTES = 256 << 20
# the bytes between packets that are read with them, rather than each packet for itself: those of other streams
MAX_GAP_BYTES = 64 << 10
LOST = "Copy or download it again, or leave out the episodes that lie in it."

Outs = Sequence[npt.NDArray[Any]]
Size = tuple[int, int] | None
Wanted = dict[int, list[npt.NDArray[Any]]]


class KnownVideo:
    """A video file and its index, safe for threads and forks."""

    def __init__(self, path: str, state: FileState, index: VideoIndex) -> None:
        self.path, self.state, self.index = path, state, index
        # the process keeps files open, and closes them
        self._file: Callable[[], OpenFile | None] = lambda: None

    def packets(self, numbers: Sequence[int]) -> list[bytes]:
        """Return the packets of ascending numbers as a decoder takes them, by one read if they lie close together."""
        if self.index.demuxed is not None:
            return self._demuxed(self.index.demuxed, numbers)
        # one at a time: most runs are of a few packets, and numpy's calls cost more than they save
        places = list(map(self.index.positions.item, numbers))
        sizes = list(map(self.index.sizes.item, numbers))
        begin, end = min(places), max(map(add, places, sizes))
        parts: list[bytes | memoryview] = []
        try:
            file = self._file() or self._opened()
            if end - begin <= sum(sizes) + MAX_GAP_BYTES * len(numbers):
                data = memoryview(file.read(begin, end - begin))
                for place, size in zip(places, sizes, strict=True):
                    parts.append(data[place - begin : place - begin + size])
            else:
                parts += map(file.read, places, sizes)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        if sum(map(len, parts)) < sum(sizes):
            raise DecodeError(f"the file is cut off: {end} bytes are needed, it has {file.num_bytes}")
        return self.index.samples.packets(parts, is_key=True)

    def _demuxed(self, table: PacketTable, numbers: Sequence[int]) -> list[bytes]:
        """Return packets that ffmpeg puts together."""
        if _is_changed(self):
            raise DecodeError("the file was changed while it was read")
        reader = PacketReader(Path(self.path), None, table)
        try:
            return list(map(reader.packet, numbers))
        finally:
            reader.close()

    def _opened(self) -> OpenFile:
        file = open_file(self.path, self.state)
        if file.state != self.state:
            raise DecodeError("the file was changed while it was read")
        self._file = weakref.ref(file)
        return file


_VIDEOS: SharedCache[str, KnownVideo] = SharedCache(MAX_INDEX_BYTES, size_of=lambda video: video.index.nbytes)


def known_video(path: str) -> KnownVideo:
    """Return a video file as it is now, with its index."""
    forget_changed(path)
    return _VIDEOS.get(path, lambda: _made(path))


def look_closer(video: KnownVideo) -> KnownVideo:
    """Return the video with an index made from all of its packets."""
    _VIDEOS.drop(video.path, video)
    return _VIDEOS.get(video.path, lambda: _made(video.path, is_exact=True))


def forget_changed(path: str) -> bool:
    """Drop a file that was changed since, and return whether it was."""
    video = _VIDEOS.find(path)
    is_changed = video is not None and _is_changed(video)
    if video is not None and is_changed:
        _VIDEOS.drop(path, video)
    return is_changed


def _made(path: str, *, is_exact: bool = False) -> KnownVideo:
    try:
        file = open_file(path, state_of(path))
        index = exact_index(path, file.read) if is_exact else make_index(path, file.num_bytes, file.read)
        return KnownVideo(path, file.state, index)
    except OSError as error:
        raise _unreadable(path, error) from error


def _is_changed(video: KnownVideo) -> bool:
    try:
        return state_of(video.path) != video.state
    except OSError:
        return False  # what is open can still be read


def _unreadable(path: str, error: OSError) -> DecodeError:
    if isinstance(error, FileNotFoundError):
        return DecodeError(f"{path}: there is no such file. {LOST}")
    return DecodeError(f"{path}: cannot be read ({error.strerror or error}).")


class KeptFrames:
    """Decoded frames, for reads in a random order and for later epochs: each would be decoded again.

    ::

        row 7 is read     key 1 2 3 4 5 6 [7]       0 to 6 are kept, as the decoder gave them: 1.5 bytes a pixel
        row 4 is read     from what is kept         and is among the first to go: an epoch asks for it once
        there is room     7 is kept, too, and 4     the next epoch asks again

    Notes:
        Of the whole process; for any number of threads, and after a fork. Nothing is kept until `keep_frames`.
    """

    def __init__(self) -> None:
        self.max_bytes = self._num_bytes = 0
        self.frames: OrderedDict[tuple[KnownVideo, int], tuple[StreamId, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, video: KnownVideo, packets: Iterable[int]) -> list[tuple[StreamId, Any]] | None:
        """Return the frames of some packets with their streams; None where one is not kept."""
        with self._lock:
            found = []
            for packet in packets:
                frame = self.frames.get((video, packet))
                if frame is None:
                    return None
                self.frames.move_to_end((video, packet), last=False)
                found.append(frame)
            return found

    def keep(
        self,
        video: KnownVideo,
        stream: StreamId,
        packets: Sequence[int],
        shown: Container[int],
        came: Mapping[int, Any],
    ) -> None:
        """Keep the frames of a run, given by their place in it; those that were shown go first."""
        frames = self.frames
        with self._lock:
            for place, frame in came.items():
                key, is_shown = (video, packets[place]), packets[place] in shown
                if key in frames or (is_shown and self._num_bytes >= self.max_bytes):
                    continue
                self._num_bytes += sum(map(PLANE_BYTES, frame.planes))
                frames[key] = stream, frame
                if is_shown:
                    frames.move_to_end(key, last=False)
            while self._num_bytes > self.max_bytes:
                self._num_bytes -= sum(map(PLANE_BYTES, frames.popitem(last=False)[1][1].planes))


PLANE_BYTES = attrgetter("buffer_size")
KEPT = KeptFrames()
os.register_at_fork(after_in_child=lambda: setattr(KEPT, "_lock", threading.Lock()))


def keep_frames(num_bytes: int) -> None:
    """Let this process keep at least so many bytes of decoded frames of video files."""
    KEPT.max_bytes = max(KEPT.max_bytes, num_bytes)


@register_codec
class VideoFileCodec(NumberedFileCodec, SequentialCodec):
    """References into video files: a row shows the frame nearest to a time.

    ::

        rows         r0     r1     r2     r3 | r4 ...        chunk, file and seconds each
        frames       12     13     14     15 | 16            of file-003.mp4: nearest in time, within the tolerance
        decoded      key    .      .      .  | key           a run: packets that lie together, one read

    Args:
        feature: uint8 of height x width x 3 (RGB), height x width x 1 or height x width (grey); uint16 without
            channels or of one: samples of 12 bits. Options: ``files``, the files' path, see `NumberedFileCodec`;
            ``tolerance`` in seconds, default 1e-4: a row whose time is farther from every frame is refused;
            ``dataset``.

    Notes:
        Safe for any number of threads, and after a fork. Of each file an index is kept, about 24 bytes a frame and
        256 MiB of them in a process; 64 files are kept open; decoders are one a thread and kind of stream, at most 8,
        not one a file. A file that is replaced while it is read is read again, unless its whole data set was replaced.
    """

    name: ClassVar[str] = "video-file"
    option_names: ClassVar[tuple[str, ...]] = ("files", "tolerance", "dataset")
    resizes: ClassVar[bool] = True
    sync_mark: ClassVar[tuple[int, int] | None] = None

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        check_is_video(feature)
        tolerance = feature.option("tolerance", DEFAULT_TOLERANCE)
        if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not tolerance >= 0:
            raise SchemaError(
                f"option 'tolerance' of codec {self.name!r} is {tolerance!r}. Allowed: seconds, 0 or more."
            )
        try:
            import av  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError.of("av", "video") from error
        self._tolerance = float(tolerance)
        self._streams, self._shape = LastStream(), feature.fixed_shape
        self._is_deep = feature.np_dtype == np.uint16
        # of the files that this codec has looked at
        self._states: dict[str, FileState] = {}

    def encoder(self) -> RowEncoder:
        """Refuse; see `FileCodec.encode`."""
        self.encode(None)

    def embedded(self) -> Feature:
        """Return the feature that holds the same frames as packets of its own; see `FileCodec.embedded`."""
        feature = self.feature
        return Video(feature.fixed_shape, dtype=feature.dtype, names=feature.names, final=feature.final)

    def embed(self, blobs: Sequence[npt.NDArray[np.uint8]]) -> _Packets:
        """Return the packets of an episode's frames; see `FileCodec.embed`."""
        references, videos = parse_references(blobs), []
        is_next = (np.diff(references["chunk"]) != 0) | (np.diff(references["file"]) != 0)
        # nor does a VideoFile go back in time
        cuts = np.flatnonzero(is_next | (np.diff(references["at"]) < 0)) + 1
        for part in np.split(references, cuts) if len(references) else ():
            path = self.reached(int(part["chunk"][0]), int(part["file"][0]))
            try:
                videos.append(VideoFile(path, timestamps=part["at"], tolerance=self._tolerance))
            except FileNotFoundError:
                raise DecodeError(f"{path}: there is no such file. {LOST}") from None
        return _Packets(videos)

    def run_of(
        self, offsets: npt.NDArray[Any], blob: npt.NDArray[np.uint8], row: int, lo: int, hi: int
    ) -> tuple[int, int]:
        """Return rows around one whose frames are decoded together; see `SequentialCodec.run_of`."""
        place, end = int(offsets[row]), int(offsets[row + 1])
        if not 0 <= place == end - REFERENCE.size <= len(blob) - REFERENCE.size:
            return row, row + 1
        chunk, file, seconds = REFERENCE.unpack_from(blob.data, place)
        try:
            count, since, until = self._video(chunk, file).index.run_around(seconds)
        except DecodeError:
            return row, row + 1  # decoding it will say what is wrong
        reach = MOST_ROWS_A_FRAME * count
        begin, references = _references(offsets, blob, row, max(lo, row - reach), min(hi, row + reach))
        at = references["at"]
        is_in = (at >= since) & (at < until)
        is_in &= references["where"] == references["where"][row - begin]
        marks = is_in.tobytes()
        stop = marks.find(0, row - begin + 1)
        return begin + marks.rfind(0, 0, row - begin) + 1, begin + (stop if stop >= 0 else len(marks))

    def decode_run(
        self,
        blobs: Sequence[npt.NDArray[np.uint8]],
        wanted: Sequence[int],
        outs: Outs,
        size: Size = None,
    ) -> None:
        """Decode any rows, the frames of each run of the file once; see `SequentialCodec.decode_run`."""
        if not len(wanted):
            return
        files: dict[tuple[int, int], tuple[list[float], list[npt.NDArray[Any]]]] = {}
        for row, out in zip(wanted, outs, strict=True):
            blob = blobs[row]
            if blob.size != REFERENCE.size:
                parse_references([blob])  # says what is wrong
            chunk, file, at = REFERENCE.unpack(blob.data)
            seconds, targets = files.setdefault((chunk, file), ([], []))
            seconds.append(at)
            targets.append(out)
        for (chunk, file), (seconds, targets) in files.items():
            try:
                path = self._reached.get((chunk, file)) or self.reached(chunk, file)
                video = _VIDEOS.find(path)
                if video is None or video.state is not self._states.get(path):
                    video = self._video(chunk, file)
                self._show(video, seconds, targets, size)
            except DecodeError:
                if not forget_changed(self.path_of(chunk, file)):
                    raise
                self._show(self._video(chunk, file), seconds, targets, size)

    def _video(self, chunk: int, file: int) -> KnownVideo:
        try:
            video = known_video(self.reached(chunk, file))
        finally:
            self.check_dataset()
        self._states[video.path] = video.state
        return video

    def _show(self, video: KnownVideo, seconds: Sequence[float], outs: Outs, size: Size) -> None:
        """Write the frames of one file that are nearest to times."""
        index = video.index
        runs: dict[int, Wanted] = {}
        for at, out in zip(seconds, outs, strict=True):
            frame, packet, key = index.find(at)
            # written so that a time that is not a number is refused, too
            if not abs(index.seconds.item(frame) - at) <= self._tolerance:
                raise self._far_off(video, at, frame)
            runs.setdefault(key, {}).setdefault(packet, []).append(out)
        for key, wanted in runs.items():
            self._show_run(video, key, wanted, size)

    def _show_run(self, video: KnownVideo, key: int, wanted: Wanted, size: Size) -> None:
        """Write what packets of one run make, which begins at a key packet."""
        index = video.index
        try:
            if key < 0:
                raise DecodeError("no keyframe is before it")
            # the first is looked for here: where it is not kept, as of most data sets, that costs no call
            is_kept = KEPT.frames and (video, next(iter(wanted))) in KEPT.frames
            if is_kept and (kept := KEPT.find(video, wanted)) is not None:
                for (stream, frame), outs in zip(kept, wanted.values(), strict=True):
                    open_decoder(stream, self._shape, size, index.turn, self._is_deep).write(frame, outs)
                return
            numbers = range(key, max(wanted) + 1) if index.pts is None else index.needed(key, max(wanted))
            packets = video.packets(numbers)
            stream, head = self._streams.of(index.samples.kind, packets[0])
            if stream.is_closed or index.is_exact:
                places = dict(zip(numbers, range(len(numbers)), strict=True))
                outs_of = dict(zip(map(places.__getitem__, wanted), wanted.values(), strict=True))
                came: dict[int, Any] | None = {} if KEPT.max_bytes else None
                decoder = open_decoder(stream, self._shape, size, index.turn, self._is_deep)
                decoder.decode(packets, head, outs_of, came)
                if came:
                    KEPT.keep(video, stream, numbers, wanted, came)
                return
        except DecodeError as error:
            frame = index.frame_of(min(wanted))
            raise DecodeError(
                f"{video.path}: frame {frame} at {index.seconds[frame]:.6f} s cannot be decoded: "
                f"{str(error).removeprefix('video: ').rstrip('.')}. {LOST}"
            ) from error
        # whether decoding may begin there is not sure
        seconds = [index.seconds.item(index.frame_of(packet)) for packet, outs in wanted.items() for _ in outs]
        self._show(look_closer(video), seconds, [out for outs in wanted.values() for out in outs], size)

    def _far_off(self, video: KnownVideo, seconds: float, frame: int) -> DecodeError:
        return DecodeError(
            f"{video.path}: no frame at {seconds:.6f} s, the nearest is frame {frame} at "
            f"{video.index.seconds[frame]:.6f} s. Allowed: {self._tolerance} s apart. Where the table's times and the "
            "video's differ by less than half a step, open it with a larger tolerance; else leave the episode out."
        )


class _Packets:
    """The rows of several video files, one after the other."""

    def __init__(self, videos: Sequence[VideoFile]) -> None:
        self._videos = videos

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return sum(video.num_rows for video in self._videos)

    def rows(self, feature: Feature) -> Iterator[bytes]:
        """Yield the packets of each row."""
        return itertools.chain.from_iterable(video.rows(feature) for video in self._videos)


def _references(
    offsets: npt.NDArray[Any], blob: npt.NDArray[np.uint8], row: int, begin: int, end: int
) -> tuple[int, npt.NDArray[Any]]:
    """Return rows around one as `PLACED_DTYPE`, up to the first that is no reference, and the number of the first."""
    edges = offsets[begin : end + 1].astype(np.int64)
    is_other = edges[1:] - edges[:-1] != REFERENCE.size
    if is_other.any():
        marks, start = is_other.tobytes(), begin
        begin += marks.rfind(1, 0, row - start) + 1
        stop = marks.find(1, row - start)
        edges = edges[begin - start : None if stop < 0 else stop + 1]
    if not 0 <= edges[0] <= edges[-1] <= len(blob):
        begin, edges = row, offsets[row : row + 2]
    return begin, blob[edges[0] : edges[-1]].view(PLACED_DTYPE)
