"""StreamingLeRobotDataset: the items of a dataset as a stream, in LeRobot's order of shards and a shuffle buffer.

::

    rows of shards (parquet files) ── a shard at random ──> buffer ── a place at random ──> numbers of items
                                                                                              │ every n-th: rank, worker
    items <── LeRobotDataset.__getitems__, CHUNK at once <── videos of the hub, fetched ahead <┘

Source: the order of ``StreamingLeRobotDataset`` of lerobot 0.6.2; there the buffer holds decoded items, here numbers.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell.errors import WindowError
from stepwell.lerobot.dataset import LeRobotDataset, Source
from stepwell.lerobot.hub import WORKERS, Repository, Snapshot
from stepwell.lerobot.meta_tables import import_lerobots
from stepwell.lerobot.meta_view import LeRobotDatasetMetadata, check_repo_type, hub_of
from stepwell.lerobot.opening import fetched_bucket

try:
    from torch import distributed
    from torch.utils.data import IterableDataset, get_worker_info
except ImportError:
    # only making one says so
    IterableDataset = object

__all__ = ["StreamingLeRobotDataset"]

# items that are read at once
CHUNK = 32
# files that are fetched, or were, before an item that needs them is given; and items that are looked at for that
FILES_AHEAD, ITEMS_AHEAD = 2 * WORKERS, 4096
# draws of a place in the buffer at once, which the order depends on
DRAWS = 100


class StreamingLeRobotDataset(IterableDataset):  # type: ignore[misc]  # Any where torch is not looked at
    """The items of a LeRobot dataset as a stream: LeRobot's arguments and order, the items of `LeRobotDataset`.

    An epoch has each item once. Ranks of ``torch.distributed`` and workers of a ``DataLoader`` share it: each has every
    n-th of the same order, so that none comes twice and none is lost.

    On the hub, tables that the cache lacks are fetched before the first item, videos in the order in which items need
    them, a few ahead: an item waits for its own files only. All of them stay in the cache, and a file that was cut off
    is gone on with.

    Args:
        repo_id: as for `LeRobotDataset`; ``root``, ``episodes``, ``image_transforms``, ``delta_timestamps``,
            ``tolerance_s``, ``revision``, ``force_cache_sync``, ``return_uint8`` and ``token`` as well.
        streaming: of `hf_dataset`: whether it is a ``datasets.IterableDataset``.
        buffer_size: items among which the next one is drawn.
        max_num_shards: how many runs of parquet files the items are drawn from, at most.
        seed: of the order of the first epoch.
        rng: that draws the orders, instead of the seed.
        shuffle: whether each epoch has an order of its own; False: all have that of the seed, as in LeRobot.
        depth_output_unit: as for `LeRobotDataset`.
        repo_type: "dataset", or "bucket": fetched as a dataset is, after `install()` where LeRobot reads buckets.
        lerobot_arguments: others of `LeRobotDataset`: ``ignore``, ``cache_dir``, ``frame_cache`` ...

    Attributes:
        dataset: the `LeRobotDataset`; on the hub it has the videos that came so far.
        num_shards: runs of parquet files.
        repo_id, root, revision, meta, episodes, delta_indices: those of the dataset.

    Raises:
        WindowError: ``buffer_size`` or ``max_num_shards`` below 1; see also `LeRobotDataset`.
        FormatError: a bucket, without `install()`.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_lerobot
        >>> root = tiny_lerobot(f"{tempfile.mkdtemp()}/tiny", cameras={})
        >>> stream = StreamingLeRobotDataset("me/tiny", root, buffer_size=8)
        >>> sorted(int(item["index"]) for item in stream) == list(range(30))
        True

    Notes:
        Beyond an episode its first or last picture is repeated, as `LeRobotDataset` does, where LeRobot's stream gives
        black ones. Workers that live for one epoch do not count it: call `set_epoch`, or give the ``DataLoader``
        ``persistent_workers=True``.
    """

    def __init__(  # noqa: PLR0917
        self,
        repo_id: Source,
        root: str | os.PathLike[str] | None = None,
        episodes: Sequence[int] | None = None,
        image_transforms: Callable[[Any], Any] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,
        streaming: bool = True,
        buffer_size: int = 1000,
        max_num_shards: int = 16,
        seed: int = 42,
        rng: np.random.Generator | None = None,
        shuffle: bool = True,
        return_uint8: bool = False,
        depth_output_unit: str = "mm",
        *,
        repo_type: str = "dataset",
        token: str | bool | None = None,
        **lerobot_arguments: Any,
    ) -> None:
        is_offline = bool(lerobot_arguments.get("local_files_only"))
        hub = hub_of(repo_id, root, lerobot_arguments.get("cache_dir"), local_files_only=is_offline)
        check_repo_type(repo_type, hub)
        is_local = root is not None and repo_type == "dataset"
        for name, number in (("buffer_size", buffer_size), ("max_num_shards", max_num_shards)):
            if number < 1:
                raise WindowError(f"{name} must be at least 1, got {number}.")
        if hub is not None and repo_type == "bucket":
            root = fetched_bucket(hub, str(repo_id), root, token, asks_hub=force_cache_sync)
            force_cache_sync = False
        # where nothing can be fetched, what is missing is an error now
        self.dataset = LeRobotDataset(
            repo_id,
            root,
            episodes=episodes,
            image_transforms=image_transforms,
            delta_timestamps=delta_timestamps,
            tolerance_s=tolerance_s,
            revision=revision,
            force_cache_sync=force_cache_sync,
            return_uint8=return_uint8,
            depth_output_unit=depth_output_unit,
            token=token,
            **{"download_videos": is_offline, **lerobot_arguments},
        )
        self._snapshot = None if is_offline else self._snapshot_of(token, lerobot_arguments)
        self.repo_type, self.streaming, self.streaming_from_local = repo_type, streaming, is_local
        self.buffer_size, self.seed, self.rng, self.shuffle = buffer_size, seed, rng, shuffle
        self._shards = self._split(max_num_shards)
        self._epoch = 0

    def __getattr__(self, name: str) -> Any:
        # repo_id, root, meta, fps, num_frames, features ...; not found on the way of a copy either
        if name.startswith("_") or name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)

    @property
    def meta(self) -> LeRobotDatasetMetadata:
        """The metadata of the dataset."""
        return self.dataset.meta

    @property
    def num_shards(self) -> int:
        """How many runs of parquet files the items are drawn from."""
        return len(self._shards)

    @property
    def hf_dataset(self) -> Any:
        """The rows of the parquet files, a ``datasets.IterableDataset`` where ``streaming``, without videos.

        Raises:
            MissingDependencyError: ``datasets`` is not installed.
            WindowError: a store that is no dataset's directory.
        """
        found = self.dataset.selected_files
        files = [str(path) for path in found.data_files(found.selected)]
        return import_lerobots("datasets").load_dataset(
            "parquet", data_files=files, split="train", streaming=self.streaming
        )

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next ``iter`` begins."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Return the items of an epoch that are this rank's and this worker's."""
        epoch, self._epoch = self._epoch, self._epoch + 1
        worker = get_worker_info()
        workers, number = (1, 0) if worker is None else (worker.num_workers, worker.id)
        is_one = not (distributed.is_available() and distributed.is_initialized())
        ranks, rank = (1, 0) if is_one else (distributed.get_world_size(), distributed.get_rank())
        order = self._order(self._generator(epoch))
        return self._items(islice(order, rank + ranks * number, None, ranks * workers))

    def _items(self, numbers: Iterator[int]) -> Iterator[dict[str, Any]]:
        with closing(self._ready_chunks(numbers)) as chunks:
            for chunk in chunks:
                yield from map(dict, self.dataset.__getitems__(chunk))

    def _ready_chunks(self, numbers: Iterator[int]) -> Generator[list[int], None, None]:
        """Yield the numbers of items, some at a time, when their files are there."""
        if self._snapshot is None:
            while chunk := [*islice(numbers, CHUNK)]:
                yield chunk
            return
        found = self.dataset.selected_files
        stops = self.dataset.episode_data_index["to"].numpy()

        @cache
        def files_at(place: int) -> list[str]:
            return [path.relative_to(found.root).as_posix() for path in found.video_files([place])]

        def files_of(number: int) -> list[str]:
            return files_at(int(found.selected[np.searchsorted(stops, number, side="right")]))

        yield from chunks_of_fetched(numbers, files_of, self._snapshot)

    def _snapshot_of(self, token: str | bool | None, options: Mapping[str, Any]) -> Snapshot | None:
        """Return what fetches the videos of a dataset of the hub; None of a directory, or where none are wanted."""
        found = self.dataset.hub_files
        if found is None or found.repo_id is None or options.get("download_videos") is False:
            return None
        repository = Repository(found.repo_id, found.revision, token, options.get("cache_dir"))
        return Snapshot(repository, found.root, found.root.name, None)

    def _generator(self, epoch: int) -> np.random.Generator:
        if not self.shuffle or (self.rng is None and epoch == 0):
            return np.random.default_rng(self.seed)
        return np.random.default_rng([self.seed, epoch]) if self.rng is None else self.rng

    def _order(self, rng: np.random.Generator) -> Iterator[int]:
        """Yield the numbers of all items."""
        shards = {number: iter(shard) for number, shard in enumerate(self._shards)}
        places = self._iter_random_indices(rng, self.buffer_size)
        buffer: list[int] = []
        while shards:
            chosen = next(self._infinite_generator_over_elements(rng, [*shards]))
            number = next(shards[chosen], None)
            if number is None:
                del shards[chosen]
            elif len(buffer) < self.buffer_size:
                buffer.append(number)
            else:
                place = next(places)
                yield buffer[place]
                buffer[place] = number
        rng.shuffle(buffer)
        yield from buffer

    def _split(self, most: int) -> list[range]:
        """Return the items of each shard: some parquet files; of a store, some episodes."""
        stops = self.dataset.episode_data_index["to"].numpy()
        last = np.ones(len(stops), bool)
        found = None if self.dataset.root is None else self.dataset.selected_files
        # a view may have been given of some of a dataset
        if found is not None and len(found.selected) == len(stops):
            files = np.stack([found.episodes.data_chunk, found.episodes.data_file])[:, found.selected]
            last[:-1] = (files[:, 1:] != files[:, :-1]).any(axis=0)
        runs: Sequence[npt.NDArray[np.int64]] = np.array_split(stops[last], min(most, int(last.sum())))
        ends = [0, *(int(run[-1]) for run in runs)]
        return [*map(range, ends, ends[1:])]

    # as in LeRobot's class, for subclasses that draw in another way

    @staticmethod
    def _iter_random_indices(rng: np.random.Generator, buffer_size: int) -> Iterator[int]:
        while True:
            yield from rng.integers(0, buffer_size, DRAWS).tolist()

    @staticmethod
    def _infinite_generator_over_elements(rng: np.random.Generator, elements: list[int]) -> Iterator[int]:
        while True:
            yield int(rng.choice(elements))


def chunks_of_fetched(
    numbers: Iterator[int], files_of: Callable[[int], list[str]], snapshot: Snapshot
) -> Iterator[list[int]]:
    """Yield numbers in their order, up to CHUNK at a time, when their files are there; some files are fetched ahead."""
    ahead: deque[tuple[int, list[str]]] = deque()
    begun: dict[str, Future[None]] = {}
    # that no item was given of yet
    unused: set[str] = set()
    pool = ThreadPoolExecutor(WORKERS, "stepwell-hub")
    try:
        while True:
            while not ahead or (len(unused) < FILES_AHEAD and len(ahead) < ITEMS_AHEAD):
                number = next(numbers, None)
                if number is None:
                    break
                files = files_of(number)
                for name in files:
                    if name not in begun:
                        begun[name] = pool.submit(_fetch, snapshot, name)
                        unused.add(name)
                ahead.append((number, files))
            if not ahead:
                return
            chunk: list[int] = []
            # the first is waited for
            while ahead and len(chunk) < CHUNK and (not chunk or all(begun[name].done() for name in ahead[0][1])):
                number, files = ahead.popleft()
                for name in files:
                    begun[name].result()
                unused.difference_update(files)
                chunk.append(number)
            yield chunk
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _fetch(snapshot: Snapshot, name: str) -> None:
    snapshot.fetch([name], progress=False)
