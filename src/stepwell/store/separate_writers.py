r"""The writers of n environments, with segments of their own: where rows vary in size, and episodes stay whole.

::

    vector step --values of environment i--> EnvironmentWriter i                          a writer each
                                         \-> EpisodeBuffer i --episode--> EnvironmentWriter i % k      k writers
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from stepwell.schema import Schema
from stepwell.store.ring import RingClock
from stepwell.store.segment_writer import SegmentWriter
from stepwell.store.writer import Writer

__all__ = ["Ending", "EnvironmentWriter", "SeparateWriters"]

Row = dict[str, Any]


class Ending(NamedTuple):
    """How an episode ends: its line of metadata, accepted final values, and flags."""

    line: bytes = b"{}\n"
    final: Mapping[str, Any] | None = None
    terminated: bool = False
    truncated: bool = False
    interrupted: bool = False


class EnvironmentWriter(Writer):
    """A writer for one environment, or for some; their vector writer waits for tables and refreshes the store."""

    def _open_ring(self, schema: Schema) -> None:
        self._clock = RingClock(str(self._store.path), schema)

    def _show(self) -> None:
        pass

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, as a failing codec does."""
        return self._is_closed

    @property
    def segment(self) -> SegmentWriter:
        """The segment of the open episode."""
        assert self._segment is not None
        return self._segment

    def end(self, ending: Ending) -> None:
        """End the open episode."""
        self._end_open(self.segment, **ending._asdict())


class EpisodeBuffer:
    """Keeps the running episode of an environment in memory, and writes it when it ends: several share a writer."""

    def __init__(self, writer: Callable[[], EnvironmentWriter]) -> None:
        self._writer = writer
        self._steps: list[Row] = []

    @property
    def num_steps(self) -> int:
        """Steps of the running episode."""
        return len(self._steps)

    @property
    def has_open_episode(self) -> bool:
        """Whether steps were appended since the last end of an episode."""
        return bool(self._steps)

    def append(self, step: Mapping[str, Any]) -> int:
        """Keep a copy of one step; it has no id yet."""
        self._steps.append(
            {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in step.items()}
        )
        return -1

    def end(self, ending: Ending) -> None:
        """Write the episode."""
        writer = self._writer()
        # of a call that failed before its episode was ended, which is still in memory
        writer.discard_episode()
        writer.append_batch({name: [step[name] for step in self._steps] for name in self._steps[0]})
        segment = writer.segment
        num_episodes = segment.num_episodes
        try:
            writer.end(ending)
        finally:
            # also where what came after it failed, or a Ctrl-C came: it must not be stored twice
            if segment.num_episodes > num_episodes:
                self._steps = []

    def cut(self, num_steps: int) -> None:
        """Forget the last steps of the running episode."""
        del self._steps[num_steps:]

    def discard_episode(self) -> None:
        """Forget the running episode."""
        self._steps = []


class SeparateWriters:
    """The episodes of n environments, by number of the environment, and the writers that record them."""

    # Values and flags come accepted. Writers are made when their environment has its first step.

    def __init__(self, make: Callable[[], EnvironmentWriter], num_writers: int, num_envs: int) -> None:
        self._make = make
        self._writers: dict[int, EnvironmentWriter] = {}
        self._num_writers = num_writers
        self._buffers: list[EpisodeBuffer] = []
        if num_writers < num_envs:
            self._buffers = [EpisodeBuffer(partial(self._writer, env)) for env in range(num_envs)]

    def append(self, steps: Mapping[int, Row], endings: Mapping[int, Ending]) -> dict[int, int]:
        """Store a step of some environments, end the episodes of some; returns the ids of the steps."""
        ids: dict[int, int] = {}
        kept = {env: self._buffers[env].num_steps for env in steps} if self._buffers else {}
        try:
            for env, step in steps.items():
                target = self._target(env)
                ids[env] = target.append(step)
                if env in endings:
                    target.end(endings[env])
        except BaseException as error:
            for env, num_steps in kept.items():
                self._buffers[env].cut(num_steps)
            # where nothing was stored, the call can be repeated
            if not self._buffers and (ids or not isinstance(error, Exception)):
                self._interrupt(steps)
            raise
        return ids

    def open_among(self, environments: Iterable[int]) -> list[int]:
        """Return which environments have an open episode."""
        return [env for env in environments if self._has_open_episode(env)]

    def end(self, endings: Mapping[int, Ending]) -> None:
        """End open episodes."""
        for env, ending in endings.items():
            self._target(env).end(ending)

    def discard(self, environments: Iterable[int]) -> None:
        """Take back the open episodes of some environments."""
        for env in self.open_among(environments):
            self._target(env).discard_episode()

    def flush(self) -> None:
        """Wait until all that was written is on the disk."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """End open episodes as interrupted ones and close all writers, whatever error one of them raises."""
        # a Ctrl-C comes through: what is left is done when this is called again
        failed: list[Exception] = []
        for env in self.open_among(range(len(self._buffers))):
            try:
                self._buffers[env].end(Ending(interrupted=True))
            except Exception as error:
                failed.append(error)
        for writer in self._writers.values():
            try:
                writer.close()
            except Exception as error:
                failed.append(error)
        if failed:
            raise failed[0]

    def _writer(self, env: int) -> EnvironmentWriter:
        place = env % self._num_writers
        writer = self._writers.get(place)
        if writer is None or writer.is_closed:
            writer = self._writers[place] = self._make()
        return writer

    def _target(self, env: int) -> EnvironmentWriter | EpisodeBuffer:
        return self._buffers[env] if self._buffers else self._writer(env)

    def _has_open_episode(self, env: int) -> bool:
        if self._buffers:
            return self._buffers[env].has_open_episode
        return env in self._writers and self._writers[env].has_open_episode

    def _interrupt(self, environments: Iterable[int]) -> None:
        """End open episodes where they are: a step that only some environments have must not come twice, or never."""
        for env in self.open_among(environments):
            with suppress(Exception):
                self._target(env).end(Ending(interrupted=True))
            if self._has_open_episode(env):
                with suppress(Exception):
                    self._writers.pop(env).close()
