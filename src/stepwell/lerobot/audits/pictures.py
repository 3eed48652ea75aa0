"""The deep part of an audit: every picture of every camera decoded, those of data files and those of videos."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from stepwell.lerobot.audits.cameras import CameraWatch
from stepwell.lerobot.audits.frames import watch_frames
from stepwell.lerobot.audits.images import watch_images
from stepwell.lerobot.audits.places import NOWHERE, Places
from stepwell.lerobot.audits.reports import Tally
from stepwell.lerobot.audits.rows import data_paths, read_data_files
from stepwell.lerobot.audits.statistics import StoredStatistics
from stepwell.lerobot.audits.subject import Subject
from stepwell.lerobot.audits.videos import video_members
from stepwell.progress import make_bar

__all__ = ["check_pictures"]

Integers = npt.NDArray[np.int64]
Advance = Callable[[int], object]


def check_pictures(subject: Subject, places: Places, said: StoredStatistics, progress: bool | None) -> None:
    """Decode every picture.

    Args:
        subject: what is audited.
        places: rows of the episodes.
        said: the stored statistics.
        progress: draw a bar; None: where standard error is a terminal.
    """
    info = subject.info
    watches = {camera: CameraWatch(subject, camera, places, said) for camera in info.cameras}
    total = int(places.length[subject.places].sum()) * len(watches)
    with make_bar(total, "pictures", "decoding", wanted=progress) as bar:
        if info.image_keys:
            _watch_data_files(subject, places, {camera: watches[camera] for camera in info.image_keys}, bar.update)
        for camera in info.video_keys:
            for path, members in video_members(subject, camera).items():
                watch_frames(watches[camera], path, members, bar.update)
    for watch in watches.values():
        watch.report()


def _watch_data_files(subject: Subject, places: Places, watches: dict[str, CameraWatch], advance: Advance) -> None:
    # what could not be opened has been told
    silent = Subject(subject.root, subject.info, subject.tasks, subject.episodes, subject.chosen, Tally())
    for data in read_data_files(silent, data_paths(subject)):
        owners = _owners(places, data.first, data.num_rows)
        watch_images(subject, data, owners, watches)
        advance(data.num_rows * len(watches))


def _owners(places: Places, first: int, num_rows: int) -> Integers:
    """Return the place in the table of each row's episode; -1: none."""
    owners = np.full(num_rows, NOWHERE, np.int64)
    is_here = (places.stop > first) & (places.first >= 0) & (places.first < first + num_rows)
    for place in np.flatnonzero(is_here).tolist():
        owners[max(0, int(places.first[place]) - first) : int(places.stop[place]) - first] = place
    return owners
