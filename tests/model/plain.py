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
    # whether it came out of a ring, in pieces
    is_cut: bool = False

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
class Piece:
    """What a store shows as one of its episodes: a run of steps of an episode, all of them unless a ring cut it."""

    episode: PlainEpisode
    begin: int
    end: int

    @property
    def is_last(self) -> bool:
        return self.end == self.episode.length

    def stop(self, is_final: bool) -> int:
        """Return the row behind its last one: behind a cut the next step's values are its final row."""
        return self.episode.stop(is_final) if self.is_last else self.end + is_final


@dataclass
class PlainStore:
    """What was recorded into a store.

    Rules of what is shown:

    1. A step is shown as soon as it is appended. Discarded and deleted episodes are not, nor are those without a step.
    2. The order of two episodes never changes, whatever is deleted, compacted, linked or added.
    3. A ring shows the newest ``capacity`` steps by the time of appending, over all writers; episodes are cut at the
       front. Deleted and discarded steps count as they did before, so that what was pushed out never comes back: not
       in the ring, nor in what is made of it.
    4. A ring may cut a long episode: its pieces follow each other without a gap, and are one episode to windows.
    """

    capacity: int | None = None
    is_in_bytes: bool = False
    episodes: list[PlainEpisode] = field(default_factory=list)
    # the newest step that was ever pushed out
    floor: int = 0
    seen: list[Piece] = field(default_factory=list)

    def live(self) -> list[PlainEpisode]:
        return [episode for episode in self.episodes if episode.state != "gone" and episode.length]

    def observe(self, seen: Sequence[tuple[Sequence[int], int, bool]]) -> list[Piece]:
        """Compare what a store shows with the rules, and return it as the model has it.

        Args:
            seen: of each episode the keys of its steps, how many lie before the first of them, and whether it goes on.
        """
        known: dict[int, list[PlainEpisode]] = {}
        for episode in self.live():
            for key in episode.keys[: episode.length]:
                known.setdefault(key, []).append(episode)
        pieces = []
        for keys, begin, goes_on in seen:
            # a step is there twice where a store and its checkpoint were concatenated
            found = [known[key].pop(0) if known.get(key) else None for key in keys]
            assert found, "an episode without steps"
            episode = found[0]
            assert episode is not None, f"step {keys[0]} is shown, which was discarded, deleted, or never there"
            piece = Piece(episode, begin, begin + len(keys))
            assert list(keys) == episode.keys[piece.begin : piece.end], f"{keys}, expected a part of {episode}"
            assert goes_on == (not piece.is_last), f"{keys} of {episode}: goes_on is {goes_on}"
            pieces.append(piece)
        if self.capacity is not None:
            self._evict(pieces)
        for episode in self.live():
            own = [piece for piece in pieces if piece.episode is episode]
            places = [episode.front, *(piece.end for piece in own)]
            assert [piece.begin for piece in own] == places[:-1], f"{own} are shown, from {episode.front} on"
            assert places[-1] == episode.length, f"{own} are shown, not all of {episode}"
            assert len(own) <= 1 or self.capacity is not None or episode.is_cut
        assert _closed(pieces, self.seen) == _closed(self.seen, pieces), "episodes changed their order"
        self.seen = pieces
        copies = {id(episode): replace(episode, keys=list(episode.keys)) for episode in self.live()}
        return [replace(piece, episode=copies[id(piece.episode)]) for piece in pieces]

    def _evict(self, pieces: Sequence[Piece]) -> None:
        """Let the oldest steps go, whatever became of the newer ones."""
        times = sorted(key for episode in self.episodes for key in episode.keys[: episode.length])
        if not self.is_in_bytes:
            self.floor = max([self.floor, *times[: -(self.capacity or 0)][-1:]])
        else:
            # how many bytes a step has the model does not know: there is one step from which on all are shown
            shown = {key for p in pieces for key in p.episode.keys[p.begin : p.end]}
            steps = (key for episode in self.live() for key in episode.keys[: episode.length])
            self.floor = max([self.floor, *(key for key in steps if key not in shown)])
        for episode in self.live():
            episode.front = sum(key <= self.floor for key in episode.keys[: episode.length])


def _closed(pieces: Sequence[Piece], others: Sequence[Piece]) -> list[tuple[int, int]]:
    """Return the pieces that may not grow any more and are among others, in their order."""
    ends = [
        [(id(p.episode), p.end) for p in some if not (p.is_last and p.episode.is_open)] for some in (pieces, others)
    ]
    return [end for end in ends[0] if end in set(ends[1])]


def anchors_of(pieces: Sequence[Piece], fields: dict[str, Field], finals: dict[str, bool]) -> list[Any]:
    """Return the anchors of a view, numbered as they are: (number of the piece, step).

    A step is an anchor when each window with pad="drop" lies within its episode; and, while the episode is recorded,
    when no window reaches beyond what is there.
    """
    found = []
    for number, piece in enumerate(pieces):
        episode, begin, end = piece.episode, piece.begin, piece.end
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
