"""replay_stacks: 32 transitions of stacks of 4 grey screens of 84 x 84, with the next stacks, beside cpprb, and bytes.

Both sides store a screen once: stepwell as it does anything (stacks are windows of 5, of which observation and next
observation are views), cpprb by ``next_of`` and ``stack_compress``, its way with the least memory. cpprb has the stack
in the last axis, as it must be there for that; ours is in the first, as torch's convolutions want it. 100,000 steps in
episodes of 1,000; a screen says which step it is of.

Bytes a transition are all that the files of a store take: screens, actions, rewards, episodes, statistics. Screens are
of Atari games that are played at random where ale-py is installed, else of a drawn one. "delta" and "zstd" are codecs
without loss, and 20,000 steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ONE_SEGMENT, removed
from report import Row, compare, skipped, within
from screens import GREY_SIDE, played_screens
from timing import Settings, Work, memcpy_gb_per_s, time_rounds

import stepwell
from stepwell.replay import ReplayLoader, Table, transition_fields

__all__ = ["run"]

NAME = "replay_stacks"
BATCH, STACK, EPISODE = 32, 4, 1000
RAW_BYTES = GREY_SIDE * GREY_SIDE
RIVAL, OURS = "cpprb next_of, stack_compress", "stepwell"
CASE = "32 of 4-stacks of 84x84, and the next"
# how many times the raw bytes of a screen a transition may take
LIMITS: Mapping[str, float | None] = {"raw": 1.05, "delta": 0.3, "zstd": None}


def run(settings: Settings) -> Iterator[Row]:
    """Yield the rows of rates, then those of bytes."""
    games = played_screens(settings.sized(20, 1) * EPISODE)
    yield from _rates(settings, next(iter(games.values())))
    memcpy = memcpy_gb_per_s(settings)
    for game, screens in games.items():
        for codec, limit in LIMITS.items():
            taken = _stored_bytes(settings.data / "screens.well", screens, codec)
            case = f"{game}, {codec}, bytes a transition"
            yield within(
                NAME, case, "a raw screen", [taken], float(RAW_BYTES), unit="bytes", memcpy_gb_per_s=memcpy,
                target=None if limit is None else 1 / limit,
            )  # fmt: skip


def _rates(settings: Settings, played: np.ndarray) -> Iterator[Row]:
    screens = _marked_screens(played, settings.sized(100, 2) * EPISODE)
    contenders = {}
    try:
        contenders[RIVAL] = _cpprb(screens)
    except ImportError:
        yield from skipped(NAME, RIVAL, *(f"{CASE}, {codec}" for codec in LIMITS))
        return
    stores = [_record(settings.data / f"{codec}.well", screens, codec) for codec in LIMITS]
    for codec, store in zip(LIMITS, stores, strict=True):
        contenders[f"{OURS} {codec}"] = _drawn(store, screens)
    rates = time_rounds(contenders, settings)
    for codec, store in zip(LIMITS, stores, strict=True):
        target = 1.3 if codec == "raw" else None
        ours, case = f"{OURS} {codec}", f"{CASE}, {codec}"
        yield compare(NAME, case, rates, ours=ours, theirs=RIVAL, unit="transitions/s", target=target)
        with removed(store):
            pass


def _marked_screens(played: np.ndarray, number: int) -> np.ndarray:
    """Return screens that were played, again and again, uint8 [number, 84, 84]; the first pixels are their number."""
    screens = np.resize(played, (number, GREY_SIDE, GREY_SIDE))
    screens.reshape(number, -1)[:, :4] = np.arange(number, dtype="<u4").view(np.uint8).reshape(number, 4)
    return screens


def _record(path: Path, screens: np.ndarray, codec: str) -> stepwell.Store:
    """Record episodes of screens; the screen after the last action is the first one of the next episode."""
    features = {
        "observation": stepwell.Array((GREY_SIDE, GREY_SIDE), "uint8", codec=codec, final=True),
        "action": stepwell.Array((), "int64"),
        "reward": stepwell.Array(),
    }
    store = stepwell.create(path, features, segment_bytes=ONE_SEGMENT)
    numbers = np.arange(EPISODE)
    with store.writer() as writer:
        for start in range(0, len(screens), EPISODE):
            columns = {"action": numbers, "reward": numbers.astype(np.float32)}
            final = {"observation": screens[(start + EPISODE) % len(screens)]}
            writer.add_episode(
                {"observation": screens[start : start + EPISODE], **columns}, final=final, terminated=True
            )  # fmt: skip
    store.refresh()
    return store


def _stored_bytes(path: Path, screens: np.ndarray, codec: str) -> float:
    """Return the bytes that the files of a store of these screens take, a transition."""
    with removed(_record(path, screens, codec)) as store:
        files = [file for file in store.path.rglob("*") if file.is_file()]
        return sum(file.stat().st_blocks * 512 for file in files) / len(screens)


def _drawn(store: stepwell.Store, screens: np.ndarray) -> Work:
    targets = transition_fields(stack=STACK)
    loader = ReplayLoader(
        Table(store, max_size=len(screens)), targets.fields, batch_size=BATCH, transform=targets.transform
    )  # fmt: skip
    batches = iter(loader)
    found = next(batches)
    _check(screens, found["observation"], found["next_observation"])

    def draw() -> float:
        next(batches)
        return BATCH

    return draw


def _check(screens: np.ndarray, observation: np.ndarray, following: np.ndarray) -> None:
    """Compare stacks [32, 4, 84, 84] with the screens of the last steps of the same episode, the first one repeated."""
    lasts = np.ascontiguousarray(observation[:, -1]).reshape(len(observation), -1)[:, :4]
    numbers = np.ascontiguousarray(lasts).view("<u4")[:, 0].astype(np.int64)
    steps = numbers[:, None] + np.arange(1 - STACK, 2)
    steps = np.maximum(steps, (numbers - numbers % EPISODE)[:, None]) % len(screens)
    np.testing.assert_array_equal(observation, screens[steps[:, :-1]])
    np.testing.assert_array_equal(following, screens[steps[:, 1:]])


def _cpprb(screens: np.ndarray) -> Work:
    from cpprb import ReplayBuffer

    shapes: dict[str, Any] = {
        "obs": {"shape": (GREY_SIDE, GREY_SIDE, STACK), "dtype": np.uint8}, "act": {"dtype": np.int64}, "rew": {},
        "done": {},
    }  # fmt: skip
    buffer = ReplayBuffer(len(screens), shapes, next_of="obs", stack_compress="obs")
    numbers = np.arange(EPISODE)
    for start in range(0, len(screens), EPISODE):
        steps = np.maximum(start + np.arange(EPISODE)[:, None] + np.arange(1 - STACK, 2), start) % len(screens)
        stacks = np.moveaxis(screens[steps], 1, -1)
        stacked = {"obs": stacks[..., :-1], "next_obs": stacks[..., 1:]}
        buffer.add(**stacked, act=numbers, rew=numbers, done=numbers == EPISODE - 1)
        buffer.on_episode_end()
    found = buffer.sample(BATCH)
    _check(screens, *(np.moveaxis(found[name], -1, 1) for name in ("obs", "next_obs")))

    def draw() -> float:
        buffer.sample(BATCH)
        return BATCH

    return draw
