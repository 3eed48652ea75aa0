"""Statistics of segments and of any selection of episodes.

A sealed segment keeps its own: moments and quantiles in ``segment.json`` for people, everything with the sketches in
``statistics.npz`` for merging. A selection merges those of segments that it holds whole, and reads the rows of the
others. Segments of a ring have none: most would go before anybody asks for them.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.codecs import SequentialCodec, make_codec
from stepwell.errors import CorruptSegmentError, FeatureNotFoundError, StoreAccessError, StoreFileError
from stepwell.schema import Feature, Schema
from stepwell.store.beneath import open_file
from stepwell.store.column_statistics import (
    column_statistics,
    has_statistics,
    sample_rows,
    statistics_shape,
    stream_statistics,
)
from stepwell.store.episodes import EpisodeTable
from stepwell.store.feature_statistics import FeatureStatistics, merge_all
from stepwell.store.layout import replace_file
from stepwell.store.npy import read_again
from stepwell.store.runs import RunReader
from stepwell.store.segments import Segment, check_row_bytes

__all__ = [
    "STATISTICS",
    "FeatureStatistics",
    "Selection",
    "aggregate",
    "load_statistics",
    "segment_statistics",
    "statistics_json",
    "write_statistics",
]

STATISTICS = "statistics.npz"


class Selection(NamedTuple):
    """Episodes of one store, as it was at one moment.

    Args:
        schema: its features.
        segments: its segments; `EpisodeTable.segment` is an index into them.
        table: the chosen episodes.
    """

    schema: Schema | None
    segments: Sequence[Segment]
    table: EpisodeTable


def segment_statistics(
    segment: Segment,
    schema: Schema,
    names: Iterable[str] | None = None,
    *,
    episodes: npt.NDArray[Any] | EpisodeTable | None = None,
) -> dict[str, FeatureStatistics]:
    """Compute the statistics of a segment from its rows.

    Args:
        segment: sealed or open.
        schema: the store's features.
        names: features to take; default all that have statistics. Others are left out.
        episodes: start, length and rows of the episodes to count; default all ended ones that were not discarded.
            Features with ``final`` count their final rows too.

    Returns:
        By name, in the schema's order.

    Raises:
        CorruptSegmentError: a file is missing or too short.
        DecodeError: an encoded row that its codec refuses.
    """
    wanted = set(schema if names is None else names)
    chosen = {name: feature for name, feature in schema.items() if name in wanted and has_statistics(feature)}
    records: Any = _shown(segment.episodes) if episodes is None else _columns(episodes)
    masks: dict[bool, npt.NDArray[np.bool_]] = {}
    for final in {feature.final for feature in chosen.values()}:
        lengths = records["rows"] if final else records["length"]
        masks[final] = _row_mask(segment.num_rows, records["start"], lengths)
    return {name: _feature_statistics(segment, name, feature, masks[feature.final]) for name, feature in chosen.items()}


def aggregate(parts: Iterable[Selection], names: Iterable[str] | None = None) -> dict[str, FeatureStatistics]:
    """Return the statistics of a selection of episodes of one or several stores.

    Args:
        parts: of each store; ``[Selection(store.schema, *store.listing)]`` is all of one. An episode counts once,
            however often it is chosen.
        names: features to take; default all that have statistics.

    Returns:
        By name; of no episodes a count of 0 and NaN. Where every chosen segment is whole and sealed no row is read.

    Raises:
        CorruptSegmentError: a statistics file is damaged, or a data file is missing or too short.
        SchemaError: stores with one name for features of different shapes.
        FeatureNotFoundError: a name that none of the stores has.
    """
    wanted = None if names is None else list(names)
    found: dict[str, list[FeatureStatistics]] = {}
    parts = list(parts)
    known = {name for part in parts for name in part.schema or ()}
    if known and wanted is not None and not known.issuperset(wanted):
        unknown = ", ".join(repr(name) for name in wanted if name not in known)
        raise FeatureNotFoundError(f"no feature {unknown}. There are: {', '.join(sorted(known))}.")
    for part in parts:
        for some in _selected(part, wanted):
            for name, statistics in some.items():
                found.setdefault(name, []).append(statistics)
    merged = {name: merge_all(several) for name, several in found.items()}
    for part in parts:
        for name, feature in (part.schema or {}).items():
            if name not in merged and has_statistics(feature) and (wanted is None or name in wanted):
                # no episode has it
                merged[name] = FeatureStatistics.empty(statistics_shape(feature))
    return merged


def statistics_json(statistics: Mapping[str, FeatureStatistics]) -> dict[str, Any]:
    """Return what ``segment.json`` tells people: moments and quantiles, without the sketches."""
    return {name: found.to_json() for name, found in statistics.items()}


def write_statistics(directory: str | Path, statistics: Mapping[str, FeatureStatistics]) -> None:
    """Write ``statistics.npz`` of a segment; the same statistics give the same bytes.

    Raises:
        DiskFullError: no space; what was there before stays.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, found in statistics.items():
            for field, array in found.to_arrays().items():
                entry = io.BytesIO()
                np.lib.format.write_array(entry, array, allow_pickle=False)
                # a ZipInfo of its own: numpy.savez would write the time of day
                archive.writestr(zipfile.ZipInfo(f"{name}/{field}.npy"), entry.getvalue())
    replace_file(f"{directory}/{STATISTICS}", buffer.getvalue(), sync=False)


def load_statistics(directory: str | Path, names: Iterable[str] | None = None) -> dict[str, FeatureStatistics]:
    """Read ``statistics.npz`` of a segment.

    Args:
        directory: the segment's.
        names: features to read; default all. Those that the file does not have are left out.

    Returns:
        By name; empty when there is no such file.

    Raises:
        CorruptSegmentError: the file is damaged.
    """
    path = Path(directory) / STATISTICS

    def read() -> dict[str, FeatureStatistics]:
        with open(open_file(path), "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return _read_archive(arrays, names)

    try:
        # a list: an iterator is used up by the first try
        names = None if names is None else list(names)
        return read_again(read)
    except FileNotFoundError:
        return {}
    except (StoreFileError, StoreAccessError):
        raise
    except Exception as error:  # zipfile raises errors of seven kinds, depending on the bit
        raise CorruptSegmentError(f'{path}: damaged ({error}). Run "stepwell verify PATH".') from error


def _read_archive(arrays: Mapping[str, npt.NDArray[Any]], names: Iterable[str] | None) -> dict[str, FeatureStatistics]:
    fields: dict[str, list[str]] = {}
    for key in arrays:
        name, _, field = key.rpartition("/")
        fields.setdefault(name, []).append(field)
    wanted = list(fields) if names is None else [name for name in names if name in fields]
    return {
        name: FeatureStatistics.from_arrays({field: arrays[f"{name}/{field}"] for field in fields[name]})
        for name in wanted
    }


def _selected(part: Selection, names: list[str] | None) -> Iterator[dict[str, FeatureStatistics]]:
    schema, segments, table = part
    if schema is None:
        return
    order = np.argsort(table.segment, kind="stable")
    indices, starts = np.unique(table.segment[order], return_index=True)
    for index, mine in zip(indices, np.split(order, starts[1:]), strict=False):
        segment = segments[index]
        episodes = table.take(mine)
        stored = load_statistics(segment.path, names) if _is_whole(segment, episodes) else {}
        missing = [name for name in (schema if names is None else names) if name not in stored]
        yield stored | segment_statistics(segment, schema, missing, episodes=episodes)


def _is_whole(segment: Segment, episodes: EpisodeTable) -> bool:
    shown = _shown(segment.episodes)
    return segment.is_sealed and np.array_equal(np.unique(episodes.start), shown["start"])


def _shown(records: npt.NDArray[Any]) -> npt.NDArray[Any]:
    shown: npt.NDArray[Any] = records[~records["discarded"]]
    return shown


def _columns(episodes: npt.NDArray[Any] | EpisodeTable) -> Any:
    if isinstance(episodes, EpisodeTable):
        return {"start": episodes.start, "length": episodes.length, "rows": episodes.rows}
    return episodes


def _row_mask(num_rows: int, starts: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    changes = np.zeros(num_rows + 1, np.int32)
    np.add.at(changes, starts, 1)
    np.subtract.at(changes, starts + lengths, 1)
    mask: npt.NDArray[np.bool_] = np.cumsum(changes[:-1], dtype=np.int32) > 0
    return mask


def _feature_statistics(
    segment: Segment, name: str, feature: Feature, mask: npt.NDArray[np.bool_]
) -> FeatureStatistics:
    if feature.is_raw:
        data = segment.raw_map(name)[: segment.num_rows * feature.row_bytes]
        rows = data.view(feature.np_dtype).reshape(segment.num_rows, *feature.fixed_shape)
        return column_statistics(rows, feature, mask=None if mask.all() else mask)
    valid = np.flatnonzero(mask)
    sample = sample_rows(feature, len(valid))
    chosen = valid if sample is None else valid[sample]
    return stream_statistics(_decode(segment, name, feature, chosen), feature, is_sampled=sample is not None)


def _decode(segment: Segment, name: str, feature: Feature, rows: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
    codec, offsets, blobs = make_codec(feature), segment.offsets_map(name), segment.blob_map(name)
    if isinstance(codec, SequentialCodec):
        yield from RunReader(codec, offsets, blobs, segment.num_rows).values(rows)
        return
    check_row_bytes(name, feature, offsets[: segment.num_rows + 1])
    out = None if feature.is_ragged else np.empty(feature.fixed_shape, feature.np_dtype)
    for row in rows:
        blob = blobs[int(offsets[row]) : int(offsets[row + 1])]
        if out is None:
            yield codec.decode(blob)
        else:
            codec.decode_into(blob, out)
            yield out
