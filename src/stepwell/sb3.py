"""Stable-Baselines3's replay buffers by their names, over a ring of steps: `docs/replay.md` has a section on them.

::

    add(obs, next_obs, ...)      position     0     1     2     3            of one environment
                                 rows       | o0  | o1  | o2  | f   o'0 | o'1 ...
    sample(...)                  (0, 1): observations of a row and of the row after it, read from the store's files

Positions are numbered as Stable-Baselines3 numbers them and drawn by the same calls of ``np.random``, so the same seed
gives the same batches. An observation is stored once: what comes after the last action of an episode is its final row,
whether ``done`` says so or only that the next call begins with another observation. The newest transitions are in
arrays in memory, and written to the ring some hundred at a time: what comes after a transition is known by then.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import MissingDependencyError, RateLimitError, TableError
from stepwell.kernels.signatures import load_kernels
from stepwell.replay.batch_kernels import mark_changed_rows
from stepwell.replay.loader import ReplayLoader
from stepwell.replay.selectors import Prioritized
from stepwell.replay.slots import Slots
from stepwell.replay.tables import Table
from stepwell.replay.transitions import transition_fields
from stepwell.schema import Array, is_feature_name
from stepwell.store import create
from stepwell.windows import Field

try:
    import torch
    from gymnasium import spaces
    from stable_baselines3.common import buffers
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
    from stable_baselines3.her import her_replay_buffer
except ImportError as error:
    raise MissingDependencyError.of("stable-baselines3", "sb3") from error

__all__ = [
    "DictReplayBuffer",
    "DictReplayBufferSamples",
    "HerReplayBuffer",
    "NStepReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayBufferSamples",
    "ReplayBuffer",
    "ReplayBufferSamples",
]

Int64s = npt.NDArray[np.int64]
Rows = list[npt.NDArray[Any]]
# what an observation is called that is no dict, and the prefix of those of dicts
OBSERVATION, NEXT = "observation", "next_observation"
# vector steps that are written to the ring together, and their bytes
MAX_STAGED, MAX_STAGED_BYTES = 256, 4 << 20


class ReplayBuffer(buffers.ReplayBuffer):  # type: ignore[misc]
    """Stable-Baselines3's ``ReplayBuffer`` over a ring: the same arguments, samples and draws.

    Args:
        buffer_size: transitions of all environments.
        observation_space: of one environment.
        action_space: of one environment.
        device: of the samples.
        n_envs: environments that step together.
        optimize_memory_usage: leave out the position that is written next, as Stable-Baselines3 does then. An
            observation is stored once in any case.
        handle_timeout_termination: take ``infos[i]["TimeLimit.truncated"]`` into account: such ends are not ``dones``.
        path: of the ring, a new directory; None: in memory.

    Attributes:
        store: the ring. Other processes may read it, and tables may be made over it.

    Example:
        ``DQN("MlpPolicy", env, replay_buffer_class=stepwell.sb3.ReplayBuffer)``

    Notes:
        ``next_obs`` is exact for every end: where the next ``obs`` is another one, the episode is truncated there. A
        pickle has the transitions, and is loaded into a ring in memory. One thread at a time.
    """

    pos: int
    full: bool

    def __init__(  # noqa: PLR0917
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: Any = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        buffers.BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.buffer_size = max(buffer_size // n_envs, 1)
        self.optimize_memory_usage = optimize_memory_usage
        self.handle_timeout_termination = handle_timeout_termination
        self.dones = np.zeros((self.buffer_size, n_envs), np.float32)
        self.timeouts = np.zeros((self.buffer_size, n_envs), np.float32)
        self._begin(path)

    def _begin(self, path: str | os.PathLike[str] | None) -> None:
        """Make the ring, its writer, and the arrays of what is not in it yet."""
        load_kernels(["stepwell.replay.batch_kernels.mark_changed_rows"])
        is_dict = isinstance(self.obs_shape, dict)
        shapes = self.obs_shape if is_dict else {"": self.obs_shape}
        spaces_of = self.observation_space.spaces if is_dict else {"": self.observation_space}
        self._keys = list(shapes) if is_dict else None
        self._names = [_name_of(key, number) for number, key in enumerate(shapes)]
        observed = {
            name: Array(shapes[key], spaces_of[key].dtype, final=True)
            for name, key in zip(self._names, shapes, strict=True)
        }
        action = Array(self.action_dim, self._maybe_cast_dtype(self.action_space.dtype))
        schema = observed | {"action": action, "reward": Array((), "float32")}
        num_envs, step_bytes = self.n_envs, sum(feature.row_bytes for feature in schema.values()) * self.n_envs
        room = max(3, min(MAX_STAGED, MAX_STAGED_BYTES // step_bytes, self.buffer_size))
        # groups of environments are written one after the other: the ring keeps one group more than can be drawn
        self.store = create(
            ":memory:" if path is None else os.fspath(path), schema, capacity=(self.buffer_size + room) * num_envs
        )
        self._writer = self.store.vector_writer(num_envs)
        features = schema | {f"next_{name}": feature for name, feature in observed.items()}
        # the newest vector steps, [room, n_envs, ...] by key: the first ones are written when there are as many
        self._staged = {
            key: np.zeros((room, num_envs, *feature.shape), feature.np_dtype) for key, feature in features.items()
        }
        staged, is_plain = self._staged, not is_dict and not isinstance(self.observation_space, spaces.Discrete)
        self._plain = (staged[OBSERVATION], staged[NEXT]) if is_plain else None
        self._action, self._reward = staged["action"], staged["reward"]
        self._action_shape = self._action.shape[1:]
        self._done, self._timeout = np.zeros((2, room, num_envs), np.bool_)
        self._room, self._num_staged, self._num_written = room, 0, 0
        self._features = list(schema)
        # a slot is a cell, position * n_envs + environment
        fields = {name: Field(name) for name in schema} | {f"next_{name}": Field(name, 1) for name in self._names}
        self._slots = Slots(self.store, self.buffer_size * num_envs, fields)

    # transitions come

    def add(  # noqa: PLR0917
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]
    ) -> None:
        """Store a transition of each environment; see Stable-Baselines3's."""
        timeouts: Any = False
        if self.handle_timeout_termination:
            timeouts = [info.get("TimeLimit.truncated", False) for info in infos]
            # copied where it says anything, which is seldom
            timeouts = any(timeouts) and np.array(timeouts)
        self._add(obs, next_obs, action, reward, done, timeouts)

    def _add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, timeouts: Any) -> None:  # noqa: PLR0917
        at, position = self._num_staged, self.pos
        if at == self._room:
            self.flush()
            at = self._num_staged
        if self._plain is not None:
            rows, following = self._plain
            rows[at], following[at] = obs, next_obs
        else:
            self._put_observations(at, obs, next_obs)
        if action.shape != self._action_shape:
            action = action.reshape(self._action_shape)
        self._action[at] = action
        self._reward[at] = reward
        self._done[at] = self.dones[position] = done
        self._timeout[at] = self.timeouts[position] = timeouts
        self._num_staged = at + 1
        self.pos = position = position + 1
        if position == self.buffer_size:
            self.full, self.pos = True, 0

    def _put_observations(self, at: int, obs: Any, next_obs: Any) -> None:
        """Copy observations that are dicts, or of discrete spaces, which have an axis less."""
        for number, name in enumerate(self._names):
            for key, values in ((name, obs), (f"next_{name}", next_obs)):
                rows = self._staged[key]
                rows[at] = np.reshape(values if self._keys is None else values[self._keys[number]], rows.shape[1:])

    def flush(self) -> None:
        """Write to the ring what was added: all but the newest transitions, which wait for what follows them.

        Where all of them are ``done``, nothing does. `add` does so from time to time, every few hundred steps.
        """
        count = self._num_staged
        self._write(count if count and self._done[count - 1].all() else max(count - 1, 0))

    def _write(self, stop: int) -> None:
        """Write the staged vector steps before ``stop``; what follows the last of them is staged, or unknown."""
        begin = self._num_written
        if stop <= begin:
            return
        first, last = self.pos - self._num_staged, self._are_last(stop)
        steps, ids = slice(begin, stop), np.full((stop - begin, self.n_envs), -1)
        done = self._done[steps]
        terminated = done & ~self._timeout[steps]
        try:
            self._writer.append_batch(
                {name: self._staged[name][steps] for name in self._features},
                terminated=terminated,
                truncated=(done | last[steps]) & ~terminated,
                final={name: self._staged[f"next_{name}"][steps] for name in self._names},
                out=ids,
            )
            if ids.min() < 0:
                raise TableError(
                    "a table with back-pressure dropped steps of this buffer, which would be drawn as zeros. Let it "
                    "wait, or refuse."
                )
        finally:
            # where not all of them could be stored, those that are left are written by the next call
            count = int(np.minimum.accumulate(ids[:, 0] >= 0).sum())
            number, size, num_envs = 0, self.buffer_size, self.n_envs
            while number < count:
                at = (first + begin + number) % size
                stop = min(count, number + size - at)
                self._slots.put(slice(at * num_envs, (at + stop - number) * num_envs), ids[number:stop].reshape(-1))
                number = stop
            if count:
                self._drop_staged(begin + count)

    def _drop_staged(self, stop: int) -> None:
        """Let go of the staged vector steps before ``stop``, which are in the ring."""
        # the last one stays: where it goes on, what follows it is not in the ring yet
        self._num_written = int(stop < self._num_staged)
        gone = stop - self._num_written
        self._num_staged -= gone
        for array in (*self._staged.values(), self._done, self._timeout):
            array[: self._num_staged] = array[gone : gone + self._num_staged].copy()

    def _are_last(self, stop: int) -> npt.NDArray[np.bool_]:
        """Return which staged transitions are followed by another observation than their own, bool [stop, n_envs]."""
        are_last = np.ones((stop, self.n_envs), np.bool_)
        known = min(stop, self._num_staged - 1)
        are_last[:known] = False
        for name in self._names if known > 0 else ():
            following, rows = self._staged[f"next_{name}"], self._staged[name]
            mark_changed_rows(following.ctypes.data, rows[1:].ctypes.data, rows[0, 0].nbytes, are_last[:known])
        return are_last

    def reset(self) -> None:
        """Forget all transitions; the ring keeps their steps until newer ones take their place."""
        self._write(self._num_staged)
        super().reset()

    def close(self) -> None:
        """Write all that was added and seal the ring: another process then finds it whole. May be called twice."""
        self._write(self._num_staged)
        self._writer.close()

    # transitions are drawn

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw transitions alike, by the random numbers of ``np.random`` that Stable-Baselines3 would take.

        Args:
            batch_size: how many.
            env: a ``VecNormalize`` that normalizes observations and rewards.
        """
        if self.optimize_memory_usage and self.full:
            positions = (np.random.randint(1, self.buffer_size, size=batch_size) + self.pos) % self.buffer_size
        else:
            positions = np.random.randint(0, self.buffer_size if self.full else self.pos, size=batch_size)
        return self._get_samples(positions, env=env)

    def _get_samples(self, batch_inds: Int64s, env: Any = None) -> Any:
        envs = np.random.randint(0, high=self.n_envs, size=(len(batch_inds),))
        cells = batch_inds * self.n_envs + envs
        values = self._read(cells)
        values["done"] = self.dones.take(cells) * (1 - self.timeouts.take(cells))
        kind = ReplayBufferSamples if self._keys is None else DictReplayBufferSamples
        return kind(*self._tensors(values, env))

    def _tensors(self, values: Mapping[str, Any], env: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Return observations, actions, next observations, dones and rewards as tensors."""
        rewards = self._normalize_reward(values["reward"].reshape(-1, 1), env)
        return (
            self._observations(values, "", env),
            self._tensor(values["action"]),
            self._observations(values, "next_", env),
            self._tensor(values["done"].reshape(-1, 1)),
            self._tensor(rewards),
        )

    def _observations(self, values: Mapping[str, Any], prefix: str, env: Any) -> Any:
        found = [values[f"{prefix}{name}"] for name in self._names]
        if self._keys is None:
            return self._tensor(self._normalize_obs(found[0], env))
        normalized = self._normalize_obs(dict(zip(self._keys, found, strict=True)), env)
        return {key: self._tensor(array) for key, array in normalized.items()}

    def _tensor(self, array: npt.NDArray[Any]) -> Any:
        # the arrays of a batch are its own: nothing else would change them
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    def _read(self, cells: Int64s) -> dict[str, npt.NDArray[Any]]:
        """Return the transitions at cells, int64 [n]: position * n_envs + environment."""
        ages = (self.pos - 1 - cells // self.n_envs) % self.buffer_size
        is_staged = ages < self._num_staged
        if not is_staged.any():
            return self._slots.read(cells)
        values = self._slots.read(np.where(is_staged, -1, cells))
        at, envs = self._num_staged - 1 - ages[is_staged], cells[is_staged] % self.n_envs
        for key, array in self._staged.items():
            values[key][is_staged] = array[at, envs]
        return values

    # the arrays of Stable-Baselines3's buffer, read from the ring

    @property
    def observations(self) -> Any:
        """Observations by position and environment: a `Column`, or of dicts one for each key."""
        return self._observed("")

    @property
    def next_observations(self) -> Any:
        """What came after each action, as `observations`."""
        return self._observed("next_")

    @property
    def actions(self) -> Column:
        """Actions by position and environment."""
        return Column(self, "action")

    @property
    def rewards(self) -> Column:
        """Rewards by position and environment."""
        return Column(self, "reward")

    def _observed(self, prefix: str) -> Any:
        columns = [Column(self, f"{prefix}{name}") for name in self._names]
        return columns[0] if self._keys is None else dict(zip(self._keys, columns, strict=True))

    @cached_property
    def _grid(self) -> Int64s:
        """The cell of each position and environment."""
        return np.arange(self.buffer_size * self.n_envs).reshape(self.buffer_size, self.n_envs)

    # pickles

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle has: the settings, and the transitions from the oldest to the newest."""
        size, first = self.size(), self.pos if self.full else 0
        positions = (np.arange(size) + first) % self.buffer_size
        values = self._read(self._grid[positions].reshape(-1))
        state = {name: value for name, value in self.__dict__.items() if name in _KEPT or not name.startswith("_")}
        del state["store"]
        steps = {key: array.reshape(size, self.n_envs, *array.shape[1:]) for key, array in values.items()}
        return state | {"transitions": steps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        steps = state.pop("transitions")
        self.__dict__.update(state)
        pos, full, dones, timeouts = self.pos, self.full, self.dones, self.timeouts
        self._begin(None)
        self.dones, self.timeouts = dones.copy(), timeouts.copy()
        self.pos = first = pos if full else 0
        for number in range(len(steps["reward"])):
            at = (first + number) % self.buffer_size
            rows, following = (self._keyed(steps, prefix, number) for prefix in ("", "next_"))
            action, reward = steps["action"][number], steps["reward"][number]
            self._add(rows, following, action, reward, dones[at], timeouts[at])
        self.pos, self.full, self.dones, self.timeouts = pos, full, dones, timeouts

    def _keyed(self, steps: Mapping[str, Any], prefix: str, number: int) -> Any:
        """Return the observations of a vector step as `add` takes them."""
        rows = [steps[f"{prefix}{name}"][number] for name in self._names]
        return rows[0] if self._keys is None else dict(zip(self._keys, rows, strict=True))


# attributes that begin with _ and are in a pickle: those of Stable-Baselines3's own classes
_KEPT = frozenset({"_current_ep_start"})


class DictReplayBuffer(ReplayBuffer, buffers.DictReplayBuffer):  # type: ignore[misc]
    """Stable-Baselines3's ``DictReplayBuffer`` over a ring; see `ReplayBuffer`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        ReplayBuffer.__init__(self, *args, **options)
        if self._keys is None:
            raise TableError("DictReplayBuffer needs a Dict observation space. Use ReplayBuffer.")


class HerReplayBuffer(her_replay_buffer.HerReplayBuffer, DictReplayBuffer):  # type: ignore[misc]
    """Stable-Baselines3's ``HerReplayBuffer`` over a ring: its arguments, draws and goals."""

    def __getstate__(self) -> dict[str, Any]:
        state = DictReplayBuffer.__getstate__(self)
        del state["env"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        DictReplayBuffer.__setstate__(self, state)
        self.env = None


class NStepReplayBuffer(buffers.NStepReplayBuffer, ReplayBuffer):  # type: ignore[misc]
    """Stable-Baselines3's ``NStepReplayBuffer`` over a ring: its arguments, draws and returns."""


class PrioritizedReplayBufferSamples(NamedTuple):
    """A batch of a `PrioritizedReplayBuffer`.

    Args:
        observations: [B, ...], or a dict of such.
        actions: [B, action_dim].
        next_observations: as ``observations``.
        dones: float32 [B, 1].
        rewards: float32 [B, 1].
        discounts: float32 [B, 1], what the value of ``next_observations`` counts; 0 where it is not to be used.
        weights: float32 [B, 1], importance weights over the largest one.
        indices: uint64 [B], numpy: what `PrioritizedReplayBuffer.update_priorities` takes.
    """

    observations: Any
    actions: Any
    next_observations: Any
    dones: Any
    rewards: Any
    discounts: Any
    weights: Any
    indices: npt.NDArray[np.uint64]


class PrioritizedReplayBuffer(ReplayBuffer):
    """A replay buffer of Stable-Baselines3's kind that draws by priority, over n steps.

    Args:
        alpha: exponent of the priorities.
        beta: exponent of the importance weights; a number, which may be assigned to later, ``(first, last, samples)``,
            or a function of the transitions drawn so far.
        eps: what `update_priorities` adds to each.
        n_steps: rewards of a transition.
        gamma: discount of one step.
        seed: of what is drawn; None: from ``np.random``.
        options: of `ReplayBuffer`, ``path`` among them.

    Attributes:
        table: the `stepwell.Table` of the transitions.

    Notes:
        A transition can be drawn when the ``n_steps`` steps after it are there, or its episode has ended. A pickle has
        no priorities: all transitions begin with the same one.
    """

    def __init__(
        self,
        *args: Any,
        alpha: float = 0.6,
        beta: Any = 0.4,
        eps: float = 1e-6,
        n_steps: int = 1,
        gamma: float = 0.99,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        self.alpha, self.beta, self.eps, self.n_steps, self.gamma = alpha, beta, eps, n_steps, gamma
        self.seed = int(np.random.randint(2**31)) if seed is None else seed
        super().__init__(*args, **options)

    def _begin(self, path: str | os.PathLike[str] | None) -> None:
        super()._begin(path)
        self._targets_of_n = targets = transition_fields(self._names, n_step=self.n_steps, discount=self.gamma)
        size = self.buffer_size * self.n_envs
        self._table = Table(
            self.store, sampler=Prioritized(self.alpha), pattern=targets.pattern, max_size=size, seed=self.seed
        )
        self._loaders: dict[int, ReplayLoader] = {}

    @property
    def table(self) -> Table:
        """The table of the transitions."""
        return self._table

    def _loader(self, batch_size: int) -> ReplayLoader:
        loader = self._loaders.get(batch_size)
        if loader is None:
            targets = self._targets_of_n
            # read at each draw: CleanRL's Rainbow assigns a new one each step
            beta = self.beta if callable(self.beta) or isinstance(self.beta, tuple) else lambda _: self.beta
            loader = self._loaders[batch_size] = ReplayLoader(
                self._table,
                targets.fields,
                batch_size=batch_size,
                beta=beta,
                transform=targets.transform,
                timeout=0.0,
            )
        return loader

    def sample(self, batch_size: int, env: Any = None) -> PrioritizedReplayBufferSamples:
        """Draw transitions by priority.

        Args:
            batch_size: how many.
            env: a ``VecNormalize`` that normalizes observations and rewards.

        Raises:
            TableError: there is no transition yet.
        """
        self.flush()
        try:
            batch = next(self._loader(batch_size))
        except RateLimitError as error:
            raise TableError(
                f"no transition of {self.n_steps} steps is there yet. Add more before sampling."
            ) from error
        values = dict(batch) | {"done": batch["terminated"].astype(np.float32)}
        discounts, weights = (self._tensor(batch[key].reshape(-1, 1)) for key in ("discount", "table.weight"))
        return PrioritizedReplayBufferSamples(*self._tensors(values, env), discounts, weights, batch["table.key"])

    def update_priorities(self, indices: npt.NDArray[np.uint64], priorities: Any) -> int:
        """Give drawn transitions new priorities, ``abs(priority) + eps``.

        Args:
            indices: of a sample.
            priorities: float [B] or [B, 1], numpy or torch.

        Returns:
            How many of them were still there.
        """
        if isinstance(priorities, torch.Tensor):
            priorities = priorities.detach().cpu().numpy()
        return self.table.update_priorities(indices, np.abs(np.asarray(priorities, np.float64)).reshape(-1) + self.eps)


class Column:
    """One array of a buffer, [buffer_size, n_envs, ...], whose rows are read when it is indexed.

    Positions that were never written are zeros. Reading only: what a buffer of Stable-Baselines3 changes in place are
    ``dones`` and ``timeouts``, which are arrays.
    """

    def __init__(self, buffer: ReplayBuffer, key: str) -> None:
        self._buffer, self._key = buffer, key
        staged = buffer._staged[key]
        self.dtype = staged.dtype
        self.shape = (buffer.buffer_size, *staged.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> npt.NDArray[Any]:
        parts = index if isinstance(index, tuple) else (index,)
        cells = np.asarray(self._buffer._grid[parts[:2]])
        flat = cells.reshape(-1)
        is_there = flat < self._buffer.size() * self._buffer.n_envs
        found = np.zeros((len(flat), *self.shape[2:]), self.dtype)
        if is_there.any():
            found[is_there] = self._buffer._read(flat[is_there])[self._key]
        found = found.reshape(*cells.shape, *self.shape[2:])
        return found[(*(slice(None),) * cells.ndim, *parts[2:])]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self[:].astype(dtype or self.dtype, copy=False)

    def __repr__(self) -> str:
        return f"<Column {self._key} {self.dtype}{list(self.shape)}>"


def _name_of(key: str, number: int) -> str:
    """Return the feature of an observation, or of one key of a dict of them."""
    if not key:
        return OBSERVATION
    name = f"{OBSERVATION}.{key}"
    return name if is_feature_name(name) else f"{OBSERVATION}.{number}"
