"""What the recorders store of every step, agreed with the store's schema before the first one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from stepwell.errors import SchemaError, StepError
from stepwell.recorders.spaces import INFO, RENDER, Leaf, SpaceColumns
from stepwell.schema import Array, Schema

__all__ = ["MISSING", "StepColumns", "find_info"]

MISSING = object()


class StepColumns:
    """The columns of a recorded step and how an environment's values become them.

    Args:
        observation_space: of one environment.
        action_space: of one environment.
        schema: of the store, None when it gets its features from the first step.
        infos: keys of ``info`` stored at every step; None takes those that the schema has as ``info.KEY``.
        record_render: whether ``observation.render`` is stored; None asks the schema.

    Raises:
        SchemaError: a space without a feature, or a schema with other features than the environment gives.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        schema: Schema | None,
        infos: Sequence[str] | None,
        record_render: bool | None,
    ) -> None:
        self._observation = SpaceColumns(observation_space, "observation")
        self._action = SpaceColumns(action_space, "action")
        known: Mapping[str, Any] = schema if schema is not None else {}
        prefix = f"{INFO}."
        self.infos = (
            tuple(n.removeprefix(prefix) for n in known if n.startswith(prefix)) if infos is None else tuple(infos)
        )
        self.has_render = RENDER in known if record_render is None else record_render
        self._reward = Leaf.of("reward", known.get("reward", Array()))
        self._infos = {n: Leaf.of(prefix + n, known[prefix + n]) for n in self.infos if prefix + n in known}
        features = self._observation.features(final=True) | self._action.features(final=False)
        self.ragged_names = frozenset(name for name, f in {**features, **known}.items() if f.is_ragged)
        names = {*features, "reward", *(prefix + n for n in self.infos), *([RENDER] if self.has_render else [])}
        if schema is not None and names != set(schema):
            raise SchemaError(
                "the store has other features than the environment gives. "
                f"Only in the store: {sorted(set(schema) - names)}; only in the environment: "
                f"{sorted(names - set(schema))}. Create the store with schema_of(env, infos={{name: feature}}, ...)."
            )

    def observation(self, value: Any, render: Callable[[], Any]) -> dict[str, Any]:
        """Return the columns of an observation; ``render`` is called when the frame is stored too."""
        columns = self._observation.flatten(value)
        if self.has_render:
            columns[RENDER] = np.array(render())
        return columns

    def action(self, value: Any) -> dict[str, Any]:
        """Return the columns of an action."""
        return self._action.flatten(value)

    def outcome(self, reward: Any, find: Callable[[str], Any]) -> dict[str, Any]:
        """Return the columns of what a step returned besides its observation.

        Args:
            reward: a number, or an array of one.
            find: from the key of an info to its value, `MISSING` when there is none.

        Raises:
            StepError: an info that the environment did not give at this step.
        """
        columns: dict[str, Any] = {"reward": self._reward.stored(np.reshape(reward, ()))}
        for name in self.infos:
            value = find(name)
            if value is MISSING:
                raise StepError(
                    f"feature 'info.{name}': the environment gave no such info at this step. "
                    "Record it with episode_infos= instead."
                )
            columns[f"{INFO}.{name}"] = self._infos[name].stored(value) if name in self._infos else value
        return columns


def find_info(info: Mapping[str, Any], name: str) -> Any:
    """Return ``info["a"]["b"]`` for the name "a.b", or `MISSING`."""
    for key in name.split("."):
        if not isinstance(info, Mapping) or key not in info:
            return MISSING
        info = info[key]
    return info
