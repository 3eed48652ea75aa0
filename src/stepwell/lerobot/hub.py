"""Where a dataset comes from: a directory, or the Hugging Face hub, of which only what is needed is fetched."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from stepwell.lerobot.metadata import Metadata
from stepwell.lerobot.repositories import Repository, Snapshot
from stepwell.lerobot.sources import parse_source

__all__ = ["locate", "locate_meta", "needed_files"]


def locate(
    source: str | os.PathLike[str],
    *,
    episodes: Iterable[int | slice] | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    download_videos: bool = True,
    ignore: Collection[str] = (),
    progress: bool | None = None,
) -> Metadata:
    """Return the metadata of a dataset whose files are on this machine, after fetching those that are not.

    Of the hub, ``meta/`` is fetched first, and then only the files that hold the chosen episodes. They lie in the cache
    of ``huggingface_hub``, which other programs share; what is there is not fetched again.

    Args:
        source: a directory, ``"owner/name"`` of the hub, or an address, see `stepwell.lerobot.sources.parse_source`.
        episodes: numbers and slices; default those of the address, else all.
        revision: tag, branch or commit on the hub; default that of the address, else the tag of the newest version of
            the format that there is ("v3.0", "v2.1", "v2.0"), else "main". Of no meaning for a directory.
        token: of the hub; None: ``HF_TOKEN`` or the stored one, False: none.
        cache_dir: of ``huggingface_hub``; default as it has it (``HF_HOME``).
        local_files_only: fetch nothing; so does ``HF_HUB_OFFLINE=1``.
        download_videos: fetch mp4 files.
        ignore: names of features to leave out; their videos are not fetched.
        progress: draw a bar; None: on a terminal.

    Returns:
        The metadata. For a directory, whether all files are there is not looked at.

    Raises:
        DatasetNotFoundError: no such directory, repository or revision, or no access to it; or the hub cannot be
            reached and the files are not in the cache.
        FormatError: the dataset is not as its format says.
        EpisodeNotFoundError: an episode was asked for that there is not.
        MissingDependencyError: huggingface_hub or pyarrow is not installed.

    Example:
        >>> import tempfile
        >>> from stepwell.testing import tiny_lerobot
        >>> locate(tiny_lerobot(f"{tempfile.mkdtemp()}/tiny", cameras={}), episodes=[slice(1, None)])
        <Metadata tiny  v3.0  10 fps  2 of 3 episodes>

    Notes:
        Several processes may fetch the same files at once. Without the network, or when the hub is down, what is in the
        cache is used, if it is all there.
    """
    metadata, snapshot = locate_meta(
        source,
        episodes=episodes,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
        ignore=ignore,
    )
    if snapshot is not None:
        snapshot.fetch(needed_files(metadata, videos=download_videos), progress=progress)
    return metadata


def locate_meta(
    source: str | os.PathLike[str],
    *,
    episodes: Iterable[int | slice] | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    ignore: Collection[str] = (),
) -> tuple[Metadata, Snapshot | None]:
    """Return the metadata of a dataset of which no more than ``meta/`` was fetched, and what fetches the rest.

    Args:
        source: and all others: see `locate`.

    Returns:
        The metadata, and the snapshot on the hub; None for a directory.

    Raises:
        StepwellError: as `locate`.
    """
    found = parse_source(source)
    chosen = found.episodes if episodes is None else episodes
    if found.path is not None:
        return Metadata.load(found.path, episodes=chosen, ignore=ignore), None
    wanted = found.revision if revision is None else revision
    snapshot = Repository(found.repo_id or "", wanted, token, cache_dir, local_files_only).open()
    metadata = Metadata.load(
        snapshot.root, episodes=chosen, repo_id=found.repo_id, revision=snapshot.revision, ignore=ignore
    )
    return metadata, snapshot


def needed_files(metadata: Metadata, *, videos: bool = True) -> list[str]:
    """Return the names, relative to the root, of the files that hold the episodes that were asked for.

    Args:
        metadata: of the dataset; `Metadata.selected` says which episodes.
        videos: mp4 files, too.
    """
    paths = metadata.data_files(metadata.selected)
    if videos:
        paths += metadata.video_files(metadata.selected)
    return [path.relative_to(metadata.root).as_posix() for path in paths]
