"""Statistics of standardised datasets, in the form of ``dataset_statistics.json``, and what follows from them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError, WindowError
from stepwell.json_text import parse_json
from stepwell.store import Store
from stepwell.store.layout import replace_file
from stepwell.windows import View

__all__ = [
    "Normalization",
    "Scale",
    "Statistics",
    "dataset_name",
    "dataset_statistics",
    "load_statistics",
    "save_statistics",
    "select_episodes",
    "statistics_of",
]

Normalization = Literal["normal", "bounds", "bounds_q99"]
Statistics = Mapping[str, Mapping[str, Any]]
Floats = npt.NDArray[np.float32]


def dataset_statistics(stores: Store | View | Iterable[Store]) -> dict[str, dict[str, Any]]:
    """Return the statistics of standardised datasets, as the two programs keep them.

    Args:
        stores: of `Standardize`; Octo and OpenVLA take all splits of a dataset (``split="all"``).

    Returns:
        Name of a dataset to ``"action"`` and, where there is one, ``"proprio"``: lists ``mean``, ``std``, ``max``,
        ``min``, ``p01`` and ``p99`` (Octo), ``q01`` and ``q99`` (OpenVLA), of the dimensions that the dataset has; and
        ``num_transitions``, ``num_trajectories``. Quantiles are exact: those of ``np.quantile``.

    Raises:
        WindowError: a store that is not standardised, or of no steps.

    Notes:
        Holds one column in memory. Mean and deviation are summed in float64, where the two programs sum in float32.
    """
    found: dict[str, list[Any]] = {}
    for part in _view_of(stores).parts:
        episodes = [part.store[int(index)] for index in part.indices]
        if episodes:
            found.setdefault(dataset_name(episodes[0].metadata, part.store), []).extend(episodes)
    return {name: _computed(name, episodes) for name, episodes in found.items()}


def _computed(name: str, episodes: Sequence[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, column in (("action", "action"), ("proprio", "observation.proprio")):
        dims = episodes[0].metadata.get(f"{key}_dim")
        if dims is None:
            continue
        values = np.concatenate([episode[column][: episode.length, :dims] for episode in episodes])
        low, high = np.quantile(values, [0.01, 0.99], axis=0).tolist()
        made[key] = {
            "mean": values.mean(axis=0, dtype=np.float64).tolist(),
            "std": values.std(axis=0, dtype=np.float64).tolist(),
            "max": values.max(axis=0).tolist(),
            "min": values.min(axis=0).tolist(),
            **{"p01": low, "p99": high, "q01": low, "q99": high},
        }
    made["num_transitions"] = sum(episode.length for episode in episodes)
    made["num_trajectories"] = len(episodes)
    return made


def save_statistics(path: str | os.PathLike[str], statistics: Statistics) -> None:
    """Write statistics by dataset as ``dataset_statistics.json``, the file that ships with a policy.

    Args:
        path: of the file; it is replaced.
        statistics: as `dataset_statistics` returns them; arrays become lists, and a ``mask`` is kept.
    """
    text = json.dumps(statistics, indent=2, default=lambda value: np.asarray(value).tolist())
    replace_file(os.fspath(path), text.encode(), sync=False)


def load_statistics(path: str | os.PathLike[str], name: str | None = None) -> dict[str, dict[str, Any]]:
    """Read what `save_statistics`, Octo or OpenVLA wrote.

    Args:
        path: of the file.
        name: of the dataset that a file of one dataset's statistics alone is of, as Octo caches them.

    Returns:
        Name of a dataset to its statistics.

    Raises:
        FormatError: it is no such file, or one of a dataset whose name is not told.
    """
    try:
        found = parse_json(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise FormatError(f"{path} is no JSON: {error}.") from error
    if isinstance(found, dict) and "action" in found and "num_transitions" in found:
        if name is None:
            raise FormatError(f"{path} has the statistics of one dataset, without its name. Give name=.")
        found = {name: found}
    if not isinstance(found, dict) or not all(map(_has_actions, found.values())):
        raise FormatError(f'{path} has no statistics of datasets: an object of name to {{"action": ...}} is wanted.')
    return found


def _has_actions(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("action"), dict)


def select_episodes(
    view: Store | View,
    *,
    skip_unlabeled: bool = False,
    max_action: float | None = None,
    max_proprio: float | None = None,
    statistics: Statistics | None = None,
    normalization: Normalization | None = "normal",
) -> View:
    """Return the episodes that Octo and OpenVLA train on.

    Args:
        view: of `Standardize`.
        skip_unlabeled: leave those without an instruction out.
        max_action: leave those out in which a number of an action, once normalised, is beyond it to either side.
        max_proprio: the same of the robot's own state.
        statistics: by dataset, to normalise with; None: as stored.
        normalization: see `octo_batches`.

    Raises:
        WindowError: a view that is not standardised, or no statistics of a dataset.
    """
    limits = {key: most for key, most in (("action", max_action), ("proprio", max_proprio)) if most is not None}
    found = View(view) if isinstance(view, Store) else view
    scaled = None if statistics is None else normalization
    return found.select(where=partial(_is_wanted, skip_unlabeled, limits, scaled, statistics or {}))


def _is_wanted(
    skip_unlabeled: bool,
    limits: Mapping[str, float],
    normalization: Normalization | None,
    statistics: Statistics,
    facts: Mapping[str, Any],
) -> bool:
    name = dataset_name(facts, "the view")
    if facts["length"] == 0 or (skip_unlabeled and not facts["is_labeled"]):
        return False
    for key, most in limits.items():
        # a scale keeps the order of values, so its ends are those of what it makes
        ends = np.array([facts.get(f"{key}_min", []), facts.get(f"{key}_max", [])], np.float32)
        if normalization is not None and ends.size:
            ends = Scale.of(statistics_of(statistics, name), key, normalization, False, ends.shape[-1])(ends)
        if (np.abs(ends) > most).any():
            return False
    return True


@dataclass(frozen=True)
class Scale:
    """How values of one dataset are normalised: float32 [D] each."""

    center: Floats
    spread: Floats
    mask: npt.NDArray[np.bool_]
    is_clipped: bool
    constant: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls, statistics: Mapping[str, Any], key: str, normalization: Normalization, zeroes: bool, dims: int
    ) -> Scale:
        """Return the scale of ``action`` or ``proprio``; of so many dimensions the last ones may be padding."""
        told = statistics.get(key)
        known = {name: np.asarray(value) for name, value in told.items()} if isinstance(told, Mapping) else {}
        is_normal = normalization == "normal"
        needed = ("mean", "std") if is_normal else ("min", "max") if zeroes else ()
        lost = [name for name in needed if name not in known]
        if not known or lost:
            what = f"no {', '.join(lost)} of {key!r}" if known else f"none of {key!r}"
            raise WindowError(
                f"statistics: {what}, by which values are normalised. There are: {', '.join(known or statistics)}."
            )
        if is_normal:
            center, spread = known["mean"], known["std"] + 1e-8
        else:
            are_ends = normalization == "bounds" and zeroes
            low = known["min"] if are_ends else known.get("p01", known.get("q01"))
            high = known["max"] if are_ends else known.get("p99", known.get("q99"))
            if low is None or high is None:
                raise WindowError(f"statistics of {key!r} have no quantiles. There are: {', '.join(known)}.")
            center, spread = low, high - low + 1e-8
        own = len(center)
        mask = known.get("mask", np.ones(own, np.bool_)).astype(np.bool_)
        if own > dims or mask.shape != (own,):
            raise WindowError(
                f"statistics of {key!r} are of {own} dimensions, its mask of {mask.shape}, values of {dims}."
            )
        constant = known["min"] == known["max"] if zeroes and not is_normal else np.zeros(own, np.bool_)
        more = [(0, dims - own)]
        return cls(
            np.pad(center, more).astype(np.float32),
            np.pad(spread, more, constant_values=1).astype(np.float32),
            np.pad(mask, more),
            not is_normal,
            np.pad(constant, more),
        )

    def __call__(self, values: Floats) -> Floats:
        """Return values [..., D] scaled, in the two programs' order of operations."""
        if self.is_clipped:
            scaled = np.clip(np.float32(2) * (values - self.center) / self.spread - np.float32(1), -1, 1)
        else:
            scaled = (values - self.center) / self.spread
        found = np.where(self.constant, np.float32(0), np.where(self.mask, scaled, values))
        return found.astype(np.float32, copy=False)


def _view_of(stores: Store | View | Iterable[Store]) -> View:
    return stores if isinstance(stores, View) else View(stores if isinstance(stores, Store) else list(stores))


def dataset_name(metadata: Mapping[str, Any], where: object) -> str:
    """Return the dataset's name of an episode."""
    name = metadata.get("dataset_name")
    if not isinstance(name, str):
        raise WindowError(
            f"{where} was not standardised: an episode has no 'dataset_name'. Open or convert it with "
            "transform=Standardize(...)."
        )
    return name


def statistics_of(statistics: Statistics, name: str) -> Mapping[str, Any]:
    """Return the statistics of a dataset."""
    if name not in statistics:
        raise WindowError(f"there are no statistics of dataset {name!r}. There are: {', '.join(statistics)}.")
    return statistics[name]
