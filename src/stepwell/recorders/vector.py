"""Recording the environments of a Gymnasium vector environment, whatever its autoreset mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from stepwell.errors import SchemaError, StepError
from stepwell.recorders.spaces import MISSING, StepColumns
from stepwell.recorders.tracks import EpisodeBuffer, EpisodeTrack, check_metadata_names, to_metadata

if TYPE_CHECKING:
    from stepwell.store import Store

__all__ = ["VectorRecorder"]

AutoresetMode = Literal["NextStep", "SameStep", "Disabled"]
Infos = Mapping[str, Any]
MODES = ("NextStep", "SameStep", "Disabled")


class VectorRecorder(VectorWrapper):  # type: ignore[misc]
    """Wrap a vector environment so that every episode of every environment in it is stored.

    What is stored is what `EpisodeRecorder` around each single environment would have stored, in all three modes of
    ``envs.metadata["autoreset_mode"]``::

        returned at       step t (done)                step t + 1
        NEXT_STEP         the true final observation   the reset row: no transition; its observation begins an episode
        SAME_STEP         the next episode's first one; the true final one is in infos["final_obs"]
        DISABLED          the true final observation   the caller has called reset(options={"reset_mask": ...})

    Args:
        envs: the vector environment.
        store: where the episodes go.
        writers: number of writers; default: one an environment, with one open segment each, so that a crash loses only
            what was not committed. With fewer, the running episode of each environment is kept in memory and written
            when it ends (environment i by writer ``i % writers``): fewer open segments, but a crash loses the running
            episodes.
        infos: keys of ``infos`` stored at every step, as in `EpisodeRecorder`.
        episode_infos: keys of the last step's ``infos`` that go into the episode's metadata, where present.
        metadata: added to every episode's metadata.
        autoreset_mode: "NextStep", "SameStep" or "Disabled", for an environment whose metadata does not say it.

    Raises:
        SchemaError: a space without a feature, a store with other features, or no autoreset mode.
        StepError: from ``step`` or ``reset``, a value that the store refuses; that environment's running episode is
            dropped whole, those of the others are not.

    Example:
        >>> import gymnasium, stepwell, tempfile
        >>> from stepwell.recorders import VectorRecorder, schema_of
        >>> envs = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
        >>> store = stepwell.create(tempfile.mkdtemp() + "/cartpole.well", schema_of(envs))
        >>> with VectorRecorder(envs, store) as envs:
        ...     observations, infos = envs.reset(seed=0)
        ...     for _ in range(100):
        ...         observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
        >>> len(store) >= 3
        True

    Notes:
        Not thread-safe. Rendered frames are not stored: in SAME_STEP the final one cannot be had. Wrap the single
        environments with Gymnasium's AddRenderObservation for that.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any],
        store: Store,
        *,
        writers: int | None = None,
        infos: Sequence[str] | None = None,
        episode_infos: Sequence[str] = (),
        metadata: Mapping[str, Any] | None = None,
        autoreset_mode: AutoresetMode | None = None,
    ) -> None:
        self._is_recording = False
        super().__init__(envs)
        check_metadata_names(tuple(episode_infos))
        self._mode = _mode_of(envs, autoreset_mode)
        self._columns = StepColumns(envs.single_observation_space, envs.single_action_space, store.schema, infos, False)
        self._episode_infos = tuple(episode_infos)
        self._episode_metadata = dict(metadata or {})
        num_writers = envs.num_envs if writers is None else writers
        if not 1 <= num_writers <= envs.num_envs:
            raise SchemaError(f"writers={writers}: allowed is 1 to the number of environments, {envs.num_envs}.")
        self._writers = [store.writer() for _ in range(num_writers)]
        sinks: Sequence[Any] = self._writers
        if num_writers < envs.num_envs:
            ragged = self._columns.ragged_names
            sinks = [EpisodeBuffer(self._writers[i % num_writers], ragged) for i in range(envs.num_envs)]
        self._tracks = [EpisodeTrack(sink) for sink in sinks]
        self._resets_next = np.zeros(envs.num_envs, dtype=bool)
        self._may_reset_twice = isinstance(envs.unwrapped, AsyncVectorEnv) and not envs.unwrapped.shared_memory
        self._last_infos: Infos = {}
        self._is_recording = True

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``; their running episodes end as reset."""
        # copied before the environment pops the mask from its options
        given = dict(options or {})
        mask = given.pop("reset_mask", None)
        chosen = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        for i in chosen:
            self._end(i, self._last_infos, reset=True)
        observations, infos = self.env.reset(seed=seed, options=options)
        # Gymnasium 1.4 without shared memory forgets that this reset replaces the one that was due, and resets again at
        # the next step. Other versions may not: that episode is left out, for neither guess is safe.
        unknown = self._resets_next & self._may_reset_twice
        self._resets_next[list(chosen)] = False
        if self._is_recording:
            singles = self._singles(observations)
            for i in chosen:
                if not unknown[i]:
                    self._begin(i, singles[i], _reset_metadata(seed, given, i))
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments and store the step of each that is not the row of a reset."""
        if not self._is_recording:
            return cast("tuple[Any, Any, Any, Any, dict[str, Any]]", self.env.step(actions))
        single_actions = list(iterate(self.env.action_space, actions))
        stored = [
            self._columns.action(action) if track.is_recording else {}
            for track, action in zip(self._tracks, single_actions, strict=True)
        ]
        try:
            result = self.env.step(actions)
            errors = self._record_all(stored, result)
        except BaseException:
            # which environments moved is unknown: later steps must not be joined to the stored ones
            self._resets_next[:] = False
            for i in range(self.num_envs):
                self._end(i, self._last_infos, failed=True)
            raise
        if errors:
            raise errors[0]
        return cast("tuple[Any, Any, Any, Any, dict[str, Any]]", result)

    def close(self, **kwargs: Any) -> None:
        """End the running episodes with ``{"closed": true}``, close the writers and the environments."""
        # last in, first out, and each whatever the others raise: one writer that fails must not leave the rest open
        with ExitStack() as stack:
            stack.callback(super().close, **kwargs)
            if self._is_recording:
                self._is_recording = False
                for writer in self._writers:
                    stack.callback(writer.close)
                for i in reversed(range(self.num_envs)):
                    stack.callback(self._end, i, self._last_infos, closed=True)

    def __enter__(self) -> VectorRecorder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _record_all(self, actions: list[dict[str, Any]], result: tuple[Any, Any, Any, Any, Infos]) -> list[Exception]:
        errors = []
        observations, rewards, terminations, truncations, infos = result
        singles = self._singles(observations)
        for i, action in enumerate(actions):
            ends = bool(terminations[i]), bool(truncations[i])
            # what is refused of one environment must not leave a gap in the episodes of the others
            try:
                self._record(i, singles[i], action, reward=rewards[i], ends=ends, infos=infos)
            except Exception as error:
                errors.append(error)
        self._last_infos = infos
        return errors

    def _record(
        self, i: int, observation: Any, action: Mapping[str, Any], *, reward: Any, ends: tuple[bool, bool], infos: Infos
    ) -> None:
        if self._resets_next[i]:
            self._resets_next[i] = False
            self._begin(i, observation, {})
            return
        is_done = any(ends)
        self._resets_next[i] = is_done and self._mode == "NextStep"
        has_reset = is_done and self._mode == "SameStep"
        try:
            if self._tracks[i].is_recording:
                with self._tracks[i].no_gaps():
                    own_infos = infos.get("final_info", {}) if has_reset else infos
                    outcome = self._columns.outcome(reward, lambda name: _find_vector_info(own_infos, name, i))
                    next_observation = self._final_observation(infos, i) if has_reset else observation
                    self._tracks[i].step({**action, **outcome}, self._observed(next_observation))
                    if is_done:
                        self._end(i, own_infos, terminated=ends[0], truncated=ends[1])
        finally:
            if has_reset:
                self._begin(i, observation, {})

    def _begin(self, i: int, observation: Any, metadata: Mapping[str, Any]) -> None:
        self._tracks[i].begin(self._observed(observation), {**self._episode_metadata, **metadata})

    def _end(self, i: int, infos: Infos, *, terminated: bool = False, truncated: bool = False, **marks: bool) -> None:
        found = {name: _find_vector_info(infos, name, i) for name in self._episode_infos}
        values = {name: to_metadata(value) for name, value in found.items() if value is not MISSING}
        self._tracks[i].end(terminated=terminated, truncated=truncated, **values, **marks)

    def _observed(self, observation: Any) -> dict[str, Any]:
        return self._columns.observation(observation, self.env.render)

    def _singles(self, observations: Any) -> list[Any]:
        return list(iterate(self.env.observation_space, observations))

    def _final_observation(self, infos: Infos, i: int) -> Any:
        final = infos.get("final_obs")
        if final is None:
            raise StepError(
                f"environment {i} ended in SAME_STEP mode without infos['final_obs']: its true final observation "
                "is lost. Use Gymnasium 1.1 or later, or autoreset mode NEXT_STEP."
            )
        return final[i] if isinstance(final, np.ndarray | list) else self._singles(final)[i]


def _mode_of(envs: VectorEnv[Any, Any, Any], given: str | None) -> str:
    found = given if given is not None else envs.metadata.get("autoreset_mode")
    mode = getattr(found, "value", found)
    if mode not in MODES:
        raise SchemaError(
            f"autoreset mode {found!r}: what an ended environment returns is not known, and a reset row could be "
            f"stored as a transition. Give autoreset_mode=, one of {', '.join(MODES)}."
        )
    return str(mode)


def _reset_metadata(seed: int | Sequence[int | None] | None, options: Mapping[str, Any], i: int) -> dict[str, Any]:
    # an int seeds environment i with seed + i: Gymnasium's rule
    own_seed = seed[i] if isinstance(seed, Sequence) else None if seed is None else seed + i
    metadata = {} if own_seed is None else {"seed": int(own_seed)}
    return {**metadata, **({"options": to_metadata(options)} if options else {})}


def _find_vector_info(infos: Infos, name: str, i: int) -> Any:
    """Return environment i's ``info["a"]["b"]`` for "a.b"; Gymnasium marks who has a key in a mask named ``_key``."""
    mask: npt.NDArray[np.bool_] | None = None
    found: Any = infos
    for key in name.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return MISSING
        mask = found.get(f"_{key}")
        found = found[key]
        if mask is not None and not mask[i]:
            return MISSING
    return (
        {key: part[i] for key, part in found.items() if not key.startswith("_")}
        if isinstance(found, Mapping)
        else found[i]
    )
