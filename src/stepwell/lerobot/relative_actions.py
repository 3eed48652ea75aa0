"""Statistics of actions relative to the state that a chunk of them begins at, which policies of relative actions use.

::

    actions of an episode   a0 a1 a2 a3 a4 ...        every chunk that lies in one episode
    chunk at 1, of three       a1 a2 a3               minus s1: the joints that are not left out

Source: ``compute_relative_action_stats`` of huggingface/lerobot 0.6.2: equal minima and maxima, moments but for its
sums of float32; its quantiles are read from histograms, these from sketches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import FeatureNotFoundError, WindowError
from stepwell.formats.source_episodes import episodes_of, schema_of
from stepwell.lerobot.info import FeatureInfo
from stepwell.lerobot.statistics import StatisticsSum, as_lerobot

if TYPE_CHECKING:
    from stepwell.store import Store
    from stepwell.windows import View

__all__ = ["compute_relative_action_stats", "relative_action_statistics", "relative_statistics"]

ACTION, STATE, EPISODE = "action", "observation.state", "episode_index"
# of chunks that are made at a time
MAX_VALUES = 1 << 20
Floats = npt.NDArray[np.float32]


def relative_action_statistics(
    view: View | Store,
    chunk_size: int,
    exclude_joints: Collection[str] = (),
    *,
    action: str = ACTION,
    state: str = STATE,
) -> dict[str, npt.NDArray[Any]]:
    """Compute the statistics of actions minus the state at the beginning of their chunk.

    Args:
        view: a store, or some of its episodes; final rows do not count.
        chunk_size: steps a chunk; every chunk that lies within one episode counts.
        exclude_joints: parts of names of the action's elements that stay absolute, such as "gripper"; of actions
            without names none can.
        action: name of the actions' feature, [d].
        state: name of the state's, whose element i belongs to that of the action.

    Returns:
        "min", "max", "mean", "std", "q01" ... "q99", float64 [d], and "count", int64 [1]: actions of all chunks.

    Raises:
        FeatureNotFoundError: no such feature.
        WindowError: no chunk of this size, or features of shapes that do not fit (a ValueError).

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_store
        >>> store = tiny_store(f"{tempfile.mkdtemp()}/tiny.well", lengths=(4, 6))
        >>> found = relative_action_statistics(store, 3, state="action")
        >>> found["min"].tolist(), found["max"].tolist(), found["count"].tolist()
        ([0.0, 0.0], [2.0, 2.0], [18])
    """
    schema = schema_of(view)
    missing = [name for name in (action, state) if name not in schema]
    if missing:
        raise FeatureNotFoundError(f"no feature {', '.join(map(repr, missing))}. There are: {', '.join(schema)}.")
    parts = ((episode.read(action), episode.read(state)) for episode in episodes_of(view))
    return relative_statistics(parts, chunk_size, exclude_joints, schema[action].names)


def compute_relative_action_stats(
    hf_dataset: Any,
    features: Mapping[str, Mapping[str, Any]],
    chunk_size: int,
    exclude_joints: Collection[str] | None = None,
    num_workers: int = 0,
) -> dict[str, npt.NDArray[Any]]:
    """Compute the same of rows as LeRobot has them; see `relative_action_statistics`.

    Args:
        hf_dataset: by name the columns "action", "observation.state" and "episode_index": the ``hf_dataset`` of a
            `LeRobotDataset`, a dict of arrays.
        features: as ``meta.features`` has them: the names of the action's elements are looked up there.
        chunk_size: steps a chunk.
        exclude_joints: parts of names of elements that stay absolute.
        num_workers: of LeRobot's function; of no meaning here.
    """
    actions, states = (np.array(hf_dataset[name], np.float32) for name in (ACTION, STATE))
    cuts = np.flatnonzero(np.diff(np.array(hf_dataset[EPISODE]).reshape(-1))) + 1
    parts = zip(np.split(actions, cuts), np.split(states, cuts), strict=True)
    return relative_statistics(parts, chunk_size, exclude_joints or (), features[ACTION].get("names"))


def relative_statistics(
    episodes: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    chunk_size: int,
    excluded: Collection[str],
    names: Any,
) -> dict[str, npt.NDArray[Any]]:
    """Return the same of the actions and states of episodes; ``names`` are those of the action's elements."""
    if isinstance(excluded, str) or chunk_size < 1:
        raise WindowError(
            f"chunk_size={chunk_size!r}, exclude_joints={excluded!r}. Allowed: steps, at least 1, and a list of names."
        )
    total, info = StatisticsSum(), None
    for actions, states in episodes:
        mask = _relative_elements(actions, states, excluded, names)
        info = FeatureInfo(ACTION, "float32", (len(mask),), None, {})
        for rows in _chunks(np.asarray(actions, np.float32), np.asarray(states, np.float32), chunk_size, mask):
            total.add_rows(ACTION, rows)
    found = total.result().get(ACTION)
    if found is None or info is None:
        raise WindowError(f"No valid chunks found: no episode has chunk_size={chunk_size} steps. Make it smaller.")
    return as_lerobot(found, info)


def _relative_elements(
    actions: npt.NDArray[Any], states: npt.NDArray[Any], excluded: Collection[str], names: Any
) -> npt.NDArray[np.float32]:
    """Return which elements of an action are relative: 1, or 0, float32 [d]."""
    if actions.ndim != 2 or states.ndim != 2 or states.shape[1] < actions.shape[1]:
        raise WindowError(
            f"actions of shape {actions.shape[1:]}, states of {states.shape[1:]}. Allowed: one axis each, and at least "
            "as many elements of a state as of an action."
        )
    if isinstance(names, Mapping) and len(names) == 1:
        names = next(iter(names.values()))
    mask = np.ones(actions.shape[1], np.float32)
    parts = [str(part).lower() for part in excluded if part]
    for place, name in enumerate(list(names or ())[: len(mask)]):
        if any(part in str(name).lower() for part in parts):
            mask[place] = 0
    return mask


def _chunks(actions: Floats, states: Floats, size: int, mask: Floats) -> Iterator[Floats]:
    """Yield the relative actions of an episode's chunks, [n, d], some chunks at a time."""
    count = len(actions) - size + 1
    few = max(1, MAX_VALUES // (size * len(mask)))
    for first in range(0, count, few):
        starts = np.arange(first, min(first + few, count))
        chunks = actions[starts[:, None] + np.arange(size)]
        chunks -= (states[starts, : len(mask)] * mask)[:, None]
        yield chunks.reshape(-1, len(mask))
