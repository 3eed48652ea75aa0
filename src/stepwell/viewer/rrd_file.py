"""An episode as a recording of Rerun's viewer, by rerun-sdk."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepwell.errors import DecodeError, MissingDependencyError
from stepwell.store import Store
from stepwell.viewer.episodes import DEFAULT_FPS, is_camera, is_drawn, names_of_axes, schema_of
from stepwell.viewer.frames import FILE_QUALITY, Frames

__all__ = ["write_rrd"]


def write_rrd(
    path: Path,
    store: Store,
    index: int,
    features: Sequence[str],
    *,
    fps: float | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Write a recording of one episode: an entity a feature, on the timelines ``step`` and ``time``.

    Rows that are JPEG, PNG or WebP files go in as they lie; other cameras as JPEG of quality 90, those with alpha as
    PNG. Numbers are scalars of float64. A damaged frame is a ``TextLog`` at its step. Metadata are properties.

    Args:
        path: of the file, not there yet.
        store: open for reading.
        index: of the episode.
        features: the cameras and the numbers that go in.
        fps: steps a second, of the timeline ``time``; default the store's, else 10.
        progress: called for each frame that was written.

    Raises:
        MissingDependencyError: rerun-sdk is missing.
    """
    try:
        import rerun
    except ImportError:
        raise MissingDependencyError.of("rerun-sdk", "rerun") from None
    schema, episode, rate = schema_of(store), store[index], fps or store.fps or DEFAULT_FPS
    # nothing of the process or the user goes in: the same episode has the same ids
    recording = rerun.RecordingStream("stepwell", recording_id=f"{store.uuid}-{index}")
    recording.disable_timeline("log_time")
    recording.save(str(path))
    recording.send_recording_name(f"{store.name}, episode {index}")
    facts = {key: json.dumps(value, default=str, ensure_ascii=False) for key, value in episode.metadata.items()}
    if facts:
        recording.send_property("metadata", rerun.AnyValues(**facts))

    def times_of(first: int, count: int) -> list[Any]:
        steps = np.arange(first, first + count)
        return [rerun.TimeColumn("step", sequence=steps), rerun.TimeColumn("time", duration=steps / rate)]

    for name in [name for name in features if is_drawn(schema[name])]:
        values = np.asarray(episode.read_rows(name, 0, episode.length), np.float64).reshape(episode.length, -1)
        recording.log(name, rerun.SeriesLines(names=names_of_axes(name, schema[name])), static=True)
        columns = rerun.Scalars.columns(scalars=values)
        recording.send_columns(name, times_of(0, len(values)), columns)
    frames = Frames(store)
    for name in [name for name in features if is_camera(schema[name])]:
        for step in range(episode.length):
            recording.set_time("step", sequence=step)
            recording.set_time("time", duration=step / rate)
            try:
                body, media = frames.encoded(index, name, step, quality=FILE_QUALITY)
                recording.log(name, rerun.EncodedImage(contents=body, media_type=media))
            except DecodeError as error:
                recording.log(f"{name}/damaged", rerun.TextLog(str(error), level="ERROR"))
            progress()
    recording.flush()
    recording.disconnect()
