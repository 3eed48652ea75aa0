"""LeRobot datasets read where they are: no file of theirs is converted, and no second engine reads them.

::

    directory, or hub ──> is there a store in the cache for these files? ── yes ──> open it
                                               | no
                                               v
                          Metadata.load ──> mapped_stores.py ──> CachedStore ──> open it
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepwell.errors import FormatError, StepwellError
from stepwell.files.addresses import cache_directory
from stepwell.formats.cache import CachedStore
from stepwell.formats.source_paths import check_boundaries, digest_of, walked
from stepwell.lerobot.hub import locate, parse_source
from stepwell.lerobot.info import INFO_PATH
from stepwell.lerobot.metadata import Metadata, read_info, select_episodes
from stepwell.references.file_codec import noted_dataset
from stepwell.references.trusted_paths import Trust

if TYPE_CHECKING:
    from stepwell.store import Store

__all__ = ["files_digest", "open_in_place"]

# names the way in which stores are made: those made in another way are made again
REFERENCES = b"with the states of files and of the data set, and what further columns say of episodes"
# the store holds nothing of statistics
UNUSED = re.compile(r"(stats\.json|episodes_stats\.jsonl|\..*)")


def open_in_place(
    source: Metadata | str | os.PathLike[str],
    *,
    episodes: Iterable[int | slice] | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    ignore: Collection[str] = (),
    tolerance: float = 1e-4,
    cache: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    trust: Trust = None,
) -> Store:
    """Open a LeRobot dataset as a store, without converting it.

    Args:
        source: a directory, ``"owner/name"`` on the hub, an address such as ``"lerobot:///data/pusht"``, as
            `stepwell.lerobot.locate` takes them; or metadata, with the episodes that are selected there.
        episodes: numbers of episodes, and slices of them; default those of the address, else all.
        revision: on the hub; default that of the address.
        token: for the hub.
        cache_dir: of the hub's files.
        local_files_only: never ask the hub.
        ignore: names of features to leave out.
        tolerance: how far a video's frame may be from the time of its row, seconds.
        cache: directory for what is made once; default ``$STEPWELL_CACHE``, else ``$XDG_CACHE_HOME/stepwell`` or
            ``~/.cache/stepwell``.
        progress: draw a bar, or none; None draws it on a terminal.
        trust: directories that links of a directory may lead to, beyond it; True: anywhere. See `stepwell.open`.

    Returns:
        A store, open for reading, with every feature of the dataset in its order: numbers and text are columns of its
        own, cameras refer to the dataset's files. ``metadata["lerobot"]`` has its root, repo_id, revision, info, tasks
        and tolerance; an episode's metadata ``lerobot_episode``, its number in the dataset, ``tasks``, and what further
        columns of the table of episodes say.

    Raises:
        DatasetNotFoundError: no dataset there.
        FormatError: a file is missing or not as the format says; the message names it.
        UntrustedFileError: a link that leads out of the directory.
        EpisodeNotFoundError: a selected episode is not there.
        ReadOnlyError: the cache cannot be written.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_lerobot
        >>> root = tiny_lerobot(f"{tempfile.mkdtemp()}/tiny", cameras={}, lengths=[5, 7])
        >>> store = open_in_place(root, cache=tempfile.mkdtemp())
        >>> store[1]["action"].shape, store[1].metadata["tasks"]
        ((7, 2), ['lift the block', 'put it down'])

    Notes:
        The first time numbers and text are copied into the cache, about as fast as the parquet files are read; later it
        is a look at the directories. A dataset whose files changed is copied again, and what stood for it before is
        removed when no process uses it. Images are read from the dataset: it must stay where it is.
    """
    if isinstance(ignore, str):
        raise StepwellError(f"ignore={ignore!r}, of which each letter would be a name. Give a list: [{ignore!r}].")
    opening = _Opening(frozenset(ignore), tolerance, cache_directory() if cache is None else Path(cache), progress)
    if isinstance(source, Metadata):
        return opening.open_known(source)
    address = parse_source(source)
    if address.path is not None:
        check_boundaries(str(address.path), trust)
        return opening.open_directory(address.path, address.episodes if episodes is None else episodes)
    found = locate(
        source,
        episodes=episodes,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
        ignore=ignore,
        progress=progress,
    )
    return opening.open_known(found)


def files_digest(root: Path) -> str:
    """Return a digest of names, sizes and mtimes of a LeRobot dataset's tables, but for statistics."""
    entries = walked(root / "meta") + walked(root / "data")
    used = [entry for entry in entries if not UNUSED.fullmatch(entry[0].rpartition("/")[2])]
    return digest_of(used, REFERENCES)


class _Opening:
    """The options that a dataset is opened with."""

    def __init__(self, ignore: frozenset[str], tolerance: float, cache: Path, progress: bool | None) -> None:
        self._ignore, self._tolerance, self._cache, self._progress = ignore, tolerance, cache, progress

    def open_known(self, metadata: Metadata) -> Store:
        """Open the selected episodes of a dataset."""
        info = metadata.info
        places = None if len(metadata.selected) == info.total_episodes else metadata.selected
        ignored = info.raw["features"].keys() - info.features.keys()
        return self._open(metadata.root, metadata.repo_id, places, ignored, lambda: metadata)

    def open_directory(self, directory: Path, episodes: Iterable[int | slice] | None) -> Store:
        """Open a dataset whose metadata are read only if there is no store of it."""
        root = Path(os.path.abspath(directory))  # noqa: PTH100  resolved links would name blobs of the hub's cache
        places = None
        # nothing is read to find the store of all episodes again
        if episodes is not None or not (root / INFO_PATH).is_file():
            count = read_info(root, ignore=self._ignore).total_episodes
            chosen = select_episodes(episodes, count, str(root))
            places = None if len(chosen) == count else chosen

        def load() -> Metadata:
            numbers = None if places is None else places.tolist()
            # the boundaries were checked with the caller's trust
            return Metadata.load(root, episodes=numbers, ignore=self._ignore, trust=True)

        return self._open(root, None, places, self._ignore, load)

    def _open(
        self,
        root: Path,
        repo_id: str | None,
        places: npt.NDArray[np.int64] | None,
        ignored: Iterable[str],
        load: Callable[[], Metadata],
    ) -> Store:
        # before anything is read: what changes afterwards has another digest
        files, dataset = files_digest(root), noted_dataset(str(root), INFO_PATH)
        options = (None if places is None else places.tobytes(), sorted(ignored), self._tolerance)

        def build(path: Path) -> None:
            from stepwell.lerobot.mapped_stores import write_mapped_store

            metadata = load()
            if metadata.info.raw != read_info(root, ignore=self._ignore).raw:
                raise FormatError(f"{root} has changed since its metadata were read. Open it again.")
            write_mapped_store(path, metadata, dataset=dataset, tolerance=self._tolerance, progress=self._progress)

        cached = CachedStore(
            "lerobot",
            str(root),
            name=repo_id or root.name,
            files=files,
            options=options,
            cache=self._cache,
            address=f"lerobot://{repo_id or root}",
            place=repo_id or str(root),
        )
        return cached.open(build)
