"""One process of bench_replay_service, of DeepMind's Reverb: a server, an actor or a learner.

Runs in an interpreter that has dm-reverb and TensorFlow, and answers lines of JSON as service_child.py does, with the
same steps, items, batches and updates: an item is a step, the observation after it, and a priority; or a stack.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import reverb

TABLE = "replay"
BATCH, STEPS, STACK, SIDE, EPISODE = 256, 64, 4, 84, 4
OBSERVATION, ACTION = 17, 6
CAPACITY = {"transitions": 500_000, "stacks": 20_000}
HELD: dict[str, Any] = {}


def _steps() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "observation": rng.standard_normal((STEPS, OBSERVATION), dtype=np.float32),
        "action": rng.standard_normal((STEPS, ACTION), dtype=np.float32),
        "reward": rng.standard_normal(STEPS, dtype=np.float32),
    }


def serve(kind: str, what: str, filled: int) -> dict[str, Any]:
    """Serve a table of so many items; returns where."""
    import tensorflow as tf

    kept, spec = {
        "transitions": (2, ((2, OBSERVATION), (1, ACTION), (1,))),
        "stacks": (STACK, ((STACK, SIDE, SIDE), (1,))),
    }[what]
    names = ("observation", "action", "reward")[: len(spec)]
    dtypes = (tf.float32,) * 3 if what == "transitions" else (tf.uint8, tf.int64)
    signature = {name: tf.TensorSpec(shape, dtype) for name, shape, dtype in zip(names, spec, dtypes, strict=True)}
    table = reverb.Table(
        TABLE, reverb.selectors.Prioritized(0.6), reverb.selectors.Fifo(), CAPACITY[what],
        reverb.rate_limiters.MinSize(1), signature=signature,
    )  # fmt: skip
    server = HELD["server"] = reverb.Server([table], port=None)
    address = f"localhost:{server.port}"
    rng, rows = np.random.default_rng(0), _steps()
    with reverb.Client(address).trajectory_writer(kept) as writer:
        for step in range(filled):
            if what == "transitions":
                writer.append({name: values[step % STEPS] for name, values in rows.items()})
                _transition(writer, step)
                continue
            writer.append({"observation": rng.integers(0, 255, (SIDE, SIDE), np.uint8), "action": np.int64(step)})
            if step >= STACK:
                history = writer.history
                columns = {"observation": history["observation"][-STACK:], "action": history["action"][-1:]}
                writer.create_item(TABLE, 1.0, columns)
            if step % 64 == 63:
                writer.flush()
    return {"address": address}


def _transition(writer: Any, step: int) -> None:
    if step == 0:
        return
    history = writer.history
    columns = {
        "observation": history["observation"][-2:],
        "action": history["action"][-2:-1],
        "reward": history["reward"][-2:-1],
    }
    writer.create_item(TABLE, 1.0, columns)


def act(kind: str, address: str, number: int) -> dict[str, Any]:
    """Become an actor."""
    client = HELD["client"] = reverb.Client(address)
    writer, rows, sent = client.trajectory_writer(2), _steps(), [0]
    steps = [{name: values[step] for name, values in rows.items()} for step in range(STEPS)]

    def work() -> int:
        for step, values in enumerate(steps):
            writer.append(values)
            _transition(writer, step + sent[0] % EPISODE)
        sent[0] += 1
        if sent[0] % EPISODE == 0:
            writer.end_episode()
        return STEPS

    HELD["work"], HELD["finish"] = work, writer.flush
    return {}


def learn(kind: str, address: str, what: str) -> dict[str, Any]:
    """Become a learner."""
    client = HELD["client"] = reverb.Client(address)
    samples = reverb.TrajectoryDataset.from_table_signature(address, TABLE, max_in_flight_samples_per_worker=2 * BATCH)
    batches = samples.batch(BATCH, drop_remainder=True).prefetch(2).as_numpy_iterator()

    def work() -> int:
        began = time.perf_counter()
        batch = next(batches)
        HELD["waits"].append(time.perf_counter() - began)
        client.mutate_priorities(TABLE, dict.fromkeys(batch.info.key.tolist(), 1.0))
        return BATCH

    work()
    HELD["work"] = work
    return {}


def run(seconds: float) -> dict[str, Any]:
    """Work for so long; returns units, the seconds they took, and those that draws of learners waited."""
    HELD["waits"], units, began = [], 0, time.perf_counter()
    processor = time.process_time()
    while time.perf_counter() - began < seconds:
        units += HELD["work"]()
    finish: Callable[[], Any] = HELD.get("finish", int)
    finish()
    spent, processor = time.perf_counter() - began, time.process_time() - processor
    return {"units": units, "seconds": spent, "processor": processor, "waits": HELD["waits"]}


def processor() -> dict[str, Any]:
    """Return the processor time of this process so far."""
    return {"seconds": time.process_time()}


def main() -> None:
    """Do what each line says."""
    HELD["waits"] = []
    answers = sys.stdout
    # what libraries print is no answer
    sys.stdout = sys.stderr
    does = {"serve": serve, "act": act, "learn": learn, "run": run, "processor": processor}
    for line in sys.stdin:
        arguments = json.loads(line)
        print(json.dumps(does[arguments.pop("do")](**arguments)), file=answers, flush=True)


if __name__ == "__main__":
    main()
