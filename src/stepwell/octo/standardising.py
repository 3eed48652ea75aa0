"""Episodes of any RLDS dataset with the same names and shapes: what Octo calls restructuring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError
from stepwell.loader.batch import nest
from stepwell.recorders.sources import EpisodeData
from stepwell.store.values import has_rows

__all__ = ["IMAGE", "PADS", "Standardize"]

Floats = npt.NDArray[np.float32]
IMAGE, PADS = "observation.image_", "observation.pad_mask_dict."
# names that stepwell gives what it computes itself, see TfdsReader
OWN_PREFIX = "steps."


@dataclass(frozen=True)
class Standardize:
    """Make episodes of one dataset the episodes of any: ``transform=`` of a reader of RLDS.

    Args:
        name: of the dataset: what batches have as ``dataset_name``, and its statistics are found by.
        image_obs_keys: name of a camera to the observation that holds it; None: the dataset has no such camera. Its
            images are black then, and its ``pad_mask_dict`` False.
        proprio_obs_key: the observation, or observations joined, of the robot's own state; None in a sequence: a zero.
        language_key: name of the instruction: in the trajectory, or below with dots. None: there is none.
        standardize_fn: a function of a trajectory, written for Octo or OpenVLA: it gets nested dicts of arrays [T, ...]
            by the dataset's own names, whatever ``rename=`` says or a feature cannot be called, and returns such with
            "observation" and "action". Cameras are references to the files, of which slices, indices and masks take
            some without decoding; texts and what varies in length are arrays of objects. It may return tensors. An
            episode that it leaves no steps is left out.
        max_action_dim: action gets zeros up to so many dimensions; they are False in ``action_pad_mask``.
        max_proprio_dim: proprio gets zeros up to so many dimensions.

    Raises:
        FormatError: a name that a trajectory does not have, or columns of several lengths.

    Example:
        >>> standard = Standardize("arm", {"primary": "front", "wrist": None}, proprio_obs_key="state")
        >>> columns = {"observation.front": np.zeros((2, 8, 8, 3), np.uint8), "observation.state": np.ones((2, 3))}
        >>> made = standard(EpisodeData({**columns, "action": np.zeros((2, 7))}))
        >>> made.columns["observation.pad_mask_dict.image_wrist"].tolist(), made.columns["observation.proprio"].dtype
        ([False, False], dtype('float32'))

    Notes:
        An immutable value that workers can import when its function is one of a module.
    """

    name: str
    image_obs_keys: Mapping[str, str | None] = field(default_factory=dict)
    proprio_obs_key: str | Sequence[str | None] | None = None
    language_key: str | None = None
    standardize_fn: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None
    max_action_dim: int | None = None
    max_proprio_dim: int | None = None

    def __call__(self, episode: EpisodeData) -> EpisodeData | None:
        """Return the episode standardised; None, which leaves it out, where its function leaves it no steps."""
        return self._standardized(episode, {})

    def with_paths(self, paths: Mapping[str, Sequence[str]]) -> Callable[[EpisodeData], EpisodeData | None]:
        """Return the same for columns to each of which these names lead in the dataset; its reader asks for it."""
        return partial(self._standardized, paths=paths)

    def _standardized(self, episode: EpisodeData, paths: Mapping[str, Sequence[str]]) -> EpisodeData | None:
        trajectory = _trajectory_of(episode, paths)
        if self.standardize_fn is not None:
            trajectory = dict(self.standardize_fn(trajectory))
        actions = self._numbers(trajectory, "action")
        length = len(actions)
        if not length:
            return None
        columns: dict[str, Any] = {"action": _widened(actions, self.max_action_dim, f"{self.name}: max_action_dim")}
        is_there = np.arange(columns["action"].shape[-1]) < actions.shape[-1]
        columns["action_pad_mask"] = np.tile(is_there, (length, 1))
        told = {"dataset_name": self.name, **_extremes("action", actions)}
        if self.proprio_obs_key is not None:
            proprio = self._proprio(trajectory, length)
            columns["observation.proprio"] = _widened(proprio, self.max_proprio_dim, f"{self.name}: max_proprio_dim")
            told |= _extremes("proprio", proprio)
        for new, old in self.image_obs_keys.items():
            rows = np.zeros((length, 1, 1, 3), np.uint8) if old is None else self._of(trajectory, f"observation.{old}")
            columns[f"{IMAGE}{new}"] = rows if has_rows(rows) else np.asarray(rows)
            columns[f"{PADS}image_{new}"] = np.full(length, old is not None)
        texts = [""] * length if self.language_key is None else _texts(self._of(trajectory, self.language_key))
        columns["language_instruction"] = texts
        told["is_labeled"] = any(texts)
        self._check_lengths(columns, length)
        return EpisodeData(columns, episode.terminated, episode.truncated, {**episode.metadata, **told})

    def _of(self, trajectory: Mapping[str, Any], name: str) -> Any:
        found: Any = trajectory
        for part in _parts(trajectory, name):
            if not isinstance(found, Mapping) or part not in found:
                there = ", ".join(sorted(found)) if isinstance(found, Mapping) else "no more names"
                raise FormatError(f"dataset {self.name!r}: no {name!r} in a trajectory. There are: {there}.")
            found = found[part]
        return found

    def _numbers(self, trajectory: Mapping[str, Any], name: str) -> Floats:
        values = np.asarray(self._of(trajectory, name))
        if values.ndim != 2 or values.dtype.kind not in "biuf":
            raise FormatError(
                f"dataset {self.name!r}: {name!r} is {values.dtype} {values.shape}. Allowed: numbers [T, dimensions]; "
                "standardize_fn= makes them."
            )
        return values.astype(np.float32)

    def _proprio(self, trajectory: Mapping[str, Any], length: int) -> Floats:
        keys = [self.proprio_obs_key] if isinstance(self.proprio_obs_key, str) else self.proprio_obs_key or ()
        parts = [
            np.zeros((length, 1), np.float32) if key is None else self._numbers(trajectory, f"observation.{key}")
            for key in keys
        ]
        return np.concatenate(parts, axis=1)

    def _check_lengths(self, columns: Mapping[str, Any], length: int) -> None:
        for name, values in columns.items():
            found = values.num_rows if has_rows(values) else len(values)
            if found != length:
                raise FormatError(f"dataset {self.name!r}: {name!r} has {found} steps, and 'action' {length}.")


def _trajectory_of(episode: EpisodeData, paths: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return an episode as nested dicts, by the names of the dataset, with what dlimp adds."""
    columns = {name: _as_rows(values) for name, values in episode.columns.items()}
    trajectory = nest({name.removeprefix(OWN_PREFIX): values for name, values in columns.items() if name not in paths})
    for name in filter(paths.__contains__, columns):
        *parents, last = paths[name]
        branch = trajectory
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = columns[name]
    length = min((values.num_rows if has_rows(values) else len(values) for values in columns.values()), default=0)
    told = {name: np.repeat(np.array(value, _dtype_of(value)), length) for name, value in _scalars(episode.metadata)}
    trajectory["traj_metadata"] = {"episode_metadata": told}
    trajectory["_len"], trajectory["_frame_index"] = np.full(length, length), np.arange(length)
    return trajectory


def _as_rows(values: Any) -> Any:
    """Return a column that can be sliced and masked."""
    if not isinstance(values, list):
        return values
    rows = np.empty(len(values), object)
    rows[:] = values
    return rows


def _scalars(metadata: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in metadata.items() if isinstance(value, str | bool | int | float)]


def _dtype_of(value: Any) -> Any:
    return object if isinstance(value, str) else None


def _parts(trajectory: Mapping[str, Any], name: str) -> list[str]:
    """Return the keys that lead to a name: names of observations may have dots of their own."""
    if name in trajectory:
        return [name]
    first, _, rest = name.partition(".")
    inner = trajectory.get(first)
    return [first, *_parts(inner, rest)] if rest and isinstance(inner, Mapping) else name.split(".")


def _texts(values: Any) -> list[str]:
    """Return texts of str, bytes, or a tensor of them."""
    rows = np.asarray(values, object).ravel().tolist() if not isinstance(values, list) else values
    return [row.decode() if isinstance(row, bytes) else str(row) for row in rows]


def _widened(values: Floats, dims: int | None, what: str) -> Floats:
    """Return values [T, n] with zeros up to [T, dims]."""
    if dims is None:
        return values
    if values.shape[-1] > dims:
        raise FormatError(f"{what}={dims}, and there are {values.shape[-1]} dimensions. Give at least as many.")
    return np.pad(values, [(0, 0), (0, dims - values.shape[-1])])


def _extremes(name: str, values: Floats) -> dict[str, Any]:
    """Return what `select_episodes` and `dataset_statistics` want to know without reading an episode."""
    return {
        f"{name}_dim": values.shape[-1],
        f"{name}_min": values.min(axis=0).tolist(),
        f"{name}_max": values.max(axis=0).tolist(),
    }
