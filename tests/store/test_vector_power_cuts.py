"""What each sync mode promises of a vector writer's steps after a loss of power: images of the disk at many moments.

`STEPWELL_POWER_CUTS=200` runs as many histories of each kind instead of a few.
"""

import itertools
import os
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import stepwell
from stepwell.replay import Table
from stepwell.store import commit, vector_writer
from tests.store.power import Disk
from tests.store.test_power_cuts import OTHER_BOOT, ROUNDS, SYNCS
from tests.store.vector_models import SCHEMA, Model, observation

CAPACITY = 40


class Moment(NamedTuple):
    """An image of the disk, and how many calls had returned, of them how many before the last flush."""

    path: Path
    returned: int
    flushed: int
    # and when the image was whole: a thread of the writer may make it
    begun: int


class History:
    """Random calls of a vector writer; knows in which call each step came, and each episode ended."""

    def __init__(self, store: stepwell.Store, num_envs: int, chance: random.Random) -> None:
        self.model, self.chance = Model(store.vector_writer(num_envs), num_envs), chance
        self.returned = self.flushed = 0
        self.call_of: dict[int, int] = {}
        self.end_of: dict[int, int] = {}

    def call(self) -> None:
        chance, model = self.chance, self.model
        mask = [chance.random() < 0.6 for _ in range(model.num_envs)]
        kind = chance.choice(["step"] * 3 + ["all"] * 4 + ["batch", "end", "discard", "flush"])
        if kind == "batch":
            ends = np.array([[chance.randrange(20) for _ in mask] for _ in range(chance.randint(1, 6))])
            model.batch(ends, has_final=chance.random() < 0.5)
        elif kind == "end":
            model.end_some(mask)
        elif kind == "discard":
            model.discard(mask)
        elif kind == "flush":
            assert model.writer is not None
            model.writer.flush()
            self.flushed = self.returned + 1
        else:
            ends = [[chance.random() < 0.1 for _ in mask] for _ in range(2)]
            model.step(mask if kind == "step" else [True] * len(mask), *ends, has_final=chance.random() < 0.7)
        for number, episode in enumerate(model.episodes):
            for step in episode.steps:
                self.call_of.setdefault(step, self.returned)
            if episode.ending != "open":
                self.end_of.setdefault(number, self.returned)
        self.returned += 1

    def check(self, store: stepwell.Store, moment: Moment, promise: str) -> None:
        """Assert that what is shown was recorded, and that all that was promised at a moment is shown."""
        places = {step: (n, at) for n, one in enumerate(self.model.episodes) for at, step in enumerate(one.steps)}
        known = moment.flushed if promise == "none" else moment.returned
        shown: dict[int, Any] = {}
        for piece in store:
            steps = piece["action"].tolist()
            number, at = places[steps[0]]
            episode = self.model.episodes[number]
            assert steps == episode.steps[at : at + len(steps)], "rows that were never stored"
            assert piece["observation"].tolist() == observation(np.array(self.rows_of(piece, episode, at))).tolist()
            assert piece.skipped == at
            assert not set(steps) & shown.keys(), "a step is shown twice"
            shown |= dict.fromkeys(steps, piece)
            if piece.terminated or piece.truncated:
                assert (steps[-1], piece.terminated) == (episode.steps[-1], episode.ending == "terminated")
            is_gone = episode.ending == "discarded" and self.end_of[number] < known
            assert not is_gone, "a discarded episode came back"
        times = [time for episode in self.model.episodes for time in episode.times]
        sizes = np.bincount([time for time, step in self.timed() if self.call_of[step] <= moment.begun] or [0])
        first = len(sizes) - int((np.cumsum(sizes[::-1]) <= CAPACITY).sum())
        assert len(times) == len(places)
        for number, episode in enumerate(self.model.episodes):
            is_ended = self.end_of.get(number, known) < known
            if episode.ending == "discarded" or (promise == "episode" and not is_ended):
                continue
            kept = [step for step, time in zip(episode.steps, episode.times, strict=True) if time >= first]
            lost = [step for step in kept if self.call_of[step] < known and step not in shown]
            assert not lost, f"steps that are on the disk are lost: {lost}"
            if is_ended and episode.steps[-1] in kept:
                last = shown[episode.steps[-1]]
                assert {"terminated": last.terminated, "truncated": last.truncated}[episode.ending], "the end is lost"
                assert last.has_final == (episode.final is not None)

    def timed(self) -> list[tuple[int, int]]:
        """Return vector step and number of each step."""
        return [each for one in self.model.episodes for each in zip(one.times, one.steps, strict=True)]

    @staticmethod
    def rows_of(piece: stepwell.Episode, episode: Any, at: int) -> list[int]:
        """Return what the rows of a piece say, a final one among them."""
        after = [*episode.steps, episode.final][at : at + piece.length + 1]
        return after[: len(piece["observation"])]


def run_history(folder: Path, monkeypatch: pytest.MonkeyPatch, sync: Any, seed: int) -> tuple[list[Moment], History]:
    """Run one history; returns moments of it at which the power may have gone."""
    chance, moments = random.Random(f"{sync} {seed}"), []
    history: History | None = None
    numbers = itertools.count()

    def take() -> None:
        if chance.random() < (0.1 if ROUNDS < 10 else 0.3):
            known = (0, 0) if history is None else (history.returned, history.flushed)
            # several threads come here
            path = folder / f"cut{next(numbers)}"
            disk.image(path, chance)
            moments.append(Moment(path, *known, 0 if history is None else history.returned))

    (folder / "disk").mkdir()
    disk = Disk(folder / "disk", take)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk.fsync)
        store = stepwell.create(folder / "disk" / "a.well", SCHEMA, capacity=CAPACITY, sync=sync)
        history = History(store, chance.randint(1, 4), chance)
        for _ in range(chance.randint(10, 60)):
            history.call()
            take()
        assert history.model.writer is not None
        history.model.writer.close()
        take()
        disk.close()
    return moments, history


@pytest.mark.filterwarnings("ignore::stepwell.errors.LeftOutWarning")
@pytest.mark.parametrize("sync", SYNCS)
def test_vector_steps_that_were_promised_are_there_after_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Any
) -> None:
    monkeypatch.setattr(vector_writer, "LEAST_ROWS", 8)
    num_cuts = 0
    for seed in range(ROUNDS):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        moments, history = run_history(folder, monkeypatch, sync, seed)
        for moment in moments:
            path = moment.path / "a.well"
            if not (path / "store.json").exists():
                assert sync == "none" or not moment.returned
                continue
            num_cuts += 1
            with monkeypatch.context() as patch:
                # in a copy only what was synced counts, in whichever boot
                if num_cuts % 2:
                    patch.setattr(commit, "boot_id", lambda: OTHER_BOOT)
                shown = stepwell.open(path, mode="r")
                history.check(shown, moment, sync)
                assert Table(shown).size <= shown.num_steps
                store = stepwell.open(path)
                history.check(store, moment, sync)
                assert store.verify(deep=True).is_ok, store.verify(deep=True)
                assert all(segment.is_sealed for segment in store.segments)
    print(f"{sync}: {num_cuts} power cuts")
