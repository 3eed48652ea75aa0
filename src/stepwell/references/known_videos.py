"""The video files of a process: what is known of each, shared by all threads and codecs."""

from __future__ import annotations

from operator import add

from stepwell.errors import DecodeError
from stepwell.files.local_files import FileState, open_file, state_of
from stepwell.files.shared_cache import SharedCache
from stepwell.references.video_index import VideoIndex, exact_index, make_index

__all__ = ["MAX_INDEX_BYTES", "KnownVideo", "forget_changed", "known_video", "look_closer"]

# of frames of 24 bytes: 11 million
MAX_INDEX_BYTES = 256 << 20
# the bytes between packets that are read with them, rather than each packet for itself: those of other streams
MAX_GAP_BYTES = 64 << 10
LOST = "Copy or download it again, or leave out the episodes that lie in it."


class KnownVideo:
    """A video file and its index.

    Args:
        path: of the file.
        state: of the file when the index was made.
        index: of its frames.
        looked: number of the youngest codec for which the file was looked at.

    Notes:
        Safe for any number of threads, and after a fork.
    """

    def __init__(self, path: str, state: FileState, index: VideoIndex, looked: int) -> None:
        self.path, self.state, self.index, self.looked = path, state, index, looked

    def packets(self, numbers: list[int]) -> list[bytes]:
        """Return packets as a decoder takes them, the first with what decoding begins with; one read for all.

        Args:
            numbers: ascending.

        Raises:
            DecodeError: the file is gone, was changed, ends before them, or is damaged.
        """
        # one at a time: most runs are of a few packets, and numpy's calls cost more than they save
        places = [self.index.positions.item(number) for number in numbers]
        sizes = [self.index.sizes.item(number) for number in numbers]
        begin, end = min(places), max(map(add, places, sizes))
        if end - begin <= sum(sizes) + MAX_GAP_BYTES * len(numbers):
            data = memoryview(self.read(begin, end - begin))
            parts = [data[place - begin : place - begin + size] for place, size in zip(places, sizes, strict=True)]
        else:
            parts = [memoryview(self.read(place, size)) for place, size in zip(places, sizes, strict=True)]
        packet = self.index.samples.packet
        return [packet(part, is_key=place == 0) for place, part in enumerate(parts)]

    def read(self, place: int, count: int) -> bytes:
        """Return bytes of the file.

        Raises:
            DecodeError: the file is gone, was changed since, or ends before them.
        """
        try:
            file = open_file(self.path, self.state)
            data = file.read(place, count)
        except OSError as error:
            raise _unreadable(self.path, error) from error
        if file.state != self.state:
            raise DecodeError("the file was changed while it was read")
        if len(data) < count:
            raise DecodeError(f"the file is cut off: {place + count} bytes are needed, it has {file.num_bytes}")
        return data


_VIDEOS: SharedCache[str, KnownVideo] = SharedCache(MAX_INDEX_BYTES, size_of=lambda video: video.index.nbytes)


def known_video(path: str, looked: int) -> KnownVideo:
    """Return a video file, its index made unless it is.

    Args:
        path: of the file.
        looked: number of the codec that asks. A file that was not looked at for it, or a younger one, is: it may have
            been replaced.

    Raises:
        DecodeError: no such file, or it cannot be read as video; names the file.
    """
    video = _VIDEOS.find(path)
    if video is not None and video.looked < looked:
        if _is_changed(video):
            _VIDEOS.drop(path, video)
            video = None
        else:
            video.looked = looked
    return video or _VIDEOS.get(path, lambda: _made(path, looked))


def look_closer(video: KnownVideo) -> KnownVideo:
    """Return the video with an index for which all packets were looked at."""
    _VIDEOS.drop(video.path, video)
    return _VIDEOS.get(video.path, lambda: _made(video.path, video.looked, is_exact=True))


def forget_changed(path: str) -> bool:
    """Forget a file that is another by now, and return whether it is."""
    video = _VIDEOS.find(path)
    is_changed = video is not None and _is_changed(video)
    if video is not None and is_changed:
        _VIDEOS.drop(path, video)
    return is_changed


def _made(path: str, looked: int, *, is_exact: bool = False) -> KnownVideo:
    try:
        file = open_file(path, state_of(path))
        index = exact_index(path, file.read) if is_exact else make_index(path, file.num_bytes, file.read)
        return KnownVideo(path, file.state, index, looked)
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
