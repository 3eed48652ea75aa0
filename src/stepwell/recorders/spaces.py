"""Gymnasium spaces as features, and the columns of a recorded step.

::

    Dict(pixels=Box(0, 255, (96, 96, 3), uint8),      observation.pixels     Image((96, 96, 3), codec=...)
         agent_pos=Box(0, 512, (2,), float64))   ->   observation.agent_pos  Array(2, "float64")
    Tuple((Discrete(4), Box(-1, 1, (2,))))            action.0               Array((), "int64")
                                                      action.1               Array(2, "float32")
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from stepwell.errors import SchemaError, StepError
from stepwell.schema import Array, Feature, Image, Schema, Text
from stepwell.store.values import acceptor

__all__ = ["MISSING", "SpaceColumn", "SpaceColumns", "StepColumns", "find_info", "schema_of"]

RENDER = "observation.render"
INFO = "info"
IMAGE_MIN_SIDE = 16
IMAGE_CHANNELS = (1, 3, 4)
EXACT_KINDS = "biu"

ImageCodec = Literal["raw", "jpeg", "png", "zstd"]


def schema_of(
    env: gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any],
    *,
    codec: ImageCodec = "raw",
    reward_dtype: npt.DTypeLike = "float32",
    infos: Mapping[str, Feature] | None = None,
    record_render: bool | tuple[int, int, int] = False,
    **options: Any,
) -> Schema:
    """Return the schema that holds the steps of an environment.

    Args:
        env: a Gymnasium environment, or a vector one (its single spaces are taken).
        codec: of uint8 images of height x width (x 1, 3 or 4 channels) with sides of 16 and more: "raw" (default),
            "png" or "zstd" are lossless, "jpeg" is not.
        reward_dtype: of ``reward``, default float32.
        infos: keys of the environment's ``info`` to store at every step, with the feature of each; they become
            ``info.KEY``. Dots reach into nested infos.
        record_render: add ``observation.render``. A (height, width, 3) says its size; True resets the environment
            once and renders it to learn it.
        options: of the codec, e.g. ``quality=90``.

    Returns:
        ``observation``, ``action``, ``reward``, then what was asked for. Dict and Tuple spaces become dotted names.
        The observations are ``final``: they also have a value after the last action.

    Raises:
        SchemaError: a space that has no feature (Graph, OneOf, a Sequence of such), names that clash.

    Example:
        >>> import gymnasium
        >>> schema = schema_of(gymnasium.make("CartPole-v1"))
        >>> {name: str(feature) for name, feature in schema.items()}
        {'observation': 'raw 4 float32', 'action': 'raw scalar int64', 'reward': 'raw scalar float32'}
    """
    observation = getattr(env, "single_observation_space", env.observation_space)
    action = getattr(env, "single_action_space", env.action_space)
    features = SpaceColumns(observation, "observation", codec=codec, options=options).features(final=True)
    features |= SpaceColumns(action, "action", codec=codec, options=options).features(final=False)
    features["reward"] = Array((), reward_dtype)
    if record_render:
        shape = _render_shape(env) if isinstance(record_render, bool) else record_render
        features[RENDER] = Image(shape, codec=codec, final=True, **options)
    features |= {f"{INFO}.{name}": feature for name, feature in (infos or {}).items()}
    return Schema(features)


@dataclass(frozen=True, slots=True)
class SpaceColumn:
    """One column of a space: where its value is found in a nested value, and the feature that holds it."""

    name: str
    path: tuple[Any, ...]
    feature: Feature
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, name: str, feature: Feature, path: tuple[Any, ...] = ()) -> SpaceColumn:
        """Return the leaf of a feature."""
        return cls(name, path, feature, feature.np_dtype)

    def stored(self, value: Any) -> Any:
        """Return a copy of one value in the feature's dtype."""
        if self.feature.kind in ("text", "bytes"):
            return acceptor(self.name, self.feature)(value)
        if self.feature.is_ragged and len(value) == 0:
            return np.zeros((0, *self.feature.shape[1:]), self.dtype)
        # a copy, always: environments may write the next observation into the same array
        array = np.array(value)
        array = array if array.dtype == self.dtype else _cast(self, array)
        return acceptor(self.name, self.feature)(array) if self.feature.is_ragged else array

    def stored_all(self, values: Any) -> npt.NDArray[Any]:
        """Return copies of the values of n environments, [n, ...]; of a ragged feature as objects."""
        if not self.feature.is_ragged:
            return np.asarray(self.stored(values))
        rows = np.empty(len(values), object)
        for number, value in enumerate(values):
            rows[number] = self.stored(value)
        return rows


class SpaceColumns:
    """The columns of one space, and how a value of the space becomes a value of each."""

    def __init__(
        self, space: spaces.Space[Any], name: str, *, codec: str = "raw", options: Mapping[str, Any] = {}
    ) -> None:
        self.leaves = tuple(_leaves(space, name, (), codec, options))
        names = [leaf.name for leaf in self.leaves]
        twice = {n for n in names if names.count(n) > 1}
        if twice:
            raise SchemaError(
                f"two parts of the {name} space would be named {sorted(twice)[0]!r}. Rename a key of its Dict."
            )

    def features(self, *, final: bool) -> dict[str, Feature]:
        """Return the features by name."""
        return {leaf.name: leaf.feature.with_final(final) for leaf in self.leaves}

    def flatten(self, value: Any) -> dict[str, Any]:
        """Return the value of each column, in the dtype of its space."""
        return {leaf.name: leaf.stored(_part(leaf, value)) for leaf in self.leaves}

    def flatten_all(self, values: Any) -> dict[str, npt.NDArray[Any]]:
        """Return the values of n environments, [n, ...] by column."""
        return {leaf.name: leaf.stored_all(_part(leaf, values)) for leaf in self.leaves}


def _leaves(
    space: spaces.Space[Any], name: str, path: tuple[Any, ...], codec: str, options: Mapping[str, Any]
) -> Iterator[SpaceColumn]:
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from _leaves(part, f"{name}.{key}", (*path, key), codec, options)
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _leaves(part, f"{name}.{index}", (*path, index), codec, options)
    else:
        yield SpaceColumn.of(name, _feature(space, name, codec, options), path)


def _feature(space: spaces.Space[Any], name: str, codec: str, options: Mapping[str, Any]) -> Feature:
    if isinstance(space, spaces.Text):
        return Text()
    if isinstance(space, spaces.Sequence):
        part = _feature(space.feature_space, name, "raw", {})
        if part.kind not in ("array", "image") or part.is_ragged:
            raise SchemaError(
                f"{name} is a {space}, and only sequences of arrays and numbers have a feature. Wrap the environment."
            )
        return Array((None, *part.shape), part.dtype)
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        shape = tuple(space.shape or ())
        return Image(shape, codec=codec, **options) if _is_image(shape, space.dtype) else Array(shape, space.dtype)
    raise SchemaError(
        f"{name} is a {type(space).__name__} space, which has no feature. Allowed: Box, Discrete, MultiDiscrete, "
        "MultiBinary, Text, Sequence of these, Dict, Tuple. Flatten the space with a wrapper."
    )


def _is_image(shape: tuple[int, ...], dtype: npt.DTypeLike) -> bool:
    if np.dtype(dtype) != np.uint8 or len(shape) not in (2, 3) or min(shape[:2]) < IMAGE_MIN_SIDE:
        return False
    return len(shape) == 2 or shape[2] in IMAGE_CHANNELS


def _part(leaf: SpaceColumn, value: Any) -> Any:
    try:
        for key in leaf.path:
            value = value[key]
    except (KeyError, IndexError, TypeError) as error:
        raise StepError(
            f"feature {leaf.name!r}: the environment's value has no part {key!r}, which its space has."
        ) from error
    return value


def _cast(leaf: SpaceColumn, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if array.dtype.kind in "biuf":
        with np.errstate(invalid="ignore", over="ignore"):
            cast = array.astype(leaf.dtype)
        if leaf.dtype.kind not in EXACT_KINDS or np.array_equal(cast, array):
            return cast
    raise StepError(
        f"feature {leaf.name!r}: a {array.dtype} value does not fit dtype {leaf.dtype}. "
        "Return what the space declares, or correct the space."
    )


def _render_shape(env: Any) -> tuple[int, ...]:
    env.reset()
    frame = env.render()
    if not isinstance(frame, np.ndarray):
        raise SchemaError(
            f'env.render() returned a {type(frame).__name__}. Make the environment with render_mode="rgb_array".'
        )
    return tuple(frame.shape)


MISSING = object()


class StepColumns:
    """The columns of a recorded step and how an environment's values become them."""

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
        self._reward = SpaceColumn.of("reward", known.get("reward", Array()))
        self._infos = {n: SpaceColumn.of(prefix + n, known[prefix + n]) for n in self.infos if prefix + n in known}
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

    def observations(self, values: Any) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of the observations of n environments at once."""
        return self._observation.flatten_all(values)

    def actions(self, values: Any) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of the actions of n environments at once."""
        return self._action.flatten_all(values)

    def outcomes(
        self, rewards: Any, mask: npt.NDArray[np.bool_], find: Callable[[str, int], Any]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return `outcome` of n environments at once; infos are looked for where the mask is True."""
        columns = {"reward": np.asarray(self._reward.stored(np.reshape(rewards, mask.shape)))}
        for name in self.infos:
            feature = self._infos[name].feature
            is_ragged, num = feature.is_ragged, len(mask)
            values = np.empty(num, object) if is_ragged else np.zeros((num, *feature.fixed_shape), feature.np_dtype)
            for env in np.flatnonzero(mask).tolist():
                values[env] = self._info(name, find(name, env))
            columns[f"{INFO}.{name}"] = values
        return columns

    def _info(self, name: str, value: Any) -> Any:
        if value is MISSING:
            raise StepError(
                f"feature 'info.{name}': the environment gave no such info at this step. "
                "Record it with episode_infos= instead."
            )
        return self._infos[name].stored(value) if name in self._infos else value

    def outcome(self, reward: Any, find: Callable[[str], Any]) -> dict[str, Any]:
        """Return the columns of what a step returned besides its observation."""
        columns: dict[str, Any] = {"reward": self._reward.stored(np.reshape(reward, ()))}
        for name in self.infos:
            columns[f"{INFO}.{name}"] = self._info(name, find(name))
        return columns


def find_info(info: Mapping[str, Any], name: str) -> Any:
    """Return ``info["a"]["b"]`` for the name "a.b", or `MISSING`."""
    for key in name.split("."):
        if not isinstance(info, Mapping) or key not in info:
            return MISSING
        info = info[key]
    return info
