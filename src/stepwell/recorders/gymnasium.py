"""Recording one Gymnasium environment while it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import gymnasium

from stepwell.errors import StepwellError
from stepwell.recorders.spaces import MISSING, StepColumns, find_info
from stepwell.recorders.tracks import EpisodeTrack, check_metadata_names, to_metadata

if TYPE_CHECKING:
    from stepwell.store import Store, Writer

__all__ = ["EpisodeRecorder"]


class EpisodeRecorder(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc]
    """Wrap an environment so that every step it takes is stored.

    An episode of T actions has T steps and T + 1 observations, each stored once: step t holds ``observation`` t,
    ``action`` t and ``reward`` t, and the observation after the last action is the episode's final row, so that
    ``Field("observation", 1)`` of the last step is the true final observation. The episode's record keeps
    ``terminated`` and ``truncated`` apart, and with them the ``seed`` and ``options`` of the reset.

    ::

        step          0   1   2           |0   1
        observation   o0  o1  o2  (o3)    |o0  o1  (o2)
        action        a0  a1  a2          |a0  a1
        reward        r0  r1  r2          |r0  r1

    A ``reset()`` in mid-episode ends it as neither terminated nor truncated, with ``{"reset": true}`` in its metadata;
    ``close()`` does the same with ``{"closed": true}``, an environment that raises with ``{"failed": true}``. An
    episode without an action leaves nothing.

    Args:
        env: the environment.
        target: a `Store` (a writer is opened and closed with the recorder) or a `Writer` (only flushed).
        infos: keys of ``info`` stored at every step as ``info.KEY``, from the info that the step returned; dots reach
            into nested infos. Default: those in the schema of the store.
        episode_infos: keys of the last step's ``info`` that go into the episode's metadata, where present.
        record_render: store ``env.render()`` as ``observation.render``. Default: if the schema of the store has it.
        metadata: added to every episode's metadata.

    Raises:
        SchemaError: a space without a feature, or a store with other features than the environment gives.
        StepError: from ``step`` or ``reset``, a value that the store refuses. The running episode is dropped whole, and
            recording goes on at the next reset.

    Example:
        >>> import gymnasium, stepwell, tempfile
        >>> from stepwell.recorders import EpisodeRecorder, schema_of
        >>> env = gymnasium.make("CartPole-v1")
        >>> store = stepwell.create(tempfile.mkdtemp() + "/cartpole.well", schema_of(env))
        >>> with EpisodeRecorder(env, store) as env:
        ...     for seed in range(2):
        ...         observation, info = env.reset(seed=seed)
        ...         done = False
        ...         while not done:
        ...             observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        ...             done = terminated or truncated
        >>> _ = store.refresh()
        >>> [episode.metadata for episode in store]
        [{'seed': 0}, {'seed': 1}]

    Notes:
        Not thread-safe, as environments are not. One process a recorder; several recorders may share a store.
        Observations and actions are copied, so environments that reuse their arrays are recorded rightly.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        target: Store | Writer,
        *,
        infos: Sequence[str] | None = None,
        episode_infos: Sequence[str] = (),
        record_render: bool | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(env)
        if not hasattr(target, "writer") and not hasattr(target, "append"):
            raise StepwellError(
                f"{target!r} is no store. Open it first: stepwell.open(path), or stepwell.create(path)."
            )
        check_metadata_names(tuple(episode_infos))
        schema = getattr(target, "schema", None)
        self._columns = StepColumns(env.observation_space, env.action_space, schema, infos, record_render)
        self._episode_infos = tuple(episode_infos)
        self._metadata = dict(metadata or {})
        self._owns_writer = hasattr(target, "writer")
        self._writer: Writer | None = cast("Store", target).writer() if self._owns_writer else cast("Writer", target)
        self._track = EpisodeTrack(self._writer)
        self._last_info: Mapping[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and begin an episode; one that was running ends with ``{"reset": true}``."""
        self._end(reset=True)
        # taken before the environment may change its options
        given = {"seed": seed, "options": to_metadata(options)}
        observation, info = self.env.reset(seed=seed, options=options)
        if self._writer is not None:
            metadata = {**self._metadata, **{name: value for name, value in given.items() if value is not None}}
            self._track.begin(self._columns.observation(observation, self.env.render), metadata)
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and store the step."""
        if not self._track.is_recording:
            return self.env.step(action)  # type: ignore[no-any-return]
        stored_action = self._columns.action(action)
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except BaseException:
            # whether the environment moved is unknown: later steps must not be joined to the stored ones
            self._end(failed=True)
            raise
        with self._track.no_gaps():
            outcome = self._columns.outcome(reward, lambda name: find_info(info, name))
            self._track.step({**stored_action, **outcome}, self._columns.observation(observation, self.env.render))
            self._last_info = info
            if terminated or truncated:
                self._end(terminated=bool(terminated), truncated=bool(truncated))
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """End the running episode with ``{"closed": true}``, flush or close the writer, and close the environment."""
        writer, self._writer = self._writer, None
        # last in, first out, and each whatever the others raise
        with ExitStack() as stack:
            stack.callback(super().close)
            if writer is not None:
                stack.callback(writer.close if self._owns_writer else writer.flush)
                stack.callback(self._end, closed=True)

    def _end(self, *, terminated: bool = False, truncated: bool = False, **marks: bool) -> None:
        found = {name: find_info(self._last_info, name) for name in self._episode_infos}
        infos = {name: to_metadata(value) for name, value in found.items() if value is not MISSING}
        self._track.end(terminated=terminated, truncated=truncated, **infos, **marks)
