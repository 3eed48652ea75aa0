"""replay_service: served tables on the loopback: actors that insert, learners that draw by priority and update.

Four actors send 64 steps a message (observation 17, action 6, reward, float32), two learners draw 256 transitions with
their next observations, weights and keys, and give them new priorities; each is a process of its own. Beside it, in
turns, the same with a prototype over raw TCP (`service_child.py`): the same table and loader behind asyncio, bytes
without any of what makes a service. Actors always go over gRPC; learners do so, too, or map the files of the store.
Figures are wall time of all, and processor time of the server's process alone: on two cores clients take theirs from
it.

Of learners that map the files, one is compared with a `ReplayLoader` in the process of the table, by wall time, and by
processor time of learner and server together. It has 8 batches in flight, of which 4 small ones are drawn at a time.

Stacks are of 4 grey screens of 84 x 84, 7.2 MB a batch. Reverb's figure is the best that was measured with such items:
`TrajectoryDataset.batch(256)`, 4 workers, two cores of another machine.
"""

from __future__ import annotations

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
REVERB, REVERB_RATE = "Reverb 0.14, measured before", 31_300.0
KINDS: Mapping[str, dict[str, Any]] = {OURS: {"local": False}, MAPPED: {"local": True}, RAW: {}}
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

    def __init__(self, stack: ExitStack, pool: ThreadPoolExecutor) -> None:
        self._stack, self._pool = stack, pool
        self.server: Asked | None = None
        self.actors: list[Asked] = []
        self.learners: list[Asked] = []

    def hire(self, role: str) -> Asked:
        """Start a process."""
        return self._stack.enter_context(asked(sys.executable, "service_child.py", role, variables={}))

    def serve(self, kind: str, what: str, settings: Settings) -> str:
        """Start a server; returns its address."""
        self.server = self.hire(f"the server of {kind}")
        return str(self.server.ask("serve", kind=kind, what=what, filled=settings.sized(FILLED[what], 2000))["address"])

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
        for name, options in KINDS.items():
            kind = "raw" if name == RAW else "stepwell"
            crew = crews[name] = _Crew(stack, pool)
            address = crew.serve(kind, "transitions", settings)
            crew.actors = [crew.hire("an actor") for _ in range(NUM_ACTORS)]
            crew.learners = [crew.hire("a learner") for _ in range(NUM_LEARNERS)]
            for number, actor in enumerate(crew.actors):
                actor.ask("act", kind=kind, address=address, number=number)
            for learner in crew.learners:
                learner.ask("learn", kind=kind, address=address, what="transitions", **options)
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
        return _rates({name: [each[of] for each in rounds[case, name]] for name in KINDS}, memcpy)

    def by_server(case: str) -> Rates:
        found = {name: [each["units"] / max(each["server"], 1e-9) for each in rounds[case, name]] for name in KINDS}
        return _rates(found, memcpy)

    for name in (OURS, MAPPED):
        how = "" if name == OURS else ", mapped"
        for case, what in ((INSERT, "steps"), (DRAW, "rows"), (BOTH, "steps"), (BOTH, "rows")):
            if name == MAPPED and what == "steps":
                # actors do the same
                continue
            shown, target = f"{case}{how}{f', {what}' if case == BOTH else ''}", None if case == BOTH else 0.4
            yield compare(NAME, shown, rates(case, what), ours=name, theirs=RAW, unit=f"{what}/s", target=target)
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
        ours, near = _Crew(stack, pool), _Crew(stack, pool)
        address = ours.serve("stepwell", what, settings)
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
    memcpy = memcpy_gb_per_s(settings)
    for name, how in ((OURS, "over TCP"), (MAPPED, "mapped")):
        with ExitStack() as stack, ThreadPoolExecutor(NUM_LEARNERS) as pool:
            crew = _Crew(stack, pool)
            address = crew.serve("stepwell", "stacks", settings)
            crew.learners = [crew.hire("a learner") for _ in range(NUM_LEARNERS)]
            for learner in crew.learners:
                learner.ask("learn", kind="stepwell", address=address, what="stacks", **KINDS[name])
            rates = [crew.work(settings.block_seconds, 0, NUM_LEARNERS)["rows"] for _ in range(settings.rounds)]
        found = _rates({name: rates, REVERB: [REVERB_RATE] * len(rates)}, memcpy)
        case = f"stacks of 4 screens of 84x84 to 2 learners, {how}"
        yield compare(NAME, case, found, ours=name, theirs=REVERB, unit="stacks/s", target=10.0)


def _rates(found: Mapping[str, Sequence[float]], memcpy: float) -> Rates:
    number = len(next(iter(found.values())))
    return Rates({MEMCPY: np.full(number, memcpy), **{name: np.array(each) for name, each in found.items()}})
