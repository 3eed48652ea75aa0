"""The orders of LeRobot's training script: frames of some episodes, epoch after epoch, resumed at the frame.

Source: ``EpisodeAwareSampler`` and ``compute_sampler_state`` of lerobot 0.6.2, whose orders these are: the permutation
of an epoch is ``torch.randperm`` of a generator whose seed is the first uint64 of ``SeedSequence([seed, epoch])``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from math import ceil

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.loader.memory import import_torch

__all__ = ["EpisodeAwareSampler", "compute_sampler_state"]

logger = logging.getLogger(__name__)


class EpisodeAwareSampler:
    """A sampler of the frames of some episodes, for a ``DataLoader`` of a `LeRobotDataset`.

    Args:
        dataset_from_indices: the first row of each episode, ``meta.episodes["dataset_from_index"]``.
        dataset_to_indices: the row after its last, ``meta.episodes["dataset_to_index"]``.
        episode_indices_to_use: places in these lists; None: all.
        drop_n_first_frames: of each episode.
        drop_n_last_frames: of each episode.
        shuffle: whether each epoch has an order of its own, the same on every rank.
        seed: of these orders.
        absolute_to_relative_idx: row to item, `LeRobotDataset.absolute_to_relative_idx`; None: they are the same.

    Raises:
        WindowError: nothing remains, numbers to drop below 0, or lists that differ in length (a ValueError).

    Example:
        >>> sampler = EpisodeAwareSampler([0, 4], [4, 9], drop_n_last_frames=2)
        >>> list(sampler), len(sampler)
        ([0, 1, 4, 5, 6], 5)
        >>> sampler.load_state_dict({"epoch": 1, "start_index": 3})
        >>> list(sampler), sampler.state_dict()
        ([5, 6], {'epoch': 2, 'start_index': 0})

    Notes:
        ``iter`` begins an epoch and counts it, whether it is walked to its end or not. Boundaries of episodes are kept,
        and 8 bytes a frame while an epoch is walked.
    """

    def __init__(  # noqa: PLR0917
        self,
        dataset_from_indices: Sequence[int],
        dataset_to_indices: Sequence[int],
        episode_indices_to_use: Sequence[int] | None = None,
        drop_n_first_frames: int = 0,
        drop_n_last_frames: int = 0,
        shuffle: bool = False,
        seed: int = 0,
        absolute_to_relative_idx: Mapping[int, int] | None = None,
    ) -> None:
        for name, number in (("first", drop_n_first_frames), ("last", drop_n_last_frames)):
            if number < 0:
                raise WindowError(f"drop_n_{name}_frames must be >= 0, got {number}.")
        first, stop = (np.array(each, np.int64) for each in (dataset_from_indices, dataset_to_indices))
        if first.shape != stop.shape:
            raise WindowError(
                "dataset_from_indices and dataset_to_indices must have the same length, "
                f"got {len(first)} and {len(stop)}."
            )
        chosen = _chosen(len(first), episode_indices_to_use)
        starts = first + drop_n_first_frames
        lengths = stop - drop_n_last_frames - starts
        for episode in chosen[lengths[chosen] <= 0].tolist():
            logger.warning(
                "Episode %d has %d frames but drop_n_first_frames=%d and drop_n_last_frames=%d leave none of them: it "
                "is left out.",
                episode,
                stop[episode] - first[episode],
                drop_n_first_frames,
                drop_n_last_frames,
            )
        chosen = chosen[lengths[chosen] > 0]
        if not len(chosen):
            raise WindowError("No valid frames remain: no episode is taken, or all are shorter than what is dropped.")
        self._starts, self._cum_lengths = starts[chosen], np.cumsum(lengths[chosen])
        self._relative = absolute_to_relative_idx
        self.shuffle, self.seed = shuffle, seed
        self._epoch, self._start_index = 0, 0

    @property
    def indices(self) -> list[int]:
        """The items, in the order of the dataset."""
        return [*self._items(np.arange(len(self)))]

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next ``iter`` begins."""
        self._epoch = epoch

    def state_dict(self) -> dict[str, int]:
        """Return where the next ``iter`` begins: "epoch", and "start_index" in it."""
        return {"epoch": self._epoch, "start_index": self._start_index}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Begin the next ``iter`` there; see `compute_sampler_state`."""
        self._epoch, self._start_index = state["epoch"], state["start_index"]

    def __len__(self) -> int:
        return int(self._cum_lengths[-1])

    def __iter__(self) -> Iterator[int]:
        epoch, start = self._epoch, self._start_index
        self._epoch, self._start_index = epoch + 1, 0
        places = self._permutation(epoch) if self.shuffle else np.arange(len(self))
        return self._items(places[start:])

    def _permutation(self, epoch: int) -> npt.NDArray[np.int64]:
        torch = import_torch()
        seed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1, np.uint64)[0])
        made: npt.NDArray[np.int64] = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)).numpy()
        return made

    def _items(self, places: npt.NDArray[np.int64]) -> Iterator[int]:
        """Return the items at places among the frames that are sampled."""
        which = np.searchsorted(self._cum_lengths, places, side="right")
        # the row that place 0 would have, were all frames those of the episode
        shift = self._starts - np.concatenate([[0], self._cum_lengths[:-1]])
        rows = (places + shift[which]).tolist()
        return iter(rows if self._relative is None else [self._relative[row] for row in rows])


def _chosen(count: int, episodes: Sequence[int] | None) -> npt.NDArray[np.int64]:
    """Return the places of the episodes that are sampled, ascending."""
    if episodes is None:
        return np.arange(count)
    wrong = [episode for episode in episodes if not -count <= episode < count]
    if wrong:
        raise IndexError(f"no episode {wrong[0]} among {count}. Allowed in episode_indices_to_use: 0 to {count - 1}.")
    return np.unique(np.array(episodes, np.int64) % max(count, 1))


def compute_sampler_state(step: int, num_frames: int, batch_size: int, num_processes: int) -> dict[str, int]:
    """Return the state of an `EpisodeAwareSampler` after some steps of training by ``accelerate``.

    Args:
        step: steps that were done.
        num_frames: length of the sampler.
        batch_size: of each process, the same as before.
        num_processes: likewise.

    Example:
        >>> compute_sampler_state(7, num_frames=100, batch_size=8, num_processes=2)
        {'epoch': 1, 'start_index': 0}
    """
    # a step takes a batch on each process; the last one of an epoch is filled up
    steps_an_epoch = ceil(ceil(num_frames / batch_size) / num_processes)
    epoch, steps = divmod(step, steps_an_epoch)
    return {"epoch": epoch, "start_index": min(steps * batch_size * num_processes, num_frames)}
