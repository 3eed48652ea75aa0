"""Behaviour cloning of PushT in plain JAX: a policy that answers the last two observations with sixteen actions.

::

    python examples/bc_jax.py                                  records 200 episodes, then trains
    python examples/bc_jax.py --store output/pusht.well        trains on what `stepwell demo` recorded

Batches come as arrays of JAX (`to="jax"`), laid over all devices that there are: the parameters are on each of them,
and each has its part of the rows. With one device nothing changes. `jax.jit` takes a batch as it is, and the work on it
is under way while the next is built.

To try several devices on one CPU, put these flags before the command. Without the second one XLA ends the process where
a device is 40 s behind the others in a sum, which happens on a busy machine; JAX 0.9 or newer knows it::

    XLA_FLAGS="--xla_force_host_platform_device_count=4 --xla_cpu_collective_call_terminate_timeout_seconds=3600"
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import stepwell

CHUNK = 16
CANVAS = 512.0
SCALE = CANVAS / 4
FIELDS = {
    "agent": stepwell.Field("observation.agent_pos", [-1, 0]),
    # what `info` said of step t - 1 is where the T is when action t is chosen
    "block": stepwell.Field("info.block_pose", [-2, -1]),
    "action": stepwell.Field("action", range(CHUNK)),
}
Params = list[dict[str, jax.Array]]


def init(key: jax.Array, sizes: Sequence[int]) -> Params:
    """Return the weights of a perceptron with layers of these sizes, by He's rule, and biases of 0."""
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(key, (m, n)) * jnp.sqrt(2 / m), "b": jnp.zeros(n)}
        for key, m, n in zip(keys, sizes, sizes[1:], strict=False)
    ]


def policy(params: Params, agent: jax.Array, block: jax.Array) -> jax.Array:
    """Return chunks of actions [B, 16, 2] in pixels.

    Args:
        params: of `init`, from 12 numbers to 32.
        agent: float [B, 2, 2], positions of the pusher in pixels, the newest last.
        block: float [B, 2, 3], x, y and angle of the T.
    """
    angle = block[..., 2:]
    positions = jnp.concatenate([agent, block[..., :2]], axis=-1) / (CANVAS / 2) - 1
    x = jnp.concatenate([positions, jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(len(agent), -1)
    for layer in params[:-1]:
        x = jax.nn.gelu(x @ layer["w"] + layer["b"])
    x = x @ params[-1]["w"] + params[-1]["b"]
    return agent[:, -1:] + SCALE * x.reshape(-1, CHUNK, 2)


def loss_of(params: Params, batch: stepwell.Batch) -> jax.Array:
    """Return the mean squared distance to the recorded actions in units of `SCALE` pixels, where there are actions."""
    apart = (policy(params, batch["agent"], batch["block"]) - batch["action"]) / SCALE
    # chunks reach beyond the end of their episode; what is there only repeats the last action
    return jnp.mean(jnp.square(apart).sum(-1), where=~batch["action_is_pad"])


@jax.jit
def update(state: tuple[Params, Params, Params, jax.Array], batch: stepwell.Batch, rate: float) -> Any:
    """Return the state after a step of Adam (D. P. Kingma and J. Ba, 2015), and the loss before it."""
    params, mean, square, count = state
    loss, slope = jax.value_and_grad(loss_of)(params, batch)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, slope)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, square, slope)
    count = count + 1
    rate = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8), params, mean, square)
    return (params, mean, square, count), loss


@jax.jit
def distances(params: Params, batch: stepwell.Batch) -> tuple[jax.Array, jax.Array]:
    """Return the sum of the distances from the recorded actions in pixels, and how many there are."""
    apart = jnp.linalg.norm(policy(params, batch["agent"], batch["block"]) - batch["action"], axis=-1)
    # the last batch is filled up with repeats, so that it can be laid over the devices
    rows = jnp.ones(len(apart), bool) if batch.valid is None else batch.valid
    is_real = ~batch["action_is_pad"] & rows[:, None]
    return jnp.sum(apart, where=is_real), is_real.sum()


def distance(params: Params, view: stepwell.View, sharding: NamedSharding, batch_size: int) -> float:
    """Return how far from the recorded actions those of the policy are, in pixels, over all steps of a view."""
    loader = stepwell.Loader(view, FIELDS, batch_size=batch_size, pad=True, to="jax", sharding=sharding)
    sums = [distances(params, batch) for batch in loader]
    total, count = (sum(map(float, each)) for each in zip(*sums, strict=True))
    return total / count


def record(folder: Path, num_episodes: int) -> Path:
    """Return a store of PushT, played by the script of ``stepwell demo``."""
    command = [sys.executable, "-m", "stepwell", "demo", "--episodes", str(num_episodes), "--out", str(folder)]
    subprocess.run(command, check=True)
    return folder / "pusht.well"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the settings of a run."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--store", type=Path, default=None, help="a store of PushT; default: one is recorded")
    parser.add_argument("--episodes", type=int, default=200, help="to record where there is no --store")
    parser.add_argument("--epochs", type=int, default=40, help="passes over the training episodes")
    parser.add_argument("--batch-size", type=int, default=256, help="windows an update, over all devices")
    parser.add_argument("--hidden", type=int, default=256, help="units of each of the two hidden layers")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of Adam, falling to 0 along a cosine")
    parser.add_argument("--seed", type=int, default=0, help="of everything random")
    parser.add_argument("--out", type=Path, default=Path("output/bc_jax"), help="folder for what the policy reached")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, then write what was reached."""
    settings = parse(arguments)
    settings.out.mkdir(parents=True, exist_ok=True)
    store = stepwell.open(settings.store or record(settings.out, settings.episodes), mode="r")
    print(store)
    training, held_out = stepwell.View(store).split(0.9, 0.1, seed=settings.seed)
    if not held_out.num_episodes:
        sys.exit(f"no episode of {store.num_episodes} was held out. Record some more, or take another --seed.")
    mesh = Mesh(np.array(jax.devices()), ("rows",))
    rows, whole = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
    size = settings.batch_size - settings.batch_size % len(mesh.devices)
    params = init(jax.random.key(settings.seed), (12, settings.hidden, settings.hidden, 2 * CHUNK))
    zeros = jax.tree.map(jnp.zeros_like, params)
    state = jax.device_put((params, zeros, zeros, jnp.zeros((), jnp.int32)), whole)
    untrained = distance(state[0], held_out, rows, size)
    loader = stepwell.Loader(
        training, FIELDS, batch_size=size, order="random", seed=settings.seed, drop_last=True, to="jax", sharding=rows
    )
    begun, losses = time.perf_counter(), []
    for epoch in range(settings.epochs):
        rate = settings.learning_rate * (1 + np.cos(np.pi * epoch / settings.epochs)) / 2
        found = []
        for batch in loader:
            state, loss = update(state, batch, rate)
            # a number of it would wait for the work that is under way
            found.append(loss)
        losses.append(float(jnp.mean(jnp.stack(found))))
        print(f"epoch {epoch + 1:4}  loss {losses[-1]:.4f}")
    summary = {
        "losses": losses,
        "seconds": time.perf_counter() - begun,
        "distance": distance(state[0], held_out, rows, size),
        "untrained_distance": untrained,
        "devices": len(mesh.devices),
        "settings": vars(settings),
    }
    print(
        f"{held_out.num_episodes} of {store.num_episodes} episodes held out: {summary['distance']:.1f} pixels from "
        f"their actions, untrained {untrained:.1f}; {summary['seconds']:.0f} s of training"
    )
    (settings.out / "summary.json").write_text(json.dumps(summary, indent=1, default=str))


if __name__ == "__main__":
    main()
