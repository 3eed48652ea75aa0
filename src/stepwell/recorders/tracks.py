"""The episode that one environment is in, from its reset to its end.

::

    reset       step(a0)      step(a1)      step(a2): terminated
    o0          o1            o2            o3
    hold o0     row o0 a0 r0  row o1 a1 r1  row o2 a2 r2, final row o3
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from stepwell.errors import SchemaError

__all__ = ["EpisodeSink", "EpisodeTrack", "check_metadata_names", "to_metadata"]

# what end_episode and the recorders themselves put there
TAKEN_NAMES = frozenset({"terminated", "truncated", "final", "seed", "options", "reset", "closed", "failed"})


class EpisodeSink(Protocol):
    """Where a track's steps go: a writer."""

    def append(self, step: Mapping[str, Any], /) -> Any:
        """Add one step."""

    def end_episode(self, *, terminated: bool, truncated: bool, final: Mapping[str, Any], **metadata: Any) -> Any:
        """End the episode with the observation after its last step."""

    def discard_episode(self) -> None:
        """Forget the steps since the last end."""


class EpisodeTrack:
    """The running episode of one environment: holds the observation until its action and reward are known."""

    def __init__(self, sink: EpisodeSink) -> None:
        self._sink = sink
        self._observation: dict[str, Any] | None = None
        self._metadata: dict[str, Any] = {}
        self._num_steps = 0

    @property
    def is_recording(self) -> bool:
        """Whether an episode has begun and not ended."""
        return self._observation is not None

    def begin(self, observation: dict[str, Any], metadata: Mapping[str, Any]) -> None:
        """Start an episode with its first observation and what its record will say."""
        self._observation = observation
        self._metadata = dict(metadata)
        self._num_steps = 0

    def step(self, values: Mapping[str, Any], next_observation: dict[str, Any]) -> None:
        """Store the held observation with its action and reward, and hold the next one."""
        self._sink.append({**(self._observation or {}), **values})
        self._num_steps += 1
        self._observation = next_observation

    def end(self, *, terminated: bool = False, truncated: bool = False, **metadata: Any) -> None:
        """End the episode with the held observation as its final one; an episode without steps leaves nothing."""
        final, self._observation = self._observation, None
        if final is None or not self._num_steps:
            return
        with self.no_gaps():
            self._sink.end_episode(
                terminated=terminated, truncated=truncated, final=final, **{**self._metadata, **metadata}
            )
            self._num_steps = 0

    @contextmanager
    def no_gaps(self) -> Iterator[None]:
        """Drop the whole episode when a step of it could not be stored, so that no gap looks like a transition."""
        try:
            yield
        except BaseException:
            num_steps, self._num_steps, self._observation = self._num_steps, 0, None
            if num_steps:
                self._sink.discard_episode()
            raise


def to_metadata(value: Any) -> Any:
    """Return a value as JSON types: arrays become lists, numpy scalars numbers, what JSON does not know its repr."""
    if isinstance(value, np.ndarray | np.generic):
        return to_metadata(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): to_metadata(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_metadata(part) for part in value]
    return value if value is None or isinstance(value, str | int | float | bool) else repr(value)


def check_metadata_names(names: tuple[str, ...]) -> None:
    """Refuse names of infos that would overwrite what the episode's record says itself."""
    taken = TAKEN_NAMES & set(names)
    if taken:
        raise SchemaError(
            f"episode_infos {sorted(taken)}: these names of an episode's record are taken. Use infos= instead."
        )
