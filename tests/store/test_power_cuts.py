"""What each sync mode promises against a kill and against a loss of power: images of the disk at many moments.

`STEPWELL_POWER_CUTS=200` runs as many histories of each kind instead of a few.
"""

import copy
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.store import commit, ring, segment_writer
from tests.store.power import Disk

ROUNDS = int(os.environ.get("STEPWELL_POWER_CUTS", "2"))
OTHER_BOOT = bytes(range(16))
INODE_OFFSET = 176
SYNCS = ("none", "episode", "step")
KINDS = ("raw", "encoded", "delta", "video", "rated", "ring", "ring of delta", "ring in bytes")
FPS = 10.0
CAPACITY = 24
PICTURE = (32, 32, 3)


def features_of(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "t": stepwell.Array((), "int64"),
        "x": stepwell.Image((10, 20, 3)),
        "obs": stepwell.Array((), "int64", final=True),
    }
    if kind in ("encoded", "ring in bytes"):
        found |= {"text": stepwell.Text(), "packed": stepwell.Image((40, 80), codec="zstd")}
    if kind in ("delta", "ring of delta"):
        found["screen"] = stepwell.Image(PICTURE, codec="delta")
    if kind == "video":
        found["film"] = stepwell.Video(PICTURE)
    if kind == "rated":
        found["touch"] = stepwell.Array(2, "int64", rate=25)
    return found


def touches(serials: list[int], first: int, *, has_rest: bool = False) -> stepwell.Samples:
    """Return the samples of steps from number ``first`` of their episode on, with those after the last."""
    found = []
    for place, serial in enumerate(serials, first):
        found += [((place - part) / FPS, (serial, i)) for i, part in enumerate((0.6, 0.3, 0.0)) if place >= part]
    if has_rest:
        place = first + len(serials)
        found += [((place - part) / FPS, (serials[-1], i)) for i, part in ((7, 0.8), (8, 0.1))]
    return stepwell.Samples(np.array([value for _, value in found]), [time for time, _ in found])


def step_of(kind: str, serial: int) -> dict[str, Any]:
    """Return the values of a step, which all tell its number; images, of which statistics are made fast."""
    found: dict[str, Any] = {
        "t": np.int64(serial),
        "x": np.full((10, 20, 3), serial + 1, "uint8"),
        "obs": np.int64(serial + 7),
    }
    if kind in ("encoded", "ring in bytes"):
        found |= {
            "text": f"number {serial}",
            "packed": (np.arange(3200) * (serial + 1) % 251).astype("uint8").reshape(40, 80),
        }
    picture = np.full(PICTURE, 20 + serial * 11 % 200, "uint8")
    if kind in ("delta", "ring of delta"):
        found["screen"] = picture
    if kind == "video":
        found["film"] = picture
    return found


@dataclass
class Told:
    """An episode as it was given to the writer."""

    serials: list[int] = field(default_factory=list)
    acknowledged: int = 0
    is_ended: bool = False
    is_end_acknowledged: bool = False
    is_discarded: bool = False
    is_discard_acknowledged: bool = False
    is_bare: bool = False


class History:
    """A writer's calls, some at random, and what it said that is there."""

    def __init__(self, store: stepwell.Store, kind: str, sync: str, chance: random.Random) -> None:
        self.kind, self.sync, self.chance = kind, sync, chance
        self.writer = store.writer(sync=sync)
        self.told: list[Told] = []
        self.serial = 0

    def begin(self) -> Told:
        if not self.told or self.told[-1].is_ended or self.told[-1].is_discarded:
            self.told.append(Told())
        return self.told[-1]

    def take(self, episode: Told, count: int) -> list[int]:
        serials = list(range(self.serial, self.serial + count))
        self.serial += count
        episode.serials += serials
        return serials

    def columns(self, serials: list[int]) -> dict[str, Any]:
        steps = [step_of(self.kind, serial) for serial in serials]
        return {
            name: [s[name] for s in steps] if name == "text" else np.stack([s[name] for s in steps])
            for name in steps[0]
        }

    def call(self) -> None:
        """Make a call of the writer at random."""
        is_open = bool(self.told) and not (self.told[-1].is_ended or self.told[-1].is_discarded)
        names = ["append"] * 4 + ["batch"] + (["end"] * 2 + ["discard"] if is_open else ["episode", "one step"])
        if self.kind == "rated" and not is_open:
            names.remove("one step")
        getattr(self, self.chance.choice(names).replace(" ", "_"))()

    def touch(self, episode: Told, serials: list[int]) -> None:
        if self.kind == "rated":
            samples = touches(serials, len(episode.serials) - len(serials))
            self.writer.append_at("touch", samples.values, samples.times)

    def append(self) -> None:
        episode = self.begin()
        serials = self.take(episode, 1)
        self.touch(episode, serials)
        self.writer.append(step_of(self.kind, serials[0]))
        episode.acknowledged = len(episode.serials)

    def batch(self) -> None:
        episode = self.begin()
        serials = self.take(episode, self.chance.randint(2, 6))
        self.touch(episode, serials)
        self.writer.append_batch(self.columns(serials))
        episode.acknowledged = len(episode.serials)

    def end(self) -> None:
        episode = self.told[-1]
        episode.is_ended = True
        number, serial = len(self.told), episode.serials[-1]
        if self.kind == "rated" and serial % 4:
            samples = touches([serial], len(episode.serials) - 1, has_rest=True)
            self.writer.append_at("touch", samples.values[-2:], samples.times[-2:])
        self.writer.end_episode(
            terminated=serial % 2 == 0, truncated=serial % 2 == 1, final=self.final(serial), number=number
        )
        episode.is_end_acknowledged = True

    def final(self, serial: int) -> dict[str, Any] | None:
        return {"obs": serial + 8} if serial % 3 else None

    def episode(self) -> None:
        episode = self.begin()
        episode.is_ended = True
        serials = self.take(episode, self.chance.randint(1, 5))
        last = serials[-1]
        own = {"touch": touches(serials, 0, has_rest=last % 4 != 0)} if self.kind == "rated" else {}
        self.writer.add_episode(
            self.columns(serials) | own,
            terminated=last % 2 == 0,
            truncated=last % 2 == 1,
            final=self.final(last),
            number=len(self.told),
        )
        episode.acknowledged, episode.is_end_acknowledged = len(serials), True

    def one_step(self) -> None:
        count = self.chance.randint(1, 4)
        episodes = []
        for _ in range(count):
            episodes.append(self.begin())
            self.take(episodes[-1], 1)
            episodes[-1].is_ended = episodes[-1].is_bare = True
        serials = [episode.serials[0] for episode in episodes]
        self.writer.add_one_step_episodes(self.columns(serials))
        for episode in episodes:
            episode.acknowledged, episode.is_end_acknowledged = 1, True

    def discard(self) -> None:
        episode = self.told[-1]
        episode.is_discarded = True
        self.writer.discard_episode()
        episode.is_discard_acknowledged = True


def check(store: stepwell.Store, history: list[Told], kind: str, promise: str) -> None:
    """Assert that what a store shows was told, and that all that was promised is shown.

    Args:
        store: opened after the cut.
        history: what was told until then.
        kind: of the store.
        promise: "step": every step that was acknowledged; "episode": those of ended episodes; "none": nothing.
    """
    places = {serial: told for told in history for serial in told.serials}
    shown: dict[int, Any] = {}
    for episode in store:
        serials = episode["t"][: episode.length].tolist()
        told = places[serials[0]]
        at = told.serials.index(serials[0])
        assert serials == told.serials[at : at + len(serials)], "rows that were never stored"
        for place, serial in enumerate(serials):
            for name, value in step_of(kind, serial).items():
                if name == "film":
                    assert abs(float(np.mean(episode[name][place])) - float(value.mean())) < 12
                else:
                    assert np.array_equal(episode[name][place], value), (name, serial)
        if kind == "rated":
            check_touches(episode, serials, has_end=episode.terminated or episode.truncated)
        assert not set(serials) & shown.keys(), "a step is shown twice"
        shown |= dict.fromkeys(serials, episode)
        assert not told.is_discard_acknowledged or promise == "none", "a discarded episode came back"
        is_last = serials[-1] == told.serials[-1]
        if episode.terminated or episode.truncated:
            assert is_last
            assert told.is_ended
    assert list(shown) == sorted(shown)
    if promise == "none":
        return
    # discarded steps count, too
    counted = [serial for told in history for serial in told.serials]
    newest = set(
        counted[-CAPACITY:] if kind in ("ring", "ring of delta") else [] if kind == "ring in bytes" else counted
    )
    for number, told in enumerate(history):
        if told.is_discarded:
            continue
        if promise == "step" or told.is_end_acknowledged:
            lost = [serial for serial in told.serials[: told.acknowledged] if serial in newest and serial not in shown]
            assert not lost, f"acknowledged steps are lost: {lost}"
        last = told.serials[-1]
        if told.is_end_acknowledged and last in shown:
            episode = shown[last]
            assert (episode.terminated, episode.truncated) == told_flags(told), "the end is lost"
            assert not episode.interrupted
            assert episode.metadata.get("number", number + 1) == number + 1


def check_touches(episode: stepwell.Episode, serials: list[int], *, has_end: bool) -> None:
    """Assert that samples are those of the steps that are there, and those after the last where the end is."""
    found = episode["touch"]
    wanted, longer = touches(serials, 0), touches(serials, 0, has_rest=True)
    may_be = [longer if serials[-1] % 4 else wanted] if has_end else [wanted, longer, cut_short(longer)]
    assert any(np.array_equal(found.values, each.values) for each in may_be)
    assert any(np.array_equal(found.times, each.times) for each in may_be)


def cut_short(samples: stepwell.Samples) -> stepwell.Samples:
    return stepwell.Samples(samples.values[:-1], samples.times[:-1])


def told_flags(told: Told) -> tuple[bool, bool]:
    """Return (terminated, truncated) of an ended episode; those of one step that come many at once have neither."""
    return (False, False) if told.is_bare else (told.serials[-1] % 2 == 0, told.serials[-1] % 2 == 1)


@pytest.fixture
def small_files(monkeypatch):
    """Let segments be of a few rows, so that histories of a few calls fill some."""
    monkeypatch.setattr(segment_writer, "FIRST_BYTES", 4096)
    monkeypatch.setattr(ring, "LEAST_ROWS", 4)
    monkeypatch.setattr(ring, "LEAST_BYTES", 1 << 11)


def make(path: Path, kind: str, sync: str) -> stepwell.Store:
    capacity = None if "ring" not in kind else "24 kB" if "bytes" in kind else CAPACITY
    return stepwell.create(path, features_of(kind), fps=FPS, segment_bytes=9000, sync=sync, capacity=capacity)


def run_history(tmp_path, monkeypatch, kind, sync, seed, rate):
    """Run one history; return (image of a cut, image of a kill, what was told) of moments in it."""
    chance = random.Random(f"{kind} {sync} {seed}")
    root, moments, history = tmp_path / "disk", [], None
    root.mkdir()

    def take(kill=False):
        if chance.random() >= rate:
            return
        number = len(moments)
        told = [] if history is None else copy.deepcopy(history.told)
        disk.image(tmp_path / f"cut{number}", chance)
        if kill:
            # a copy takes a while: what threads do meanwhile would be half in it
            history.writer._seals.wait()
            if kind == "video" and history.writer._segment is not None:
                history.writer._segment._sequential._wait()
            disk.copy(tmp_path / f"kill{number}")
            as_in_place(tmp_path / f"kill{number}")
        moments.append((tmp_path / f"cut{number}", tmp_path / f"kill{number}" if kill else None, told))

    disk = Disk(root, take)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk.fsync)
        store = make(root / "a.well", kind, sync)
        history = History(store, kind, sync, chance)
        for _ in range(chance.randint(8, 26)):
            history.call()
            take(kill=True)
        if chance.random() < 0.5 and (history.told[-1].is_ended or history.told[-1].is_discarded):
            history.writer.close()
            take(kill=True)
        history.writer._seals.wait()
        disk.close()
    return moments, history


def as_in_place(path: Path) -> None:
    """Let commit records of a copy say that they are no copy, as those of a killed writer."""
    for record in path.rglob("progress"):
        with record.open("r+b") as file:
            file.seek(INODE_OFFSET)
            file.write(record.stat().st_ino.to_bytes(8, "little"))


@pytest.mark.filterwarnings("ignore::stepwell.errors.LeftOutWarning")
@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_promised_is_there_and_nothing_else_after_a_loss_of_power_or_a_kill(
    tmp_path, monkeypatch, small_files, kind, sync
):
    if kind == "video":
        pytest.importorskip("av")
    num_cuts = 0
    for seed in range(ROUNDS):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        moments, history = run_history(folder, monkeypatch, kind, sync, seed, 0.1 if ROUNDS < 10 else 0.3)
        for cut, kill, told in moments:
            path = cut / "a.well"
            if (path / "store.json").exists():
                num_cuts += 1
                with monkeypatch.context() as patch:
                    # in a copy only what was synced counts, in whichever boot
                    if num_cuts % 2:
                        patch.setattr(commit, "boot_id", lambda: OTHER_BOOT)
                    check(stepwell.open(path, mode="r"), told, kind, sync)
                    store = stepwell.open(path)
                    check(store, told, kind, sync)
                    assert store.verify(deep=True).is_ok, str(store.verify(deep=True))
                    assert all(segment.is_sealed for segment in store.segments)
            else:
                assert sync == "none" or not told
            if kill is not None:
                # rows of a slow codec are promised when they are encoded
                store = stepwell.open(kill / "a.well")
                check(store, told, kind, "step" if kind != "video" else "episode")
                assert store.verify(deep=True).is_ok
        history.writer.close()
    print(f"{kind}, {sync}: {num_cuts} power cuts")
