"""The printed forms of a store: its line, its table, the same as HTML and as JSON.

::

    <Store pusht.well  206 episodes  25,650 steps  10 fps  412 MB (7.3x)>
      observation.image    jpeg   96x96x3  uint8    268 MB  (2.6x)
      observation.front    video  96x96x3  uint8    39.4 MB  (18.0x)  1.54 kB a step
      observation.state    raw    (2,)     float32  205 kB
      action               raw    (2,)     float32  205 kB
      episode lengths      min 49  median 118  max 246   ▂▅▇▆▃▁

    <Store beton://train.beton  60,000 episodes  60,000 steps  1.53 GB in 1 file, in place; 2.88 MB in the store>
      image                beton-image  ?x?x3  uint8    1.52 GB  in place
      label                raw          ()     int64     480 kB

Sizes are decimal (1 kB = 1,000 bytes) and count what lies on disk; a ratio is the decoded size over the size on disk.
Of rows that lie in files of others it is their size there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import SequentialCodec, codec_class
from stepwell.display.html import bars, block, line, table
from stepwell.errors import StepwellError
from stepwell.references.file_codec import (
    REFERENCE_DTYPE,
    FileCodec,
    ListedFileCodec,
    NumberedFileCodec,
    files_of,
    template_of,
)
from stepwell.references.span_files import noted_bytes
from stepwell.references.trusted_paths import check_reach
from stepwell.schema import Feature
from stepwell.sizes import counted, human_bytes
from stepwell.store.layout import column_files

if TYPE_CHECKING:
    from stepwell.store import Segment, Store
    from stepwell.store.records import Capacity

__all__ = [
    "FeatureRow",
    "FilesInPlace",
    "StoreTable",
    "file_codec_of",
    "length_counts",
    "lengths_text",
    "make_table",
    "shape_text",
    "sparkline",
]

BARS = "▁▂▃▄▅▆▇█"
MAX_BARS = 16


@dataclass(frozen=True, slots=True)
class FeatureRow:
    """One feature's line: how it is stored, and what it takes."""

    name: str
    codec: str
    shape: str
    dtype: str
    stored_bytes: int  # on disk, over all segments, offsets and headers included
    raw_bytes: int | None  # decoded; None where that is not known without decoding (ragged rows of a compressing codec)
    # mean bytes of a step on disk, where what a step takes depends on the steps before it (video), or on its size
    # (images of any size); else None
    step_bytes: float | None = None
    # whether rows were left in files of others; ``stored_bytes`` are those of the references then
    is_in_place: bool = False
    in_place_bytes: int | None = None  # of such rows, in these files; None where that is not known

    @property
    def ratio(self) -> float | None:
        """Decoded bytes over those in files of an encoded feature; None for raw ones and where it is not known."""
        if self.codec == "raw" or self.is_plain_in_place or not self.raw_bytes or not self.num_bytes:
            return None
        return self.raw_bytes / self.num_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the rows: on disk, or in the files that they were left in, where that is known."""
        return self.stored_bytes if self.in_place_bytes is None else self.in_place_bytes

    @property
    def is_plain_in_place(self) -> bool:
        """Whether the rows are plain bytes in files of others."""
        return self.is_in_place and self.in_place_bytes == self.raw_bytes


@dataclass(frozen=True, slots=True)
class FilesInPlace:
    """The files of others that rows of a store were left in."""

    num_files: int  # how many they are
    num_bytes: int  # what they had when references into them were made; have now, where that is not noted


@dataclass(frozen=True, slots=True)
class StoreTable:
    """The result of `Store.info`: numbers as attributes, ``str()`` is the table, notebooks show it as HTML."""

    name: str
    path: str
    num_episodes: int
    num_steps: int
    num_segments: int
    fps: float | None
    capacity: str | None  # of a ring, for people: "100,000 steps", "20.0 GB"; else None
    features: tuple[FeatureRow, ...]
    lengths: tuple[int, float, int] | None  # (min, median, max) steps of an episode; None without episodes
    length_counts: tuple[int, ...]  # episodes in each of at most 16 equal bins from the shortest to the longest
    in_place: FilesInPlace | None = None  # files of others that the store refers to; None: none

    @property
    def stored_bytes(self) -> int:
        """Bytes on disk, over all features."""
        return sum(row.stored_bytes for row in self.features)

    @property
    def ratio(self) -> float | None:
        """Decoded bytes over stored bytes of the whole store; None when a feature's decoded size is not known."""
        # Nor has a store of references one.
        raw = [row.raw_bytes for row in self.features]
        if not self.stored_bytes or self.in_place is not None or any(size is None for size in raw):
            return None
        return sum(size for size in raw if size is not None) / self.stored_bytes

    @property
    def line(self) -> str:
        """The store in one line: ``<Store pusht.well  206 episodes  25,650 steps  10 fps  412 MB (7.3x)>``."""
        parts = [self.name, counted(self.num_episodes, "episode"), counted(self.num_steps, "step")]
        if self.fps is not None:
            parts.append(f"{self.fps:g} fps")
        if self.capacity is not None:
            parts.append(f"ring of {self.capacity}")
        ratio = (
            "" if self.ratio is None or all(row.codec == "raw" for row in self.features) else f" ({self.ratio:.1f}x)"
        )
        left, own = self.in_place, human_bytes(self.stored_bytes)
        if left is not None:
            files = f"{human_bytes(left.num_bytes)} in {counted(left.num_files, 'file')}"
            own = f"{files}, in place; {own} in the store"
        return f"<Store {'  '.join(parts)}  {own}{ratio}>"

    def rows(self) -> list[tuple[str, ...]]:
        """Return the features' cells: name, codec, shape, dtype, size, ratio."""
        return [
            (row.name, row.codec, row.shape, row.dtype, human_bytes(row.num_bytes), _ratio(row))
            for row in self.features
        ]

    @property
    def lengths_line(self) -> str:
        """The episodes' lengths: ``min 49  median 118  max 246   ▂▅▇▆▃▁``."""
        if self.lengths is None:
            return "no episodes"
        return f"{_lengths_text(self.lengths)}   {sparkline(self.length_counts)}"

    def to_json(self) -> dict[str, Any]:
        """Return the table as JSON types."""
        record = asdict(self)
        record["features"] = [{**asdict(row), "ratio": row.ratio} for row in self.features]
        record["lengths"] = self.lengths and dict(zip(("min", "median", "max"), self.lengths, strict=True))
        return {
            **record,
            "length_counts": list(self.length_counts),
            "stored_bytes": self.stored_bytes,
            "ratio": self.ratio,
        }

    def __str__(self) -> str:
        rows = self.rows()
        label = "episode lengths"
        widths = [max(len(row[column]) for row in [*rows, (label, *[""] * 5)]) for column in range(6)]
        lines = [self.line]
        for row in rows:
            cells = [f"{cell:<{width}}" for cell, width in zip(row[:4], widths, strict=False)]
            lines.append("  ".join(["", *cells, f"{row[4]:>{widths[4]}}", row[5]]).rstrip())
        lines.append(f"  {label:<{widths[0]}}  {self.lengths_line}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return block(self.line, *self.html_parts())

    def html_parts(self) -> tuple[str, str]:
        """Return its features and the lengths of its episodes as tables in HTML."""
        return (
            table(self.rows(), ("feature", "codec", "shape", "dtype", "on disk", "ratio"), "feature"),
            line("episode lengths", bars(self.length_counts), _lengths_text(self.lengths)),
        )


def make_table(store: Store) -> StoreTable:
    """Return the table of a store, as of its last refresh."""
    schema = store.schema
    segments, table = store.listing
    lengths = np.asarray(table.length)
    return StoreTable(
        name=store.name,
        path=str(store.path),
        num_episodes=len(table),
        num_steps=int(lengths.sum()),
        num_segments=len(segments),
        fps=store.fps,
        capacity=None if store.capacity is None else _capacity(store.capacity),
        features=tuple(_feature_row(store, name, schema[name]) for name in schema or ()) if schema else (),
        lengths=_lengths(lengths),
        length_counts=length_counts(lengths),
        in_place=_files_in_place(store),
    )


def sparkline(counts: Sequence[int]) -> str:
    """Return counts as a line of bars; the lowest bar is kept for zero."""
    top = max(counts, default=0)
    return "".join(BARS[0] if not count else BARS[max(1, round(count / top * 7))] for count in counts)


def lengths_text(lengths: npt.NDArray[np.int64]) -> str:
    """Return the least, the median and the greatest of lengths of episodes."""
    return _lengths_text(_lengths(lengths))


def _lengths(lengths: npt.NDArray[np.int64]) -> tuple[int, float, int] | None:
    return (int(lengths.min()), float(np.median(lengths)), int(lengths.max())) if len(lengths) else None


def _lengths_text(lengths: tuple[int, float, int] | None) -> str:
    if lengths is None:
        return "no episodes"
    shortest, median, longest = lengths
    return f"min {shortest:,}  median {median:,g}  max {longest:,}"


def _feature_row(store: Store, name: str, feature: Feature) -> FeatureRow:
    segments = store.segments
    stored = sum(_stored_bytes(segment, name, feature) for segment in segments)
    num_rows = sum(segment.num_rows for segment in segments)
    raw: int | None = None
    # other references do not say how large the rows are that they refer to
    kind = _codec_class_of(feature)
    is_reference, is_listed = issubclass(kind, FileCodec), issubclass(kind, ListedFileCodec)
    left = _in_place_bytes(store, name, feature)
    if is_listed and feature.option("format", "") == "raw":
        raw = left
    elif not feature.is_ragged and (is_listed or not is_reference):
        raw = num_rows * feature.row_bytes
    elif feature.codec == "raw":
        raw = stored
    dtype = feature.np_dtype.name if feature.kind in ("array", "image") else feature.kind
    is_run = issubclass(kind, SequentialCodec) and not is_reference
    has_steps = is_run or (feature.is_image_of_any_size and not is_reference)
    step_bytes = stored / num_rows if num_rows and has_steps else None
    return FeatureRow(name, feature.codec, shape_text(feature), dtype, stored, raw, step_bytes, is_reference, left)


def _capacity(capacity: Capacity) -> str:
    return str(capacity) if capacity.unit == "steps" else human_bytes(capacity.amount)


def file_codec_of(feature: Feature) -> type[FileCodec] | None:
    """Return the codec of a feature whose rows are references into files of others; None of any other feature."""
    kind = _codec_class_of(feature)
    return kind if issubclass(kind, FileCodec) else None


def _codec_class_of(feature: Feature) -> type[Any]:
    """Return the class of a feature's codec; ``object`` of a raw one, and of an unknown codec."""
    try:
        return object if feature.is_raw else codec_class(feature)
    except StepwellError:
        return object


def _in_place_bytes(store: Store, name: str, feature: Feature) -> int | None:
    """Return the bytes that rows of a feature have in files of others."""
    kind = file_codec_of(feature)
    if kind is None:
        return None
    if issubclass(kind, ListedFileCodec):
        return sum(kind.bytes_in_files(_references(segment, name)) for segment in store.segments)
    # a file of video has one camera, a table has other columns, too
    is_all = issubclass(kind, NumberedFileCodec) and issubclass(kind, SequentialCodec)
    return sum(_numbered_sizes(store, name, feature).values()) if is_all else None


def _files_in_place(store: Store) -> FilesInPlace | None:
    """Return how many files rows of a store were left in, and their bytes; None where there are none."""
    sizes: dict[str, int] = {}
    seen = set()
    for name, feature in (store.schema or {}).items():
        kind = file_codec_of(feature)
        if kind is not None and issubclass(kind, ListedFileCodec):
            options = tuple(feature.option(option, "") for option in ("root", "files", "states"))
            # features of one data set list the same ones
            if options not in seen:
                seen.add(options)
                sizes.update((path, noted_bytes(line)) for path, line in files_of(feature).recorded_states())
        elif kind is not None and issubclass(kind, NumberedFileCodec):
            sizes.update(_numbered_sizes(store, name, feature))
    return FilesInPlace(len(sizes), sum(sizes.values())) if sizes else None


def _numbered_sizes(store: Store, name: str, feature: Feature) -> Mapping[str, int]:
    """Return the files that references lead to, with their bytes; 0 of one that is not there."""
    places: set[tuple[int, int]] = set()
    for segment in store.segments:
        references = _references(segment, name).view(REFERENCE_DTYPE)
        where = references[["chunk", "file"]]
        # rows of one file follow each other
        is_other = (np.diff(where["chunk"]) != 0) | (np.diff(where["file"]) != 0)
        firsts = np.flatnonzero(np.concatenate([[len(where) > 0], is_other]))
        places.update(tuple(place) for place in where[firsts].tolist())
    template, sizes = template_of(feature), {}
    for chunk, file in places:
        path = template.format(chunk=chunk, file=file)
        sizes[path] = 0
        # a file that references may not lead to counts as empty
        with suppress(OSError):
            check_reach(path, feature.reach)
            sizes[path] = os.stat(path).st_size
    return sizes


def _references(segment: Segment, name: str) -> Any:
    """Return the references of a segment back to back, uint8 [16 n]."""
    try:
        blobs = segment.blob_map(name)
    except FileNotFoundError:
        # compacted away since the store was refreshed
        return np.empty(0, np.uint8)
    size = REFERENCE_DTYPE.itemsize
    return blobs[: min(len(blobs) // size, segment.num_rows) * size]


def _stored_bytes(segment: Segment, name: str, feature: Feature) -> int:
    """Return the bytes of a feature in a segment; files of a live one are longer than what was written to them."""
    if segment.is_sealed:
        try:
            return sum((segment.path / file).stat().st_size for file in column_files(name, feature))
        except FileNotFoundError:
            # compacted away since the store was refreshed
            return 0
    if segment.num_rows == 0:
        return 0
    if feature.is_raw:
        return segment.num_rows * feature.row_bytes
    return 8 * (segment.num_rows + 1) + int(segment.offsets_map(name)[segment.num_rows])


def shape_text(feature: Feature) -> str:
    """Return the shape of a step for people."""
    if feature.kind in ("text", "bytes"):
        return "any length"
    sizes = ["?" if size is None else str(size) for size in feature.shape]
    if feature.kind == "image":
        return "x".join(sizes)
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def length_counts(lengths: npt.NDArray[np.int64]) -> tuple[int, ...]:
    """Return how many lengths are in each of at most 16 equal bins, from the shortest to the longest."""
    if not len(lengths):
        return ()
    # a few episodes over many bins would be all gaps
    num_bins = int(min(MAX_BARS, lengths.max() - lengths.min() + 1, np.ceil(2 * np.sqrt(len(lengths)))))
    return tuple(np.histogram(lengths, bins=num_bins)[0].tolist())


def _ratio(row: FeatureRow) -> str:
    parts = [] if row.ratio is None else [f"({row.ratio:.1f}x)"]
    if row.step_bytes is not None:
        parts.append(f"{human_bytes(round(row.step_bytes))} a step")
    if row.is_in_place:
        parts.append("references" if row.in_place_bytes is None else "in place")
    return "  ".join(parts)
