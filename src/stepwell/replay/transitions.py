"""Learning targets made when a batch is read: n-step transitions, frame stacks, sequences with burn-in.

Steps are stored once; what a learner wants of them is a choice of offsets and a transform::

    transition_fields(n_step=2, stack=3)      offsets around the anchor a

        window       a-2  a-1   a   a+1  a+2          read once, an observation each
        observation  |-----stack-----|
        next_observation       |-----stack-----|      a view of the same window
        reward                  r_a + gamma r_a+1
        discount                gamma ** 2            0 where the episode terminated on the way

Where an episode ends within the n steps, fewer rewards are counted and the observation after the last of them is taken:
the final row, where the store has final observations. ``terminated`` makes the discount 0, any other end (a time limit,
a killed actor) bootstraps. Where a ring has evicted the beginning of an episode, what is read before the first step
that is left repeats that one, as at a true beginning; ``is_whole`` tells one from the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.replay.patterns import Pattern, every_step
from stepwell.transforms.base import look_up
from stepwell.windows import Field
from stepwell.windows.plans import BatchArray

__all__ = ["LearningTargets", "SequenceTargets", "TransitionTargets", "sequence_fields", "transition_fields"]

Values = dict[str, Any]
Names = str | Sequence[str] | Mapping[str, str]
Bools = npt.NDArray[np.bool_]
# the computed column that is read to tell evicted steps from those that never were, and what is told
STEP, WHOLE = "step_index", "is_whole"
FLOAT32, BOOL = np.dtype(np.float32), np.dtype(np.bool_)
# where a kernel makes arrays begins at multiples of this
ALIGNMENT = 64
# numbers of a transition, beside the actions
COLUMNS = ("reward", "discount", "terminated", "done", "is_valid", WHOLE, "table.weight")
# key, shape, dtype and strides of an array in the memory of a batch, and where it begins
Placed = tuple[str, tuple[int, ...], np.dtype[Any], int, "tuple[int, ...] | None"]


class LearningTargets(NamedTuple):
    """What a loader needs for a kind of learning target: ``Loader(view, targets.fields, transform=targets.transform)``.

    Args:
        fields: key to `Field`; may be extended by others.
        transform: from what the fields read to the targets.

    Example:
        >>> transition_fields(n_step=3).pattern.ahead
        3
    """

    fields: dict[str, Field]
    transform: Callable[[Values], Values]

    @property
    def pattern(self) -> Pattern:
        """The pattern of a table for them: ``Table(store, pattern=targets.pattern)`` waits for all steps they need."""
        return every_step(ahead=max(int(np.max(field.offsets or 0)) for field in self.fields.values()))


def transition_fields(
    observation: Names = "observation",
    action: Names = "action",
    reward: str = "reward",
    *,
    n_step: int = 1,
    discount: float = 0.99,
    stack: int = 1,
    as_columns: bool = False,
) -> LearningTargets:
    """Return fields and transform of n-step transitions, whose observations are read once.

    A batch then holds ``observation`` and ``next_observation`` (views of one window: change neither in place),
    ``action``, and ``reward``, ``discount``, ``terminated``, ``is_valid`` and, with a stack, ``is_whole`` of
    `TransitionTargets`. A learner's target
    is ``reward + discount * value(next_observation)``, and its loss is to be multiplied by ``is_valid`` where the store
    has no final observations.

    Args:
        observation: feature of the observations, several, or key to feature; each is also given as ``next_KEY``.
        action: feature of the actions, several, or key to feature.
        reward: feature of the rewards, one number a step.
        n_step: rewards to sum up, 1 or more.
        discount: of one step, 0 to 1.
        stack: observations that make one, the newest last, 1 or more; 1: no axis for it.
        as_columns: numbers of a transition are [B, 1], as CleanRL, Stable-Baselines3 and TorchRL have them, and not
            [B]: ``reward``, ``discount``, ``terminated``, ``is_valid``, ``is_whole``, ``table.weight``, and actions of
            one number, whole ones as int64. In addition ``done`` is ``terminated`` as float32.

    Raises:
        WindowError: a number out of range, or keys that are taken.

    Example:
        >>> targets = transition_fields(n_step=3, stack=4)
        >>> targets.fields["observation"]
        Field('observation', (-3, -2, -1, 0, 1, 2, 3))

    Notes:
        At an episode's beginning a stack repeats the first observation that is there, as stacks do after a reset.
    """
    n_step, stack = _at_least(1, "n_step", n_step), _at_least(1, "stack", stack)
    _check_discount(discount)
    observations, actions = _as_names(observation), _as_names(action)
    following = [f"next_{key}" for key in observations]
    made = ["reward", "terminated", "discount", "is_valid", *([STEP, WHOLE] if stack > 1 else [])]
    _check_distinct([*observations, *actions, *following, *made, *(["done"] if as_columns else [])])
    steps = None if n_step == 1 else range(n_step)
    fields = {key: Field(name, range(1 - stack, n_step + 1)) for key, name in observations.items()}
    fields |= {key: Field(name) for key, name in actions.items()}
    fields |= {"reward": Field(reward, steps), "terminated": Field("terminated", steps)}
    if stack > 1:
        fields[STEP] = Field(STEP)
    names = tuple(actions) if as_columns else None
    return LearningTargets(fields, TransitionTargets(tuple(observations), n_step, float(discount), stack, names))


class InPlace(NamedTuple):
    """Arrays of a batch that `stepwell.replay.batch_kernels.draw_batch` makes in its memory, with its targets."""

    arrays: list[Placed]
    targets: npt.NDArray[np.int64]
    num_bytes: int


class TransitionTargets:
    """Make n-step transitions of windows, as `transition_fields` asks for them.

    Args:
        observations: keys of the observations, [B, stack + n_step, ...] each, with ``<key>_is_pad``.
        n_step: rewards in the window.
        discount: of one step.
        stack: observations that make one.
        columns: keys of the actions, where numbers are to be [B, 1], see `transition_fields`; None: [B].

    Notes:
        Writes ``reward`` float32 [B] (the n-step return), ``discount`` float32 [B] (what the value of the next
        observation is multiplied by), ``terminated`` bool [B] (within the n steps), ``is_valid`` bool [B]. Not valid
        is only the last step of an episode that did not terminate and has no final observation: nobody knows what came
        after it. It gets its reward, and the last observation again as the next one. Summed up in float64.
        With a stack ``is_whole`` bool [B], too: False where a ring has evicted an observation of the stack, so that
        the first one that is left is repeated where the episode does not begin.

    Source:
        R. Sutton and A. Barto, Reinforcement Learning: An Introduction, 2018, chapter 7; F. Pardo et al., Time limits
        in reinforcement learning, 2018.
    """

    is_by_row = True

    def __init__(
        self,
        observations: tuple[str, ...],
        n_step: int,
        discount: float,
        stack: int,
        columns: tuple[str, ...] | None = None,
    ) -> None:
        from stepwell.kernels.signatures import load_kernels
        from stepwell.replay.batch_kernels import n_step_returns, one_step_discounts

        name = "one_step_discounts" if n_step == 1 else "n_step_returns"
        load_kernels([f"stepwell.replay.batch_kernels.{name}"])
        self._n_step_returns, self._one_step_discounts = n_step_returns, one_step_discounts
        self.observations = observations
        self.n_step = n_step
        self.discount = discount
        self.stack = stack
        self.columns = columns
        self._masks = [f"{key}_is_pad" for key in observations]
        # of a window of one step's transition: the observation, and the next one
        self._at: Any = 0 if stack == 1 else slice(stack)
        self._next: Any = 1 if stack == 1 else slice(1, None)

    def __call__(self, batch: Values) -> Values:
        """Return the batch with the transitions instead of the windows."""
        found = self._transitions(batch)
        return found if self.columns is None else _as_columns(found, self.columns)

    def in_place(self, arrays: Sequence[BatchArray], num_bytes: int) -> InPlace | None:
        """Return the arrays that a batch has after this, made in its memory; None where a kernel cannot make them.

        Args:
            arrays: in the memory, before this.
            num_bytes: that they take.
        """
        there = {key: (shape, dtype, start) for key, shape, dtype, start in arrays}
        windows = [there.get(key) for key in self.observations]
        masks = [there.pop(mask, None) for mask in self._masks]
        if self.n_step > 1 or self.stack > 1 or None in windows or None in masks:
            return None
        rewards, ended = there.get("reward"), there.get("terminated")
        if rewards is None or rewards[1] != FLOAT32 or ended is None or (ended[0], ended[1]) != (rewards[0][:1], BOOL):
            return None
        size = rewards[0][0]
        placed: dict[str, Placed] = {key: (key, *found, None) for key, found in there.items()}
        for key in self.observations:
            (_, _, *sample), dtype, start = there[key]
            row = dtype.itemsize * int(np.prod(sample, dtype=np.int64))
            strides = (2 * row, *np.empty(sample, dtype).strides)
            for number, name in enumerate((key, f"next_{key}")):
                placed[name] = name, (size, *sample), dtype, start + number * row, strides
        made = {"discount": FLOAT32, "is_valid": BOOL, **({} if self.columns is None else {"done": FLOAT32})}
        for key, dtype in made.items():
            start = -(-num_bytes // ALIGNMENT) * ALIGNMENT
            placed[key] = key, (size,), dtype, start, None
            num_bytes = start + size * dtype.itemsize
        starts = {key: each[3] for key, each in placed.items()}
        targets = [starts["terminated"], starts["discount"], starts["is_valid"], starts.get("done", -1)]
        targets += [mask[2] for mask in masks if mask is not None]
        if self.columns is not None:
            if any(placed[key][2].kind in "iu" and placed[key][2] != np.int64 for key in self.columns):
                return None
            for key in (*COLUMNS, *self.columns):
                if key in placed and len(placed[key][1]) == 1:
                    placed[key] = key, (size, 1), *placed[key][2:4], None
        return InPlace(list(placed.values()), np.array(targets, np.int64), num_bytes)

    def _transitions(self, batch: Values) -> Values:
        if self.stack > 1:
            first = look_up(batch, self._masks[0], self)
            batch[WHOLE] = _is_whole(first[:, : self.stack - 1], batch.pop(STEP), self.stack - 1)
        mask = batch.pop(self._masks[0])
        for key in self._masks[1:]:
            mask = mask | batch.pop(key)
        is_missing = mask[:, self.stack :]
        if "reward" not in batch or "terminated" not in batch:
            look_up(batch, "terminated" if "reward" in batch else "reward", self)
        rewards, terminated = batch["reward"], batch["terminated"]
        size = len(rewards)
        if self.n_step == 1:
            discounts, is_valid = np.empty(size, np.float32), np.empty(size, np.bool_)
            self._one_step_discounts(terminated, is_missing, self.discount, discounts, is_valid)
            for key in self.observations:
                windows = batch[key]
                batch[key], batch[f"next_{key}"] = windows[:, self._at], windows[:, self._next]
            if rewards.dtype != FLOAT32:
                batch["reward"] = rewards.astype(FLOAT32)
            batch["discount"], batch["is_valid"] = discounts, is_valid
            return batch
        is_pad = batch.pop("reward_is_pad")
        batch.pop("terminated_is_pad", None)
        floats, flags = np.empty((2, size), np.float32), np.empty((2, size), np.bool_)
        lengths = np.empty(size, np.int64)
        returns, discounts, is_terminal, is_valid = floats[0], floats[1], flags[0], flags[1]
        self._n_step_returns(
            rewards, is_pad, terminated, is_missing, self.discount, returns, discounts, is_terminal, is_valid, lengths
        )
        for key in self.observations:
            self._split(batch, key, lengths)
        batch["reward"], batch["discount"] = returns, discounts
        batch["terminated"], batch["is_valid"] = is_terminal, is_valid
        return batch

    def _split(self, batch: Values, key: str, lengths: npt.NDArray[np.int64]) -> None:
        windows = batch[key]
        if self.stack == 1:
            # beyond the end a window repeats its last row, so that this is the observation after the last reward
            batch[key], batch[f"next_{key}"] = windows[:, 0], windows[:, self.n_step]
            return
        batch[key], following = windows[:, : self.stack], windows[:, self.n_step :]
        short = np.flatnonzero(lengths < self.n_step)
        if len(short):
            # a stack must hold what came before the end, not the last row several times
            following = following.copy()
            following[short] = windows[short[:, None], lengths[short, None] + np.arange(self.stack)]
        batch[f"next_{key}"] = following

    def __repr__(self) -> str:
        return f"TransitionTargets(n_step={self.n_step}, discount={self.discount}, stack={self.stack})"


def _as_columns(batch: Values, actions: Sequence[str]) -> Values:
    """Give numbers of a step an axis, [B, 1]; whole ones among the actions become int64, which torch's indices are."""
    batch["done"] = batch["terminated"].astype(np.float32)
    for key in (*COLUMNS, *actions):
        values = batch.get(key)
        if values is None or (values.ndim != 1 and key not in actions):
            continue
        if key in actions and values.dtype.kind in "iu":
            values = values.astype(np.int64, copy=False)
        batch[key] = values.reshape(-1, 1) if values.ndim == 1 else values
    return batch


def sequence_fields(
    burn_in: int,
    length: int,
    observation: Names = "observation",
    action: Names = "action",
    reward: str = "reward",
    *,
    discount: float = 0.99,
) -> LearningTargets:
    """Return fields and transform of sequences for recurrent learners, with steps before them to warm up on.

    ::

        burn_in = 2, length = 3, anchor a, T = 5
        observation  a-2  a-1   a   a+1  a+2  a+3     [B, T + 1]: one more, to bootstrap from
        action       a-2  a-1   a   a+1  a+2          [B, T]; reward, discount and terminated likewise
        mask          -    -    x    x    x           bool [B, T]: steps whose loss counts
        is_first      x    -    -    -    -           bool [B, T]: the recurrent state is reset before this step
        is_whole      bool [B], with a burn-in: False where a ring has evicted steps of it

    Args:
        burn_in: steps before the anchor, 0 or more.
        length: steps from the anchor on, 1 or more.
        observation: feature of the observations, several, or key to feature.
        action: feature of the actions, several, or key to feature.
        reward: feature of the rewards, one number a step.
        discount: of one step, 0 to 1.

    Raises:
        WindowError: a number out of range, or keys that are taken.

    Example:
        >>> sorted(sequence_fields(2, 3).fields["observation"].offsets)
        [-2, -1, 0, 1, 2, 3]

    Notes:
        Where the episode begins within the burn-in, what is before it repeats the first step, ``is_first`` marks the
        first real one, and a state that is reset there has seen nothing of the repeats. Where it ends within the
        sequence, ``mask`` is False from there on.

    Source:
        S. Kapturowski et al., Recurrent experience replay in distributed reinforcement learning, 2019.
    """
    burn_in, length = _at_least(0, "burn_in", burn_in), _at_least(1, "length", length)
    _check_discount(discount)
    observations, actions = _as_names(observation), _as_names(action)
    made = ["reward", "terminated", "discount", "mask", "is_first", *([STEP, WHOLE] if burn_in else [])]
    _check_distinct([*observations, *actions, *made])
    steps = range(-burn_in, length)
    fields = {key: Field(name, range(-burn_in, length + 1)) for key, name in observations.items()}
    fields |= {key: Field(name, steps) for key, name in actions.items()}
    fields |= {"reward": Field(reward, steps), "terminated": Field("terminated", steps)}
    if burn_in:
        fields[STEP] = Field(STEP)
    return LearningTargets(fields, SequenceTargets(tuple(observations), tuple(actions), burn_in, float(discount)))


class SequenceTargets:
    """Mark the steps of sequences that count, as `sequence_fields` asks for them.

    Args:
        observations: keys of the observations, [B, T + 1, ...] each, with ``<key>_is_pad``.
        actions: keys of the actions, [B, T, ...] each, with ``<key>_is_pad``.
        burn_in: steps before the anchor.
        discount: of one step.

    Notes:
        Writes ``discount`` float32 [B, T] (of the value after each step: 0 where it terminated), ``mask`` bool [B, T]
        and ``is_first`` bool [B, T]. A step counts when it is real, not of the burn-in, and the observation after it is
        known or not needed. With a burn-in ``is_whole`` bool [B], too: False where a ring has evicted steps of it, so
        that ``is_first`` marks a step at which the episode does not begin.
    """

    is_by_row = True

    def __init__(self, observations: tuple[str, ...], actions: tuple[str, ...], burn_in: int, discount: float) -> None:
        self.observations = observations
        self.actions = actions
        self.burn_in = burn_in
        self.discount = discount

    def __call__(self, batch: Values) -> Values:
        """Return the batch with marks instead of the masks of its fields."""
        terminated = look_up(batch, "terminated", self)
        is_pad = batch.pop("reward_is_pad")
        for key in (*self.actions, "terminated"):
            is_pad = is_pad | batch.pop(f"{key}_is_pad")
        is_missing = np.zeros_like(is_pad)
        for key in self.observations:
            is_missing |= batch.pop(f"{key}_is_pad")[:, 1:]
        terminated = terminated & ~is_pad
        mask = ~is_pad & (terminated | ~is_missing)
        if self.burn_in:
            batch[WHOLE] = _is_whole(is_pad[:, : self.burn_in], batch.pop(STEP), self.burn_in)
        mask[:, : self.burn_in] = False
        is_first = ~is_pad
        is_first[:, 1:] &= is_pad[:, :-1]
        batch["terminated"] = terminated
        batch["discount"] = np.where(terminated, np.float32(0), np.float32(self.discount))
        batch["mask"], batch["is_first"] = mask, is_first
        return batch

    def __repr__(self) -> str:
        return f"SequenceTargets(burn_in={self.burn_in}, discount={self.discount})"


def _is_whole(is_pad: Bools, steps: npt.NDArray[np.int64], before: int) -> Bools:
    """Return which windows have all steps that were recorded before their anchors.

    Args:
        is_pad: bool [B, before], of the steps before the anchor.
        steps: int64 [B], number of the anchor's step in its episode.
        before: steps that a window reaches back.
    """
    is_whole = ~is_pad[:, 0]
    # those that have padding at all: near the beginning of an episode there was nothing to evict
    padded = np.flatnonzero(is_pad[:, 0])
    if len(padded):
        is_whole[padded] = np.count_nonzero(is_pad[padded], axis=1) <= before - steps[padded]
    return is_whole


def _as_names(names: Names) -> dict[str, str]:
    given = (names,) if isinstance(names, str) else names
    found = dict(given) if isinstance(given, Mapping) else {name: name for name in given}
    if not found:
        raise WindowError(f"{names!r} names no feature. Name at least one.")
    return found


def _check_distinct(keys: Sequence[str]) -> None:
    if len(set(keys)) < len(keys):
        raise WindowError(
            f"keys {', '.join(sorted(keys))} are not distinct. Give others: observation={{'pixels': 'observation'}}."
        )


def _check_discount(discount: float) -> None:
    if not 0 <= discount <= 1:
        raise WindowError(f"discount={discount} is not between 0 and 1.")


def _at_least(least: int, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise WindowError(f"{name}={value!r}. Allowed is an int of at least {least}.")
    return int(value)
