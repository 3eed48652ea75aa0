"""Fields and transforms of a loader for batches as Octo and OpenVLA make them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.kernels.draws import Draws
from stepwell.octo.standardising import IMAGE, PADS
from stepwell.octo.statistics import (
    Normalization,
    Scale,
    Statistics,
    dataset_name,
    dataset_statistics,
    statistics_of,
)
from stepwell.store import Store
from stepwell.transforms import BatchTransform, Resize
from stepwell.transforms.base import Samples
from stepwell.transforms.images import Size
from stepwell.windows import Field, View
from stepwell.windows.fields import schema_of

__all__ = ["octo_batches", "openvla_batches"]

Floats = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]


def octo_batches(
    view: Store | View,
    *,
    window_size: int = 1,
    action_horizon: int = 1,
    statistics: Statistics | None = None,
    normalization: Normalization | None = "normal",
    resize_size: Size | Mapping[str, Size] | None = None,
    goal_relabeling: Literal["uniform"] | None = None,
    max_goal_distance: int | None = None,
    keep_image_prob: float | None = None,
) -> dict[str, Any]:
    """Return ``fields`` and ``transform`` of a `Loader` whose batches are Octo's.

    Args:
        view: of stores of `Standardize`: of one dataset, or of a mixture (``order=mixed(weights)``).
        window_size: W, observations of a sample: the anchor's is the last. Before the first step it is repeated.
        action_horizon: H, actions from each of those observations on.
        statistics: by dataset, as of `dataset_statistics`; with a ``mask`` beside ``mean`` only some dimensions are
            scaled. None: of the view's own episodes, where they are needed.
        normalization: "normal": mean 0, deviation 1; "bounds" or "bounds_q99": the 1 % and 99 % quantiles become -1 and
            1, and what is beyond is clipped; None: as stored. Each sample by its own dataset's statistics.
        resize_size: height and width of all cameras, or of each by its name; by TensorFlow's lanczos3. Needed where a
            dataset lacks a camera, or sizes differ.
        goal_relabeling: "uniform": ``task`` also gets an observation of the episode, from the anchor's on.
        max_goal_distance: the goal is fewer steps than that away.
        keep_image_prob: with goals: that part of the samples keeps the goal and loses the instruction, the rest the
            other way round. None: all have both.

    Returns:
        ``{"fields": ..., "transform": ...}``, for ``Loader(view, **octo_batches(view))``. Batches have:
        ``observation.image_NAME`` uint8 [B, W, h, w, 3], ``observation.proprio`` float32 [B, W, P],
        ``observation.timestep`` int32 [B, W], ``observation.timestep_pad_mask`` bool [B, W],
        ``observation.task_completed`` bool [B, W, H], ``observation.pad_mask_dict.KEY`` bool [B, W];
        ``task.language_instruction`` str [B], ``task.pad_mask_dict.KEY`` bool [B], and of goals the same keys as of
        observations; ``action`` float32 [B, W, H, A], ``action_pad_mask`` bool [B, W, H, A]; ``dataset_name`` str [B].

    Raises:
        WindowError: a view that is not standardised, or arguments that do not fit it.

    Notes:
        Octo crops, colours and drops images on top of that: give ``transform=[made["transform"], ...]`` more of them.
        Depth cameras are not read.
    """
    if window_size < 1 or action_horizon < 1:
        raise WindowError(f"window_size={window_size}, action_horizon={action_horizon}. Allowed: 1 and more.")
    if goal_relabeling not in (None, "uniform"):
        raise WindowError(f'goal_relabeling={goal_relabeling!r}. Allowed: "uniform", None.')
    if max_goal_distance is not None and max_goal_distance < 1:
        raise WindowError(f"max_goal_distance={max_goal_distance}. Allowed: 1 and more.")
    if keep_image_prob is not None and (goal_relabeling is None or not 0 <= keep_image_prob <= 1):
        raise WindowError(f"keep_image_prob={keep_image_prob}. Allowed: 0 to 1, with goal_relabeling.")
    goal = (0, None if max_goal_distance is None else max_goal_distance - 1) if goal_relabeling else None
    plan = _Plan.of(view, window_size, action_horizon - 1, goal)
    scales = plan.scales(statistics, normalization, zeroes_constants=False)
    return {"fields": plan.fields(resize_size), "transform": _OctoBatch(plan, scales, keep_image_prob)}


def openvla_batches(
    view: Store | View,
    *,
    window_size: int = 1,
    future_action_window_size: int = 0,
    statistics: Statistics | None = None,
    normalization: Normalization | None = "bounds_q99",
    absolute_action_mask: Mapping[str, Sequence[bool]] | None = None,
    resize_size: Size | Mapping[str, Size] | None = None,
    goal_relabeling: Literal["uniform"] | None = None,
) -> dict[str, Any]:
    """Return ``fields`` and ``transform`` of a `Loader` whose batches are OpenVLA's.

    Args:
        view: as of `octo_batches`.
        window_size: W, as of `octo_batches`.
        future_action_window_size: F, actions after the anchor's.
        statistics: as of `octo_batches`.
        normalization: "bounds_q99": quantiles to -1 and 1; "bounds": minimum and maximum; clipped, and a dimension that
            never changes is 0; "normal"; None.
        absolute_action_mask: name of a dataset to bool [A]: dimensions that hold their value beyond the goal or the
            end; the others are 0 there. Default: none.
        resize_size: as of `octo_batches`.
        goal_relabeling: "uniform": ``task`` also gets an observation after the anchor's.

    Returns:
        As `octo_batches`, but: ``action`` float32 [B, W + F, A]; ``observation.pad_mask`` bool [B, W]; no
        ``action_pad_mask``, ``task_completed`` and ``timestep_pad_mask``; ``absolute_action_mask`` where it is given.

    Raises:
        WindowError: as of `octo_batches`.
    """
    if window_size < 1 or future_action_window_size < 0:
        raise WindowError(
            f"window_size={window_size}, future_action_window_size={future_action_window_size}. Allowed: 1 and more, "
            "and 0 and more."
        )
    if goal_relabeling not in (None, "uniform"):
        raise WindowError(f'goal_relabeling={goal_relabeling!r}. Allowed: "uniform", None.')
    plan = _Plan.of(view, window_size, future_action_window_size, (1, None) if goal_relabeling else None)
    scales = plan.scales(statistics, normalization, zeroes_constants=True)
    return {"fields": plan.fields(resize_size), "transform": _OpenVlaBatch(plan, scales, absolute_action_mask or {})}


@dataclass(frozen=True)
class _Plan:
    """What the batches of a view have."""

    view: View
    names: tuple[str, ...]  # of the dataset in each store of the view
    dims: Mapping[str, int]  # of "action", and "proprio" where there is one
    cameras: tuple[str, ...]  # "image_primary", ...
    window: int
    ahead: int  # actions after the anchor's
    goal: tuple[int, int | None] | None  # where goals are drawn from

    @classmethod
    def of(cls, view: Store | View, window: int, ahead: int, goal: tuple[int, int | None] | None) -> _Plan:
        found = View(view) if isinstance(view, Store) else view
        if not found.num_episodes:
            raise WindowError("the view has no episodes. Select some.")
        names = tuple(
            dataset_name(part.store[int(part.indices[0])].metadata, part.store) if len(part.indices) else ""
            for part in found.parts
        )
        schema = schema_of(found.stores[0])
        columns = {"action": "action", "proprio": "observation.proprio"}
        dims = {key: int(schema[name].fixed_shape[0]) for key, name in columns.items() if name in schema}
        cameras = tuple(name.removeprefix("observation.") for name in schema if name.startswith(IMAGE))
        return cls(found, names, dims, cameras, window, ahead, goal)

    @property
    def observed(self) -> tuple[str, ...]:
        """The keys of an observation, but for its masks."""
        return (*self.cameras, *(["proprio"] if "proprio" in self.dims else []), "timestep")

    def fields(self, resize_size: Size | Mapping[str, Size] | None) -> dict[str, Field]:
        """Return the fields of a loader."""
        sizes = resize_size if isinstance(resize_size, Mapping) else dict.fromkeys(self.cameras, resize_size)
        sizes = {camera: sizes.get(camera, sizes.get(camera.removeprefix("image_"))) for camera in self.cameras}
        history = range(1 - self.window, 1)
        found = {
            "action": Field("action", range(1 - self.window, self.ahead + 1)),
            "action_pad_mask": Field("action_pad_mask"),
            "task.language_instruction": Field("language_instruction"),
            STEP: Field("step_index"),
            LAST: Field("step_index", at="final"),
            STORE: Field("store_index"),
        }
        for key in self.observed:
            source = "step_index" if key == "timestep" else f"observation.{key}"
            size = sizes.get(key)
            decoder = None if size is None else Resize(size, "tf_lanczos3")
            found[f"observation.{key}"] = Field(source, history, decoder=decoder)
            if key in self.cameras:
                found[f"{PADS}{key}"] = Field(f"{PADS}{key}", history)
            if self.goal is not None:
                found[f"task.{key}"] = Field(source, decoder=decoder, at=self.goal)
                if key in self.cameras:
                    found[f"task.pad_mask_dict.{key}"] = Field(f"{PADS}{key}", at=self.goal)
        return found

    def scales(
        self, statistics: Statistics | None, normalization: Normalization | None, *, zeroes_constants: bool
    ) -> dict[str, list[Scale]]:
        """Return the scale of each store, of "action" and "proprio"; none where values stay as they are."""
        if normalization is None:
            return {}
        if normalization not in get_args(Normalization):
            allowed = ", ".join(get_args(Normalization))
            raise WindowError(f"normalization={normalization!r}. Allowed: {allowed}, None.")
        known = dataset_statistics(self.view) if statistics is None else statistics
        # of a store without episodes there are no samples, and any scale will do
        own = [statistics_of(known, name or next(filter(None, self.names))) for name in self.names]
        return {
            key: [Scale.of(one, key, normalization, zeroes_constants, dims) for one in own]
            for key, dims in self.dims.items()
        }


STEP, LAST, STORE = "step_index of the anchor", "step_index of the last step", "store_index of the anchor"


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the samples of a batch lie.

    Args:
        step: int64 [B], within the episode.
        last: int64 [B], the episode's last step.
        store: int64 [B], number of the dataset.
        is_there: bool [B, window], whether a step of the history is one of the episode.
    """

    step: Int64s
    last: Int64s
    store: Int64s
    is_there: npt.NDArray[np.bool_]


class _VlaBatch(BatchTransform):
    """What the batches of both have in common."""

    def __init__(self, plan: _Plan, scales: Mapping[str, Sequence[Scale]]) -> None:
        self.scales = dict(scales)
        self.window, self.ahead = plan.window, plan.ahead
        self.cameras, self.observed, self.has_goal = plan.cameras, plan.observed, plan.goal is not None
        self.names = np.array(plan.names, object)

    def outputs(self, samples: Samples) -> Samples:
        """Return the samples of what `__call__` makes; see `BatchTransform.outputs`."""
        made = {key: sample for key, sample in samples.items() if key not in (STEP, LAST, STORE)}
        found: Samples = {key: sample for key, sample in made.items() if not key.endswith("_is_pad")}
        found["action"] = None
        found["dataset_name"] = None
        for key in self.observed:
            found[f"{PADS}{key}"] = ((self.window,), np.dtype(np.bool_))
            if self.has_goal:
                found[f"task.pad_mask_dict.{key}"] = ((), np.dtype(np.bool_))
        found["task.pad_mask_dict.language_instruction"] = ((), np.dtype(np.bool_))
        found["observation.timestep"] = ((self.window,), np.dtype(np.int32))
        if self.has_goal:
            found["task.timestep"] = ((), np.dtype(np.int32))
        return found

    def __call__(self, batch: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """Return the batch as its program has it."""
        step, last, store = batch.pop(STEP), batch.pop(LAST), batch.pop(STORE)
        history = np.asarray(batch["observation.timestep"])
        is_there = ~batch["observation.timestep_is_pad"]
        batch = {key: values for key, values in batch.items() if not key.endswith("_is_pad")}
        batch["action"] = self._scaled("action", batch["action"], store)
        texts = batch["task.language_instruction"]
        batch["task.pad_mask_dict.language_instruction"] = np.array([text != "" for text in texts], np.bool_)
        for prefix, ones in (("observation", np.ones(history.shape, np.bool_)), ("task", np.ones(len(step), np.bool_))):
            if prefix == "task" and not self.has_goal:
                break
            if "proprio" in self.observed:
                batch[f"{prefix}.proprio"] = self._scaled("proprio", batch[f"{prefix}.proprio"], store)
            for key in self.observed[len(self.cameras) :]:
                batch[f"{prefix}.pad_mask_dict.{key}"] = ones.copy()
            batch[f"{prefix}.timestep"] = batch[f"{prefix}.timestep"].astype(np.int32)
        batch["dataset_name"] = self.names[store]
        self._act(batch, draws, _Places(step, last, store, is_there))
        return batch

    def _scaled(self, key: str, values: Floats, store: npt.NDArray[np.int64]) -> Floats:
        scales = self.scales.get(key)
        if scales is None:
            return values
        found = np.empty(values.shape, np.float32)
        for number in np.unique(store).tolist():
            found[store == number] = scales[number](values[store == number])
        return found

    def _act(self, batch: dict[str, Any], draws: Draws, at: _Places) -> None:
        """Put the actions and masks of its program into the batch."""
        raise NotImplementedError


class _OctoBatch(_VlaBatch):
    def __init__(self, plan: _Plan, scales: Mapping[str, Sequence[Scale]], keep_image_prob: float | None) -> None:
        super().__init__(plan, scales)
        self.keep_image_prob = keep_image_prob

    def outputs(self, samples: Samples) -> Samples:
        """Return the samples of Octo's batch; see `_VlaBatch.outputs`."""
        dims, made = samples["action_pad_mask"], super().outputs(samples)
        shape = self.window, self.ahead + 1
        bools = np.dtype(np.bool_)
        made["action"] = None if dims is None else ((*shape, *dims[0]), np.dtype(np.float32))
        made["action_pad_mask"] = None if dims is None else ((*shape, *dims[0]), bools)
        made["observation.timestep_pad_mask"] = ((self.window,), bools)
        made["observation.task_completed"] = (shape, bools)
        return made

    def _act(self, batch: dict[str, Any], draws: Draws, at: _Places) -> None:
        if self.keep_image_prob is not None:
            self._keep_one(batch, draws.uniform() < self.keep_image_prob, at.last)
        goal = batch["task.timestep"].astype(np.int64) if self.has_goal else at.last
        w, h = np.arange(self.window)[:, None], np.arange(self.ahead + 1)
        now = at.step[:, None, None]
        # a history that begins before the episode is its first step's, and so are the actions that follow it
        first = np.maximum(now + w - (self.window - 1), 0)
        places = first + h - now + (self.window - 1)
        rows = np.arange(len(at.step))[:, None, None]
        batch["action"] = batch["action"][rows, places]
        # by Octo's count: two steps and a window before the goal are not there yet
        completed = goal[:, None, None] - (now - (self.window + 1) + w + h) <= 0
        batch["observation.timestep_pad_mask"] = at.is_there
        batch["observation.task_completed"] = completed
        batch["action_pad_mask"] = batch["action_pad_mask"][:, None, None, :] & ~completed[..., None]

    def _keep_one(self, batch: dict[str, Any], keeps_goal: npt.NDArray[np.bool_], last: Int64s) -> None:
        """Take the goal's images from some samples, and the instruction from the others."""
        masks = "task.pad_mask_dict."
        keeps_goal = keeps_goal | ~batch[f"{masks}language_instruction"]
        for key in self.cameras:
            batch[f"task.{key}"][~keeps_goal] = 0
            batch[f"{masks}{key}"] = batch[f"{masks}{key}"] & keeps_goal
        texts = np.array(batch["task.language_instruction"], object)
        texts[keeps_goal] = ""
        batch["task.language_instruction"] = texts
        batch[f"{masks}language_instruction"] = batch[f"{masks}language_instruction"] & ~keeps_goal
        batch["task.timestep"] = np.where(keeps_goal, batch["task.timestep"], last).astype(np.int32)


class _OpenVlaBatch(_VlaBatch):
    def __init__(
        self, plan: _Plan, scales: Mapping[str, Sequence[Scale]], absolute: Mapping[str, Sequence[bool]]
    ) -> None:
        super().__init__(plan, scales)
        dims = plan.dims["action"]
        self.absolute = np.zeros((len(plan.names), dims), np.bool_)
        for number, name in enumerate(plan.names):
            mask = absolute.get(name, ())
            if len(mask) > dims:
                raise WindowError(f"absolute_action_mask of {name!r} is of {len(mask)} dimensions, actions of {dims}.")
            self.absolute[number, : len(mask)] = mask

    def outputs(self, samples: Samples) -> Samples:
        """Return the samples of OpenVLA's batch; see `_VlaBatch.outputs`."""
        dims, made = samples["action_pad_mask"], super().outputs(samples)
        made["action"] = None if dims is None else ((self.window + self.ahead, *dims[0]), np.dtype(np.float32))
        del made["action_pad_mask"]
        made["observation.pad_mask"] = ((self.window,), np.dtype(np.bool_))
        if self.absolute.any():
            made["absolute_action_mask"] = (self.absolute.shape[1:], np.dtype(np.bool_))
        return made

    def _act(self, batch: dict[str, Any], draws: Draws, at: _Places) -> None:
        goal = batch["task.timestep"].astype(np.int64) if self.has_goal else at.last
        there = at.step[:, None] + np.arange(1 - self.window, self.ahead + 1)
        places = np.minimum(np.maximum(there, 0), goal[:, None]) - at.step[:, None] + (self.window - 1)
        actions = batch["action"][np.arange(len(at.step))[:, None], places]
        is_neutral = (there > goal[:, None])[..., None] & ~self.absolute[at.store][:, None, :]
        batch["action"] = np.where(is_neutral, np.float32(0), actions)
        if self.absolute.any():
            batch["absolute_action_mask"] = self.absolute[at.store]
        del batch["action_pad_mask"]
        batch["observation.pad_mask"] = at.is_there
