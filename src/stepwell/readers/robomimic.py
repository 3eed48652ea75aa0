"""robomimic and LIBERO: demonstrations in HDF5 files.

::

    data                    attributes: env_args (JSON), total, problem_info (LIBERO)
      demo_0                num_samples, model_file (XML)
        obs/NAME            [T, ...]   observation before each action
        next_obs/NAME       [T, ...]   observation after it: obs of the next step, stored again
        actions, rewards, dones, states
    mask/train, mask/valid  names of demonstrations

Source: the robomimic documentation, "Dataset Structure"; LIBERO's files are the same with other observations.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepwell.errors import LeftOutWarning
from stepwell.formats.registry import register_reader
from stepwell.readers.hdf5 import is_hdf5, read_attributes, top_names
from stepwell.readers.hdf5_episodes import MINARI, Hdf5Episode, Hdf5Reader
from stepwell.readers.hdf5_layouts import PRESETS
from stepwell.readers.hdf5_places import first_file, hdf5_paths, short_values
from stepwell.recorders.sources import EpisodeData

__all__ = ["RobomimicReader"]


@register_reader
class RobomimicReader(Hdf5Reader):
    """Demonstrations of robomimic, robosuite and LIBERO files, in the order of their numbers, an episode each.

    Notes:
        As for `Hdf5Reader`, with the layout "robomimic". Features are named as in the file, ``obs.agentview_image``. An
        episode is terminated where its last ``dones`` is set, else truncated; neither in a file without ``dones``. Its
        metadata hold ``demo``, ``masks``, ``tasks`` (LIBERO's instruction) and the file's short attributes.
    """

    name = "robomimic"
    what = "demonstration"
    key = "demo"

    def __init__(self, source: str, *, next_obs: str = "auto", ignore: Sequence[str] | str = ()) -> None:
        super().__init__(source, layout=PRESETS["robomimic"], next_obs=next_obs, ignore=ignore)
        self.fps = _rate(self.metadata["robomimic"])

    @classmethod
    def accepts(cls, source: str) -> bool:
        """Whether it is an HDF5 file of demonstrations, or a directory of them; see `Reader.accepts`."""
        first = first_file(source)
        if first is None or not is_hdf5(first) or Path(first).name == MINARI:
            return False
        # a file whose names cannot be read is taken, so that the error says why
        names = top_names(first)
        return names is None or "data" in names

    @classmethod
    def advice(cls, source: str) -> str:
        """Return nothing: the layouts' reader says what was looked for."""
        return ""

    def __getitem__(self, index: int) -> EpisodeData:
        episode = super().__getitem__(index)
        tasks = self.metadata["robomimic"]["tasks"][self._parts[index].file]
        return episode if not tasks else _with_tasks(episode, tasks)

    @classmethod
    def _paths(cls, source: str) -> Sequence[str]:
        return hdf5_paths(source)

    def _told(self) -> dict[str, Any]:
        """Return the metadata of the first file, and each file's task."""
        told: dict[str, Any] = {}
        tasks: list[str | None] = []
        for number in range(len(self._files.paths)):
            with self._files.naming(number, "attributes of data"):
                attributes = short_values(read_attributes(self._files.paths[number], "/data"), parse=True)
            _compare_total(self._files.paths[number], [part for part in self._parts if part.file == number], attributes)
            told = told or attributes
            problem = attributes.get("problem_info")
            said = problem.get("language_instruction") if isinstance(problem, Mapping) else None
            tasks.append("".join(said) if isinstance(said, list) else said)
        return {**told, "tasks": tasks}


def _with_tasks(episode: EpisodeData, tasks: str) -> EpisodeData:
    metadata = {**episode.metadata, "tasks": [tasks]}
    return EpisodeData(episode.columns, terminated=episode.terminated, truncated=episode.truncated, metadata=metadata)


def _compare_total(path: str, parts: Sequence[Hdf5Episode], attributes: Mapping[str, Any]) -> None:
    """Warn where a file says that it has other steps than those of its demonstrations."""
    total, count = attributes.get("total"), sum(part.length for part in parts)
    if isinstance(total, int | float) and total != count:
        warnings.warn(
            f"{path}: its demonstrations have {count} steps, the attribute total of data says {total}. Some may be "
            "missing; or whoever left some out did not count again.",
            LeftOutWarning,
            stacklevel=5,
        )


def _rate(told: Mapping[str, Any]) -> float | None:
    """Return the steps a second that the environment's arguments say."""
    arguments = told.get("env_args")
    inner = arguments.get("env_kwargs") if isinstance(arguments, Mapping) else None
    rate = inner.get("control_freq") if isinstance(inner, Mapping) else None
    return float(rate) if isinstance(rate, int | float) and rate > 0 else None
