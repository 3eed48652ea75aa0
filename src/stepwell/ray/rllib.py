"""RLlib's episode replay buffers, of its new API stack, over a ring: `docs/ray.md` has a section on them.

::

    add(chunks)   chunk of episode e --> lane of e in a vector writer --> rows of a ring, an observation once
    sample(n)     Table --> windows of n steps, one read --> SingleAgentEpisodes of one transition each
"""

from __future__ import annotations

import os
import tempfile
from abc import ABCMeta
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from stepwell.errors import MissingDependencyError, RateLimitError, StoreExistsError, TableError
from stepwell.ray.lanes import Chunk, Lanes, Part
from stepwell.replay.checkpoints import load, save
from stepwell.replay.loader import ReplayLoader
from stepwell.replay.patterns import every_step
from stepwell.replay.selectors import Prioritized, Selector, Uniform
from stepwell.replay.tables import Table
from stepwell.schema import Array
from stepwell.store import create
from stepwell.store.memory import memory_path
from stepwell.windows import Field

try:
    import tree
    from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.replay_buffers import episode_replay_buffer, prioritized_episode_buffer
    from ray.rllib.utils.spaces.space_utils import batch as stacked
except ImportError as error:
    raise MissingDependencyError.of("ray[rllib]", "ray") from error

__all__ = ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"]

T = TypeVar("T")
OBSERVATION, ACTION, REWARD, EXTRA, INFO = "observation", "action", "reward", "extra", "info"
STEP, EPISODE, ENDINGS = "step_index", "episode_index", ("terminated", "truncated")
KEY, WEIGHT = "table.key", "table.weight"
# draws for one sample, before an error says that hardly any step has enough others after it
MAX_DRAWS = 1000
# how often episodes are counted while the ring goes round once
COUNTS = 100
# as RLlib's
LEAST_PRIORITY = 1e-12


class Named(ABCMeta):
    """Makes classes that RLlib takes where it expects the name of one of its own buffers, and looks at it as text."""

    def __contains__(cls, text: object) -> bool:
        return isinstance(text, str) and text in cls.__name__

    def __eq__(cls, other: object) -> bool:
        return other == cls.__name__ if isinstance(other, str) else cls is other

    __hash__ = ABCMeta.__hash__


class Reading(NamedTuple):
    """What samples have in common for which one loader does.

    Args:
        size: rows to draw at a time.
        fewest: rewards of a transition.
        most: likewise.
        length: steps of a sequence; 0: transitions.
        lookback: steps before a sequence.
        least: steps that must follow.
        has_extras: whether all that is stored of a step is read.
    """

    size: int
    fewest: int = 1
    most: int = 1
    length: int = 0
    lookback: int = 0
    least: int = 0
    has_extras: bool = False

    @property
    def reach(self) -> int:
        """The steps after the anchor that are read."""
        return max(self.length or self.most, self.least)

    def fields(self, parts: Mapping[str, Part]) -> dict[str, Field]:
        """Return the fields that are read of the parts of a step."""
        steps = range(-self.lookback, self.length or self.most)
        observations = (
            range(-self.lookback, self.length + 1) if self.length else (0, *range(self.fewest, self.most + 1))
        )
        fields = {name: Field(name, steps) for name in ENDINGS} | {name: Field(name) for name in (STEP, EPISODE)}
        # its mask tells how many steps are there
        fields[REWARD] = Field(REWARD, range(-self.lookback, max(self.length or self.most, self.least + 1)))
        for key, part in parts.items():
            if key == OBSERVATION:
                fields |= {name: Field(name, observations) for name in part.names}
            elif key == ACTION or key.startswith(EXTRA):
                if key == ACTION or self.has_extras or self.length:
                    fields |= {name: Field(name, steps if self.length else None) for name in part.names}
            elif key.startswith(INFO) and self.has_extras:
                fields |= {name: Field(name, steps) for name in part.names}
        return fields


class Drawn(NamedTuple):
    """Rows of a batch that are given: what was read, int64 [n] rows, and of each how many steps, and steps before."""

    values: Mapping[str, Any]
    rows: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]


class EpisodeReplayBuffer(episode_replay_buffer.EpisodeReplayBuffer, metaclass=Named):  # type: ignore[misc]
    """RLlib's ``EpisodeReplayBuffer`` over a ring: its episodes come in, its episodes of one transition go out.

    Args:
        capacity: steps of all episodes; beyond it the oldest go.
        batch_size_B: transitions of a sample, where no number is asked for.
        batch_length_T: not used: `sample` gets the length of sequences.
        metrics_num_episodes_for_smoothing: as RLlib's.
        path: of the ring, a new directory, ``run.well``; where something is there, ``run-1.well`` and so on, as trials
            and restarts have one config. None: in memory.
        outputs: keys of the episodes' ``extra_model_outputs`` that are stored, where they are there. By default what
            recurrent modules need.
        infos: keys of the episodes' infos that are stored: numbers, or arrays of one shape each.
        seed: of what is drawn; None: another one each time.
        ignored: whatever else is in a ``replay_buffer_config``, as RLlib's.

    Attributes:
        store: the ring, from the first `add` on: ``observation``, ``action`` and ``reward``, or ``observation.KEY``
            where they are dicts. Other processes may read it, and tables may be made over it.

    Example:
        ``config.training(replay_buffer_config={"type": EpisodeReplayBuffer, "capacity": 50_000, "path": "run.well"})``

    Notes:
        As RLlib's, but for this: a step can be drawn when ``n_step`` steps are there from it on and one row more, or
        its episode is done. Near the end of an episode fewer rewards are summed up; ``n_step`` of the sample says how
        many, so that ``gamma ** n_step`` is right. Of single agents; one thread at a time.
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        batch_size_B: int = 16,
        batch_length_T: int = 64,
        metrics_num_episodes_for_smoothing: int = 100,
        path: str | os.PathLike[str] | None = None,
        outputs: Sequence[str] = ("state_out",),
        infos: Sequence[str] = (),
        seed: int | None = None,
        **ignored: Any,
    ) -> None:
        # not by super(): the prioritised one makes trees
        episode_replay_buffer.EpisodeReplayBuffer.__init__(
            self,
            capacity=int(capacity),
            batch_size_B=batch_size_B,
            batch_length_T=batch_length_T,
            metrics_num_episodes_for_smoothing=metrics_num_episodes_for_smoothing,
        )
        self.rng = np.random.default_rng(seed)
        self._path, self._outputs, self._infos = path, tuple(outputs), tuple(infos)
        self._seed = int(self.rng.integers(2**31))
        self._num_episodes, self._beta = 0, 0.0
        self._parts: dict[str, Part] = {}
        self._spaces: dict[str, Any] = {}
        self._begin(None, None)

    def _begin(self, store: Any, table: Table | None) -> None:
        self.store = store
        self._table = table
        self._loaders: dict[Reading, ReplayLoader] = {}
        self._lanes = None if store is None else Lanes(store.vector_writer, self.capacity)
        self._num_uncounted = 0
        if store is not None:
            self._count()

    def _count(self) -> None:
        """Look how many steps and episodes the ring has."""
        self._count_episodes()
        self._num_timesteps = self.store.num_steps

    def _count_episodes(self) -> None:
        self.store.refresh()
        self._num_episodes, self._num_uncounted = self.store.num_episodes, 0

    # episodes come

    def add(self, episodes: Any) -> None:
        """Store the steps of a chunk of an episode, or of several; see RLlib's.

        Args:
            episodes: a ``SingleAgentEpisode`` or a list of such. One whose id is known goes on where its last chunk
                ended.

        Raises:
            TableError: episodes of several agents, or steps with other parts than those before.
            SchemaError: observations or actions that are no arrays of one shape.
        """
        given = episodes if isinstance(episodes, list | tuple) else [episodes]
        chunks: list[Chunk] = []
        for each in given:
            if not isinstance(each, SingleAgentEpisode):
                raise TableError(f"a {type(each).__name__}. A buffer over a ring has SingleAgentEpisodes only.")
            if len(each):
                chunks.append(self._chunk(each))
        if not chunks:
            return
        assert self._lanes is not None
        try:
            num_steps, num_begun = sum(each.length for each in chunks), self._lanes.write(chunks)
        except BaseException:
            self._count()
            raise
        num_there, self._num_timesteps = self._num_timesteps, min(self._num_timesteps + num_steps, self.capacity)
        num_episodes = self._num_episodes = self._num_episodes + num_begun
        self._num_timesteps_added += num_steps
        self._num_uncounted += num_steps
        if self._num_timesteps == self.capacity and self._num_uncounted > self.capacity // COUNTS:
            self._count_episodes()
        num_gone = num_episodes - self._num_episodes
        self._num_episodes_evicted += num_gone
        self._log_added(num_steps, num_begun, num_there + num_steps - self._num_timesteps, num_gone)

    def _chunk(self, episode: Any) -> Chunk:
        """Return what is stored of an episode; the first one says what all of them have."""
        length = len(episode)
        steps = slice(0, length)
        observations = _arrays(episode.get_observations(slice(0, length + 1)))
        given: dict[str, Any] = {
            OBSERVATION: tree.map_structure(lambda rows: rows[:length], observations),
            ACTION: _arrays(episode.get_actions(steps)),
            REWARD: np.asarray(episode.get_rewards(steps), np.float32),
        }
        for key in self._outputs:
            if key in episode.extra_model_outputs:
                given[f"{EXTRA}.{key}"] = _arrays(episode.get_extra_model_outputs(key, steps))
        for key in self._infos:
            try:
                given[f"{INFO}.{key}"] = np.asarray([each[key] for each in episode.get_infos(slice(1, length + 1))])
            except KeyError:
                raise TableError(
                    f"infos without {key!r}, which this buffer stores. Give infos=() what all have."
                ) from None
        if self.store is None:
            self._parts = {name: Part.like(name, values) for name, values in given.items()}
            self._spaces = {"observation_space": episode.observation_space, "action_space": episode.action_space}
        if given.keys() != self._parts.keys():
            raise TableError(f"an episode with {', '.join(given)}, and those before had {', '.join(self._parts)}.")
        rows: dict[str, Any] = {}
        for name, part in self._parts.items():
            rows |= part.rows(given[name])
        final = self._parts[OBSERVATION].rows(tree.map_structure(lambda rows: rows[length], observations))
        if self.store is None:
            schema = {name: Array(row.shape[1:], row.dtype, final=name in final) for name, row in rows.items()}
            self._begin(_made(self._path, lambda path: create(path, schema, capacity=self.capacity)), None)
        rows = {name: self._checked(name, row, row.shape[1:]) for name, row in rows.items()}
        final = {name: self._checked(name, row, row.shape) for name, row in final.items()}
        return Chunk(episode.id_, rows, final, episode.is_terminated, episode.is_truncated)

    def _checked(self, name: str, values: npt.NDArray[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return values as their feature has them."""
        feature = self.store.schema[name]
        if shape != feature.shape or not np.can_cast(values.dtype, feature.np_dtype, "same_kind"):
            raise TableError(
                f"{name} is {values.dtype}{list(shape)}, and was {feature.np_dtype}{list(feature.shape)} in the first "
                "episode. All episodes of a buffer have the same."
            )
        return values.astype(feature.np_dtype, copy=False)

    def _log_added(self, num_steps: int, num_episodes: int, num_steps_gone: int, num_episodes_gone: int) -> None:
        of_agents = {
            "num_steps_added": num_steps,
            "num_episodes_added": num_episodes,
            "num_steps_evicted": num_steps_gone,
            "num_episodes_evicted": num_episodes_gone,
        }
        of_all = {name.replace("num_steps", "num_env_steps"): number for name, number in of_agents.items()}
        self._update_add_metrics(**of_all, **_of_each(of_agents))

    # transitions are drawn

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,
        batch_length_T: int | None = None,
        n_step: int | tuple[int, int] | None = None,
        beta: float | None = 0.0,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        sample_episodes: bool = True,
        lookback: int = 0,
        min_batch_length_T: int = 0,
        **ignored: Any,
    ) -> list[Any]:
        """Draw transitions, or sequences, as episodes of arrays; see RLlib's.

        Args:
            num_items: how many transitions. A sequence counts its steps and one more.
            batch_size_B: the same by another name.
            batch_length_T: steps of a sequence; 0 or None: transitions.
            n_step: rewards of a transition; a pair: drawn for each, from the first number up to below the second.
            beta: exponent of the importance weights.
            gamma: discount of one step.
            include_infos: give the infos that are stored, too.
            include_extra_model_outputs: give all ``extra_model_outputs`` that are stored; sequences have them anyway.
            sample_episodes: only True: dicts of arrays [B, T] are not made.
            lookback: steps before a sequence, where there are any.
            min_batch_length_T: draw no step with so many, or fewer, steps from it to the end of its episode.
            ignored: whatever else.

        Returns:
            ``SingleAgentEpisodes``, with ``n_step`` and ``weights`` among their extra model outputs.

        Raises:
            TableError: nothing can be drawn yet, or arguments that cannot be.
        """
        if num_items is not None and batch_size_B is not None:
            raise TableError("num_items and batch_size_B mean the same. Give one of them.")
        if not sample_episodes:
            raise TableError("dicts of arrays [B, T] are not made. Ask for episodes: sample_episodes=True.")
        if include_infos and not self._infos:
            raise TableError("no infos are stored. Say which: replay_buffer_config={'infos': ('cost',), ...}.")
        size, length = num_items or batch_size_B or self.batch_size_B, int(batch_length_T or 0)
        fewest, most = _range_of(n_step)
        if length and most > 1:
            raise TableError(f"n_step={n_step} of sequences. It is 1.")
        num_rows = -(-size // (length + 1)) if length else size
        has_extras = include_infos or include_extra_model_outputs
        reading = Reading(
            num_rows, fewest, most, length, lookback if length else 0, int(min_batch_length_T), has_extras
        )
        self._beta = float(beta or 0.0)
        parts = self._draw(reading, size)
        give = self._sequences if length else self._transitions
        episodes = [episode for each in parts for episode in give(reading, each, gamma, include_infos)]
        self._log_sampled(size, parts)
        return episodes

    def _draw(self, reading: Reading, size: int) -> list[Drawn]:
        """Draw rows until they are enough, leaving out those that are too near to the end of their episode."""
        loader, parts = self._loader(reading), list[Drawn]()
        for _ in range(MAX_DRAWS):
            try:
                values = next(loader)
            except RateLimitError as error:
                raise TableError(
                    f"no step with {reading.reach} others after it is there yet. Let more be sampled before learning "
                    "starts: config.training(num_steps_sampled_before_learning_starts=...)."
                ) from error
            is_there: npt.NDArray[np.bool_] = ~values[f"{REWARD}_is_pad"]
            there = is_there[:, reading.lookback :].sum(axis=1)
            wanted = reading.length or self.rng.integers(reading.fewest, reading.most + 1, reading.size)
            rows = np.flatnonzero(there > reading.least) if reading.least else np.arange(reading.size)
            lengths = np.minimum(there, wanted)[rows]
            counted = np.cumsum(lengths + 1) if reading.length else np.arange(1, len(rows) + 1)
            last = int(np.searchsorted(counted, size)) + 1
            before = is_there[rows[:last], : reading.lookback].sum(axis=1)
            parts.append(Drawn(values, rows[:last], lengths[:last], before))
            if last <= len(rows):
                return parts
            size -= int(counted[-1]) if len(rows) else 0
        raise TableError(f"hardly any step has more than {reading.least} steps from it on in its episode.")

    def _loader(self, reading: Reading) -> ReplayLoader:
        loader = self._loaders.get(reading)
        if loader is None:
            if self.store is None:
                raise TableError("this buffer is empty. Add episodes before sampling.")
            loader = self._loaders[reading] = ReplayLoader(
                self._table_for(reading.reach),
                reading.fields(self._parts),
                batch_size=reading.size,
                beta=lambda _: self._beta,
                seed=self._seed,
                timeout=0.0,
                info=self._info,
            )
        return loader

    def _table_for(self, reach: int) -> Table:
        """Return the table; a new one, where windows reach further than those of all samples before."""
        table = self._table
        if table is None or table.pattern is None or table.pattern.reach < reach:
            self._loaders = {}
            table = self._table = Table(
                self.store,
                sampler=self._sampler(),
                max_size=self.capacity,
                pattern=every_step(ahead=reach),
                seed=self._seed,
            )
        return table

    # the columns `table.*` that are read
    _info: tuple[str, ...] = ()

    def _sampler(self) -> Selector:
        return Uniform()

    def _transitions(self, reading: Reading, drawn: Drawn, gamma: float, include_infos: bool) -> list[Any]:
        values, rows, lengths, _ = drawn
        each = np.arange(len(rows))
        is_counted = np.arange(reading.most) < lengths[:, None]
        rewards = values[REWARD][rows, : reading.most] * (is_counted * gamma ** np.arange(reading.most))
        returns = rewards.sum(axis=1).astype(np.float32)
        terminated, truncated = ((values[name][rows] & is_counted).any(axis=1).tolist() for name in ENDINGS)
        # where fewer steps are there than the number of them, the last row is repeated
        pair = np.stack([np.zeros_like(each), 1 + np.maximum(lengths - reading.fewest, 0)], axis=1)
        found = dict(values) | {name: values[name][rows[:, None], pair] for name in self._parts[OBSERVATION].names}
        steps, weights = values[STEP][rows].tolist(), self._weights(values, rows)
        observations, actions = self._parts[OBSERVATION], self._parts[ACTION]
        episodes = []
        for at, row in enumerate(rows.tolist()):
            one, here = slice(row, row + 1), slice(at, at + 1)
            info = self._info_of(values, (row, lengths[at] - 1)) if include_infos else {}
            outputs = self._outputs_of(values, one) if reading.has_extras else {}
            episodes.append(
                SingleAgentEpisode(
                    observations=observations.of(found, at),
                    actions=actions.of(values, one),
                    rewards=returns[here],
                    infos=[{}, info],
                    terminated=terminated[at],
                    truncated=truncated[at],
                    extra_model_outputs={"n_step": lengths[here], "weights": weights[here], **outputs},
                    t_started=steps[at],
                    len_lookback_buffer=0,
                    **self._spaces,
                )
            )
        return episodes

    def _sequences(self, reading: Reading, drawn: Drawn, gamma: float, include_infos: bool) -> list[Any]:
        values, rows, lengths, before = drawn
        weights, episodes = self._weights(values, rows), []
        for at, row in enumerate(rows.tolist()):
            first, stop = reading.lookback - int(before[at]), reading.lookback + int(lengths[at])
            steps = (row, slice(first, stop))
            infos: list[Any] = [{} for _ in range(stop - first + 1)]
            if include_infos:
                infos[1:] = [self._info_of(values, (row, step)) for step in range(first, stop)]
            terminated, truncated = (bool(values[name][row, reading.lookback : stop].any()) for name in ENDINGS)
            outputs = {
                "n_step": np.ones(stop - first, np.int64),
                "weights": np.full(stop - first, weights[at]),
                **self._outputs_of(values, steps),
            }
            episodes.append(
                SingleAgentEpisode(
                    observations=self._parts[OBSERVATION].of(values, (row, slice(first, stop + 1))),
                    actions=self._parts[ACTION].of(values, steps),
                    rewards=values[REWARD][steps],
                    infos=infos,
                    terminated=terminated,
                    truncated=truncated,
                    extra_model_outputs=outputs,
                    t_started=int(values[STEP][row]),
                    len_lookback_buffer=int(before[at]),
                    **self._spaces,
                )
            )
        return episodes

    def _outputs_of(self, values: Mapping[str, npt.NDArray[Any]], index: Any) -> dict[str, Any]:
        return self._of(EXTRA, values, index)

    def _info_of(self, values: Mapping[str, npt.NDArray[Any]], index: Any) -> dict[str, Any]:
        return self._of(INFO, values, index)

    def _of(self, kind: str, values: Mapping[str, npt.NDArray[Any]], index: Any) -> dict[str, Any]:
        return {
            name.removeprefix(f"{kind}."): part.of(values, index)
            for name, part in self._parts.items()
            if name.startswith(f"{kind}.")
        }

    def _weights(self, values: Mapping[str, npt.NDArray[Any]], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        weights = values.get(WEIGHT)
        return np.ones(len(rows), np.float32) if weights is None else weights[rows]

    def _log_sampled(self, size: int, parts: Sequence[Drawn]) -> None:
        self.sampled_timesteps += size
        episodes, steps = (np.concatenate([each.values[name][each.rows] for each in parts]) for name in (EPISODE, STEP))
        num_steps = len(np.unique(episodes << 32 | steps))
        n_step = float(np.concatenate([each.lengths for each in parts]).mean())
        of_agents = {
            "num_steps_sampled": size,
            "num_episodes_per_sample": len(np.unique(episodes)),
            "num_steps_per_sample": num_steps,
            "sampled_n_step": n_step,
            "num_resamples": len(parts) - 1,
        }
        of_all = {name.replace("num_steps", "num_env_steps"): number for name, number in of_agents.items()}
        self._update_sample_metrics(**of_all, **_of_each(of_agents))

    # what is there

    def get_num_timesteps(self, module_id: Any = None) -> int:
        """Return how many steps are in the ring."""
        return int(self._num_timesteps)

    def get_num_episodes(self, module_id: Any = None) -> int:
        """Return how many episodes are in the ring, in whole or in part; of those that went lately some count."""
        return int(self._num_episodes)

    def get_state(self) -> dict[str, Any]:
        """Return all steps, and what the table knows of them, to be pickled.

        Episodes under way are cut there: what comes of them later is an episode of its own.
        """
        state = {
            "_num_timesteps_added": self._num_timesteps_added,
            "_num_episodes_evicted": self._num_episodes_evicted,
            "sampled_timesteps": self.sampled_timesteps,
            "parts": {name: part.structure for name, part in self._parts.items()},
            "spaces": self._spaces,
            "steps": None,
        }
        if self._lanes is not None:
            self._lanes.end()
            with tempfile.TemporaryDirectory() as directory:
                state["steps"] = save(Path(directory, "steps.tar"), [self._table_for(1)]).read_bytes()
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take the steps of a state in place of those there are; of a state of RLlib's buffers the episodes.

        Where ``path`` is taken, the ring gets a name as described there.
        """
        self.close()
        self._begin(None, None)
        self._parts, self._num_timesteps, self._num_episodes = {}, 0, 0
        if "episodes" in state:
            self.add([SingleAgentEpisode.from_state(each) for each in state["episodes"]])
        elif state["steps"] is not None:
            self._parts = {name: Part(structure) for name, structure in state["parts"].items()}
            self._spaces = state["spaces"]
            with tempfile.TemporaryDirectory() as directory:
                file = Path(directory, "steps.tar")
                file.write_bytes(state["steps"])
                tables = _made(self._path, lambda path: load(file, to=path))
            (table,) = tables.values()
            self._begin(table.store, table)
        for name in ("_num_timesteps_added", "_num_episodes_evicted", "sampled_timesteps"):
            setattr(self, name, state[name])

    def close(self) -> None:
        """End the episodes that are under way, and seal the ring. May be called twice."""
        if self._lanes is not None:
            self._lanes.close()


class PrioritizedEpisodeReplayBuffer(EpisodeReplayBuffer, prioritized_episode_buffer.PrioritizedEpisodeReplayBuffer):  # type: ignore[misc]
    """RLlib's ``PrioritizedEpisodeReplayBuffer`` over a ring; see `EpisodeReplayBuffer`.

    Args:
        capacity: as of `EpisodeReplayBuffer`.
        alpha: exponent of the priorities.
        options: of `EpisodeReplayBuffer`.

    Notes:
        Importance weights are over the largest one of the sample. Transitions only, as RLlib's.
    """

    _info = ("key", "weight")

    def __init__(self, capacity: int = 10_000, *, alpha: float = 1.0, **options: Any) -> None:
        self._alpha = alpha
        self._sampled_keys = np.empty(0, np.uint64)
        super().__init__(capacity, **options)

    def _sampler(self) -> Selector:
        return Prioritized(self._alpha)

    def sample(self, num_items: int | None = None, **options: Any) -> list[Any]:
        """Draw transitions by priority; see `EpisodeReplayBuffer.sample`."""
        return super().sample(num_items, **options | {"batch_length_T": 0, "sample_episodes": True})

    def _log_sampled(self, size: int, parts: Sequence[Drawn]) -> None:
        self._sampled_keys = np.concatenate([each.values[KEY][each.rows] for each in parts])
        super()._log_sampled(size, parts)

    def update_priorities(self, priorities: Any, module_id: Any = None) -> None:
        """Give the transitions of the last sample new priorities.

        Args:
            priorities: float [n], one for each in the order of the sample; their absolute values count.
            module_id: not used.

        Raises:
            TableError: another number of them.
        """
        values = np.maximum(np.abs(np.asarray(priorities, np.float64)), LEAST_PRIORITY)
        if values.shape != self._sampled_keys.shape:
            raise TableError(f"priorities of shape {values.shape} for a sample of {len(self._sampled_keys)}.")
        if self._table is not None:
            self._table.update_priorities(self._sampled_keys, values)


def _made(path: str | os.PathLike[str] | None, make: Callable[[Path], T]) -> T:
    """Make something at a path, or at the first path with a number that is free; None: in memory."""
    if path is None:
        return make(Path(memory_path()))
    first = Path(path)
    for number in count():
        try:
            return make(first.with_stem(f"{first.stem}-{number}") if number else first)
        except StoreExistsError:
            continue
    raise AssertionError


def _arrays(values: Any) -> Any:
    """Return values of some steps as arrays [t, ...], or dicts and tuples of such."""
    return stacked(values) if isinstance(values, list) else values


def _range_of(n_step: int | tuple[int, int] | None) -> tuple[int, int]:
    """Return the fewest and the most rewards of a transition."""
    first, stop = n_step if isinstance(n_step, tuple | list) else (n_step or 1, (n_step or 1) + 1)
    if not 1 <= first < stop:
        raise TableError(f"n_step={n_step}. Allowed: a number of at least 1, or a pair (1, 4) for one of 1, 2 and 3.")
    return int(first), int(stop) - 1


def _of_each(numbers: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return numbers as RLlib counts them for agents and modules, of which there is one."""
    kinds = (("agent", DEFAULT_AGENT_ID), ("module", DEFAULT_MODULE_ID))
    return {f"{kind}_to_{name}": {each: number} for name, number in numbers.items() for kind, each in kinds}
