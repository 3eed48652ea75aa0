"""What an import reports: of each feature how it came, how it is stored and how large it is.

::

    pusht.well: 206 episodes  25,650 steps  in 3.2 s
      splits: train taken, of train (206), val (20); split=NAME takes another
      feature            came as  stored          bytes
      observation.image  png      as it was     89.1 MB
      observation.top    video    jpeg           210 MB
      action             raw      as it was      205 kB
      all                                        299 MB
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.formats.splits import TakenSplit, taken_split
from stepwell.recorders.conversion_reports import aligned, headline
from stepwell.schema import Feature, Schema
from stepwell.sizes import human_bytes
from stepwell.store import Store
from stepwell.store.info import make_table

__all__ = ["ImportReport", "ImportedFeature", "report_of"]

TITLES = ("feature", "came as", "stored", "bytes")
IS_NUMBER = (False, False, False, True)


@dataclass(frozen=True, slots=True)
class ImportedFeature:
    """What became of one feature.

    Args:
        before: the feature as its rows come from the source.
        after: as it is stored; the same one where the rows were taken as they are.
        num_bytes: on the disk, offsets and headers included.
    """

    before: Feature
    after: Feature
    num_bytes: int

    @property
    def is_kept(self) -> bool:
        """Whether the rows were stored as they came."""
        return self.before == self.after

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types."""
        return {
            "is_kept": self.is_kept,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "num_bytes": self.num_bytes,
        }


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What `import_dataset` did; ``print`` shows it as a table.

    Args:
        path: of the store.
        num_episodes: in it.
        num_steps: in it; final rows do not count.
        seconds: that the call took; of an import that was gone on with, the last one.
        features: name to what became of the feature, in the schema's order.
        split: which of several splits of the source it is; None where there are not several.
    """

    path: Path
    num_episodes: int
    num_steps: int
    seconds: float
    features: Mapping[str, ImportedFeature]
    split: TakenSplit | None = None

    @property
    def num_bytes(self) -> int:
        """Of all features, on the disk."""
        return sum(feature.num_bytes for feature in self.features.values())

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return {
            "path": str(self.path),
            "num_episodes": self.num_episodes,
            "num_steps": self.num_steps,
            "seconds": self.seconds,
            "num_bytes": self.num_bytes,
            "split": None if self.split is None else self.split.to_json(),
            "features": {name: feature.to_json() for name, feature in self.features.items()},
        }

    def __str__(self) -> str:
        rows = [TITLES, *(_cells(name, feature) for name, feature in self.features.items())]
        rows.append(("all", "", "", human_bytes(self.num_bytes)))
        head = headline(self.path, self.num_episodes, self.num_steps, self.seconds)
        split = "" if self.split is None else f"\n  splits: {self.split}"
        return aligned(f"{head}{split}", rows, IS_NUMBER)


def report_of(store: Store, before: Schema, seconds: float) -> ImportReport:
    """Return the report of a store that was imported.

    Args:
        store: it.
        before: the schema of the source.
        seconds: that it took.
    """
    table, schema = make_table(store), store.schema
    assert schema is not None
    return ImportReport(
        path=store.path,
        num_episodes=table.num_episodes,
        num_steps=table.num_steps,
        seconds=seconds,
        features={
            row.name: ImportedFeature(before[row.name], schema[row.name], row.stored_bytes) for row in table.features
        },
        split=taken_split(store.metadata),
    )


def _cells(name: str, feature: ImportedFeature) -> tuple[str, ...]:
    stored = "as it was" if feature.is_kept else _how(feature.after)
    return name, _how(feature.before), stored, human_bytes(feature.num_bytes)


def _how(feature: Feature) -> str:
    is_plain = feature.codec in ("raw", "video")
    return " ".join([feature.codec, *(() if is_plain else (f"{name}={value}" for name, value in feature.options))])
