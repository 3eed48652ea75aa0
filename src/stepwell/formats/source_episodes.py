"""The episodes that are written out: of a store, of some of its episodes, of several stores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import SchemaError, StoreBusyError
from stepwell.formats.opening import open
from stepwell.schema import Feature, Schema
from stepwell.store import Segment, Store
from stepwell.store.decode import NameRows, rows_text
from stepwell.windows import View

__all__ = ["SourceEpisode", "as_view", "episodes_of", "refuse_rates", "schema_of"]

BATCH_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class SourceEpisode:
    """One ended episode of a snapshot."""

    store: Store
    segment: Segment
    # of the episode in its store
    index: int
    # its first row in the segment
    start: int
    length: int
    metadata: Mapping[str, Any]
    terminated: bool = False
    truncated: bool = False
    # whether another row follows, of the features with final
    has_final: bool = False

    def read(self, name: str, first: int = 0, stop: int | None = None) -> Any:
        """Return steps [first, stop) of a feature, decoded: an array, or a list of text; default all, no final row."""
        end = self.start + (self.length if stop is None else stop)
        return self.segment.read_rows(name, self.start + first, end, name_rows=self._namer(name))

    def _namer(self, name: str) -> NameRows:
        def name_rows(first: int, last: int) -> str:
            steps = rows_text(first - self.start, last - self.start).replace("row", "step")
            return f"{self.store.path}: episode {self.index}, {steps}, feature {name!r}"

        return name_rows

    def blobs(self, name: str, stop: int | None = None) -> list[npt.NDArray[np.uint8]]:
        """Return the encoded rows of a feature before step ``stop``, views of the file's map; default no final row."""
        offsets, blobs = self.segment.offsets_map(name), self.segment.blob_map(name)
        rows = self.length if stop is None else stop
        cuts = offsets[self.start : self.start + rows + 1].astype(np.int64)
        return [blobs[begin:end] for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)]

    def images(
        self, name: str, feature: Feature, steps: Sequence[int] | npt.NDArray[np.int64] | None = None
    ) -> Iterator[npt.NDArray[Any]]:
        """Yield decoded rows one by one, a batch of them in memory."""
        chosen = np.arange(self.length) if steps is None else np.asarray(steps, np.int64)
        most = max(1, BATCH_BYTES // max(1, feature.row_bytes))
        cuts = np.flatnonzero(np.diff(chosen) != 1) + 1
        for run in np.split(chosen, cuts):
            for begin in range(0, len(run), most):
                few = run[begin : begin + most]
                if len(few):
                    yield from self.read(name, int(few[0]), int(few[-1]) + 1)


def as_view(source: Store | View | str | os.PathLike[str]) -> View:
    """Return the view of a store, of a store's path, or the view itself."""
    if isinstance(source, View):
        return source
    return View(source if isinstance(source, Store) else open(source, mode="r"))


def schema_of(source: View | Store) -> Schema:
    """Return the features of all stores of a view."""
    stores = as_view(source).stores
    schemas = [store.schema for store in stores]
    first = schemas[0]
    if first is None:
        raise SchemaError(f"{stores[0].path} has no features yet. Record a step first.")
    for store, schema in zip(stores, schemas, strict=True):
        if schema != first:
            raise SchemaError(
                f"{store.path} has other features than {stores[0].path}. Write them one after the other; a LeRobot "
                "dataset takes the second with append=True."
            )
    return first


def refuse_rates(schema: Schema, target: str) -> Schema:
    """Return a schema that is written in a format with values a step alone; SchemaError where a feature has a rate."""
    if schema.rated:
        names = ", ".join(map(repr, schema.rated))
        raise SchemaError(
            f"feature {names} has a rate, and {target} has a value a step. Leave it and its times out: features=[...]; "
            "LeRobot datasets and copies of the store keep samples."
        )
    return schema


def episodes_of(source: View | Store) -> Iterator[SourceEpisode]:
    """Yield the episodes of a view in its order; those without a step are left out."""
    for part in as_view(source).parts:
        table = part.table
        for index in part.indices.tolist():
            if table.is_open[index]:
                raise StoreBusyError(
                    f"{part.store.path}: episode {index} is still being recorded. End it, or select the others."
                )
            if table.length[index]:
                yield SourceEpisode(
                    part.store,
                    part.segments[table.segment[index]],
                    index,
                    int(table.start[index]),
                    int(table.length[index]),
                    table.metadata(index),
                    terminated=bool(table.terminated[index]),
                    truncated=bool(table.truncated[index]),
                    has_final=bool(table.rows[index] > table.length[index]),
                )
