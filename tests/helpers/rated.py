"""Episodes with features of their own rates, and what windows show of them, by plain numpy, a sample at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

import stepwell
from stepwell import Array, Field, Samples

GRACE = 2.0


@dataclass
class Recorded:
    """An episode as it was recorded."""

    length: int
    values: np.ndarray  # [N, 2]
    times: np.ndarray  # [N]
    has_final: bool


def schema_of(rate: float, *, final: bool = True, codec: str = "raw") -> dict[str, Any]:
    own = {"step": Array((), "int64", final=final), "action": Array((), "int64")}
    return {**own, "tactile": Array(2, "float32", rate=rate, codec=codec)}


@st.composite
def episodes(draw: Any, fps: float, rate: float, *, number: int, most: int = 12) -> Recorded:
    """Draw an episode: times of jitter, with gaps, none at all, some exactly at steps."""
    length, has_final = draw(st.integers(1, most)), draw(st.booleans())
    end = length / fps
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    times = np.arange(int(end * rate) + 1) / rate
    times = times + draw(st.sampled_from([0.0, 0.0, 0.1, 0.6])) * rng.uniform(-1, 1, len(times)) / rate
    times = np.where(rng.uniform(size=len(times)) < 0.2, np.round(times * fps) / fps, times)
    if draw(st.booleans()):
        gap = np.sort(rng.uniform(0, end, 2))
        times = times[(times < gap[0]) | (times > gap[1])]
    times = np.unique(times[(times >= 0) & (times <= end)])
    values = rng.normal(size=(len(times), 2)).astype(np.float32)
    values[:, 0] = number * 1000 + np.arange(len(times))
    return Recorded(length, values, times, has_final)


def record(writer: Any, episode: Recorded, fps: float, way: str = "append") -> None:
    """Record an episode: sample by sample and step by step, in pieces, or whole."""
    steps = np.arange(episode.length + episode.has_final)
    final = {"step": int(steps[-1])} if episode.has_final else None
    if way == "whole":
        columns = {"step": steps, "action": np.arange(episode.length)}
        writer.add_episode({**columns, "tactile": Samples(episode.values, episode.times)}, truncated=True)
        return
    given, step = 0, 0
    while step < episode.length:
        num_steps = 1 if way == "append" else min(3, episode.length - step)
        upto = int(np.searchsorted(episode.times, (step + num_steps - 1) / fps, side="right"))
        if way == "append":
            for i in range(given, upto):
                writer.append_at("tactile", episode.values[i], episode.times[i])
            writer.append(step=step, action=step)
        else:
            writer.append_at("tactile", episode.values[given:upto], episode.times[given:upto])
            rows = np.arange(step, step + num_steps)
            writer.append_batch({"step": rows, "action": rows})
        given, step = upto, step + num_steps
    writer.append_at("tactile", episode.values[given:], episode.times[given:])
    writer.end_episode(truncated=True, final=final)


def reach_of(field: Field, rate: float, fps: float) -> tuple[int, int]:
    """The steps that a window reaches, counted from the anchor's."""
    grace = GRACE / rate
    if field.span is not None:
        begin, end = field.span
    else:
        points = np.ravel(field.seconds) if field.seconds is not None else np.ravel(field.offsets or 0) / fps
        begin, end = float(points.min()), float(points.max())
    is_native = field.span is not None and field.rate is None and field.align is None
    ahead = grace if field.align in {"nearest", "linear"} or (is_native and end > 0) else 0.0
    first, last = math.floor((begin - grace) * fps + 1e-9), math.ceil((end + ahead) * fps - 1e-9)
    return min(first, 0), max(last, 0) if is_native else last


def shown(field: Field, episode: Recorded, rate: float, fps: float, anchor: int) -> tuple[np.ndarray, np.ndarray]:
    """What a window shows at an anchor: values [K, 2] and padding [K]."""
    first, last = reach_of(field, rate, fps)
    num_rows = episode.length + episode.has_final
    # a sample lies with the first step that is not before it, or with the last one
    rows = np.minimum(np.searchsorted(np.arange(num_rows) / fps, episode.times, side="left"), num_rows - 1)
    seen = [
        i
        for i, t in enumerate(episode.times)
        if anchor + first <= rows[i] <= anchor + last and t <= (anchor + last) / fps
    ]
    now, grace = anchor / fps, GRACE / rate
    if field.span is not None and field.rate is None and field.align is None:
        return _native(field, episode, rate, now, seen)
    if field.span is not None:
        wanted = field.rate or rate
        points = [j / wanted for j in range(round(field.span[0] * wanted) + 1, round(field.span[1] * wanted) + 1)]
    elif field.seconds is not None:
        points = np.ravel(field.seconds).tolist()
    else:
        points = (np.ravel(field.offsets or 0) / fps).tolist()
    cells, marks = [], []
    for point in points:
        value, is_pad = _at_point(field.align or "hold", episode, seen, now + point, grace)
        cells.append(np.zeros(2) if is_pad and field.pad == "zero" else value)
        marks.append(is_pad)
    return np.array(cells), np.array(marks)


def _native(field: Field, episode: Recorded, rate: float, now: float, seen: list[int]) -> tuple[Any, Any]:
    first, last = (round(seconds * rate) for seconds in field.span)
    newest = max((i for i in seen if episode.times[i] <= now), default=(seen[0] if seen else 0) - 1)
    wanted = [newest + j for j in range(first + 1, last + 1)]
    since, until = now + (field.span[0] - GRACE / rate), now + (field.span[1] + GRACE / rate)
    inside = [i for i in wanted if i in seen and since < episode.times[i] <= until]
    nearest_of = inside or seen
    cells = []
    for i in wanted:
        if i in inside:
            cells.append(episode.values[i])
        elif field.pad == "zero" or not nearest_of:
            cells.append(np.zeros(2, np.float32))
        else:
            cells.append(episode.values[min(max(i, nearest_of[0]), nearest_of[-1])])
    return np.array(cells), np.array([i not in inside for i in wanted])


def _at_point(method: str, episode: Recorded, seen: list[int], time: float, grace: float) -> tuple[Any, bool]:
    if not seen:
        return np.zeros(2), True
    before = [i for i in seen if episode.times[i] <= time]
    after = [i for i in seen if episode.times[i] > time]
    left = time - episode.times[before[-1]] if before else np.inf
    right = episode.times[after[0]] - time if after else np.inf
    nearest = after[0] if right < left else before[-1]
    if method == "hold":
        return episode.values[before[-1] if before else after[0]], not left <= grace
    if method == "linear" and left == 0:
        return episode.values[before[-1]], False
    if method == "linear" and left <= grace and right <= grace:
        share = left / (left + right)
        return episode.values[before[-1]] * (1 - share) + episode.values[after[0]] * share, False
    if method == "linear":
        return episode.values[nearest], True
    return episode.values[nearest], not min(left, right) <= grace


def make(
    path: str, recorded: list[Recorded], fps: float, rate: float, way: str = "append", codec: str = "raw"
) -> stepwell.Store:
    """Return a store of episodes."""
    store = stepwell.create(path, schema_of(rate, codec=codec), fps=fps)
    with store.writer() as writer:
        for episode in recorded:
            record(writer, episode, fps, way)
    return store
