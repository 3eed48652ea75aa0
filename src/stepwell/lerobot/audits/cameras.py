"""What a camera shows over an episode: nothing, always the same, and with which statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.lerobot.audits.places import Places
from stepwell.lerobot.audits.reports import Rule
from stepwell.lerobot.audits.statistics import StoredStatistics, check_camera_statistics
from stepwell.lerobot.audits.subject import Subject
from stepwell.lerobot.statistics import StatisticsSum, image_summary, sampled_steps

__all__ = ["CameraWatch"]

Pixels = npt.NDArray[np.uint8]
BLOCK = 8
# levels of 255 by which means of blocks differ though nothing moved: what lossy video leaves, and sensors' noise
STILL_LEVELS, BLACK_LEVEL = 4.0, 8.0
SHORTEST_STEPS = 3
SAMPLED_IMAGES = 16

FROZEN = Rule("camera-frozen", "warning", "Look at the episode: the camera hung, or nothing moved. Leave it out if so.")
BLACK = Rule("camera-black", "warning", "Look at the episode: the camera was off or covered. Leave it out if so.")


@dataclass(slots=True)
class _Episode:
    """What is kept of one episode while it is looked at."""

    first: npt.NDArray[np.float64]
    num_steps: int = 0
    change: float = 0.0
    highest: float = 0.0


class CameraWatch:
    """Looks at the pictures of one camera, in any order.

    Args:
        subject: what is audited.
        camera: name of the feature.
        places: rows of the episodes.
        said: the stored statistics.

    Notes:
        For one thread. Keeps a thumbnail an episode, and 16 pictures of the one that is looked at.
    """

    def __init__(self, subject: Subject, camera: str, places: Places, said: StoredStatistics) -> None:
        self.subject, self.camera, self.places, self._said = subject, camera, places, said
        self._episodes: dict[int, _Episode] = {}
        self._kept: dict[int, list[Pixels]] = {}
        self._sums = StatisticsSum()

    def see(self, place: int, step: int, pixels: Pixels) -> None:
        """Look at one picture.

        Args:
            place: of its episode in the table.
            step: of the episode.
            pixels: uint8 [H, W, 3].
        """
        small = _thumbnail(pixels)
        episode = self._episodes.setdefault(place, _Episode(small))
        episode.num_steps += 1
        if small.shape == episode.first.shape:
            episode.change = max(episode.change, float(np.abs(small - episode.first).max()))
        episode.highest = max(episode.highest, float(small.max()))
        length = max(1, int(self.places.length[place]))
        if step in sampled_steps(length, -(-length // SAMPLED_IMAGES)):
            self._kept.setdefault(place, []).append(pixels)
        if episode.num_steps == length:
            self._sum_up(place)

    def _sum_up(self, place: int) -> None:
        """Make statistics of what was kept of an episode."""
        pictures = self._kept.pop(place, [])
        feature = self.subject.info.features[self.camera]
        fitting = [pixels for pixels in pictures if pixels.shape == feature.feature.fixed_shape]
        if not fitting:
            return
        found = image_summary(fitting, feature.feature)
        self._sums.add({self.camera: found})
        number = int(self.subject.episodes.number[place])
        if number in self._said.by_episode:
            check_camera_statistics(self.subject, self.camera, self._said.by_episode[number], found, (number,))

    def report(self) -> None:
        """Tell what was found, after the last picture."""
        for place in list(self._kept):
            self._sum_up(place)
        numbers = self.subject.episodes.number
        long = {place: episode for place, episode in self._episodes.items() if episode.num_steps >= SHORTEST_STEPS}
        black = [place for place, episode in long.items() if episode.highest <= BLACK_LEVEL]
        if black:
            self.subject.tally.add(BLACK, self.camera, "black from the first step to the last", numbers[black])
        still = [place for place, episode in long.items() if episode.change <= STILL_LEVELS and place not in black]
        if still:
            self.subject.tally.add(FROZEN, self.camera, "the same picture in every step", numbers[still])
        found = self._sums.result().get(self.camera)
        if self._said.whole is not None and found is not None and self.subject.chosen is None:
            check_camera_statistics(self.subject, self.camera, self._said.whole, found)


def _thumbnail(pixels: Pixels) -> npt.NDArray[np.float64]:
    """Return the means of blocks, float64 [H / 8, W / 8, 3]."""
    height, width = (max(1, size // BLOCK) for size in pixels.shape[:2])
    rows, columns = pixels.shape[0] // height, pixels.shape[1] // width
    cut = pixels[: height * rows, : width * columns].reshape(height, rows, width * columns, 3)
    sums = cut.sum(axis=1, dtype=np.uint32).reshape(height, width, columns, 3).sum(axis=2)
    means: npt.NDArray[np.float64] = sums / (rows * columns)
    return means
