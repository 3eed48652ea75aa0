"""Checks of ``meta/``: what cannot be read, order, repetition and totals of its tables, and stored statistics.

Source: huggingface/lerobot issues 3682 (pixels squared as uint8) and 4156 (the mean of quantiles for the quantile).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.lerobot.audits.episodes import Places
from stepwell.lerobot.audits.report import COMPUTE_AGAIN, LOOK_AGAIN, RENUMBER, Rule, Subject, Tally, problem_of
from stepwell.lerobot.depth import MAX_CODE, depth_of
from stepwell.lerobot.info import INFO_PATH, DatasetInfo, FeatureInfo, Problem
from stepwell.lerobot.meta_files import (
    EPISODES_FOLDER,
    SUBTASK_INDEX,
    SUBTASKS_PATH,
    EpisodeRecords,
    episode_paths,
    read_json,
    read_subtasks,
    read_table,
    read_task_rows,
)
from stepwell.lerobot.statistics import EPISODES_STATS_LINES, QUANTILES, STATS_PATH, as_lerobot, stats_of_lines
from stepwell.sizes import counted
from stepwell.store.statistics import FeatureStatistics

__all__ = [
    "StoredStatistics",
    "check_camera_statistics",
    "check_episode_order",
    "check_statistics",
    "check_subtasks",
    "check_task_order",
    "check_totals",
    "read_episodes",
    "read_info",
    "read_statistics",
    "read_tasks",
]

INFO = Rule("info", "error", "Correct meta/info.json; of what it says wrong nothing else can be read.")
EPISODES = Rule(
    "episodes-unreadable",
    "error",
    "Download or write meta/ again; a recorder that was killed leaves files without end.",
)
TASKS = Rule("tasks-unreadable", "error", "Download or write meta/tasks again: without it no step has a text.")

SUBTASKS = Rule("subtasks-unreadable", "error", f"Download or write {SUBTASKS_PATH} again, or remove it.")
SUBTASK = Rule("subtask-index", "error", f"Add the texts to {SUBTASKS_PATH}, or correct the numbers in the data files.")


def read_info(root: Path, tally: Tally) -> DatasetInfo | None:
    """Return ``meta/info.json`` without the features that are wrong there; None when all of it is."""

    def report(problem: Problem) -> None:
        tally.add(INFO, problem.about, problem_of(problem.error))

    try:
        return DatasetInfo.parse(read_json(root / INFO_PATH), report=report)
    except FormatError as error:
        tally.add(INFO, "", problem_of(error))
        return None


def read_tasks(root: Path, info: DatasetInfo, tally: Tally) -> list[tuple[int, str]] | None:
    """Return (task_index, text) in the order of the file; None when it cannot be read."""
    try:
        return read_task_rows(root, info)
    except FormatError as error:
        tally.add(TASKS, "", problem_of(error))
        return None


def read_episodes(root: Path, info: DatasetInfo, tally: Tally) -> EpisodeRecords:
    """Return the table of episodes, as far as it can be read, in the order of the files."""

    def report(problem: Problem) -> None:
        tally.add(EPISODES, problem.about, problem.detail or problem_of(problem.error))

    if info.is_v3 and not episode_paths(root):
        tally.add(EPISODES, "", f"no parquet file below {EPISODES_FOLDER}")
    return read_table(root, info, report)[0]


EPISODE_ORDER = Rule(
    "episodes-order",
    "error",
    "Sort the table by episode_index, numbered from 0 on without gaps: readers take row n for episode n.",
)
TASK_ORDER = Rule(
    "tasks-order",
    "error",
    "Sort the tasks by task_index, from 0 on without gaps: LeRobot takes row n for task n, and shows other texts.",
)
TASK_REPEATED = Rule("tasks-repeated", "warning", "Give each text one task_index, and map the steps' to it.", RENUMBER)
TOTALS = Rule(
    "totals",
    "error",
    "Correct meta/info.json: LeRobot's length is its total_frames, and who records on numbers from its totals.",
)


def check_subtasks(subject: Subject, found: Mapping[str, FeatureStatistics]) -> None:
    """Check that the texts of subtasks can be read, and that no row has a number beyond them."""
    if SUBTASK_INDEX not in subject.info.features:
        return
    try:
        texts = read_subtasks(subject.root)
    except FormatError as error:
        subject.tally.add(SUBTASKS, "", problem_of(error))
        return
    if texts is None or SUBTASK_INDEX not in found:
        return
    most = float(found[SUBTASK_INDEX].max.max(initial=-1))
    if most >= len(texts):
        subject.tally.add(SUBTASK, "", f"a row has subtask_index {most:g}; there are {len(texts)} texts")


def check_task_order(subject: Subject) -> None:
    """Check that each task_index leads to its own text, and that no text comes twice."""
    if subject.tasks is None:
        return
    numbers = [number for number, _ in subject.tasks]
    if subject.info.is_v3:
        wrong = [(place, number) for place, number in enumerate(numbers) if place != number]
        if wrong:
            # of a number that is there twice it is not known which text is its
            command = RENUMBER if len(set(numbers)) == len(numbers) else ""
            detail = f"row {wrong[0][0]} of the tasks has task_index {wrong[0][1]}"
            subject.tally.add(TASK_ORDER, "", detail, command=command)
    else:
        # v2 readers look tasks up by their number
        twice = [number for number, count in Counter(numbers).items() if count > 1]
        if twice:
            subject.tally.add(TASK_ORDER, "", f"task_index {twice[0]} is there twice")
    repeated = [text for text, count in Counter(text for _, text in subject.tasks).items() if count > 1]
    if repeated:
        subject.tally.add(TASK_REPEATED, "", f"the text {repeated[0]!r} has several task_index")


def check_episode_order(subject: Subject) -> None:
    """Check that row n of the table of episodes is episode n."""
    number = subject.episodes.index
    wrong = np.flatnonzero(number != np.arange(len(number)))
    if len(wrong):
        detail = f"row {wrong[0]} of the table of episodes is episode {number[wrong[0]]}"
        subject.tally.add(EPISODE_ORDER, "", detail, number[wrong])


def check_totals(subject: Subject, num_rows: int, places: Places) -> None:
    """Compare the totals of ``meta/info.json`` with what is there."""
    info, raw = subject.info, subject.info.raw
    found = {"total_episodes": len(subject.episodes)}
    if (places.length > 0).all():
        found["total_frames"] = num_rows
    if subject.tasks is not None:
        found["total_tasks"] = len(subject.tasks)
    if not info.is_v3:
        found["total_videos"] = len(info.video_keys) * len(subject.episodes)
    wrong = {name: number for name, number in found.items() if raw.get(name, number) != number}
    # of episodes that are not there nothing can be read
    command = "" if "total_episodes" in wrong else RENUMBER
    for name, number in wrong.items():
        detail = f"{name} is {raw[name]} in meta/info.json, there are {number}"
        subject.tally.add(TOTALS, "", detail, command=command)


Floats = npt.NDArray[np.float64]
# of the range from least to greatest: what rounding and float32 sums may cost
EXTREME_TOLERANCE, MOMENT_TOLERANCE = 1e-4, 1e-3
RELATIVE_TOLERANCE, TINY = 1e-5, 1e-9
# of the value of what never changes: what is left of its std where the mean's square is taken from the squares' mean
CANCELLED = 1e-3
RANK_TOLERANCE = 0.02
# cameras: others look at some images only, and at some of their pixels
PIXEL_MEAN_TOLERANCE, PIXEL_STD_FACTOR = 0.05, 2.0

MISSING = Rule(
    "statistics-missing",
    "warning",
    "Compute them. Policies normalise by them.",
    LOOK_AGAIN,
)
WRONG = Rule(
    "statistics",
    "error",
    "Compute them again: a policy normalises by these, in training and ever after.",
    COMPUTE_AGAIN,
)
QUANTILE = Rule(
    "statistics-quantiles",
    "warning",
    "Compute them again. lerobot up to 0.6.0 stores the mean of the episodes' quantiles; policies that normalise by "
    "quantiles clip the wrong values.",
    COMPUTE_AGAIN,
)
CAMERA = Rule(
    "statistics-camera",
    "warning",
    "Compute them again, or normalise by ImageNet's. lerobot up to 0.4.4 squares pixels in uint8: std is about 0.",
    LOOK_AGAIN,
)


@dataclass(frozen=True, slots=True)
class StoredStatistics:
    """The statistics that a dataset stores, as JSON types."""

    whole: Mapping[str, Any] | None  # by feature and key, of all episodes; None where there are none
    by_episode: Mapping[int, Mapping[str, Any]]  # the same by the episode's number; v2.1 only

    def is_per_element(self, feature: FeatureInfo) -> bool:
        """Whether a feature of several axes has an entry for each element, not one along the last axis."""
        records = [self.whole or {}, *list(self.by_episode.values())[:1]]
        found: Any = next((record[feature.name] for record in records if feature.name in record), {})
        minimum = found.get("min") if isinstance(found, Mapping) else None
        return minimum is not None and np.size(minimum) == math.prod(feature.shape)


def read_statistics(subject: Subject) -> StoredStatistics:
    """Return the statistics that the dataset stores; missing and unreadable files are findings."""
    is_by_episode = subject.info.version == "v2.1"
    name = EPISODES_STATS_LINES if is_by_episode else STATS_PATH
    path = subject.root / name
    if not path.exists():
        subject.tally.add(MISSING, "", f"no {name}")
        return StoredStatistics(None, {})
    try:
        if is_by_episode:
            found = {number: dict(stats) for number, stats in stats_of_lines(path)}
            lacking = sorted({*subject.episodes.index[subject.places].tolist()} - found.keys())
            if lacking:
                subject.tally.add(MISSING, "", f"{name} has no line of episode {lacking[0]}", lacking)
            return StoredStatistics(None, found)
        return StoredStatistics(dict(read_json(path)), {})
    except (FormatError, TypeError, ValueError) as error:
        subject.tally.add(MISSING, "", f"{name} cannot be read: {problem_of(error)}")
        return StoredStatistics(None, {})


def check_statistics(
    subject: Subject, stored: Mapping[str, Any], found: Mapping[str, FeatureStatistics], episode: int | None = None
) -> None:
    """Compare stored statistics of numbers with those of the rows."""
    episodes = [] if episode is None else [episode]
    of_what = "" if episode is None else f" of episode {episode}"
    for name, summary in found.items():
        # indexes are not normalised, and values that are not finite are another finding
        if subject.info.features[name].is_index or (summary.num_nan + summary.num_inf).any():
            continue
        if name not in stored:
            subject.tally.add(MISSING, name, f"no statistics{of_what}", episodes)
            continue
        broken = _broken_rule(stored[name], summary, subject.info.features[name])
        if broken is not None:
            subject.tally.add(broken[0], name, broken[1] + of_what, episodes)


def _broken_rule(stored: Any, found: FeatureStatistics, feature: FeatureInfo) -> tuple[Rule, str] | None:
    """Return what is wrong with the statistics of one feature; None if nothing is."""
    try:
        problem = _moment_problem(stored, as_lerobot(found, feature))
        if problem is not None:
            return WRONG, problem
        problem = _quantile_problem(stored, found)
        return None if problem is None else (QUANTILE, problem)
    except (AttributeError, TypeError, ValueError) as error:
        return WRONG, f"cannot be read: {type(error).__name__}: {error}"


def _values(entry: Mapping[str, Any], key: str) -> Floats | None:
    """Return one value of a feature's statistics, flat; None where it is not there."""
    return None if entry.get(key) is None else np.asarray(entry[key], np.float64).ravel()


def _moment_problem(entry: Mapping[str, Any], right: Mapping[str, npt.NDArray[Any]]) -> str | None:
    """Return what is wrong with min, max, mean, std and count; None if nothing is."""
    spread = np.nan_to_num(right["max"] - right["min"]).ravel()
    scale = np.abs(np.nan_to_num(right["max"])).ravel()
    for key in ("min", "max", "mean", "std"):
        stored, expected = _values(entry, key), right[key].ravel()
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
    count = _values(entry, "count")
    if count is not None and count.size and count[0] != right["count"][0]:
        return f"count is {count[0]:g}, {right['count'][0]} is right"
    return None


def _quantile_problem(entry: Mapping[str, Any], found: FeatureStatistics) -> str | None:
    """Return which quantile is not one: too few or too many values are below it."""
    stored = {key: values for key in QUANTILES if (values := _values(entry, key)) is not None}
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
    stored: Mapping[str, Any],
    found: FeatureStatistics | None,
    episodes: tuple[int, ...] = (),
) -> None:
    """Compare stored statistics of a camera with its images (`found`), or, without these, with themselves."""
    if camera not in stored:
        subject.tally.add(MISSING, camera, "no statistics", episodes)
        return
    try:
        values = {key: _values(stored[camera], key) for key in ("mean", "std", "q01", "q99")}
    except (AttributeError, TypeError, ValueError) as error:
        subject.tally.add(CAMERA, camera, f"cannot be read: {type(error).__name__}: {error}", episodes)
        return
    mean, std = values["mean"], values["std"]
    channels = 1 if subject.info.features[camera].is_depth else 3
    if mean is None or std is None or not mean.size == std.size == channels:
        subject.tally.add(CAMERA, camera, f"mean or std is not of {counted(channels, 'channel')}", episodes)
    elif found is None or _is_clipped(subject.info.features[camera], stored[camera]):
        _check_possible(subject, camera, values, episodes)
    else:
        _check_pixels(subject, camera, (mean, std), found, episodes)


def _is_clipped(feature: FeatureInfo, stored: Mapping[str, Any]) -> bool:
    """Return whether depths were recorded, and summed up, that lie beyond the codes of the video."""
    depth, highest = depth_of(feature.raw), _values(stored, "max")
    if depth is None or depth.quantization is None or highest is None:
        return False
    return bool(highest.max(initial=0) > depth.values(np.array([MAX_CODE]))[0])


def _check_possible(
    subject: Subject, camera: str, values: Mapping[str, Floats | None], episodes: tuple[int, ...]
) -> None:
    """Check that std is as large as the tails demand: a hundredth of the pixels lies beyond q01, and beyond q99."""
    mean, std, low, high = (values[key] for key in ("mean", "std", "q01", "q99"))
    if mean is None or std is None or low is None or high is None or not low.size == high.size == mean.size:
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
    # depths have any range
    scale = float(right["max"].max()) if subject.info.features[camera].is_depth else 1.0
    allowed = PIXEL_MEAN_TOLERANCE * scale
    for key, values, expected, is_wrong in (
        ("mean", stored[0], mean, ~(np.abs(stored[0] - mean) <= allowed)),
        ("std", stored[1], std, ~(stored[1] <= std * PIXEL_STD_FACTOR + allowed)),
        ("std", stored[1], std, ~(stored[1] * PIXEL_STD_FACTOR + 1e-3 * scale >= std)),
    ):
        if is_wrong.any():
            at = int(np.argmax(is_wrong))
            detail = f"{key}[{at}] is {values[at]:.3g}, that of its pictures is {expected[at]:.3g}"
            subject.tally.add(CAMERA, camera, detail, episodes)
            return
