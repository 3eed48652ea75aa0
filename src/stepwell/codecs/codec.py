"""The interface of a codec, and the registry that finds one by name.

A codec turns one step of one feature into bytes and back. It sees one row at a time and keeps nothing between rows, so
random access costs one row. To add one: subclass `Codec`, implement `encode` and `decode`, call `register_codec`. Where
a row needs the rows before it (video), it is a `SequentialCodec`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import DecodeError, SchemaError, did_you_mean
from stepwell.kernels.draws import Draws
from stepwell.schema import Feature, note_codec_module

__all__ = [
    "Codec",
    "Decoder",
    "RowEncoder",
    "SequentialCodec",
    "check_option_names",
    "choice_option",
    "codec_class",
    "codec_names",
    "int_option",
    "make_codec",
    "register_codec",
    "same_rows",
]


def check_option_names(feature: Feature, *allowed: str) -> None:
    """Refuse options that the feature's codec does not have."""
    unknown = [name for name, _ in feature.options if name not in allowed]
    if unknown:
        has = f"It has: {', '.join(allowed)}." if allowed else "It has none."
        raise SchemaError(f"codec {feature.codec!r} has no option {', '.join(map(repr, unknown))}. {has}")


def int_option(feature: Feature, name: str, default: int, *, least: int, most: int) -> int:
    """Return an option that is an integer from `least` to `most`."""
    value = feature.option(name, default)
    if type(value) is not int or not least <= value <= most:
        raise SchemaError(
            f"option {name!r} of codec {feature.codec!r} is {value!r}. Allowed: an integer from {least} to {most}."
        )
    return value


def choice_option(feature: Feature, name: str, default: str, choices: Sequence[str]) -> str:
    """Return an option that is one of `choices`."""
    value = feature.option(name, default)
    if value not in choices:
        allowed = ", ".join(map(repr, choices))
        raise SchemaError(f"option {name!r} of codec {feature.codec!r} is {value!r}. Allowed: {allowed}.")
    return str(value)


_REGISTRY: dict[str, type[Codec]] = {}
# codecs that come with stepwell are imported on first use, so that `import stepwell` does not load their libraries
_BUILT_IN = {
    "raw": "codecs.raw",
    "zstd": "codecs.lossless",
    "jpeg": "codecs.jpeg",
    "png": "codecs.png",
    "video": "codecs.video",
    "delta": "codecs.delta",
    "lz4": "codecs.lossless",
    "image-file": "codecs.image_files",
    "video-file": "references.video_in_files",
    "file-span": "references.file_spans",
    "parquet-image": "lerobot.parquet_images",
    "jpeg-or-raw": "beton.stored_images",
    "beton-image": "beton.stored_images",
}


class Codec(ABC):
    """How one row of one feature becomes bytes and back.

    Args:
        feature: the feature; the codec reads its options from ``feature.option(name, default)``.

    Raises:
        SchemaError: the codec cannot store such a feature, or an option is out of range.
        MissingDependencyError: the library it stands on is not installed.

    Attributes:
        name: what a feature's ``codec`` says.
        option_names: the options that it has, others are refused; None: the codec looks at them itself.
        is_reference: whether rows say where they lie in files of others.
        decoding_options: those of them that change what is made of a row, and not the row; see `same_rows`.
        stored_row_bytes: where `decode_rows` decodes many rows faster than one after the other, and all encoded rows
            are of one size: that size. None (default): they are decoded one by one.
        only_copies: whether `decode_rows` does no more than to copy memory, so that a small batch is worth no thread.

    Notes:
        One instance is used by many threads at once: keep no state that a call changes. Instances are not pickled.
    """

    name: ClassVar[str]
    option_names: ClassVar[tuple[str, ...] | None] = None
    decoding_options: ClassVar[tuple[str, ...]] = ()
    is_sequential: ClassVar[bool] = False
    is_reference: ClassVar[bool] = False
    stored_row_bytes: int | None = None
    only_copies: bool = False

    def __init__(self, feature: Feature) -> None:
        if self.option_names is not None:
            check_option_names(feature, *self.option_names)
        self.feature = feature

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Return one row as bytes.

        Args:
            value: an array of the feature's dtype and shape, C-contiguous; str for text, bytes for bytes.
        """

    @abstractmethod
    def decode(self, blob: npt.NDArray[np.uint8]) -> Any:
        """Return one row: a new array, a str or a bytes object, as `encode` took it.

        Args:
            blob: uint8 [n], what `encode` returned; a view of the file's map, not to be kept.

        Raises:
            DecodeError: the bytes are not a row of this codec.
        """

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode one row of a feature of fixed shape into the batch's own memory; override it where that saves work.

        Args:
            blob: as for `decode`.
            out: C-contiguous, of the feature's dtype and shape; for a scalar feature 0-d: ``batch[i, ...]``, because
                ``batch[i]`` is a copy.

        Raises:
            DecodeError: the bytes are not a row of this codec, or have another shape.
        """
        row = self.decode(blob)
        if row.shape != out.shape:
            raise DecodeError(f"a row of shape {row.shape}, where the feature has {out.shape}.")
        out[...] = row

    def check(self, blob: npt.NDArray[np.uint8]) -> None:
        """Check that encoded bytes decode to one row of this feature; override it where that needs no decoding.

        Args:
            blob: as for `decode`.

        Raises:
            DecodeError: they are none.
        """
        if self.feature.is_ragged:
            self.decode(blob)
        else:
            self.decode_into(blob, np.empty(self.feature.fixed_shape, self.feature.np_dtype))

    def batch_decoder(self) -> Callable[[npt.NDArray[np.uint8], npt.NDArray[Any]], None]:
        """Return what decodes the rows of one batch, in one thread, as `decode_into` does each of them.

        To be overridden where something is worth doing once a batch.
        """
        return self.decode_into

    def image_size(self, blob: npt.NDArray[np.uint8]) -> tuple[int, int] | None:
        """Return height and width of an image; None where its size varies and only decoding finds it.

        To be overridden where the header of a row says it.

        Raises:
            DecodeError: the bytes are not a row of this codec, as far as this looks at them.
        """
        if self.feature.is_ragged:
            return None
        height, width = self.feature.fixed_shape[:2]
        return height, width

    def decode_rows(self, rows: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode many rows of a fixed shape at once; called where there is a `stored_row_bytes`.

        Args:
            rows: uint8 [n, stored_row_bytes], encoded rows, C-contiguous.
            out: [n, *shape] of the feature's dtype, C-contiguous; written.

        Raises:
            DecodeError: one of them is no row of this codec; `decode_into` then finds the row.
        """
        for place, row in enumerate(rows):
            self.decode_into(row, out[place, ...])

    def decode_crop(
        self, blob: npt.NDArray[np.uint8], box: tuple[int, int, int, int], size: tuple[int, int]
    ) -> npt.NDArray[Any]:
        """Return the pixels of a part of an image, perhaps at a smaller scale; to be overridden where that saves work.

        Args:
            blob: as for `decode`.
            box: top, left, height and width of the part, inside the image.
            size: height and width that the caller will resize it to: the result may be smaller than the box, not than
                this (where the box is not).

        Raises:
            DecodeError: the bytes are not a row of this codec.
        """
        top, left, height, width = box
        part: npt.NDArray[Any] = self.decode(blob)[top : top + height, left : left + width]
        return part


class RowEncoder(ABC):
    """The state of one column while its rows are encoded.

    Example:
        >>> from stepwell import Array
        >>> from stepwell.testing import RunningCodec
        >>> encoder = RunningCodec(Array(2, "uint8", codec="running")).encoder()
        >>> rows = np.array([[7, 5], [8, 4], [9, 3]], "uint8")
        >>> [len(encoder.put(row)) for row in rows], len(encoder.end())
        ([1, 1, 1], 0)

    Notes:
        Used by one thread at a time; `close` may be called twice.
    """

    @abstractmethod
    def put(self, value: Any) -> list[bytes]:
        """Take the next row.

        Returns:
            The blobs of the rows that are ready, in order and without a gap: those that were put some calls ago where
            the encoder looks ahead.
        """

    @abstractmethod
    def end(self) -> list[bytes]:
        """End the episode: return the blobs of all rows that are left; the next row put begins a run."""

    def close(self) -> None:  # noqa: B027  most hold nothing
        """Let go of what the encoder holds; rows that were not returned are lost."""


class SequentialCodec(Codec):
    """A codec whose rows need rows before them: video, differences.

    The rows of a column fall into **runs**: a sync row, which needs no other, and the rows up to the next one. Every
    episode begins with a sync row. To add one: subclass, set `sync_mark`, implement `encoder` and `decode_run`. Where
    rows do not say by themselves which of them belong together, set it to None and override `run_of`.

    Attributes:
        is_slow: whether a writer encodes in a thread of its own, so that `append` does not wait.
        resizes: whether `decode_run` resizes images; if not, readers resize what it decodes.
        sync_mark: (position, mask): a row is a sync row when ``blob[position] & mask``. None: decoding may begin at any
            row. `decode_run` is given any rows, in any order, and finds those that are best decoded together itself;
            `run_of` reports them.

    Example:
        >>> from stepwell import Array
        >>> from stepwell.testing import RunningCodec
        >>> codec = RunningCodec(Array(2, "uint8", codec="running"))
        >>> encoder = codec.encoder()
        >>> blobs = encoder.put(np.array([7, 5], "uint8")) + encoder.put(np.array([8, 4], "uint8")) + encoder.end()
        >>> out = np.empty(2, "uint8")
        >>> codec.decode_run([np.frombuffer(blob, np.uint8) for blob in blobs], [1], [out])
        >>> out.tolist(), [codec.is_sync(blob) for blob in blobs]
        ([8, 4], [True, False])

    Notes:
        As for `Codec`; what a decoder keeps open between calls is one a thread.
    """

    is_sequential: ClassVar[bool] = True
    is_slow: ClassVar[bool] = False
    resizes: ClassVar[bool] = False
    sync_mark: ClassVar[tuple[int, int] | None]

    @abstractmethod
    def encoder(self) -> RowEncoder:
        """Return the encoder of a new column."""

    @abstractmethod
    def decode_run(
        self,
        blobs: Sequence[npt.NDArray[np.uint8]],
        wanted: Sequence[int],
        outs: Sequence[npt.NDArray[Any]],
        size: tuple[int, int] | None = None,
    ) -> None:
        """Decode rows of one run.

        Args:
            blobs: the run's rows from its sync row on, at least up to the last one wanted.
            wanted: ascending places of rows in ``blobs``.
            outs: for each wanted row a C-contiguous array of the feature's dtype and shape (its first two sizes those
                of ``size``); written.
            size: height and width to resize images to, where the codec `resizes`; None: as they are.

        Raises:
            DecodeError: the bytes are not rows of this codec; outs that come later are not written.
        """

    def is_sync(self, blob: bytes | npt.NDArray[np.uint8]) -> bool:
        """Return whether decoding may begin at a row."""
        if self.sync_mark is None:
            return len(blob) > 0
        position, mask = self.sync_mark
        return len(blob) > position and blob[position] & mask != 0

    def run_of(
        self, offsets: npt.NDArray[Any], blob: npt.NDArray[np.uint8], row: int, lo: int, hi: int
    ) -> tuple[int, int]:
        """Return the first row of the run that a row is in, and the row after its last; by default by the marks.

        Args:
            offsets: uint64 [>= hi + 1], of the encoded rows, which lie within ``blob``.
            blob: uint8 [n], the encoded rows.
            row: ``lo <= row < hi``.
            lo: where to stop looking back: 0, or a row that begins a run. The first row that a ring shows of an episode
                may be in the middle of one.
            hi: and forward: at most how many rows are committed.

        Returns:
            (first, stop) with ``lo <= first <= row < stop <= hi``; (-1, -1) where no sync row is before the row. Where
            there is no `sync_mark` any such range will do: by it blocks of steps are cut.
        """
        if self.sync_mark is None:
            return row, row + 1
        position, mask = self.sync_mark
        edge, byte, size = offsets.item, blob.item, len(blob)
        first, end = row, edge(row + 1)
        while True:
            begin = edge(first)
            if begin + position < end <= size and byte(begin + position) & mask:
                break
            first, end = first - 1, begin
            if first < lo:
                return -1, -1
        stop, begin = row + 1, edge(row + 1)
        while stop < hi:
            end = edge(stop + 1)
            # an empty row is a final one without a value: the next row begins another episode
            if end == begin or (begin + position < end <= size and byte(begin + position) & mask):
                break
            stop, begin = stop + 1, end
        return first, stop

    def encode(self, value: Any) -> bytes:
        """Return one row as a run of its own; see `Codec.encode`."""
        encoder = self.encoder()
        try:
            return b"".join([*encoder.put(value), *encoder.end()])
        finally:
            encoder.close()

    def decode(self, blob: npt.NDArray[np.uint8]) -> Any:
        """Return a row that is a run of its own; see `Codec.decode`."""
        out = np.empty(self.feature.fixed_shape, self.feature.np_dtype)
        self.decode_into(blob, out)
        return out

    def decode_into(self, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any]) -> None:
        """Decode a row that is a run of its own; see `Codec.decode_into`."""
        self.decode_run([blob], [0], [out])


def register_codec(codec: type[Codec]) -> type[Codec]:
    """Make a codec known under its ``name``; may be used as a class decorator.

    Stores remember the module of a codec that is not stepwell's own: an error elsewhere says what to import.
    Put the codec into a module that can be imported, not into the script that is run.

    Raises:
        SchemaError: another codec has the name, or this one has none.
    """
    if not isinstance(getattr(codec, "name", None), str):
        raise SchemaError(f'{codec.__qualname__} has no name. Say what features ask for: name = "...", in the class.')
    known = _REGISTRY.get(codec.name)
    if codec.name in _BUILT_IN and not codec.__module__.startswith("stepwell."):
        raise SchemaError(f"codec name {codec.name!r} is taken by stepwell's own. Choose another.")
    if known is not None and (known.__module__, known.__qualname__) != (codec.__module__, codec.__qualname__):
        raise SchemaError(
            f"codec name {codec.name!r} is taken by {known.__module__}.{known.__qualname__}. Choose another."
        )
    _REGISTRY[codec.name] = codec
    if codec.name not in _BUILT_IN:
        note_codec_module(codec.name, codec.__module__)
    return codec


def codec_names() -> tuple[str, ...]:
    """Return the names that a feature's ``codec`` may have."""
    return tuple(sorted({*_BUILT_IN, *_REGISTRY}))


def make_codec(feature: Feature) -> Codec:
    """Return the codec of a feature.

    Raises:
        SchemaError: no such codec, or it cannot store the feature.
        MissingDependencyError: its library is not installed.
    """
    kind = codec_class(feature)
    if feature.rate is None or feature.codec == "raw":
        return kind(feature)
    from stepwell.codecs.sampled import SampledCodec

    return SampledCodec(feature)


def codec_class(feature: Feature) -> type[Codec]:
    """Return the class of a feature's codec.

    Raises:
        SchemaError: no such codec.

    Example:
        >>> from stepwell import Image
        >>> codec_class(Image((8, 8, 3), codec="raw")).__name__
        'RawCodec'
    """
    if feature.codec not in _REGISTRY and feature.codec in _BUILT_IN:
        import importlib

        importlib.import_module(f"stepwell.{_BUILT_IN[feature.codec]}")
    if feature.codec not in _REGISTRY:
        if feature.codec_module is not None:
            raise SchemaError(
                f"no codec {feature.codec!r}. It was registered by the module {feature.codec_module!r}: "
                f'"import {feature.codec_module}" first; on the command line, --import {feature.codec_module}.'
            )
        raise SchemaError(
            f"no codec {feature.codec!r}.{did_you_mean(feature.codec, codec_names())} There are: "
            f"{', '.join(codec_names())}. "
            "If it is your own, import the module that calls register_codec first; by the command, --import MODULE."
        )
    return _REGISTRY[feature.codec]


def same_rows(one: Feature, other: Feature) -> bool:
    """Return whether the rows of two features are the same bytes: they differ at most in how these are decoded.

    Example:
        >>> from stepwell.schema import Image
        >>> exact, fast = (Image((8, 8, 3), codec="jpeg", dct=dct) for dct in ("exact", "fast"))
        >>> same_rows(exact, fast), same_rows(exact, Image((8, 8, 3), codec="jpeg", quality=50))
        (True, False)
    """
    return one == other or _stored(one) == _stored(other)


def _stored(feature: Feature) -> Feature:
    """Return a feature without what says how its rows are decoded."""
    names = codec_class(feature).decoding_options
    return replace(feature, options=tuple(option for option in feature.options if option[0] not in names))


class Decoder(ABC):
    """Make a step of a batch from a row of a feature: a crop, a smaller image, a part of it.

    Subclass it, implement `convert`, and `output` where shape or dtype change; use it as ``Field(..., decoder=...)``.

    Attributes:
        is_random: whether `draw` returns something: then every window has a draw of its own, all its steps the same.
        key: fields whose decoders have the same key draw the same numbers; None: each its own.
        resizes_to: height and width, when `convert` does nothing but resize to them: video is then resized in the step
            that turns its colours into RGB, and `convert` is not called.

    Notes:
        One instance serves many threads at once: keep no state that a call changes.
    """

    is_random: ClassVar[bool] = False
    key: str | None = None
    resizes_to: tuple[int, int] | None = None

    def output(self, feature: Feature) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and dtype of a step that comes out; as they are in the feature, unless overridden.

        One shape for all steps, also of images of any size: where nothing else is said, these are refused.
        """
        return feature.fixed_shape, feature.np_dtype

    def draw(self, feature: Feature, draws: Draws) -> npt.NDArray[Any] | None:
        """Return what is random about each window, [B, ...], or None.

        Of images of any size no row is known yet: draw what holds for every size, such as parts of it.
        """
        return None

    @abstractmethod
    def convert(self, pixels: npt.NDArray[Any], out: npt.NDArray[Any], draw: Any) -> None:
        """Make a step of a whole decoded row.

        Args:
            pixels: of the feature's dtype and shape, an image of any size of its own; not to be written.
            out: of `output`'s shape and dtype, C-contiguous; written.
            draw: the window's entry of what `draw` returned.
        """

    def decode(self, codec: Codec, blob: npt.NDArray[np.uint8], out: npt.NDArray[Any], draw: Any) -> None:
        """Make a step of an encoded row; to be overridden where less than the whole row need be decoded.

        Raises:
            DecodeError: the bytes are not a row of this codec.
        """
        self.convert(codec.decode(blob), out, draw)
