"""Checks of every frame of the videos: a file is decoded once, from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs.video_packets import opened_video
from stepwell.errors import DecodeError, MissingDependencyError
from stepwell.lerobot.audits.cameras import CameraWatch
from stepwell.lerobot.audits.reports import Rule

__all__ = ["watch_frames"]

Integers = npt.NDArray[np.int64]

DAMAGED = Rule("video-damaged", "error", "Download the file again, or leave these episodes out.")


def watch_frames(watch: CameraWatch, path: str, members: Integers, advance: Callable[[], None]) -> None:
    """Decode every frame of a file.

    Args:
        watch: of the camera.
        path: of the file, below the root.
        members: places in the table of the episodes in it.
        advance: called after each frame.
    """
    subject, numbers = watch.subject, watch.subject.episodes.number
    start = np.round(subject.episodes.videos[watch.camera].start[members] * subject.info.fps)
    known = members[np.isfinite(start)]
    order = np.argsort(start[np.isfinite(start)], kind="stable")
    known, first = known[order], start[np.isfinite(start)][order].astype(np.int64)
    stop = first + watch.places.length[known]
    shown = 0
    try:
        for frame in _frames(subject.root / path):
            at = int(np.searchsorted(first, shown, "right")) - 1
            if frame.is_corrupt:
                subject.tally.add(
                    DAMAGED, watch.camera, f"frame {shown} of {path} is damaged", numbers[known[at : at + 1]]
                )
            elif at >= 0 and shown < stop[at]:
                watch.see(int(known[at]), shown - int(first[at]), frame.to_ndarray(format="rgb24"))
            shown += 1
            advance()
    except FileNotFoundError:
        return  # already told
    except MissingDependencyError as error:
        subject.tally.skip(f"videos: {error}")
        return
    except DecodeError as error:
        subject.tally.add(DAMAGED, watch.camera, f"after frame {shown}: {error}", numbers[known[stop > shown]])
        return
    if (stop > shown).any():
        detail = f"{path} ends after frame {shown} when it is decoded"
        subject.tally.add(DAMAGED, watch.camera, detail, numbers[known[stop > shown]])


def _frames(path: Any) -> Iterator[Any]:
    with opened_video(str(path), 0) as (container, video):
        yield from container.decode(video)
