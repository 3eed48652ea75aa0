"""Checks of stored statistics: against those of the rows, and against themselves.

Source: huggingface/lerobot issues 3682 (pixels squared as uint8) and 4156 (the mean of quantiles for the quantile).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.lerobot.audits.info import problem_of
from stepwell.lerobot.audits.reports import Rule
from stepwell.lerobot.audits.subject import Subject
from stepwell.lerobot.info import FeatureInfo
from stepwell.lerobot.meta_files import read_json, read_json_lines
from stepwell.lerobot.statistics import as_lerobot
from stepwell.store.statistics import FeatureStatistics

__all__ = ["StoredStatistics", "check_camera_statistics", "check_statistics", "read_statistics"]

Floats = npt.NDArray[np.float64]
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
# of the range from least to greatest: what rounding and float32 sums may cost
EXTREME_TOLERANCE, MOMENT_TOLERANCE = 1e-4, 1e-3
RELATIVE_TOLERANCE, TINY = 1e-5, 1e-9
# of the value of what never changes: what is left of its std where the mean's square is taken from the squares' mean
CANCELLED = 1e-3
RANK_TOLERANCE = 0.02
# cameras: others look at some images only, and at some of their pixels
PIXEL_MEAN_TOLERANCE, PIXEL_STD_FACTOR = 0.05, 2.0
WRITE_AGAIN = "Compute them again: stepwell.lerobot.statistics_of"

MISSING = Rule(
    "statistics-missing", "warning", "Compute them: stepwell.lerobot.statistics_of. Policies normalise by them."
)
WRONG = Rule("statistics", "error", f"{WRITE_AGAIN}: a policy normalises by these, in training and ever after.")
QUANTILE = Rule(
    "statistics-quantiles",
    "warning",
    f"{WRITE_AGAIN}. lerobot up to 0.6.0 stores the mean of the episodes' quantiles; policies that normalise by "
    "quantiles clip the wrong values.",
)
CAMERA = Rule(
    "statistics-camera",
    "warning",
    f"{WRITE_AGAIN}, or normalise by ImageNet's. lerobot up to 0.4.4 squares pixels in uint8, so that std is about 0.",
)


@dataclass(frozen=True, slots=True)
class StoredStatistics:
    """What a dataset says.

    Args:
        whole: by feature and key, of all episodes; None where it is not said.
        by_episode: the same by the episode's number; v2.1 only.
    """

    whole: Mapping[str, Any] | None
    by_episode: Mapping[int, Mapping[str, Any]]

    def is_per_element(self, feature: FeatureInfo) -> bool:
        """Whether a feature of several axes has an entry for each element, not one along the last axis."""
        records = [self.whole or {}, *list(self.by_episode.values())[:1]]
        found: Any = next((record[feature.name] for record in records if feature.name in record), {})
        minimum = found.get("min") if isinstance(found, Mapping) else None
        return minimum is not None and np.size(minimum) == math.prod(feature.shape)


def read_statistics(subject: Subject) -> StoredStatistics:
    """Return what the dataset says; what is missing or cannot be read is a finding."""
    name = "episodes_stats.jsonl" if subject.info.version == "v2.1" else "stats.json"
    path = subject.root / "meta" / name
    if not path.exists():
        subject.tally.add(MISSING, "", f"no meta/{name}")
        return StoredStatistics(None, {})
    try:
        if subject.info.version == "v2.1":
            lines = read_json_lines(path)
            return StoredStatistics(None, {int(line["episode_index"]): dict(line["stats"]) for line in lines})
        return StoredStatistics(dict(read_json(path)), {})
    except (FormatError, KeyError, TypeError, ValueError) as error:
        subject.tally.add(MISSING, "", f"meta/{name} cannot be read: {problem_of(error)}")
        return StoredStatistics(None, {})


def check_statistics(
    subject: Subject, said: Mapping[str, Any], found: Mapping[str, FeatureStatistics], episode: int | None = None
) -> None:
    """Compare stored statistics of numbers with those of the rows.

    Args:
        subject: what is audited.
        said: by feature and key, as stored.
        found: by feature, of the same rows.
        episode: number of the one that they are of; None: of all.
    """
    episodes = [] if episode is None else [episode]
    of_what = "" if episode is None else f" of episode {episode}"
    for name, summary in found.items():
        # nobody normalises indexes, and what is not finite is another finding
        if subject.info.features[name].is_index or (summary.num_nan + summary.num_inf).any():
            continue
        if name not in said:
            subject.tally.add(MISSING, name, f"no statistics{of_what}", episodes)
            continue
        broken = _broken_rule(said[name], summary, subject.info.features[name])
        if broken is not None:
            subject.tally.add(broken[0], name, broken[1] + of_what, episodes)


def _broken_rule(said: Any, found: FeatureStatistics, feature: FeatureInfo) -> tuple[Rule, str] | None:
    """Return what is wrong with the statistics of one feature; None if nothing is."""
    try:
        problem = _moment_problem(said, as_lerobot(found, feature))
        if problem is not None:
            return WRONG, problem
        problem = _quantile_problem(said, found)
        return None if problem is None else (QUANTILE, problem)
    except (AttributeError, TypeError, ValueError) as error:
        return WRONG, f"cannot be read: {type(error).__name__}: {error}"


def _values(said: Mapping[str, Any], key: str) -> Floats | None:
    """Return one entry as stored; None where it is not there."""
    return None if said.get(key) is None else np.asarray(said[key], np.float64).ravel()


def _moment_problem(said: Mapping[str, Any], right: Mapping[str, npt.NDArray[Any]]) -> str | None:
    """Return what is wrong with min, max, mean, std and count; None if nothing is."""
    spread = np.nan_to_num(right["max"] - right["min"]).ravel()
    scale = np.abs(np.nan_to_num(right["max"])).ravel()
    for key in ("min", "max", "mean", "std"):
        stored, expected = _values(said, key), right[key].ravel()
        if stored is None:
            return f"no {key}"
        if stored.size != expected.size:
            return f"{key} has {stored.size} numbers, {expected.size} are right"
        share = EXTREME_TOLERANCE if key in ("min", "max") else MOMENT_TOLERANCE
        rounding = CANCELLED if key == "std" else RELATIVE_TOLERANCE
        allowed = share * spread + rounding * np.where(spread == 0, scale, np.abs(expected)) + TINY
        wrong = ~(np.abs(stored - expected) <= allowed) & ~np.isnan(expected)
        if wrong.any():
            at = int(np.argmax(wrong))
            return f"{key}{_place(at, stored.size)} is {stored[at]:.6g}, {expected[at]:.6g} is right"
    count = _values(said, "count")
    if count is not None and count.size and count[0] != right["count"][0]:
        return f"count is {count[0]:g}, {right['count'][0]} is right"
    return None


def _quantile_problem(said: Mapping[str, Any], found: FeatureStatistics) -> str | None:
    """Return which quantile is not one: too few or too many values are below it."""
    stored = {key: values for key in QUANTILES if (values := _values(said, key)) is not None}
    wrong_size = next((key for key, values in stored.items() if values.size != found.count.size), None)
    if wrong_size is not None:
        return f"{wrong_size} has {stored[wrong_size].size} numbers, {found.count.size} are right"
    slack = RANK_TOLERANCE + 1 / max(1, int(found.count.max(initial=1)))
    right = np.array([QUANTILES[key] for key in stored])
    wanted = np.concatenate([right - slack, right, right + slack]).clip(0, 1)
    low, middle, high = np.split(np.array([sketch.quantile(wanted) for sketch in found.sketches]).T, 3)
    allowed = EXTREME_TOLERANCE * np.nan_to_num(found.max - found.min).ravel() + RELATIVE_TOLERANCE
    for number, (key, values) in enumerate(stored.items()):
        wrong = ~((values >= low[number] - allowed) & (values <= high[number] + allowed))
        if wrong.any():
            at = int(np.argmax(wrong))
            return f"{key}{_place(at, values.size)} is {values[at]:.6g}, {middle[number, at]:.6g} is right"
    return None


def _place(at: int, size: int) -> str:
    return f"[{at}]" if size > 1 else ""


def check_camera_statistics(
    subject: Subject,
    camera: str,
    said: Mapping[str, Any],
    found: FeatureStatistics | None,
    episodes: tuple[int, ...] = (),
) -> None:
    """Compare stored statistics of a camera with its pictures, or, without these, with themselves.

    Args:
        subject: what is audited.
        camera: name of the feature.
        said: by feature and key, as stored.
        found: of some of the pictures; None: they were not looked at.
        episodes: number of the one that they are of; empty: of all.
    """
    if camera not in said:
        subject.tally.add(MISSING, camera, "no statistics", episodes)
        return
    try:
        values = {key: _values(said[camera], key) for key in ("mean", "std", "q01", "q99")}
    except (AttributeError, TypeError, ValueError) as error:
        subject.tally.add(CAMERA, camera, f"cannot be read: {type(error).__name__}: {error}", episodes)
        return
    mean, std = values["mean"], values["std"]
    if mean is None or std is None or not mean.size == std.size == 3:
        subject.tally.add(CAMERA, camera, "mean or std is not of 3 channels", episodes)
    elif found is None:
        _check_possible(subject, camera, values, episodes)
    else:
        _check_pixels(subject, camera, (mean, std), found, episodes)


def _check_possible(
    subject: Subject, camera: str, values: Mapping[str, Floats | None], episodes: tuple[int, ...]
) -> None:
    """Look whether std is as large as the tails demand: a hundredth of the pixels lies beyond q01, and beyond q99."""
    mean, std, low, high = (values[key] for key in ("mean", "std", "q01", "q99"))
    if mean is None or std is None or low is None or high is None or not low.size == high.size == 3:
        return
    least = math.sqrt(0.01) * np.maximum(mean - low, high - mean)
    wrong = std * PIXEL_STD_FACTOR < least
    if wrong.any():
        at = int(np.argmax(wrong))
        detail = f"std[{at}] is {std[at]:.3g}; with such quantiles it is at least {least[at]:.3g}"
        subject.tally.add(CAMERA, camera, detail, episodes)


def _check_pixels(
    subject: Subject, camera: str, stored: tuple[Floats, Floats], found: FeatureStatistics, episodes: tuple[int, ...]
) -> None:
    right = as_lerobot(found, subject.info.features[camera])
    mean, std = right["mean"].ravel(), right["std"].ravel()
    for key, said, expected, is_wrong in (
        ("mean", stored[0], mean, ~(np.abs(stored[0] - mean) <= PIXEL_MEAN_TOLERANCE)),
        ("std", stored[1], std, ~(stored[1] <= std * PIXEL_STD_FACTOR + PIXEL_MEAN_TOLERANCE)),
        ("std", stored[1], std, ~(stored[1] * PIXEL_STD_FACTOR + 1e-3 >= std)),
    ):
        if is_wrong.any():
            at = int(np.argmax(is_wrong))
            detail = f"{key}[{at}] is {said[at]:.3g}, that of its pictures is {expected[at]:.3g}"
            subject.tally.add(CAMERA, camera, detail, episodes)
            return
