"""Declared layouts of HDF5 files: where episodes lie, and what their datasets mean. Presets are values of it.

::

    episodes=""          episode_7.hdf5     action [T, ...], observations/qpos [T, ...]        the file is an episode
    "traj_#"             trajectory.h5      traj_0/{actions [T], obs/... [T + 1]}, traj_1/...  a group is one
    "data/demo_#"        low_dim.hdf5       data/demo_0/...                                    likewise, further down
    "*_#"                dataset.h5         actions_0 [T, ...], observations_0, actions_1, ... datasets at the top are

Source: the code that writes them: act and act-plus-plus (``record_sim_episodes.py``, ``compress_data.py``,
``constants.py``), ManiSkill (``RecordEpisode``), droid (``trajectory_writer.py``), d3rlpy (``dataset/io.py``), and the
documentation of robomimic and Minari.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from stepwell.errors import FormatError

__all__ = ["PRESETS", "Hdf5Layout", "fitting_layouts", "looked_for"]

NUMBER = "#"
NAME = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hdf5Layout:
    """Where the episodes of HDF5 files lie, and what their datasets mean.

    Args:
        name: what messages call it.
        episodes: "" (default): each file is an episode. A path with ``#`` for a number, such as ``"traj_#"`` or
            ``"data/demo_#"``: each such group. ``"*_#"``: datasets called NAME_0, NAME_1, ...
        steps: the dataset of an episode with a row a step, as a path; "": the one called ``action`` or ``actions``,
            else what most first axes agree on.
        needs: datasets and groups that an episode has, by which a file is recognised.
        files: a pattern that the name of a file fits.
        lengths: a dataset [cameras, T] that says how many bytes of each row are an image file; it is compared with
            where they end.
        terminated: a dataset whose last value says that the environment ended; one value or a row a step.
        truncated: a dataset whose last value says that a time limit did.
        is_cut: whether an episode that did not terminate was truncated.
        next: two groups, the second of which holds the rows of the first one step later, such as ("obs", "next_obs").
        masks: a group of the file with lists of names of episodes.
        json: a pattern of files beside that hold metadata; ``{stem}`` is the file's name without its ending.
        aliases: a pattern of names in that JSON whose values, such as a camera's serial number, are replaced in names
            of datasets and videos by what ``*`` stands for.
        videos: a pattern of video files below the file's directory, a frame a step.
        ignore: patterns of datasets to leave out, as dotted names.
        fps: steps a second.

    Raises:
        FormatError: ``episodes`` is no such pattern.

    Example:
        >>> Hdf5Layout(name="mine", episodes="run_#", steps="command").needs
        ()

    Notes:
        An immutable value. Names of features are paths with dots. What has T rows is a feature, what has T + 1 one with
        a final row; one value, and the attributes of an episode's group, are metadata.
    """

    name: str = "hdf5"
    episodes: str = ""
    steps: str = ""
    needs: tuple[str, ...] = ()
    files: str = NAME
    lengths: str = ""
    terminated: str = ""
    truncated: str = ""
    is_cut: bool = False
    next: tuple[str, ...] = ()
    masks: str = ""
    json: str = ""
    aliases: str = ""
    videos: str = ""
    ignore: tuple[str, ...] = ()
    fps: float | None = None

    def __post_init__(self) -> None:
        parent, _, last = self.episodes.rpartition("/")
        is_right = last.count(NUMBER) == 1 and NUMBER not in parent and NAME not in parent
        if self.episodes and not (is_right and last.count(NAME) <= 1 and last.strip(f"{NUMBER}{NAME}")):
            raise FormatError(
                f'episodes={self.episodes!r}. Allowed: "" or "file" for a file an episode; groups such as "traj_#" or '
                '"data/demo_#", with # for the number; datasets such as "*_#", with * for the name.'
            )

    @property
    def parent(self) -> str:
        """The group that the episodes lie in, "" for the top."""
        return self.episodes.rpartition("/")[0]

    @property
    def are_datasets(self) -> bool:
        """Whether an episode is datasets of one number, and no group of its own."""
        return NAME in self.episodes

    def pattern(self) -> re.Pattern[str]:
        """Return what the names of an episode's group or datasets fit."""
        text = re.escape(self.episodes.rpartition("/")[2])
        text = text.replace(re.escape(NUMBER), r"(?P<number>\d+)").replace(re.escape(NAME), r"(?P<name>.+?)")
        # d3rlpy numbers the parts of a tuple
        return re.compile(f"{text}(?:_(?P<part>\\d+))?" if self.are_datasets else text)

    def lacks(self, path: str, file: Any) -> list[str]:
        """Return what an open file does not have of what this layout looks for."""
        if not fnmatchcase(Path(path).name, self.files):
            return [f"the name {self.files}"]
        first = self._first(file)
        if first is None:
            return [self.episodes]
        return [need for need in self.needs if not first(need)]

    def _first(self, file: Any) -> Any:
        """Return what tells whether a first episode has a path; None where there is no episode."""
        if not self.episodes:
            return lambda need: need in file
        group = file if not self.parent else file.get(self.parent)
        if group is None or not hasattr(group, "keys"):
            return None
        first = next((match for match in map(self.pattern().fullmatch, group) if match is not None), None)
        if first is None:
            return None
        if self.are_datasets:
            return lambda need: any(f"{need}_{first['number']}{part}" in group for part in ("", "_0"))
        inside = group[first[0]]
        return lambda need: hasattr(inside, "keys") and need in inside


ACT = Hdf5Layout(
    name="act",
    steps="action",
    needs=("action", "observations/qpos", "observations/images"),
    lengths="compress_len",
    fps=50.0,
)
ALOHA = replace(ACT, name="aloha", needs=(*ACT.needs, "observations/effort"))

PRESETS: Mapping[str, Hdf5Layout] = {
    layout.name: layout
    for layout in (
        ALOHA,
        ACT,
        Hdf5Layout(
            name="maniskill",
            episodes="traj_#",
            needs=("actions",),
            terminated="terminated",
            truncated="truncated",
            json="{stem}.json",
        ),
        Hdf5Layout(
            name="droid",
            needs=("action/robot_state", "observation/robot_state"),
            json="metadata_*.json",
            aliases="*_cam_serial",
            videos="recordings/MP4/*.mp4",
            ignore=("videos.*-stereo",),
            fps=15.0,
        ),
        Hdf5Layout(
            name="d3rlpy",
            episodes="*_#",
            steps="actions",
            needs=("observations", "actions", "rewards"),
            terminated="terminated",
            is_cut=True,
        ),
        Hdf5Layout(
            name="robomimic",
            episodes="data/demo_#",
            steps="actions",
            needs=("actions",),
            terminated="dones",
            is_cut=True,
            next=("obs", "next_obs"),
            masks="mask",
        ),
        Hdf5Layout(
            name="minari",
            episodes="episode_#",
            steps="rewards",
            needs=("actions", "rewards", "terminations"),
            terminated="terminations",
            truncated="truncations",
        ),
    )
}
"""Layouts of known data sets by name."""


def fitting_layouts(path: str, file: Any) -> list[Hdf5Layout]:
    """Return the presets that an open file fits, the most special first."""
    return [layout for layout in PRESETS.values() if not layout.lacks(path, file)]


def looked_for(layouts: Iterable[Hdf5Layout]) -> str:
    """Return what messages say of what was looked for."""
    return "; ".join(
        f"{layout.name}: {', '.join(filter(None, (layout.episodes, *layout.needs)))}" for layout in layouts
    )
