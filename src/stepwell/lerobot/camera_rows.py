"""The rows of a camera as LeRobot has them: video packets, or files of images; as they are where that can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import make_codec
from stepwell.codecs.image_files import read_image_head
from stepwell.codecs.video_decoding import coded_size
from stepwell.errors import DecodeError, SchemaError
from stepwell.formats.source_episodes import SourceEpisode
from stepwell.lerobot.schema_mapping import Column, stored_feature
from stepwell.lerobot.video_writing import EpisodePackets, packets_of
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Feature, Image, Video

__all__ = ["encoding_of", "image_files", "video_packets"]

# what lerobot encodes with; the preset is that of its newest
DEFAULT_VIDEO = {"encoder": "av1", "gop": 2}
AV1_VIDEO = {"crf": 30, "preset": "12"}
FILE_CODECS = ("png", "jpeg")


def encoding_of(column: Column, options: Mapping[str, Any] | None = None) -> Feature:
    """Return how the pictures of a camera are encoded, where they are.

    Args:
        column: a camera that is written as video.
        options: of `stepwell.schema.Video`; default AV1 with a sync row every two, crf 30.

    Raises:
        SchemaError: an option that there is not.
    """
    given = {**DEFAULT_VIDEO, **(options or {})}
    if given["encoder"] == "av1":
        given = {**AV1_VIDEO, **given}
    # grey as colours, too: players take its full range for a limited one
    feature = Video(column.info.shape, **given)
    make_codec(feature)
    return feature


def video_packets(episode: SourceEpisode, column: Column, encoding: Feature) -> EpisodePackets:
    """Return the frames of an episode: those that are stored where they can lie in an mp4 file, else encoded anew.

    Args:
        episode: the episode.
        column: the camera.
        encoding: from `encoding_of`.

    Raises:
        DecodeError: rows that their codec refuses.
        SchemaError: this PyAV cannot encode so.
    """
    if stored_feature(column.feature).codec == "video" and _can_stay(column.feature):
        with _named(episode, column):
            found = packets_of(_stored_rows(episode, column))
        if found is not None:
            return found
    return _encoded(episode, column, encoding)


def image_files(episode: SourceEpisode, column: Column) -> list[bytes]:
    """Return the PNG or JPEG files of an episode's images: the stored ones, or PNG files that are made of them.

    Grey files, palettes, inks and alpha are made RGB: lerobot shows files as they are.

    Args:
        episode: the episode.
        column: the camera.

    Raises:
        DecodeError: rows that their codec refuses.
    """
    feature = column.feature
    if stored_feature(feature).codec in FILE_CODECS and feature.shape[2:] == (3,):
        with _named(episode, column):
            return [_as_colours(file, feature) for file in _stored_rows(episode, column)]
    codec = make_codec(Image(column.info.shape, codec="png"))
    return [codec.encode(_in_colour(image)) for image in episode.images(column.source, feature)]


def _as_colours(file: bytes, feature: Feature) -> bytes:
    """Return a file of which Pillow makes RGB without being asked to: it, or a PNG file of its colours."""
    head = read_image_head(file)
    if head is None or (head.is_plain and head.channels == 3 and head.dtype == feature.np_dtype.name):
        return file
    pixels = make_codec(stored_feature(feature)).decode(np.frombuffer(file, np.uint8))
    return make_codec(Image(feature.shape, feature.dtype, codec="png")).encode(pixels)


def _stored_rows(episode: SourceEpisode, column: Column) -> list[bytes]:
    codec, blobs = make_codec(column.feature), episode.blobs(column.source)
    if not isinstance(codec, FileCodec):
        return [blob.tobytes() for blob in blobs]
    return list(codec.embed(blobs).rows(codec.embedded()))


@contextmanager
def _named(episode: SourceEpisode, column: Column) -> Iterator[None]:
    """Make errors of rows say whose they are."""
    try:
        yield
    except DecodeError as error:
        raise DecodeError(f"{episode.store.path}: episode {episode.index}, {column.source!r}: {error}") from error


def _encoded(episode: SourceEpisode, column: Column, encoding: Feature) -> EpisodePackets:
    from stepwell.codecs.video import VideoCodec

    # one for each episode: bytes then do not depend on what was encoded before, nor on the number of threads
    encoder, rows = VideoCodec(encoding).encoder(), []
    try:
        for image in episode.images(column.source, column.feature):
            rows += encoder.put(_in_colour(image))
        rows += encoder.end()
    finally:
        encoder.close()
    found = packets_of(rows)
    if found is None or len(rows) != episode.length:
        raise SchemaError(f"camera {column.name!r}: {encoding!r} gave {len(rows)} frames of {episode.length} images.")
    return found


def _can_stay(feature: Feature) -> bool:
    """Whether frames are RGB and have the feature's size: odd ones, and very small ones, are encoded with an edge."""
    height, width, *channels = feature.fixed_shape
    return channels == [3] and coded_size(height, width) == (height, width)


def _in_colour(image: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return a picture of three channels; those of a grey one are equal."""
    height, width = image.shape[:2]
    # a copy of one row or column would otherwise keep strides that encoders of images refuse
    return np.array(np.broadcast_to(image.reshape(height, width, -1), (height, width, 3)), order="C")
