"""replay_service: served tables on the loopback: actors that insert, learners that draw by priority and update.

Four actors send 64 steps a message (observation 17, action 6, reward, float32), two learners draw 256 transitions with
their next observations, weights and keys, and give them new priorities; each is a process of its own. Beside it, in
turns, the same with a prototype over raw TCP (`service_child.py`): the same table and loader behind asyncio, bytes
without any of what makes a service. Actors always go over gRPC; learners do so, too, or map the files of the store.
Figures are wall time of all, and processor time of the server's process alone: on two cores clients take theirs from
it.

Of learners that map the files, one is compared with a `ReplayLoader` in the process of the table, by wall time, and by
processor time of learner and server together. It has 8 batches in flight, of which 4 small ones are drawn at a time.

Stacks are of 4 grey screens of 84 x 84, 7.2 MB a batch.

Reverb's own server, actors and learners (reverb_child.py) do the same in an interpreter that ``STEPWELL_REVERB_PYTHON``
names; without it their rows are skipped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
from asked import Asked, asked
from report import Row, compare, skipped, within
from timing import MEMCPY, Rates, Settings, memcpy_gb_per_s

__all__ = ["run"]

NAME = "replay_service"
NUM_ACTORS, NUM_LEARNERS = 4, 2
OURS, MAPPED = "stepwell over gRPC", "stepwell on one host"
RAW, NEAR = "raw TCP prototype", "ReplayLoader in the process of the table"
REVERB, PYTHON = "Reverb 0.14", "STEPWELL_REVERB_PYTHON"
# what learners are told, beside the address
KINDS: Mapping[str, dict[str, Any]] = {OURS: {"local": False}, MAPPED: {"local": True}, RAW: {}, REVERB: {}}
FILLED = {"transitions": 100_000, "stacks": 20_000}
P99_MS, IN_FLIGHT, SETTLE_SECONDS = 3.0, 8, 0.05
INSERT, DRAW = "4 actors insert 64 steps a message", "2 learners draw 256 by priority and update"
BOTH = "4 actors and 2 learners at once"
CASES: Mapping[str, tuple[int, int]] = {
    INSERT: (NUM_ACTORS, 0),
    DRAW: (0, NUM_LEARNERS),
    BOTH: (NUM_ACTORS, NUM_LEARNERS),
}


def run(settings: Settings) -> Iterator[Row]:
    """Yield the rows beside the prototype, those of one host, and those of stacks."""
    try:
        import grpc  # noqa: F401
    except ImportError:
        yield from skipped(NAME, RAW, *CASES)
        return
    yield from _beside_raw(settings)
    for what in FILLED:
        yield from _on_one_host(settings, what)
    yield from _stacks(settings)


class _Crew:
    """The processes of one contender."""

    def __init__(self, stack: ExitStack, pool: ThreadPoolExecutor, name: str) -> None:
        self._stack, self._pool, self._name = stack, pool, name
        self.kind = {RAW: "raw", REVERB: "reverb"}.get(name, "stepwell")
        self.server: Asked | None = None
        self.actors: list[Asked] = []
        self.learners: list[Asked] = []

    def hire(self, role: str) -> Asked:
        """Start a process."""
        if self._name == REVERB:
            variables = {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
            return self._stack.enter_context(
                asked(os.environ[PYTHON], "reverb_child.py", role, variables=variables, is_quiet=True)
            )
        return self._stack.enter_context(asked(sys.executable, "service_child.py", role, variables={}))

    def serve(self, what: str, settings: Settings) -> str:
        """Start a server; returns its address."""
        self.server = self.hire(f"the server of {self._name}")
        filled = settings.sized(FILLED[what], 2000)
        return str(self.server.ask("serve", kind=self.kind, what=what, filled=filled)["address"])

    def learn(self, number: int, address: str, what: str) -> None:
        """Hire learners."""
        self.learners = [self.hire("a learner") for _ in range(number)]
        for learner in self.learners:
            learner.ask("learn", kind=self.kind, address=address, what=what, **KINDS[self._name])

    def work(self, seconds: float, num_actors: int, num_learners: int) -> dict[str, Any]:
        """Let some work for a while."""
        actors, learners = self.actors[:num_actors], self.learners[:num_learners]
        before = 0.0 if self.server is None else self.server.ask("processor")["seconds"]
        answers = list(self._pool.map(lambda each: each.ask("run", seconds=seconds), [*actors, *learners]))
        after = 0.0 if self.server is None else self.server.ask("processor")["seconds"]
        inserted, drawn = answers[: len(actors)], answers[len(actors) :]
        return {
            "steps": _per_second(inserted),
            "rows": _per_second(drawn),
            "units": sum(each["units"] for each in answers),
            "server": after - before,
            "clients": sum(each["processor"] for each in answers),
            "waits": [wait for each in drawn for wait in each["waits"]],
        }


def _per_second(answers: Sequence[Mapping[str, Any]]) -> float:
    return sum(each["units"] for each in answers) / max([each["seconds"] for each in answers], default=1.0)


def _beside_raw(settings: Settings) -> Iterator[Row]:
    rounds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with ExitStack() as stack, ThreadPoolExecutor(NUM_ACTORS + NUM_LEARNERS) as pool:
        crews = {}
        for name in _contenders():
            crew = crews[name] = _Crew(stack, pool, name)
            address = crew.serve("transitions", settings)
            crew.actors = [crew.hire("an actor") for _ in range(NUM_ACTORS)]
            for number, actor in enumerate(crew.actors):
                actor.ask("act", kind=crew.kind, address=address, number=number)
            crew.learn(NUM_LEARNERS, address, "transitions")
            crew.work(settings.block_seconds, NUM_ACTORS, NUM_LEARNERS)
        for turn in range(settings.rounds):
            first = turn % len(crews)
            names = list(crews)[first:] + list(crews)[:first]
            for case, (actors, learners) in CASES.items():
                for name in names:
                    # what was inserted while nobody drew is taken in by the first draw
                    crews[name].work(SETTLE_SECONDS, 0, NUM_LEARNERS)
                    found = crews[name].work(settings.block_seconds, actors, learners)
                    rounds.setdefault((case, name), []).append(found)
    memcpy = memcpy_gb_per_s(settings)

    def rates(case: str, of: str) -> Rates:
        return _rates({name: [each[of] for each in rounds[case, name]] for name in crews}, memcpy)

    def by_server(case: str) -> Rates:
        found = {name: [each["units"] / max(each["server"], 1e-9) for each in rounds[case, name]] for name in crews}
        return _rates(found, memcpy)

    for name in (OURS, MAPPED):
        how = "" if name == OURS else ", mapped"
        for case, what in ((INSERT, "steps"), (DRAW, "rows"), (BOTH, "steps"), (BOTH, "rows")):
            if name == MAPPED and what == "steps":
                # actors do the same
                continue
            shown, target = f"{case}{how}{f', {what}' if case == BOTH else ''}", None if case == BOTH else 0.4
            yield compare(NAME, shown, rates(case, what), ours=name, theirs=RAW, unit=f"{what}/s", target=target)
            if REVERB in crews:
                yield compare(NAME, shown, rates(case, what), ours=name, theirs=REVERB, unit=f"{what}/s", target=8.0)
            else:
                yield from skipped(NAME, REVERB, shown)
            if case != BOTH:
                unit = f"{what} a second of the server's processor time"
                yield compare(NAME, f"{shown}, processor", by_server(case), ours=name, theirs=RAW, unit=unit)
        for case in (DRAW, BOTH):
            waits = {each: [_p99(found["waits"]) for found in rounds[case, each]] for each in (name, RAW)}
            limit, shown = (P99_MS, "3 ms") if case == DRAW else (waits[RAW], RAW)
            yield within(
                NAME, f"{case}{how}, p99 of a draw", shown, waits[name], limit, unit="ms", memcpy_gb_per_s=memcpy,
                target=1.0 if case == DRAW else None,
            )  # fmt: skip


def _p99(waits: Sequence[float]) -> float:
    return 1e3 * float(np.quantile(waits, 0.99))


def _on_one_host(settings: Settings, what: str) -> Iterator[Row]:
    rounds: dict[str, list[dict[str, Any]]] = {MAPPED: [], NEAR: []}
    with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        ours, near = _Crew(stack, pool, MAPPED), _Crew(stack, pool, NEAR)
        address = ours.serve(what, settings)
        ours.learners, near.learners = [ours.hire("a learner")], [near.hire("a learner")]
        ours.learners[0].ask("learn", kind="stepwell", address=address, what=what)
        near.learners[0].ask("learn", kind="near", address="", what=what, filled=settings.sized(FILLED[what], 2000))
        for turn in range(settings.rounds):
            for name, crew in sorted({MAPPED: ours, NEAR: near}.items(), reverse=bool(turn % 2)):
                rounds[name].append(crew.work(settings.block_seconds, 0, 1))
    memcpy, case = memcpy_gb_per_s(settings), f"the same host, mapped, 256 {what}"
    wall = _rates({name: [each["rows"] for each in found] for name, found in rounds.items()}, memcpy)
    spent = {
        name: [each["units"] / max(each["server"] + each["clients"], 1e-9) for each in found]
        for name, found in rounds.items()
    }
    yield compare(NAME, case, wall, ours=MAPPED, theirs=NEAR, unit="rows/s", target=0.8)
    unit = "rows a second of processor time, server and learner"
    yield compare(NAME, f"{case}, processor", _rates(spent, memcpy), ours=MAPPED, theirs=NEAR, unit=unit, target=0.8)


def _stacks(settings: Settings) -> Iterator[Row]:
    rounds: dict[str, list[float]] = {}
    with ExitStack() as stack, ThreadPoolExecutor(NUM_LEARNERS) as pool:
        crews = {name: _Crew(stack, pool, name) for name in _contenders() if name != RAW}
        for name, crew in crews.items():
            crew.learn(NUM_LEARNERS, crew.serve("stacks", settings), "stacks")
            rounds[name] = []
        for turn in range(settings.rounds):
            for name, crew in sorted(crews.items(), reverse=bool(turn % 2)):
                rounds[name].append(crew.work(settings.block_seconds, 0, NUM_LEARNERS)["rows"])
    found = _rates(rounds, memcpy_gb_per_s(settings))
    for name, how in ((OURS, "over TCP"), (MAPPED, "mapped")):
        case = f"stacks of 4 screens of 84x84 to 2 learners, {how}"
        if REVERB in crews:
            yield compare(NAME, case, found, ours=name, theirs=REVERB, unit="stacks/s", target=10.0)
        else:
            yield from skipped(NAME, REVERB, case)


def _contenders() -> list[str]:
    return [name for name in KINDS if name != REVERB or PYTHON in os.environ]


def _rates(found: Mapping[str, Sequence[float]], memcpy: float) -> Rates:
    number = len(next(iter(found.values())))
    return Rates({MEMCPY: np.full(number, memcpy), **{name: np.array(each) for name, each in found.items()}})
