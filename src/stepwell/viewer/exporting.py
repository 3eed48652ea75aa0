"""An episode as one file for people without stepwell: HTML, mp4, or Rerun's."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import cast

from stepwell.errors import EpisodeNotFoundError, FeatureNotFoundError, MissingDependencyError, StepwellError
from stepwell.progress import make_bar
from stepwell.store import Store
from stepwell.store.layout import BUILT_FILE, built_file
from stepwell.viewer.episodes import is_camera, is_drawn, schema_of

__all__ = ["KINDS", "export_episode"]

KINDS = ("html", "mp4", "rrd")


def export_episode(
    store: Store,
    index: int,
    path: str | os.PathLike[str],
    *,
    kind: str | None = None,
    features: Sequence[str] | None = None,
    fps: float | None = None,
    progress: bool | None = None,
) -> Path:
    """Write one episode as a file; it appears whole, or not at all.

    Args:
        store: open for reading, or for both.
        index: of the episode; negative ones count from the end.
        path: of the file, not there yet.
        kind: "html", a page that needs neither a server nor a network; "mp4", H.264 with the cameras side by side and
            curves beside; "rrd", of Rerun's viewer. Default: what ``path`` ends in.
        features: names of cameras, and of arrays of up to 64 numbers a step. Default: all of these.
        fps: steps a second; default the store's, else 10.
        progress: whether a bar is shown; default: on a terminal.

    Returns:
        The path.

    Raises:
        StepwellError: a kind that is none, or an episode that shows nothing.
        EpisodeNotFoundError: no such episode.
        FeatureNotFoundError: a feature that is not there, or cannot be shown.
        StoreExistsError: something is at ``path``.
        MissingDependencyError: Pillow (html, mp4), PyAV (mp4) or rerun-sdk (rrd) is missing.

    Example:
        >>> import tempfile, stepwell
        >>> store = stepwell.create(f"{tempfile.mkdtemp()}/walk.well", fps=10)
        >>> with store.writer() as writer:
        ...     episode = writer.add_episode({"action": [0, 1, 2]}, task="walk")
        >>> export_episode(store, 0, store.path.parent / "walk.html").name
        'walk.html'
    """
    kind = kind or Path(path).suffix.removeprefix(".").lower()
    if kind not in KINDS:
        raise StepwellError(f"kind {kind!r} of {Path(path).name}. Allowed: {', '.join(KINDS)}.")
    episode = store[index]
    if fps is not None and not 0 < fps < 1000:
        raise StepwellError(f"fps={fps}. Allowed: more than 0, less than 1000.")
    if not episode.length:
        raise EpisodeNotFoundError(f"episode {episode.index} has no step yet: there is nothing to show.")
    shown = _chosen(store, features)
    cameras = sum(is_camera(schema_of(store)[name]) for name in shown)
    # a film has a frame a step, the others one a step and camera
    total = episode.length * (1 if kind == "mp4" else cameras)
    with built_file(path) as partial, make_bar(total, "frame", wanted=progress) as bar:
        target = Path(partial, BUILT_FILE)
        try:
            _writer(kind)(target, store, episode.index, shown, fps=fps, progress=bar.update)
        except ModuleNotFoundError as error:
            if error.name != "PIL":
                raise
            raise MissingDependencyError.of("pillow", "view") from None
    return Path(path)


def _writer(kind: str) -> Callable[..., None]:
    """Return what writes a kind; each has a module of its own, and what that needs."""
    module = import_module(f"stepwell.viewer.{kind}_file")
    return cast("Callable[..., None]", getattr(module, f"write_{kind}"))


def _chosen(store: Store, features: Sequence[str] | None) -> list[str]:
    schema = schema_of(store)
    able = [name for name in schema if is_camera(schema[name]) or is_drawn(schema[name])]
    wrong = [name for name in features or () if name not in able]
    if wrong:
        raise FeatureNotFoundError(f"feature {wrong[0]!r} cannot be shown. Allowed: {', '.join(able) or 'none here'}.")
    return able if features is None else [name for name in able if name in features]
