"""How features become members of samples: their ending, and the bytes of their rows.

::

    jpeg, png                  .jpg .png     the files as they are stored
    other images               .png          uint8 and uint16, encoded without loss
    int64 scalars              .cls          digits
    other arrays               .npy
    text, bytes                .txt .bin

The name of a feature goes before the ending, unless it is one: "image.jpg", but "jpg", "vec.npy".
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from stepwell.codecs import make_codec
from stepwell.errors import FeatureNotFoundError, SchemaError
from stepwell.formats.source_episodes import SourceEpisode
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Feature, Image, Schema
from stepwell.webdataset.member_columns import IMAGES, NUMBERS, TEXTS

__all__ = ["MemberForm", "episode_form", "make_forms"]

PIECE_BYTES = 16 << 20
PIECE_ROWS = 256
# of a member's name up to the last slash would be its sample's
ENDING = re.compile(r"[^./\0][^/\0]*")
FILE_CODECS = {"jpeg": "jpg", "png": "png"}


@dataclass(frozen=True)
class MemberForm:
    """How one feature is written."""

    name: str
    # as the source has it
    feature: Feature
    ending: str

    def rows(self, episode: SourceEpisode, start: int, stop: int) -> Iterator[bytes]:
        """Yield the bytes of the members of steps [start, stop)."""
        if self._as_stored is not None:
            yield from self._stored_rows(episode, start, stop)
            return
        feature = self.feature
        row_bytes = PIECE_BYTES // PIECE_ROWS if feature.is_ragged else max(1, feature.row_bytes)
        most = max(1, min(PIECE_ROWS, PIECE_BYTES // row_bytes))
        for first in range(start, stop, most):
            for value in episode.read(self.name, first, min(first + most, stop)):
                yield self._encode(value)

    def _stored_rows(self, episode: SourceEpisode, start: int, stop: int) -> Iterator[bytes]:
        blobs = episode.blobs(self.name, stop)[start:]
        codec = make_codec(self.feature)
        if isinstance(codec, FileCodec):
            yield from codec.embed(blobs).rows(codec.embedded())
            return
        yield from map(bytes, blobs)

    @property
    def is_plain(self) -> bool:
        """Whether all rows of an episode are one array."""
        feature = self.feature
        return self.ending == "npy" and not feature.is_ragged

    @property
    def written(self) -> Feature:
        """The feature that the members are."""
        feature = self.feature
        codec = make_codec(feature)
        if self._as_stored is not None:
            return codec.embedded() if isinstance(codec, FileCodec) else feature
        return replace(feature, codec="png" if self.ending == "png" else "raw", options=())

    @cached_property
    def _as_stored(self) -> Feature | None:
        """The feature whose rows are files; None where members are made of decoded values."""
        return _feature_of_files(self.feature)

    @cached_property
    def _encode(self) -> Callable[[Any], bytes]:
        feature = self.feature
        if feature.kind == "text":
            return lambda value: str(value).encode("utf-8")
        if feature.kind == "bytes":
            return bytes
        if self.ending.endswith(NUMBERS):
            return lambda value: b"%d" % int(value)
        if feature.kind == "image" and feature.np_dtype.kind == "u":
            encode: Callable[[Any], bytes] = make_codec(Image(feature.shape, feature.dtype, codec="png")).encode
            return encode
        return _npy

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("name", "feature", "ending")}


def make_forms(schema: Schema, rename: Mapping[str, str], leave_out: tuple[str, ...]) -> list[MemberForm]:
    """Return how the features of a source are written."""
    unknown = [name for name in rename if name not in schema]
    if unknown:
        raise FeatureNotFoundError(f"no feature {unknown[0]!r} to rename. There are: {', '.join(schema)}.")
    forms = [
        MemberForm(name, feature, _ending(name, feature, rename.get(name)))
        for name, feature in schema.items()
        if name not in leave_out
    ]
    seen: dict[str, str] = {}
    for form in forms:
        other = seen.setdefault(form.ending.lower(), form.name)
        if other != form.name:
            raise SchemaError(f"features {other!r} and {form.name!r} would both be .{form.ending} files: rename= one.")
    if not forms:
        raise SchemaError("no features to write.")
    return forms


def episode_form(name: str, feature: Feature) -> MemberForm:
    """Return how a feature is written in shards of episodes: its ending is that of its kind alone."""
    usual = _usual_ending(feature)
    return MemberForm(name, feature, "npy" if usual == "cls" else usual)


def _ending(name: str, feature: Feature, given: str | None) -> str:
    usual = _usual_ending(feature)
    last = (given or name).rpartition(".")[2].lower()
    fits = last in _fitting_endings(usual)
    if given is not None and not (fits and ENDING.fullmatch(given)):
        raise SchemaError(
            f"feature {name!r}, {feature}, as .{given}: its members are {usual} files. Give an ending such as "
            f"{name}.{usual}."
        )
    return given or (name if fits else f"{name}.{usual}")


def _fitting_endings(usual: str) -> tuple[str, ...]:
    if usual in IMAGES:
        return (usual, "jpeg") if usual == "jpg" else (usual,)
    return {"cls": NUMBERS, "txt": (*TEXTS, "json", "jsn")}.get(usual, (usual,))


def _usual_ending(feature: Feature) -> str:
    stored = _feature_of_files(feature)
    if stored is not None:
        return FILE_CODECS[stored.codec]
    if feature.kind == "text":
        return "txt"
    if feature.kind == "bytes":
        return "bin"
    if feature.kind == "image" and feature.np_dtype.kind == "u":
        return "png"
    return "cls" if feature.shape == () and feature.np_dtype == np.int64 else "npy"


def _feature_of_files(feature: Feature) -> Feature | None:
    """Return the feature, or what it refers to, where its rows are JPEG or PNG files."""
    codec = make_codec(feature)
    own = codec.embedded() if isinstance(codec, FileCodec) else feature
    return replace(own, options=()) if own.codec in FILE_CODECS else None


def _npy(value: Any) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(value), allow_pickle=False)
    return stream.getvalue()
