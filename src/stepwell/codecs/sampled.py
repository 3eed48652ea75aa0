"""Rows of features with a rate and a codec: the samples that came since the step before, each encoded by itself.

::

    row    | size | sample | size | sample | size | sample |      size: uint32, little-endian, 1 or more

What follows a row is appended to it, so that a row may grow, and is cut where it was left unfinished.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.codecs.codec import Codec, codec_class
from stepwell.codecs.decoded_sizes import check_decoded_bytes
from stepwell.errors import DecodeError, EncodeError, SchemaError
from stepwell.schema import Feature

__all__ = ["SampledCodec", "joined_samples", "sample_edges"]

SIZE = struct.Struct("<I")
MAX_SAMPLE_BYTES = (1 << 32) - 1


def joined_samples(blobs: Iterable[bytes | memoryview]) -> bytes:
    """Return a row of encoded samples.

    Raises:
        EncodeError: a sample of no bytes, or of more than 4 GiB.
    """
    parts: list[bytes | memoryview] = []
    for blob in blobs:
        if not 0 < len(blob) <= MAX_SAMPLE_BYTES:
            raise EncodeError(f"an encoded sample of {len(blob)} bytes. Allowed: 1 to {MAX_SAMPLE_BYTES}.")
        parts += [SIZE.pack(len(blob)), blob]
    return b"".join(parts)


def sample_edges(row: npt.NDArray[np.uint8], most: int | None = None) -> tuple[list[tuple[int, int]], bool]:
    """Return where the whole samples of a row begin and end, ``most`` of them, and whether nothing else is there."""
    edges: list[tuple[int, int]] = []
    end, num_bytes, data = 0, row.size, row.data
    while end + SIZE.size < num_bytes and (most is None or len(edges) < most):
        begin = end + SIZE.size
        stop = begin + SIZE.unpack_from(data, end)[0]
        if not begin < stop <= num_bytes:
            break
        edges.append((begin, stop))
        end = stop
    return edges, end == num_bytes


class SampledCodec(Codec):
    """The samples of a step of a feature with a rate, each as the feature's codec encodes it.

    Values are arrays [n, *shape of a sample]; n may be 0.

    Example:
        >>> from stepwell.schema import Array
        >>> codec = SampledCodec(Array((64, 2), "int16", codec="zstd", rate=100))
        >>> row = np.frombuffer(codec.encode(np.ones((3, 64, 2), "int16")), np.uint8)
        >>> codec.decode(row).shape, len(sample_edges(row)[0])
        ((3, 64, 2), 3)

    Notes:
        Keeps no state of its own: as safe for threads as the codec of the samples.
    """

    name: ClassVar[str] = "samples"

    def __init__(self, feature: Feature) -> None:
        super().__init__(feature)
        kind = codec_class(feature)
        if kind.is_sequential or kind.is_reference:
            why = "rows need those before them" if kind.is_sequential else "rows lie in other files"
            raise SchemaError(
                f"codec {feature.codec!r} with a rate: its {why}, and samples are stored one by one. Allowed: codecs "
                'of single rows, such as "raw", "jpeg", "png", "zstd" and "lz4".'
            )
        self.of_sample = kind(feature.sample)

    def encode(self, value: Any) -> bytes:
        """Return samples as a row; see `Codec.encode`.

        Args:
            value: [n, *shape]; or objects [n], the bytes of samples that are encoded already.
        """
        is_encoded = value.dtype == object
        return joined_samples(
            value if is_encoded else (self.of_sample.encode(value[i, ...]) for i in range(len(value)))
        )

    def decode(self, blob: npt.NDArray[np.uint8]) -> Any:
        """Return the samples of a row, [n, *shape]; see `Codec.decode`."""
        edges = self.edges(blob)
        feature = self.of_sample.feature
        check_decoded_bytes(len(edges) * feature.row_bytes, blob.size, "a row of samples")
        out = np.empty((len(edges), *feature.fixed_shape), feature.np_dtype)
        for i, (begin, stop) in enumerate(edges):
            self.of_sample.decode_into(blob[begin:stop], out[i, ...])
        return out

    def edges(self, blob: npt.NDArray[np.uint8]) -> list[tuple[int, int]]:
        """Return where the samples of a row begin and end.

        Raises:
            DecodeError: the sizes of its samples do not fit the row.
        """
        edges, is_whole = sample_edges(blob)
        if not is_whole:
            raise DecodeError(f"a row of {blob.size} bytes: the size of its sample {len(edges)} does not fit.")
        return edges
