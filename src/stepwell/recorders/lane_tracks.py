"""The episodes that n environments are in, as arrays: what `EpisodeTrack` is to one environment, for all of them.

::

    reset         step                                       next step
    hold o [n]    append o, a, r of those that stepped       hold the next o [n]
                  those that end: final o, then held anew
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.store import VectorWriter

__all__ = ["Columns", "LaneTracks"]

Mask = npt.NDArray[np.bool_]
Columns = Mapping[str, npt.NDArray[Any]]


class LaneTracks:
    """The running episodes of n environments: holds observations until their actions and rewards are known."""

    def __init__(self, writer: VectorWriter, metadata: Mapping[str, Any]) -> None:
        num_envs = writer.num_envs
        self.writer = writer
        # of every episode
        self._base = dict(metadata)
        self.is_recording: Mask = np.zeros(num_envs, np.bool_)
        self._has_steps: Mask = np.zeros(num_envs, np.bool_)
        self._held: dict[str, npt.NDArray[Any]] = {}
        # of episodes whose record says more than others: by environment
        self._metadata: dict[int, dict[str, Any]] = {}

    def begin(self, mask: Mask, observations: Columns, metadata: Mapping[int, Mapping[str, Any]]) -> None:
        """Start episodes of some environments, with the first observation of each."""
        if not self._held:
            self._held = {name: np.array(values) for name, values in observations.items()}
        for name, values in self._held.items():
            values[mask] = observations[name][mask]
        self.is_recording |= mask
        self._has_steps &= ~mask
        for env in np.flatnonzero(mask).tolist() if self._metadata or metadata else ():
            self._metadata.pop(env, None)
            if metadata.get(env):
                self._metadata[env] = dict(metadata[env])

    def step(  # noqa: PLR0917
        self,
        mask: Mask,
        values: Columns,
        next_observations: dict[str, npt.NDArray[Any]],
        finals: Columns,
        ends: tuple[Mask, Mask],
        metadata: Mapping[int, Mapping[str, Any]],
    ) -> None:
        """Store the held observations with their actions and rewards, and hold the next ones.

        Args:
            mask: environments that stepped, of those that are recording.
            values: what a step has beside its observation, [n, ...].
            next_observations: what is held then, [n, ...]; kept, not copied.
            finals: the observations after the last steps of episodes that end, [n, ...].
            ends: which episodes terminated, and which were truncated.
            metadata: of episodes that end, by environment.
        """
        terminated, truncated = ends
        done = (terminated | truncated) & mask
        options: dict[str, Any] = {}
        if done.any():
            options = {"terminated": terminated, "truncated": truncated, "final": finals}
            options["metadata"] = self._described(done, metadata)
        if mask.any():
            self.writer.append({**self._held, **values}, mask=None if mask.all() else mask, **options)
        self._has_steps |= mask
        self.is_recording &= ~done
        self._held = next_observations

    def end(self, mask: Mask, metadata: Mapping[int, Mapping[str, Any]]) -> None:
        """End episodes with the held observations as final ones; those without steps leave nothing."""
        ends = mask & self.is_recording & self._has_steps
        self.is_recording &= ~mask
        if ends.any():
            self.writer.end_episodes(ends, final=self._held, metadata=self._described(ends, metadata))
        self._has_steps &= ~mask

    def discard(self, mask: Mask) -> None:
        """Drop the running episodes of some environments, whole."""
        gone = mask & self._has_steps
        self.is_recording &= ~mask
        self._has_steps &= ~mask
        if gone.any():
            self.writer.discard_episodes(gone)

    def _described(self, ends: Mask, metadata: Mapping[int, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
        return {
            env: {**self._base, **self._metadata.pop(env, {}), **metadata.get(env, {})}
            for env in np.flatnonzero(ends).tolist()
        }
