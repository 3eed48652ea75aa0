"""What a `LeRobotDataset` is opened by: a directory, a store, a view of one, or a dataset of the hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.errors import WindowError
from stepwell.lerobot.hub import needed_files
from stepwell.lerobot.meta_view import DatasetMeta, LeRobotDatasetMetadata, hub_of, local_source
from stepwell.lerobot.metadata import Metadata
from stepwell.store import Store
from stepwell.store.layout import STORE_JSON
from stepwell.windows import View

if TYPE_CHECKING:
    from stepwell.lerobot.installed import LerobotHub

__all__ = ["chosen_by", "fetched_bucket", "filtered", "found_source", "is_fetched_by_lerobot", "open_view"]


def found_source(source: str | os.PathLike[str], root: str | os.PathLike[str] | None, *, skip_home: bool) -> str:
    """Return what is opened: a store where the root is one, else a dataset."""
    where = os.fspath(source if root is None else root)
    return where if Path(where, STORE_JSON).exists() else local_source(source, root, skip_home=skip_home)


def is_fetched_by_lerobot(
    source: str | os.PathLike[str],
    root: str | os.PathLike[str] | None,
    cache_dir: str | os.PathLike[str] | None,
    *,
    local_files_only: bool,
    skips: bool,
) -> bool:
    """Return whether LeRobot's functions are to fetch a dataset: after `install()`, and where it is not here."""
    hub = hub_of(source, root, cache_dir, local_files_only=local_files_only)
    return hub is not None and (skips or not hub.has_here(str(source), None if root is None else Path(root)))


def fetched_bucket(
    hub: LerobotHub, name: str, root: str | os.PathLike[str] | None, token: str | bool | None, *, asks_hub: bool
) -> Path:
    """Return the directory that a bucket of the hub was fetched to, whole; what is there is not asked for again."""
    meta = LeRobotDatasetMetadata(name, root, None, asks_hub, repo_type="bucket", token=token)
    assert meta.root is not None
    missing = [each for each in needed_files(meta.files) if not (meta.root / each).exists()]
    for folder in ("data", "videos"):
        if asks_hub or any(each.startswith(f"{folder}/") for each in missing):
            hub.fetch_bucket(name, folder, meta.root, token)
    return meta.root


def filtered(
    source: str | Store | View,
    predicate: Callable[[dict[str, Any]], bool],
    episodes: Sequence[int] | None,
    hub: Mapping[str, Any],
) -> list[int]:
    """Return the numbers of the episodes that a filter takes."""
    meta: LeRobotDatasetMetadata
    if isinstance(source, Store | View) or Path(source, STORE_JSON).exists():
        meta = DatasetMeta(open_view(source, None, 0, hub).stores[0], repo_id="", ignore=hub["ignore"])
    else:
        meta = LeRobotDatasetMetadata(source, **hub)
    return chosen_by(meta, predicate, episodes)


def chosen_by(
    meta: LeRobotDatasetMetadata, predicate: Callable[[dict[str, Any]], bool], episodes: Sequence[int] | None
) -> list[int]:
    """Return the numbers of the episodes that a filter takes, of those that metadata tell of."""
    found = meta.filter_episodes(predicate, episodes)
    if not found:
        raise WindowError("The episode filter did not match any episode: it said True of none of them.")
    return found


def open_view(
    source: str | Store | View | Metadata, episodes: Sequence[int] | None, tolerance: float, hub: Mapping[str, Any]
) -> View:
    """Return the selected episodes of a dataset, or of a store."""
    if isinstance(source, Store | View):
        return _selected(source, episodes)
    if isinstance(source, str) and Path(source, STORE_JSON).exists():
        from stepwell.store import open as open_store

        return _selected(open_store(source, mode="r"), episodes)
    return View(_open_in_place(source, episodes, tolerance, hub))


def _open_in_place(
    where: str | Metadata, episodes: Sequence[int] | None, tolerance: float, hub: Mapping[str, Any]
) -> Store:
    from stepwell.lerobot.in_place import open_in_place

    if isinstance(where, Metadata):
        return open_in_place(where, tolerance=tolerance)
    chosen = None if episodes is None else sorted(set(episodes))
    if not hub["download_videos"] and not Path(where).is_dir():
        from stepwell.lerobot.hub import locate

        return open_in_place(locate(where, episodes=chosen, **hub), tolerance=tolerance)
    options = {name: value for name, value in hub.items() if name != "download_videos"}
    return open_in_place(where, episodes=chosen, tolerance=tolerance, **options)


def _selected(source: Store | View, episodes: Sequence[int] | None) -> View:
    """Return some episodes of a store; default all that are not being recorded."""
    view = source if isinstance(source, View) else View(source)
    if len(view.stores) != 1:
        raise WindowError(f"a view of {len(view.stores)} stores. Use MultiLeRobotDataset with a dataset of each.")
    is_open = view.column("is_open")
    # the number of their items would depend on the windows
    view = view.select(~is_open) if is_open.any() else view
    return view if episodes is None else view.select(sorted(set(episodes)))
