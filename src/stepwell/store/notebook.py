"""What notebooks show of stores and episodes, and the plot of an episode.

::

    store      its table, a bar a length of episode, a frame of some episodes, a strip a camera
    episode    how it ended, its metadata, a strip a camera, a line of numbers a feature
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepwell.codecs import codec_class
from stepwell.display.html import Markup, Strip, bars, block, line, lines, strips, table
from stepwell.errors import FeatureNotFoundError, SchemaError, StepwellError
from stepwell.files.addresses import is_remote
from stepwell.references.file_codec import FileCodec
from stepwell.schema import Feature
from stepwell.store.info import length_counts, lengths_text, shape_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from stepwell.store.episodes import Episode
    from stepwell.store.store import Store

__all__ = ["MAX_EPISODES", "episode_html", "episodes_html", "plot_episode", "store_html"]

# thumbnails of one object, over all cameras
NUM_THUMBNAILS, MAX_CAMERAS = 12, 4
# in a table of them
MAX_EPISODES = 10
# a line is drawn of numbers that take at most so many decoded bytes where they have to be decoded, or are of a run
MAX_DECODED = 16 << 20
MAX_PLOTS = 24
# numbers of a feature; of more every n-th step is drawn
MAX_POINTS = 4_000_000
ENDINGS = ("terminated", "truncated", "interrupted", "goes_on", "is_open")


def store_html(store: Store) -> str:
    """Return a store as HTML: its features, lengths of episodes, frames of some."""
    info = store.info()
    places = _spread(len(store), NUM_THUMBNAILS) if len(store) else []
    return block(info.line, *info.html_parts(), _frames_of_episodes([store[place] for place in places]))


def episodes_html(title: str, episodes: Sequence[Episode], lengths: npt.NDArray[np.int64]) -> str:
    """Return a choice of episodes as HTML.

    Args:
        title: text.
        episodes: some of them.
        lengths: of all of them, int64 [E].
    """
    several = len({each.store.path for each in episodes}) > 1
    rows = [(*((each.store.name,) if several else ()), *_cells(each)) for each in episodes]
    head = (*(("store",) if several else ()), "episode", "steps", "ended by", "metadata")
    counts = length_counts(lengths)
    more = f"{len(episodes):,} of {len(lengths):,}, evenly spaced" if len(lengths) > len(episodes) else ""
    return block(
        title,
        line("episode lengths", bars(counts), lengths_text(lengths)),
        table(rows, head, "episode"),
        more,
        _frames_of_episodes(episodes) if episodes else "",
    )


def _frames_of_episodes(episodes: Sequence[Episode]) -> Markup:
    """Return the frame in the middle of episodes, a strip a camera of the first one's store."""
    filled = [episode for episode in episodes if episode.length]
    schema: Mapping[str, Feature] = (filled[0].store.schema or {}) if filled else {}
    cameras = [name for name, feature in schema.items() if _is_image(feature)]
    shown = [filled[place] for place in _spread(len(filled), _num_frames(cameras))] if filled else []
    several = len({each.store.path for each in shown}) > 1
    places = [
        (each, each.length // 2, f"{each.store.name} {each.index}" if several else f"episode {each.index}")
        for each in shown
    ]

    return strips([_strip(name, schema[name], places) for name in cameras])


def _num_frames(cameras: Sequence[str]) -> int:
    """Return how many thumbnails each camera has."""
    return max(3, NUM_THUMBNAILS // max(1, min(len(cameras), MAX_CAMERAS)))


def episode_html(episode: Episode) -> str:
    """Return an episode as HTML: its metadata, a strip a camera, a line a feature of numbers."""
    schema: Mapping[str, Feature] = episode.store.schema or {}
    cameras = [name for name, feature in schema.items() if _is_image(feature)]
    steps = _spread(episode.length, _num_frames(cameras)) if episode.length else []
    films = [_strip(name, schema[name], [(episode, step, f"step {step}") for step in steps]) for name in cameras]
    rows = [_feature_row(episode, name, feature) for name, feature in schema.items() if not _is_image(feature)]
    return block(
        repr(episode),
        table([(name, str(value)) for name, value in episode.metadata.items()], noun="entry"),
        strips(films) if steps else "",
        table(rows, ("feature", "shape", "dtype", "over the episode", "names"), "feature"),
    )


def _cells(episode: Episode) -> tuple[str, ...]:
    ending = " ".join(flag for flag in ENDINGS if getattr(episode, flag)) or "ended"
    return f"{episode.index:,}", f"{episode.length:,}", ending, _metadata_text(episode.metadata)


def _metadata_text(metadata: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={value}" for name, value in metadata.items())


def plot_episode(episode: Episode, names: Iterable[str] | None, num_frames: int) -> Figure:
    """Return the figure of `Episode.plot`."""
    from stepwell.display.figures import curves, film, new_figure, note

    fps = episode.store.fps
    drawn = _drawable(episode.store.schema or {}, names)
    shown = drawn[:MAX_PLOTS]
    heights = [1.5 if _is_image(feature) else 1.9 for _, feature in shown] or [1.0]
    figure = new_figure(10.0, sum(heights) + 0.6)
    rest = f"   (and {len(drawn) - len(shown)} more: name them)" if len(drawn) > len(shown) else ""
    about = _metadata_text(episode.metadata)[:120]
    figure.suptitle(f"{repr(episode)[1:-1]}{rest}\n{about}", fontsize=10, x=0.01, ha="left", parse_math=False)
    grid = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    if not shown or not episode.length:
        note(grid[0], "no step" if shown else "no feature of numbers or images")
    for axes, (name, feature) in zip(grid, shown, strict=False):
        if not episode.length:
            continue
        if _is_image(feature):
            film(axes, _film(episode, name, num_frames, fps), name)
            continue
        stride = max(1, episode.length * math.prod(feature.fixed_shape) // MAX_POINTS)
        values = np.asarray(episode.read_rows(name, 0, episode.length)[::stride])
        curves(axes, np.arange(episode.length)[::stride] / (fps or 1.0), values, feature.names or ())
        axes.set_title(name, fontsize=9, loc="left", parse_math=False)
        axes.set_xlabel("step" if fps is None else "seconds", fontsize=8)
    return figure


def _film(episode: Episode, name: str, num_frames: int, fps: float | None) -> Any:
    from stepwell.display.figures import Film

    steps = _spread(episode.length, num_frames)
    captions = [f"step {step}" if fps is None else f"{step / fps:.1f} s" for step in steps]
    return Film([_frame_or_reason(episode, name, step) for step in steps], captions)


def _frame_or_reason(episode: Episode, name: str, step: int) -> Any:
    try:
        return np.asarray(_frame(episode, name, step))
    except StepwellError as error:
        return f"{type(error).__name__}: {error}"


def _drawable(schema: Mapping[str, Feature], names: Iterable[str] | None) -> list[tuple[str, Feature]]:
    """Return the features of images and of numbers, images first; refuse others that are named."""
    able = {name: feature for name, feature in schema.items() if _is_image(feature) or _is_numeric(feature)}
    chosen = list(able) if names is None else list(names)
    for name in chosen:
        if name not in schema:
            raise FeatureNotFoundError(f"no feature {name!r}. There are: {', '.join(schema)}.")
        if name not in able:
            raise SchemaError(f"feature {name!r} ({schema[name]}) cannot be drawn. Those that can: {', '.join(able)}.")
    return sorted(((name, able[name]) for name in chosen), key=lambda pair: not _is_image(pair[1]))


def _strip(name: str, feature: Feature, places: Sequence[tuple[Episode, int, str]]) -> Strip:
    if _is_elsewhere(feature):
        label = f"{name}: its files are on another machine; episode.plot() fetches what it draws"
        return Strip(label, [])
    return Strip(name, [(partial(_frame, episode, name, step), caption) for episode, step, caption in places])


def _frame(episode: Episode, name: str, step: int) -> Any:
    return episode.read_rows(name, step, step + 1)[0]


def _feature_row(episode: Episode, name: str, feature: Feature) -> tuple[str, ...]:
    dtype = feature.np_dtype.name if feature.kind in ("array", "image") else feature.kind
    try:
        shown = _shown(episode, name, feature)
    except Exception as error:
        # whatever a codec raises: the other features are shown
        shown = f"{type(error).__name__}: {error}"
    return name, shape_text(feature), dtype, shown, ", ".join(feature.names or ())


def _shown(episode: Episode, name: str, feature: Feature) -> str:
    """Return a line of numbers, or the first text."""
    if not episode.length or _is_elsewhere(feature):
        return ""
    if feature.kind == "text":
        return f"first: {_frame(episode, name, 0)}"
    if not _is_numeric(feature):
        return ""
    if feature.is_raw:
        return lines(episode.read_rows(name, 0, episode.length))
    if episode.length * feature.row_bytes > MAX_DECODED:
        return "large: see episode.plot()"
    return lines(np.asarray(episode.read_rows(name, 0, episode.length)))


def _is_image(feature: Feature) -> bool:
    return feature.kind == "image" and feature.rate is None


def _is_numeric(feature: Feature) -> bool:
    return feature.kind == "array" and not feature.is_ragged and feature.np_dtype.kind in "biuf"


def _is_elsewhere(feature: Feature) -> bool:
    """Whether rows are references into files of other machines: a notebook that shows a store fetches nothing."""
    try:
        is_reference = issubclass(codec_class(feature), FileCodec)
    except StepwellError:
        return False
    return is_reference and any(isinstance(value, str) and is_remote(value) for _, value in feature.options)


def _spread(length: int, count: int) -> list[int]:
    """Return at most so many steps, evenly spaced, the first and the last among them."""
    return [int(step) for step in np.unique(np.linspace(0, max(length - 1, 0), max(1, count)).round())]
