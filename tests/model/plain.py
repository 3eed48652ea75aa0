"""The model: a store as plain lists. Every rule that a reader may rely on stands here once, in words and in code.

A step is known by its *key*, a number that no other step has and that grows with time; all features of a step are
functions of its key. So an episode is a list of keys, and a store is a list of episodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stepwell import Field


@dataclass
class PlainEpisode:
    """One recorded episode: the keys of its rows, the final row's last where it has one."""

    keys: list[int] = field(default_factory=list)
    length: int = 0
    state: str = "open"  # then "ended" or "gone"; "left" is open, but nobody writes it any more
    flags: tuple[bool, bool, bool] = (False, False, False)  # terminated, truncated, interrupted
    metadata: dict[str, Any] = field(default_factory=dict)
    # steps at its beginning that are no more on the disk, or not shown
    front: int = 0

    @property
    def is_open(self) -> bool:
        return self.state in ("open", "left")

    @property
    def has_final(self) -> bool:
        return len(self.keys) > self.length

    def stop(self, is_final: bool) -> int:
        """Return the row behind the last one that a window may show: a final row only of features that have one."""
        return len(self.keys) if is_final else self.length


@dataclass
class PlainStore:
    """What was recorded into a store; ``episodes`` are in the store's order as far as it has been seen.

    Rules of what is shown:

    1. A step is shown as soon as it is appended. Discarded and deleted episodes are not, nor are those without a step.
    2. The order of two episodes never changes, whatever is deleted, compacted, linked or added.
    3. A ring shows the newest ``capacity`` steps by the time of appending, over all writers; episodes are cut at the
       front. What it pushed out before a deletion made room need not come back.
    """

    capacity: int | None = None
    is_in_bytes: bool = False
    episodes: list[PlainEpisode] = field(default_factory=list)
    num_ordered: int = 0
    num_taken_back: int = 0

    def live(self) -> list[PlainEpisode]:
        return [episode for episode in self.episodes if episode.state != "gone" and episode.length]

    def observe(self, seen: Sequence[tuple[Sequence[int], int]]) -> list[PlainEpisode]:
        """Compare what a store shows with the rules, and return it as the model has it.

        Args:
            seen: of each episode the keys of its steps, and how many lie before the first of them.
        """
        self._sort(seen)
        if self.capacity is not None:
            self._evict(sum(len(keys) for keys, _ in seen))
        shown = [replace(episode, keys=list(episode.keys)) for episode in self.live() if episode.front < episode.length]
        expected = [(episode.keys[episode.front : episode.length], episode.front) for episode in shown]
        found = [(list(keys), skipped) for keys, skipped in seen]
        assert found == expected, f"the store shows {found}, expected {expected}"
        return shown

    def _sort(self, seen: Sequence[tuple[Sequence[int], int]]) -> None:
        places: dict[int, list[int]] = {}
        for place, episode in enumerate(self.episodes):
            if episode.state != "gone":
                for key in episode.keys[: episode.length]:
                    places.setdefault(key, []).append(place)
        order = []
        for keys, _ in seen:
            found = places.get(int(keys[0]), [])
            assert found, f"the store shows step {keys[0]}, which was discarded, deleted, or never there"
            order.append(found[0])
            for key in keys:
                # the same step may be there twice, where a store and its checkpoint were concatenated
                places.get(int(key), []).remove(order[-1])
        known = [place for place in order if place < self.num_ordered]
        assert known == sorted(known), f"episodes {known} changed their order"
        rest = [place for place in range(len(self.episodes)) if place not in set(order)]
        self.episodes = [self.episodes[place] for place in order + rest]
        self.num_ordered = len(order)

    def _evict(self, num_shown: int) -> None:
        times = sorted(key for episode in self.live() for key in episode.keys[: episode.length])
        if not self.is_in_bytes:
            most = min(len(times), self.capacity or 0)
            assert most - self.num_taken_back <= num_shown <= most, f"{num_shown} steps are shown of {most}"
        oldest = times[-num_shown] if num_shown else len(times) and times[-1] + 1
        for episode in self.live():
            episode.front = sum(key < oldest for key in episode.keys[: episode.length])


def anchors_of(episodes: Sequence[PlainEpisode], fields: dict[str, Field], finals: dict[str, bool]) -> list[Any]:
    """Return the anchors of a view, numbered as they are: (number of the episode, step).

    A step is an anchor when each window with pad="drop" lies within its episode; and, while the episode is recorded,
    when no window reaches beyond what is there.
    """
    found = []
    for number, episode in enumerate(episodes):
        begin, end = episode.front, episode.length
        for each in fields.values():
            if each.at != "anchor":
                continue
            offsets = each.step_offsets(None)
            if each.pad == "drop":
                begin = max(begin, episode.front - min(offsets))
                end = min(end, episode.stop(is_final(each, finals)) - max(offsets))
            if episode.is_open:
                end = min(end, episode.length - max(offsets))
        found += [(number, step) for step in range(begin, end)]
    return found


def is_final(field: Field, finals: dict[str, bool]) -> bool:
    return all(finals.get(name, False) for name in field.sources)


def window_of(episode: PlainEpisode, step: int, field: Field, finals: dict[str, bool]) -> tuple[list[int], list[bool]]:
    """Return the rows of a window, each clamped to the episode's, and which of them are padding."""
    stop = episode.stop(is_final(field, finals))
    place = step if field.at == "anchor" else stop - 1
    rows = [place + offset for offset in field.step_offsets(None)]
    return (
        [min(max(row, episode.front), stop - 1) for row in rows],
        [not episode.front <= row < stop for row in rows],
    )
