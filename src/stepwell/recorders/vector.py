"""Recording the environments of a Gymnasium vector environment, whatever its autoreset mode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import iterate

from stepwell.errors import SchemaError, StepError
from stepwell.recorders.lane_tracks import Columns, LaneTracks
from stepwell.recorders.spaces import MISSING, StepColumns
from stepwell.recorders.tracks import check_metadata_names, to_metadata
from stepwell.store.device_arrays import HostCopies, copied_there, mapped

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
        writers: with how many open segments, see `stepwell.Store.vector_writer`. Default: in a ring whose features are
            all raw, one for all environments; elsewhere one an environment, so that a crash loses only what was not
            committed. With fewer, the running episode of each environment is kept in memory and written when it ends
            (environment i by writer ``i % writers``): a crash loses the running episodes.
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
        Not thread-safe. Values of a simulator on a GPU (torch tensors, JAX arrays) come to the host by one transfer a
        step, and are returned as they were. Rendered frames are not stored: in SAME_STEP the final one cannot be had.
        Wrap the single environments with Gymnasium's AddRenderObservation for that.
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
        self._resets_next = np.zeros(envs.num_envs, dtype=bool)
        self._may_reset_twice = isinstance(envs.unwrapped, AsyncVectorEnv) and not envs.unwrapped.shared_memory
        self._last_infos: Infos = {}
        self._host = HostCopies()
        self._writer = store.vector_writer(envs.num_envs, writers=writers)
        self._lanes = LaneTracks(self._writer, self._episode_metadata)
        self._is_recording = True

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]``; their running episodes end as reset."""
        # copied before the environment pops the mask from its options
        given = dict(options or {})
        mask = given.pop("reset_mask", None)
        chosen = range(self.num_envs) if mask is None else np.flatnonzero(self._host.take(mask)).tolist()
        self._end_all(chosen, reset=True)
        observations, infos = self.env.reset(seed=seed, options=options)
        # Gymnasium 1.4 without shared memory forgets that this reset replaces the one that was due, and resets again at
        # the next step. Other versions may not: that episode is left out, for neither guess is safe.
        unknown = self._resets_next & self._may_reset_twice
        self._resets_next[list(chosen)] = False
        chosen = [i for i in chosen if not unknown[i]]
        if self._is_recording:
            metadata = {i: _reset_metadata(seed, given, i) for i in chosen}
            observed = self._columns.observations(self._host.take(observations))
            self._lanes.begin(self._mask_of(chosen), observed, metadata)
        return observations, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments and store the step of each that is not the row of a reset."""
        if not self._is_recording:
            return cast("tuple[Any, Any, Any, Any, dict[str, Any]]", self.env.step(actions))
        stored: Columns = {}
        # actions on a device are copied there, and come to the host with the outcome of the step
        kept = copied_there(actions) if self._lanes.is_recording.any() else None
        if kept is None and self._lanes.is_recording.any():
            stored = self._columns.actions(actions)
        try:
            result = self.env.step(actions)
            kept, host = self._host.take((kept, result))
            if kept is not None:
                stored = self._columns.actions(kept)
            errors = self._record(stored, host)
            if host is not result:
                # the others were copied
                self._last_infos = mapped(
                    lambda value: np.array(value) if isinstance(value, np.ndarray) else value, host[4]
                )
        except BaseException:
            # which environments moved is unknown: later steps must not be joined to the stored ones
            self._resets_next[:] = False
            self._end_all(range(self.num_envs), failed=True)
            raise
        if errors:
            raise errors[0]
        return cast("tuple[Any, Any, Any, Any, dict[str, Any]]", result)

    def close(self, **kwargs: Any) -> None:
        """End the running episodes with ``{"closed": true}``, close the writer and the environments."""
        # last in, first out, and each whatever the others raise
        with ExitStack() as stack:
            stack.callback(super().close, **kwargs)
            if self._is_recording:
                self._is_recording = False
                stack.callback(self._writer.close)
                stack.callback(self._end_all, range(self.num_envs), closed=True)

    def __enter__(self) -> VectorRecorder:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _record(self, actions: Columns, result: tuple[Any, Any, Any, Any, Infos]) -> list[Exception]:
        """Record the step of all environments at once; what is refused of one drops its episode, and no other."""
        lanes = self._lanes
        observations, rewards, terminations, truncations, infos = result
        begins = self._resets_next
        ends = [np.asarray(flags, np.bool_) & ~begins for flags in (terminations, truncations)]
        done = ends[0] | ends[1]
        resets = done if self._mode == "SameStep" else np.zeros_like(done)
        self._resets_next = done if self._mode == "NextStep" else np.zeros_like(done)
        mask = lanes.is_recording & ~begins
        errors: dict[int, Exception] = {}

        def find(i: int, name: str) -> Any:
            return _find_vector_info(infos.get("final_info", {}) if resets[i] else infos, name, i)

        observed = self._all_or_each(
            lambda: self._columns.observations(observations),
            lambda i: self._observed(self._singles(observations)[i]),
            errors,
        )
        outcome = self._all_or_each(
            lambda: self._columns.outcomes(rewards, mask, lambda name, i: find(i, name)),
            lambda i: self._columns.outcome(rewards[i], functools.partial(find, i)) if mask[i] else {},
            errors,
        )
        finals = self._finals(observed, infos, resets & mask, errors)
        if errors:
            refused = self._mask_of(errors)
            lanes.discard(refused)
            mask, begins = mask & ~refused, begins & ~refused
        metadata = {}
        if self._episode_infos:
            metadata = {i: self._infos_of(functools.partial(find, i)) for i in np.flatnonzero(done & mask).tolist()}
        lanes.step(mask, {**actions, **outcome}, observed, finals, (ends[0], ends[1]), metadata)
        if begins.any() or resets.any():
            lanes.begin(begins | resets, observed, {})
        self._last_infos = infos
        return [error for _, error in sorted(errors.items())]

    def _all_or_each(
        self, convert: Callable[[], Columns], convert_one: Callable[[int], Columns], errors: dict[int, Exception]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of all environments; where that fails, those of each that does not, and zeros."""
        try:
            return dict(convert())
        except Exception as error:
            rows: dict[int, Columns] = {}
            for i in range(self.num_envs):
                try:
                    rows[i] = convert_one(i)
                except Exception as refused:
                    errors[i] = refused
            found = max(rows.values(), key=len, default={})
            if not found:
                raise error from None
        ragged, num = self._columns.ragged_names, self.num_envs
        columns = {
            name: np.empty(num, object)
            if name in ragged
            else np.zeros((num, *np.shape(value)), np.asarray(value).dtype)
            for name, value in found.items()
        }
        for i, row in rows.items():
            for name, value in row.items():
                columns[name][i] = value
        return columns

    def _finals(
        self,
        observed: dict[str, npt.NDArray[Any]],
        infos: Infos,
        resets: npt.NDArray[np.bool_],
        errors: dict[int, Exception],
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the observations after the last steps of episodes that end."""
        if not resets.any():
            return observed
        finals = {name: values.copy() for name, values in observed.items()}
        for i in np.flatnonzero(resets).tolist():
            try:
                for name, value in self._observed(self._final_observation(infos, i)).items():
                    finals[name][i] = value
            except Exception as refused:
                errors[i] = refused
        return finals

    def _mask_of(self, environments: Iterable[int]) -> npt.NDArray[np.bool_]:
        mask = np.zeros(self.num_envs, np.bool_)
        mask[list(environments)] = True
        return mask

    def _infos_of(self, find: Callable[[str], Any]) -> dict[str, Any]:
        found = {name: find(name) for name in self._episode_infos}
        return {name: to_metadata(value) for name, value in found.items() if value is not MISSING}

    def _end_all(self, environments: Iterable[int], **marks: bool) -> None:
        """End running episodes that neither terminated nor were truncated."""
        infos = self._last_infos
        mask = self._mask_of(environments) & self._lanes.is_recording
        metadata = {
            i: {**self._infos_of(functools.partial(_find_vector_info_of, infos, i)), **marks}
            for i in np.flatnonzero(mask).tolist()
        }
        self._lanes.end(mask, metadata)

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


def _find_vector_info_of(infos: Infos, i: int, name: str) -> Any:
    return _find_vector_info(infos, name, i)


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
