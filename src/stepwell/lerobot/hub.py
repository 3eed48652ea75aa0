"""Where a dataset comes from: a directory, or the Hugging Face hub, of which only what is needed is fetched."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from stepwell.lerobot.metadata import Metadata

__all__ = ["locate"]


def locate(
    source: str | os.PathLike[str],
    *,
    episodes: Iterable[int] | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    download_videos: bool = True,
    ignore: Collection[str] = (),
    progress: bool | None = None,
) -> Metadata:
    """Return the metadata of a dataset whose files are on this machine, after fetching what is not."""
    raise NotImplementedError
