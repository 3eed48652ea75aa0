"""What a conversion reports: of each feature its size before and after and what was lost.

::

    toy.well: 3 episodes  18 steps  in 0.2 s
      feature            before                    after                              ratio   PSNR     worst
      observation.image  png   2.4 kB              jpeg quality=90            12 kB    0.2x   41.2 dB  39.8 dB at 2:7
      action             raw   144 B               copied                     144 B    1.0x
      all                      2.6 kB                                         12 kB    0.2x
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.schema import Feature
from stepwell.sizes import counted, human_bytes

__all__ = ["ConvertReport", "ConvertedFeature", "Distortion", "mean_square_error"]

TITLES = ("feature", "from", "", "to", "", "ratio", "PSNR", "worst")
IS_NUMBER = (False, False, True, False, True, True, True, False)


@dataclass(frozen=True, slots=True)
class Distortion:
    """The errors of a number of rows."""

    num_rows: int = 0
    total: float = 0.0
    worst: float = 0.0
    episode: int | None = None
    step: int | None = None

    @property
    def is_lossless(self) -> bool:
        """Whether every row came back bit by bit."""
        return self.total == 0.0

    @property
    def mean_db(self) -> float:
        """PSNR of all rows together, dB; infinite where nothing was lost."""
        return _decibels(self.total / max(1, self.num_rows))

    @property
    def worst_db(self) -> float:
        """PSNR of the worst row, dB."""
        return _decibels(self.worst)

    def with_row(self, error: float, episode: int, step: int) -> Distortion:
        """Return what it is with one row more."""
        return Distortion.joined([self, Distortion(1, error, error, episode, step)])

    @staticmethod
    def joined(parts: Iterable[Distortion]) -> Distortion:
        """Return what it is over all rows; of rows that are equally bad the first counts."""
        num_rows, total, worst = 0, 0.0, Distortion()
        for part in parts:
            num_rows, total = num_rows + part.num_rows, total + part.total
            worst = part if part.worst > worst.worst else worst
        return Distortion(num_rows, total, worst.worst, worst.episode, worst.step)


@dataclass(frozen=True, slots=True)
class ConvertedFeature:
    """What became of one feature.

    Args:
        before: the feature in the source.
        after: in the target; the same one when its bytes were copied.
        bytes_before: of the converted episodes' rows, on the disk, those of their offsets included.
        bytes_after: the same in the target.
        distortion: what was lost; None when the bytes were copied.
    """

    before: Feature
    after: Feature
    bytes_before: int
    bytes_after: int
    distortion: Distortion | None

    @property
    def ratio(self) -> float | None:
        """Bytes before over bytes after; None without bytes."""
        return self.bytes_before / self.bytes_after if self.bytes_after else None

    @property
    def psnr_db(self) -> float | None:
        """PSNR over all rows, dB: infinite when lossless, None when copied."""
        return None if self.distortion is None else self.distortion.mean_db

    @property
    def worst_psnr_db(self) -> float | None:
        """PSNR of the worst row, dB: infinite when lossless, None when copied."""
        return None if self.distortion is None else self.distortion.worst_db

    @property
    def worst_at(self) -> tuple[int, int] | None:
        """Episode and step, in the target, of the worst row; None when nothing was lost."""
        found = self.distortion
        return None if found is None or found.episode is None or found.step is None else (found.episode, found.step)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON types; decibels that are infinite are null, ``is_lossless`` says so."""
        return {
            "is_copied": self.distortion is None,
            "is_lossless": self.distortion is None or self.distortion.is_lossless,
            "before": self.before.to_json(),
            "after": self.after.to_json(),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "ratio": self.ratio,
            "psnr_db": _finite(self.psnr_db),
            "worst_psnr_db": _finite(self.worst_psnr_db),
            "worst_at": None if self.worst_at is None else list(self.worst_at),
        }


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What `convert` did; ``print`` shows it as a table.

    Args:
        path: of the new store.
        num_episodes: converted.
        num_steps: theirs; final rows do not count.
        seconds: it took.
        features: name to what became of the feature, in the schema's order.
        split: of a data set of another system, which of its splits it is, and what others there are; None where there
            are not several.

    Example:
        >>> import tempfile, stepwell
        >>> from stepwell.testing import tiny_store
        >>> folder = tempfile.mkdtemp()
        >>> store = tiny_store(f"{folder}/a.well", lengths=[3, 5])
        >>> report = stepwell.convert(store, f"{folder}/b.well", {"observation.image": "delta"}, workers=1)
        >>> report.num_episodes, report.num_steps, report.path.name, len(report.features)
        (2, 8, 'b.well', 5)
    """

    path: Path
    num_episodes: int
    num_steps: int
    seconds: float
    features: Mapping[str, ConvertedFeature]
    split: Any = None

    @property
    def bytes_before(self) -> int:
        """Of all features' rows in the source."""
        return sum(feature.bytes_before for feature in self.features.values())

    @property
    def bytes_after(self) -> int:
        """Of all features' rows in the target."""
        return sum(feature.bytes_after for feature in self.features.values())

    @property
    def ratio(self) -> float | None:
        """Bytes before over bytes after; None without bytes."""
        return self.bytes_before / self.bytes_after if self.bytes_after else None

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return {
            "path": str(self.path),
            "num_episodes": self.num_episodes,
            "num_steps": self.num_steps,
            "seconds": self.seconds,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "ratio": self.ratio,
            "split": None if self.split is None else self.split.to_json(),
            "features": {name: feature.to_json() for name, feature in self.features.items()},
        }

    def __str__(self) -> str:
        rows = [TITLES, *(_cells(name, feature) for name, feature in self.features.items())]
        rows.append(
            ("all", "", human_bytes(self.bytes_before), "", human_bytes(self.bytes_after), _times(self.ratio), "", "")
        )
        steps = f"{counted(self.num_episodes, 'episode')}  {counted(self.num_steps, 'step')}"
        head = [f"{self.path.name}: {steps}  in {self.seconds:.1f} s"]
        head += [] if self.split is None else [f"  splits: {self.split}"]
        return "\n".join([*head, *_aligned(rows)])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(IS_NUMBER))]
    return [
        "  ".join(
            ["", *(f"{cell:>{width}}" if is_right else f"{cell:<{width}}" for cell, width, is_right in cells)]
        ).rstrip()
        for cells in (zip(row, widths, IS_NUMBER, strict=True) for row in rows)
    ]


def _cells(name: str, feature: ConvertedFeature) -> tuple[str, ...]:
    is_copied = feature.before == feature.after
    worst = ""
    if feature.worst_at is not None and feature.worst_psnr_db is not None:
        episode, step = feature.worst_at
        worst = f"{feature.worst_psnr_db:.1f} dB at {episode}:{step}"
    return (
        name,
        _how(feature.before),
        human_bytes(feature.bytes_before),
        "copied" if is_copied else _how(feature.after),
        human_bytes(feature.bytes_after),
        _times(feature.ratio),
        "" if feature.psnr_db is None else "lossless" if math.isinf(feature.psnr_db) else f"{feature.psnr_db:.1f} dB",
        worst,
    )


def _how(feature: Feature) -> str:
    # a path says nothing of how
    return " ".join([feature.codec, *(f"{name}={value}" for name, value in feature.options if name != "files")])


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3g}x"


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value


def mean_square_error(before: Any, after: Any) -> float:
    """Return the mean squared difference of two rows in units of the peak: 0 is equal, 1 as wrong as can be."""
    if not isinstance(before, np.ndarray | np.generic):
        return 0.0 if before == after else 1.0
    if before.tobytes() == after.tobytes():
        return 0.0
    if before.dtype.kind not in "iuf" or before.shape != after.shape:
        return 1.0
    # too little to be seen in the numbers is something: the bytes differ
    return max(_relative_error(before, after), sys.float_info.min)


def _relative_error(before: Any, after: Any) -> float:
    """Return the mean squared difference of two arrays of numbers, in units of the peak."""
    if before.dtype.kind == "f":
        peak = float(np.max(np.abs(before), initial=0.0))
        with np.errstate(all="ignore"):
            found = float(np.square((before.astype(np.float64) - after) / peak).mean()) if peak else 1.0
        return found if math.isfinite(found) else 1.0
    limits = np.iinfo(before.dtype)
    # float32 holds every difference of 16 bits exactly, at half the memory
    wide = np.float32 if before.dtype.itemsize <= 2 else np.float64
    difference = np.subtract(before, after, dtype=wide)
    peak = float(limits.max) - float(limits.min)
    return float(np.square(difference, out=difference).mean(dtype=np.float64)) / (peak * peak)


def _decibels(error: float) -> float:
    return math.inf if error == 0.0 else -10 * math.log10(error)
