"""What a vector writer recorded, in plain lists: episodes of environments, and what a ring shows of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepwell import Array, Store
from stepwell.store import VectorWriter

SCHEMA = {"observation": Array(2, final=True), "action": Array((), "int64")}


@dataclass
class Recorded:
    """An episode as the test recorded it: the number of each step, and how it ended."""

    env: int
    steps: list[int]
    final: int | None = None
    ending: str = "open"
    # number of the vector step of each step
    times: list[int] = field(default_factory=list)


class Model:
    """Keeps in lists what should be there, and records it by a vector writer, if there is one."""

    def __init__(self, writer: VectorWriter | None, num_envs: int) -> None:
        self.num_envs, self.writer = num_envs, writer
        # episodes in memory have no ids yet
        self.has_ids = True
        self.episodes: list[Recorded] = []
        self.open: dict[int, Recorded] = {}
        self.time = self.count = 0

    def step(self, mask: list[bool], terminated: list[bool], truncated: list[bool], *, has_final: bool) -> None:
        numbers = np.arange(self.count, self.count + self.num_envs)
        finals = numbers + self.num_envs
        options: dict[str, Any] = {} if all(mask) else {"mask": np.array(mask)}
        if any(terminated):
            options["terminated"] = np.array(terminated)
        if any(truncated):
            options["truncated"] = np.array(truncated)
        if has_final:
            options["final"] = {"observation": observation(finals)}
        if self.writer is not None:
            ids = self.writer.append(observation=observation(numbers), action=numbers, **options)
            assert (ids >= 0).tolist() == [takes_part and self.has_ids for takes_part in mask]
        self.count += 2 * self.num_envs
        for env in np.flatnonzero(mask).tolist():
            episode = self.open.get(env)
            if episode is None:
                episode = self.open[env] = Recorded(env, [])
                self.episodes.append(episode)
            episode.steps.append(int(numbers[env]))
            episode.times.append(self.time)
            if terminated[env] or truncated[env]:
                self.end(env, "terminated" if terminated[env] else "truncated", int(finals[env]) if has_final else None)
        self.time += 1

    def batch(self, ends: npt.NDArray[np.int64], *, has_final: bool) -> None:
        """Record several vector steps at once; ends [t, n]: 0 terminated, 1 truncated, else neither."""
        writer, self.writer, first = self.writer, None, self.count
        for row in ends:
            self.step([True] * self.num_envs, (row == 0).tolist(), (row == 1).tolist(), has_final=has_final)
        self.writer = writer
        if writer is not None:
            numbers = first + np.arange(2 * ends.size).reshape(len(ends), 2, self.num_envs)
            finals = {"observation": observation(numbers[:, 1], -1)}
            ids = writer.append_batch(
                {"observation": observation(numbers[:, 0], -1), "action": numbers[:, 0]},
                terminated=ends == 0,
                truncated=ends == 1,
                final=finals if has_final else None,
            )
            assert len(np.unique(ids)) == (ends.size if self.has_ids else 1)

    def end(self, env: int, ending: str, final: int | None) -> None:
        episode = self.open.pop(env, None)
        if episode is not None:
            episode.ending, episode.final = ending, final

    def discard(self, mask: list[bool]) -> None:
        if self.writer is not None:
            self.writer.discard_episodes(np.array(mask))
        for env in np.flatnonzero(mask).tolist():
            self.end(env, "discarded", None)

    def end_some(self, mask: list[bool]) -> None:
        finals = np.arange(self.count, self.count + self.num_envs)
        self.count += self.num_envs
        if self.writer is not None:
            self.writer.end_episodes(np.array(mask), truncated=True, final={"observation": observation(finals)})
        for env in np.flatnonzero(mask).tolist():
            self.end(env, "truncated", int(finals[env]))

    def shown(self, capacity: int = 1 << 60, *, ended_as: str = "open") -> list[Any]:
        """Return (steps, final, ending) of all that a ring shows, sorted; open ones with another ending."""
        sizes = np.zeros(self.time, np.int64)
        for episode in self.episodes:
            np.add.at(sizes, episode.times, 1)
        kept = np.cumsum(sizes[::-1])[::-1] <= capacity
        first = int(np.argmax(kept)) if kept.any() else self.time
        found = []
        for episode in self.episodes:
            steps = [step for step, time in zip(episode.steps, episode.times, strict=True) if time >= first]
            if steps and episode.ending != "discarded":
                found.append((steps, episode.final, ended_as if episode.ending == "open" else episode.ending))
        return sorted(found, key=lambda each: each[0])


def observation(numbers: Any, axis: int = 1) -> Any:
    return np.stack([numbers, -numbers], axis=axis).astype(np.float32)


def read(store: Store) -> list[Any]:
    """Return (steps, final, ending) of all episodes, pieces joined, sorted."""
    pieces: dict[int, list[Any]] = {}
    for episode in store:
        key = int(store.episodes.origin[episode.index])
        pieces.setdefault(key, []).append(episode)
    found = []
    for parts in pieces.values():
        parts.sort(key=lambda part: part.skipped)
        steps: list[int] = []
        for part, after in zip(parts, [*parts[1:], None], strict=True):
            steps += part["action"].tolist()
            values = part["observation"]
            assert values[: part.length, 0].tolist() == part["action"].tolist()
            assert (values[:, 0] == -values[:, 1]).all()
            if part.goes_on and part.has_final and after is not None:
                assert values[-1, 0] == after["observation"][0, 0]
        last = parts[-1]
        final = int(last["observation"][-1, 0]) if last.has_final and not last.goes_on else None
        names = ("terminated", "truncated", "interrupted", "is_open")
        ending = next((name for name in names if getattr(last, name)), "ended")
        found.append((steps, final, {"is_open": "open"}.get(ending, ending)))
    return sorted(found, key=lambda each: each[0])
